"""Payloads are checked against the schema of their entity type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analemma import load_contracts
from analemma.errors import Invalid
from tests.core.contracts.bookshop import bookshop, changed, load_text
from tests.core.entry_points.contracts import check_contracts, check_payload

BOOK: dict[str, Any] = {"isbn": "978", "title": "T", "price": 1200}


FIELD_TYPES: list[tuple[str, list[Any], list[Any]]] = [
    ("string", ["", "x"], [1, True, [], {}]),
    ("int", [0, -(2**31), 2**31 - 1, 3.0], [2**31, -(2**31) - 1, 1.5, "1", True]),
    ("long", [2**63 - 1, -(2**63), 1.0], [2**63, 0.5, False, "1"]),
    ("double", [0, 1.5, -3], ["1.5", True, []]),
    ("boolean", [True, False], [0, 1, "true"]),
    (
        "datetime",
        ["2024-02-29T12:00:00Z", "2024-01-01t00:00:00.123456789+05:30", "2016-12-31T23:59:60Z"],
        [
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2023-02-29T00:00:00Z",
            "2024-01-01 00:00:00Z",
            5,
            "2024-01-01T00:00:00+99:00",
        ],
    ),
    ("object", [{}, {"a": 1}], [[], "x", 1]),
    ("array", [[], [1, "x"]], [{}, "x"]),
    ("list<int>", [[], [1, 2]], [["1"], [1, None], 1, {}]),
    ("list<list<string>>", [[["a"], []]], [["a"], [[1]]]),
]


def schema_of(field_type: str) -> dict[str, Any]:
    common = {"kind": "ENTITY_SCHEMA", "id": "entity.note", "version": "1.0.0", "status": "ACTIVE"}
    return {**common, "entityType": "NOTE", "fields": [{"name": "x", "type": field_type}]}


def test_field_types() -> None:
    mistaken = []
    for field_type, right, wrong in FIELD_TYPES:
        schema = load_contracts([schema_of(field_type)]).schema("NOTE")
        assert str(schema.fields[0].type) == field_type
        for value, fits in [*((each, True) for each in right), *((each, False) for each in wrong)]:
            try:
                check_payload(schema, {"x": value})
            except Invalid:
                taken = False
            else:
                taken = True
            if taken is not fits:
                mistaken.append((field_type, value))
    assert mistaken == []


def test_what_is_no_type_is_refused() -> None:
    wrong = ["str", "list", "list<>", "list<x>", "list<int", "List<int>", "list<" * 9 + "int" + ">" * 9]
    found = {text: [each.reason for each in check_contracts([schema_of(text)]).problems] for text in wrong}
    assert [text for text, told in found.items() if len(told) != 1 or "unknown field type" not in told[0]] == []
    assert check_contracts([schema_of("")]).problems


def test_a_payload_with_everything_is_taken_and_unknown_fields_are_told() -> None:
    schema = bookshop().schema("BOOK")
    assert check_payload(schema, BOOK) == ()
    assert check_payload(schema, {**BOOK, "authorId": None, "tags": ["sf"], "stock": {}}) == ()
    assert check_payload(schema, {**BOOK, "zeta": 1, "alpha": None}) == ("alpha", "zeta")


def test_everything_wrong_with_a_payload_is_told_with_pointers() -> None:
    with pytest.raises(Invalid) as caught:
        check_payload(bookshop().schema("BOOK"), {"isbn": 5, "title": None, "price": "12", "tags": ["a", 1, 2]})
    assert [each["pointer"] for each in caught.value.problems] == ["/isbn", "/title", "/price", "/tags/1", "/tags/2"]
    assert caught.value.pointer == "/isbn" and "/title: a required field is missing" in str(caught.value)
    with pytest.raises(Invalid, match="is an object, not a list"):
        check_payload(bookshop().schema("BOOK"), [])


def test_a_schema_may_reject_unknown_fields(tmp_path: Path) -> None:
    text = changed("entityType: BOOK\nfields:", "entityType: BOOK\nadditionalFields: reject\nfields:")
    with pytest.raises(Invalid, match=r"/a~1b: the schema has no such field"):
        check_payload(load_text(text, tmp_path).schema("BOOK"), {**BOOK, "a/b": 1})
