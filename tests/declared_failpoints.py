"""Every failpoint there is."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import importlib, json, pkgutil
import analemma
from analemma import failpoints
for module in pkgutil.walk_packages(analemma.__path__, "analemma."):
    importlib.import_module(module.name)
print(json.dumps(failpoints.NAMES))
"""


def declared_failpoints() -> dict[str, str]:
    """All of them, and what each stands for."""
    # In a process of its own: only there it is certain which modules were imported.
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found
