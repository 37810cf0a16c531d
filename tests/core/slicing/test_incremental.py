"""Compiling from a predecessor: only what a change touches is rebuilt, and what nothing accounts for is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analemma import CompileMode
from analemma.errors import Invalid
from tests.core.contracts.bookshop import changed, load_text
from tests.core.entry_points.slicing import SliceContent, compile_entity
from tests.core.slicing.shop import (
    BOOK,
    BOOK_KEY,
    BOOK_RULESET,
    SUMMARY,
    Lookup,
    having,
    nothing,
    predecessor,
    ruleset_of,
)

FIRST = compile_entity(BOOK_RULESET, BOOK_KEY, BOOK, having(SUMMARY))


def after(raw: dict[str, Any] | None, lookup: Lookup | None = None, *, mode: CompileMode = CompileMode.AUTO) -> Any:
    """Compile the next version of the book."""
    return compile_entity(
        BOOK_RULESET, BOOK_KEY, raw, lookup or having(SUMMARY), predecessor=predecessor(BOOK, FIRST), mode=mode
    )


def test_without_a_predecessor_everything_is_built() -> None:
    assert FIRST.mode is CompileMode.FULL and FIRST.changes.kind == "CREATE"
    assert [each.type for each in FIRST.written] == ["CORE", "PRICE", "INVENTORY", "ENRICHED"]
    assert FIRST.index_entries is not None and len(FIRST.dependencies) == 1
    asked = compile_entity(BOOK_RULESET, BOOK_KEY, BOOK, nothing, mode=CompileMode.INCREMENTAL)
    assert asked.mode is CompileMode.FULL


@pytest.mark.parametrize(
    ("change", "built", "written", "indexed"),
    [
        ({"price": 1300}, ["PRICE"], ["PRICE"], False),
        ({"title": "Other"}, ["CORE"], ["CORE"], False),
        ({"tags": ["sf"]}, ["CORE"], ["CORE"], True),
        ({"authorId": "other"}, ["ENRICHED"], ["ENRICHED"], True),
        ({"stock": {"sites": [{"count": 3, "note": "x"}, {}, {"count": 0}]}}, ["INVENTORY"], [], False),
        ({"audit": {"by": "you"}}, [], [], False),
        ({"price": 1200.0}, [], [], False),
        ({}, [], [], False),
    ],
    ids=["price", "title", "tags", "author", "unread-part", "ignored", "same-number", "nothing"],
)
def test_only_what_a_change_touches_is_rebuilt_and_only_what_differs_written(
    change: dict[str, Any], built: list[str], written: list[str], indexed: bool
) -> None:
    made = after({**BOOK, **change})
    assert made.mode is CompileMode.INCREMENTAL
    assert [each.type for each in made.built] == list(made.impacted) == built
    assert [each.type for each in made.written] == written
    assert (made.index_entries is not None) is indexed
    full = after({**BOOK, **change}, mode=CompileMode.FULL)
    assert made.slices == full.slices and made.dependencies == full.dependencies
    assert [each.type for each in full.written] == written


def test_one_slice_of_twenty() -> None:
    slices = [
        {"type": f"S{number}", "buildRules": {"type": "PassThrough", "fields": [f"f{number}"]}} for number in range(20)
    ]
    ruleset, raw = ruleset_of(slices), {f"f{number}": number for number in range(20)}
    key = replace(BOOK_KEY, type="THING")
    first = compile_entity(ruleset, key, raw, nothing)
    made = compile_entity(ruleset, key, {**raw, "f7": "new"}, nothing, predecessor=predecessor(raw, first))
    assert [each.type for each in made.built] == ["S7"] == [each.type for each in made.written]
    assert made.impacted == {"S7": ("/f7",)} and made.index_entries is None and len(made.slices) == 20


def test_a_changed_dependency_is_a_change() -> None:
    renamed = SliceContent({"name": "U. K. Le Guin", "country": "US"}, "sha256:2")
    made = after(BOOK, having(renamed))
    assert made.changes.kind == "NO_CHANGE"
    assert made.impacted == {"ENRICHED": ("AUTHOR#shop#le-guin.SUMMARY",)}
    assert [each.data for each in made.written] == [{"author": {"name": "U. K. Le Guin", "origin": {"country": "US"}}}]
    # Another hash, but nothing else that the projection takes.
    same = after(BOOK, having(SliceContent({**SUMMARY.data, "born": 1929}, "sha256:3")))
    assert [each.type for each in same.built] == ["ENRICHED"] and same.written == ()
    assert same.dependencies[0].hash == "sha256:3"


def test_a_dependency_that_comes_later_is_seen() -> None:
    first = compile_entity(BOOK_RULESET, BOOK_KEY, BOOK, nothing)
    assert first.slices["ENRICHED"].dependencies[0].hash is None
    made = compile_entity(BOOK_RULESET, BOOK_KEY, BOOK, having(SUMMARY), predecessor=predecessor(BOOK, first))
    assert [each.type for each in made.written] == ["ENRICHED"]


def test_changes_that_nothing_accounts_for_are_refused_all_of_them() -> None:
    with pytest.raises(Invalid) as caught:
        after({**BOOK, "price": 1, "blurb": {"de": "x", "en": "y"}, "brand": [1], "audit": 5})
    assert caught.value.paths == ["/audit", "/blurb/de", "/blurb/en", "/brand"]
    assert "ruleset.book.v1@1.0.0 neither reads nor ignores" in str(caught.value)
    whole = after({**BOOK, "blurb": 1}, mode=CompileMode.FULL)
    assert whole.written == ()


def test_what_the_impact_map_declares_is_accounted_for(tmp_path: Path) -> None:
    text = changed("PRICE: [/price]", "PRICE: [/price, /currency]")
    ruleset = load_text(text, tmp_path).ruleset("BOOK")
    made = compile_entity(
        ruleset, BOOK_KEY, {**BOOK, "currency": "EUR"}, having(SUMMARY), predecessor=predecessor(BOOK, FIRST)
    )
    assert made.mode is CompileMode.INCREMENTAL and made.impacted == {"PRICE": ("/currency",)} and made.written == ()


def test_deleting_and_creating_again() -> None:
    gone = after(None)
    assert gone.changes.kind == "DELETE" and gone.index_entries == () == gone.dependencies
    tombstones = [each.tombstone.reason for each in gone.written if each.tombstone is not None]
    assert tombstones == ["DELETED"] * 4
    still = compile_entity(BOOK_RULESET, BOOK_KEY, None, nothing, predecessor=predecessor(None, gone))
    assert still.changes.kind == "NO_CHANGE" and still.built == ()
    back = compile_entity(BOOK_RULESET, BOOK_KEY, BOOK, having(SUMMARY), predecessor=predecessor(None, gone))
    assert (back.mode, back.changes.kind) == (CompileMode.INCREMENTAL, "CREATE")
    assert back.slices == FIRST.slices and back.index_entries == FIRST.index_entries


def test_another_ruleset_builds_everything_and_buries_what_it_does_not_have(tmp_path: Path) -> None:
    text = changed("  - type: PRICE\n", "  - type: COST\n")
    text = changed("  PRICE: [/price]\n", "  COST: [/price]\n", text=text)
    text = text.replace("[CORE, PRICE", "[CORE, COST")
    ruleset = load_text(text, tmp_path).ruleset("BOOK")
    made = compile_entity(ruleset, BOOK_KEY, BOOK, having(SUMMARY), predecessor=predecessor(BOOK, FIRST))
    assert made.mode is CompileMode.FULL
    assert [(each.type, each.data is None) for each in made.written] == [("COST", False), ("PRICE", True)]
    buried = made.slices["PRICE"].tombstone
    assert buried is not None and buried.reason == "NOT_IN_RULESET"
    again = compile_entity(ruleset, BOOK_KEY, BOOK, having(SUMMARY), predecessor=predecessor(BOOK, made))
    assert again.mode is CompileMode.INCREMENTAL and again.written == () and again.slices["PRICE"].tombstone == buried


def test_one_compile_asks_once_for_each_slice() -> None:
    asked: list[str] = []

    def lookup(key: Any, slice_type: str) -> SliceContent | None:
        asked.append(f"{key}.{slice_type}")
        return SUMMARY

    made = after({**BOOK, "authorId": "le-guin", "title": "x"}, lookup)
    assert asked == ["AUTHOR#shop#le-guin.SUMMARY"] and list(made.impacted) == ["CORE"]
