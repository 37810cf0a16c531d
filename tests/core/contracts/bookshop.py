"""The example contracts, and ways to break them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from analemma import ContractSet, load_contracts
from tests.core.entry_points.contracts import check_contracts

EXAMPLE = Path(__file__).parents[3] / "examples" / "bookshop" / "contracts.yaml"
TEXT = EXAMPLE.read_text(encoding="utf-8")


def bookshop() -> ContractSet:
    """The contracts as they are."""
    return load_contracts(EXAMPLE)


def changed(old: str, new: str, *, text: str = TEXT) -> str:
    """The example with one place changed, which must be there exactly once."""
    assert text.count(old) == 1, f"{text.count(old)} times: {old}"
    return text.replace(old, new)


def check_text(text: str, folder: Path, name: str = "contracts.yaml") -> Any:
    """Check contracts that a file has."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return check_contracts(file)


def load_text(text: str, folder: Path) -> ContractSet:
    """Load contracts that a file has."""
    file = folder / "contracts.yaml"
    file.write_text(text, encoding="utf-8")
    return load_contracts(file)


def line_of(text: str, part: str) -> int:
    """The line on which something stands, counted from 1; it must be there exactly once."""
    assert text.count(part) == 1, f"{text.count(part)} times: {part}"
    return text[: text.index(part)].count("\n") + 1
