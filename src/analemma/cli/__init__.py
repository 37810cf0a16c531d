"""The `analemma` command: parses, calls the library, prints."""

from __future__ import annotations

import io
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    from analemma.cli.running import run

    # Whatever a terminal can show: an answer with another letter in it is better than none.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))
