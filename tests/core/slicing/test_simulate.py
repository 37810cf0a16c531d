"""Simulating tells what other contracts would do to documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.core.contracts.bookshop import bookshop, changed, load_text
from tests.core.entry_points.slicing import simulate
from tests.core.slicing.shop import AUTHOR_KEY, BOOK, BOOK_KEY

DOCUMENTS = {BOOK_KEY: BOOK, AUTHOR_KEY: {"name": "Ursula", "country": "US"}}


def totals(found: Iterable[Any]) -> dict[str, int]:
    """How often each thing would become of a slice."""
    return Counter(part.effect.value for each in found for part in each.slices)


def test_the_same_contracts_change_nothing() -> None:
    found = simulate(bookshop(), bookshop(), DOCUMENTS)
    assert [each.changed for each in found] == [False, False]
    assert totals(found) == {"UNCHANGED": 6}


def test_a_change_upstream_shows_in_what_joins_it(tmp_path: Path) -> None:
    after = load_text(changed("fields: [name, country]", "fields: [name]"), tmp_path)
    author, book = simulate(bookshop(), after, DOCUMENTS)
    assert (author.key, book.key) == (AUTHOR_KEY, BOOK_KEY)
    effects = {each.type: (each.effect, each.pointers) for each in (*author.slices, *book.slices)}
    assert effects["SUMMARY"] == ("CHANGED", ("/country",))
    assert effects["ENRICHED"] == ("CHANGED", ("/author/origin/country",))
    assert effects["CORE"] == ("UNCHANGED", ())


def test_documents_that_would_be_refused_and_entries_that_would_change(tmp_path: Path) -> None:
    text = changed("{name: born, type: int}", "{name: born, type: int, required: true}")
    text = changed('  - {type: tag, selector: "$.tags[*]"}\n', "", text=text)
    author, book = simulate(bookshop(), load_text(text, tmp_path), DOCUMENTS)
    assert author.problem is not None and "/born: a required field is missing" in author.problem and author.changed
    assert (book.problem, book.index_entries_removed, book.index_entries_added) == (None, 2, 0)


def test_without_contracts_before_everything_is_new() -> None:
    found = simulate(None, bookshop(), DOCUMENTS)
    assert totals(found) == {"ADDED": 6}
