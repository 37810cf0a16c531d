"""Tests ask the public surface: they must survive whatever happens to the code beneath.

Pure functions, and the suites of ports, are tested where they are: `tests/core` and `tests/ports`. There, too, only the
modules in `entry_points` name what is private, so that a move of the source is a change of those few."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PUBLIC = {"analemma", "analemma.aio", "analemma.errors", "analemma.langgraph", "analemma.testing"}
ENTRY_POINTS = (TESTS / "core/entry_points", TESTS / "ports/entry_points")
INSIDE = {"catalog", "committer", "engine", "trees"}
"""Attributes of public objects that lead below the surface."""
OTHERS = {"_asdict", "_execute_child", "_exit", "_fields", "_make", "_replace", "_run_exitfuncs", "_shutdown"}
"""Names of the standard library."""


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules below the public surface that a file imports from."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from analemma.testing import failpoints` names a module, `from analemma import App` does not.
            names = [node.module]
        ours = (name for name in names if name.partition(".")[0] == "analemma")
        yield from (name for name in ours if name not in PUBLIC and not name.startswith("analemma.testing."))


def reached(tree: ast.Module) -> Iterator[str]:
    """Attributes of other objects that are nobody's business."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        hidden = node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in OTHERS
        if (hidden or node.attr in INSIDE) and not own:
            yield f".{node.attr}"


def found(look: Callable[[ast.Module], Iterator[str]], *, below: tuple[Path, ...] = ()) -> dict[str, list[str]]:
    """What each file of the tests says of what is private, but for those in these folders."""
    files = [file for file in TESTS.rglob("*.py") if not {*ENTRY_POINTS, *below} & {*file.parents}]
    names = {file: sorted(set(look(ast.parse(file.read_text())))) for file in files}
    return {str(file.relative_to(TESTS)): said for file, said in names.items() if said}


def test_only_entry_points_import_what_is_private() -> None:
    assert found(imported) == {}


def test_nobody_reaches_through_public_objects_for_what_is_private() -> None:
    assert found(reached, below=(TESTS / "core", TESTS / "ports")) == {}
