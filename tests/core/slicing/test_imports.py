"""Programs that do not read contracts from files do not wait for what reads them."""

from __future__ import annotations

import subprocess
import sys


def test_importing_loads_no_more_than_it_needs() -> None:
    needed = {
        "import analemma": ["pydantic", "ruamel.yaml"],
        "from analemma import errors": ["pydantic", "ruamel.yaml"],
        "from analemma import load_contracts": ["ruamel.yaml"],
    }
    for statement, unneeded in needed.items():
        program = f"{statement}; import sys; print([each for each in {unneeded!r} if each in sys.modules])"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]", statement
