"""Reads Markdown pages: their code, their tables, their links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w*)\s*$")
_NOT_RUN = re.compile(r"<!-- not run:(.*)-->")
_OUTPUT = re.compile(r"^\s*# ?>(.*)$")
_CHECKED = re.compile(r"<!-- checked: ([\w -]+) -->")


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """One fenced block of a page."""

    language: str
    line: int
    """Where its first line stands in the page, counted from 1."""
    text: str
    not_run: str | None
    """Why it is not run: the text of a comment `not run: ...` just before it."""
    checked: str | None
    """The name by which a test compares it with the code: that of a comment `checked: ...` just before it."""

    @property
    def expected_output(self) -> list[str]:
        """What the comments `# > ...` say it prints."""
        return [found[1].strip() for line in self.text.splitlines() if (found := _OUTPUT.match(line))]


def markdown_files() -> list[Path]:
    """Every page in the repository that people read."""
    top = [ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    return [*top, *sorted((ROOT / "changes").glob("**/*.md")), *sorted(DOCS.glob("**/*.md"))]


def shown(page: Path) -> str:
    """A page's name in test ids and messages."""
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> list[CodeBlock]:
    """The fenced blocks of a page, in order."""
    blocks: list[CodeBlock] = []
    before = ""
    language: str | None = None
    start = 0
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if language is None and fence is not None:
            language, start, lines = fence[1], number + 1, []
        elif language is not None and fence is not None and not fence[1]:
            skipped, checked = _NOT_RUN.search(before), _CHECKED.search(before)
            blocks.append(
                CodeBlock(
                    language,
                    start,
                    "\n".join(lines) + "\n",
                    None if skipped is None else skipped[1].strip(),
                    None if checked is None else checked[1],
                )
            )
            language, before = None, ""
        elif language is not None:
            lines.append(line)
        elif line.strip():
            before = line
    assert language is None, f"{shown(page)}: the block at line {start} is not closed"
    return blocks


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    kept: list[str] = []
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def table_rows(page: Path, *, first_heading: str) -> list[list[str]]:
    """The rows of every table whose first column has this heading; cells without their backticks."""
    rows: list[list[str]] = []
    taking = False
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            taking = False
            continue
        cells = [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
        if cells[0] == first_heading:
            taking = True
        elif taking and not set(cells[0]) <= set("-: "):
            rows.append(cells)
    return rows


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
