"""Tests of the public surface import nothing below it: they must survive whatever happens to the code beneath."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PUBLIC = {"analemma", "analemma.aio", "analemma.errors", "analemma.langgraph", "analemma.testing"}
SHARED = [TESTS / "stores.py", TESTS / "actors.py"]
FILES = sorted([*TESTS.glob("api/**/*.py"), *TESTS.glob("two_actors/**/*.py"), *SHARED])


def imported(file: Path) -> set[str]:
    """The modules of the package that a file imports from."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from analemma.testing import failpoints` names a module, `from analemma import App` does not.
            found.add(node.module)
    return {name for name in found if name.partition(".")[0] == "analemma"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_a_test_of_the_public_surface_imports_nothing_below_it(file: Path) -> None:
    below = {name for name in imported(file) - PUBLIC if not name.startswith("analemma.testing.")}
    assert not below
