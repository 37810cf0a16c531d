"""Every failpoint there is."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json
from analemma.testing import failpoints
print(json.dumps(failpoints.names()))
"""


def declared_failpoints() -> dict[str, str]:
    """All of them, and what each stands for."""
    # In a process of its own: only there it is certain which modules were imported.
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
