"""Programs that do not read contracts from files do not wait for what reads them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "unneeded"),
    [
        ("analemma", ["analemma.contracts", "analemma.slicing", "pydantic", "ruamel.yaml"]),
        ("analemma.slicing.simulate", ["pydantic", "ruamel.yaml"]),
        ("analemma.contracts.loading", ["ruamel.yaml"]),
    ],
)
def test_importing_loads_no_more_than_it_needs(module: str, unneeded: list[str]) -> None:
    program = f"import {module}, sys; print([each for each in {unneeded!r} if each in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
