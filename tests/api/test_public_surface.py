"""Tests ask the public surface: they must survive whatever happens to the code beneath.

Pure functions, and the suites of ports, are tested where they are: `tests/core` and `tests/ports`. There, too, only the
modules in `entry_points` name what is private, so that a move of the source is a change of those few."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PUBLIC = {"analemma", "analemma.aio", "analemma.errors", "analemma.langgraph", "analemma.testing"}
ENTRY_POINTS = (TESTS / "core/entry_points", TESTS / "ports/entry_points")
INSIDE = {"catalog", "committer", "engine", "trees"}
"""Attributes of public objects that lead below the surface."""
OTHERS = {"_asdict", "_exit", "_fields", "_make", "_replace"}
"""Names that begin so, and are public: of named tuples, and `os._exit`."""


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules of the package that a file imports from."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from analemma.testing import failpoints` names a module, `from analemma import App` does not.
            names = [node.module]
        yield from (name for name in names if name.partition(".")[0] == "analemma")


def reached(tree: ast.Module) -> Iterator[str]:
    """Attributes of other objects that are nobody's business."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        hidden = node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in OTHERS
        if (hidden or node.attr in INSIDE) and not own:
            yield f".{node.attr}"


def below(file: Path) -> set[str]:
    """What a file names below the public surface."""
    tree = ast.parse(file.read_text())
    return {name for name in imported(tree) if name not in PUBLIC and not name.startswith("analemma.testing.")}


def test_only_entry_points_import_what_is_private() -> None:
    files = [*TESTS.glob("two_actors/*.py"), TESTS / "actors.py", TESTS / "stores.py"]
    found = {str(file.relative_to(TESTS)): sorted(names) for file in files if (names := below(file))}
    assert found == {}
