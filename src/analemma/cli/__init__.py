"""The `analemma` command: parses, calls the library, prints."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    from analemma.cli.running import run

    sys.exit(run(sys.argv[1:]))
