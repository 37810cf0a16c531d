"""What the pages show is run, and what they point to exists."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, ROOT, CodeBlock, code_blocks, markdown_files, prose, shown, slugs

PAGES_WITH_CODE = [page for page in markdown_files() if any(block.language == "python" for block in code_blocks(page))]

_LINK = re.compile(r"(?<!\!)\[[^\]]*\]\(([^)\s]+)\)")
_FILE = re.compile(r"`([\w./-]+\.(?:py|sql|md|toml|json))`")
_NAME = re.compile(
    r"`((?:analemma|app(?=\.[A-Z])|cli|state|catalog|blocks|canon|testing|failpoints|clock|settings|errors)(?:\.\w+)+)`"
)


def run(page: Path, block: CodeBlock, namespace: dict[str, Any]) -> None:
    """Run one block; its line numbers in a traceback are those of the page."""
    tree = ast.increment_lineno(ast.parse(block.text), block.line - 1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, shown(page), "exec", dont_inherit=True), namespace)  # noqa: S102
    # Also of a block that shows no output: then it prints none, and no slip in the comments goes unnoticed.
    assert printed.getvalue().splitlines() == block.expected_output, f"{shown(page)}, line {block.line}"


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=shown)
def test_examples_do_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # The reader is in a checkout, or has taken the examples with him.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for variable in [name for name in os.environ if name.startswith("ANALEMMA_")]:
        monkeypatch.delenv(variable)
    # As in a script of the reader's own: classes defined on the page are stored under that module.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in code_blocks(page):
        if block.language == "python" and block.not_run is None:
            run(page, block, namespace)


def test_an_example_that_is_not_run_says_why() -> None:
    for page in markdown_files():
        for block in code_blocks(page):
            assert block.not_run is None or len(block.not_run) > 10, f"{shown(page)}, line {block.line}"


def wrong_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.is_relative_to(ROOT):
            yield f"{shown(page)}: {target} leads out of the repository"
        elif not found.exists():
            yield f"{shown(page)}: {target} does not exist"
        elif anchor and anchor not in slugs(found):
            yield f"{shown(page)}: {target}: there is no such heading"


def test_links_lead_somewhere() -> None:
    assert [wrong for page in markdown_files() for wrong in wrong_links(page)] == []


def test_the_index_names_every_page() -> None:
    index = DOCS / "README.md"
    named = {(DOCS / target.partition("#")[0]).resolve() for target in _LINK.findall(prose(index))}
    assert set(DOCS.glob("**/*.md")) - {index} <= named


def missing_files(page: Path) -> Iterator[str]:
    places = [ROOT, ROOT / "src" / "analemma", ROOT / "tests", page.parent]
    for name in _FILE.findall(prose(page)):
        # The first is the reader's own, and capitals stand for any name.
        made_up = name == "analemma.toml" or name.startswith(("NAME.", "NNNN-"))
        if not made_up and not any((place / name).exists() for place in places):
            yield f"{shown(page)}: {name}"


def test_files_named_in_the_text_exist() -> None:
    assert [missing for page in markdown_files() for missing in missing_files(page)] == []


def test_code_named_in_the_text_exists() -> None:
    named = [
        (name if name.startswith("analemma.") else f"analemma.{name}", page)
        for page in markdown_files()
        for name in _NAME.findall(prose(page))
        if not name.endswith((".py", ".sql", ".toml", ".db", ".lock"))
    ]
    known = {name: exists(name) for name, _ in named}
    assert [f"{shown(page)}: {name}" for name, page in named if not known[name]] == []


def exists(name: str) -> bool:
    """Import as much of a dotted name as is a module, and look up the rest in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as exc:
            if exc.name is None or not name.startswith(exc.name):
                raise
            continue
        for part in parts[length:]:
            if not hasattr(found, part) and part not in getattr(found, "__dataclass_fields__", {}):
                return False
            found = getattr(found, part, None)
        return True
    return False
