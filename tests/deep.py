"""`python -m tests.deep`: every test at its full count, on both databases, on clusters.

A case that fails is run once more, alone: if it passes then, it is reported as flaky, and the run passes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.depth import VARIABLE

PYTEST = [sys.executable, "-m", "pytest", "-m", "not soak"]


def main(arguments: list[str]) -> int:
    environment = {**os.environ, VARIABLE: "deep"}
    with tempfile.TemporaryDirectory() as folder:
        failures = Path(folder) / "failures"
        command = [*PYTEST, f"--failures-to={failures}", *arguments]
        status = subprocess.run(command, env=environment).returncode
        if status != 1:
            return status
        failed = failures.read_text().splitlines()
    print(f"\n{len(failed)} failed; each is run once more, alone", flush=True)
    outcomes = {each: subprocess.run([*PYTEST, "-n", "0", each], env=environment).returncode for each in failed}
    print()
    for each, again in outcomes.items():
        print(f"{'flaky' if again == 0 else 'FAILED'}  {each}")
    return max(outcomes.values(), default=status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
