"""What a view answers without a slice: the whole truth table of its policies."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

import analemma
from analemma import App
from analemma.errors import NotFound

COMMON = {"version": "1.0.0", "status": "ACTIVE", "entityType": "BOOK"}
TITLE: dict[str, Any] = {"title": "Solaris"}
DEFAULT: dict[str, Any] = {"title": "?"}

# missingPolicy, partialPolicy (None: none given; otherwise allowed, optionalOnly) -> whether the view answers without
# the required slice, and without the optional one.
POLICIES = {
    ("FAIL_CLOSED", None): (False, True),
    ("FAIL_CLOSED", (False, True)): (False, False),
    ("FAIL_CLOSED", (False, False)): (False, False),
    ("FAIL_CLOSED", (True, True)): (False, True),
    ("FAIL_CLOSED", (True, False)): (False, True),
    ("PARTIAL_ALLOWED", None): (True, True),
    ("PARTIAL_ALLOWED", (False, True)): (False, False),
    ("PARTIAL_ALLOWED", (False, False)): (False, False),
    ("PARTIAL_ALLOWED", (True, True)): (False, True),
    ("PARTIAL_ALLOWED", (True, False)): (True, True),
}
FALLBACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "NONE": {"fallback": {"mode": "NONE"}},
    "required": {"fallback": {"mode": "DEFAULT_VALUE", "defaults": {"CORE": DEFAULT}}},
    "optional": {"fallback": {"mode": "DEFAULT_VALUE", "defaults": {"NOTES": DEFAULT}}},
    "both": {"fallback": {"mode": "DEFAULT_VALUE", "defaults": {"CORE": DEFAULT, "NOTES": DEFAULT}}},
}
DEFAULTED = {"none": "", "NONE": "", "required": "CORE", "optional": "NOTES", "both": "CORE NOTES"}


def sliced(kind: str, field: str) -> dict[str, Any]:
    """A slice that is there if the book names a shelf that is."""
    join = {
        "name": "shelf",
        "type": "LOOKUP",
        "sourceFieldPath": field,
        "targetEntityType": "SHELF",
        "targetSliceType": "ALL",
        "required": True,
        "projection": {"mode": "EXCLUDE_FIELDS", "fields": ["*"]},
    }
    rules = {"type": "PassThrough", "fields": ["title"]}
    return {"type": kind, "buildRules": rules, "joins": [join]}


SHELF = {**COMMON, "entityType": "SHELF"}
CONTRACTS: list[dict[str, Any]] = [
    {"kind": "ENTITY_SCHEMA", "id": "entity", "fields": [{"name": "title", "type": "string"}], **COMMON},
    {"kind": "ENTITY_SCHEMA", "id": "shelf", "fields": [{"name": "at", "type": "string"}], **SHELF},
    {
        "kind": "RULESET",
        "id": "shelves",
        "slices": [{"type": "ALL", "buildRules": {"type": "PassThrough", "fields": ["at"]}}],
        **SHELF,
    },
    {
        "kind": "RULESET",
        "id": "ruleset",
        "slices": [sliced("CORE", "core"), sliced("NOTES", "notes")],
        "indexes": [{"type": each, "selector": each, "references": "SHELF"} for each in ("core", "notes")],
        **COMMON,
    },
]


def view_of(id: str, **more: Any) -> dict[str, Any]:
    """A view with the required slice CORE and the optional slice NOTES, as its contract says."""
    return {
        "kind": "VIEW_DEFINITION",
        "id": id,
        "requiredSlices": ["CORE"],
        "optionalSlices": ["NOTES"],
        **COMMON,
        **more,
    }


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    """Books that have each of the two slices, or not."""
    with analemma.open("sqlite:///:memory:") as app:
        app.contracts.load(CONTRACTS)
        app.default.ingest("SHELF", "s", {"at": "left"})
        for core, notes in product("sx", repeat=2):
            app.default.ingest("BOOK", core + notes, {**TITLE, "core": core, "notes": notes})
        app.worker(1).drain()
        yield app


def answered(app: App, view: str, book: str) -> dict[str, Any] | None:
    """The data, without what was joined; None where the view refuses."""
    try:
        found = app.default.view(view).get(book).data
    except NotFound:
        return None
    return {name: {"title": each["title"]} for name, each in found.items()}


def test_every_policy_does_what_its_row_says(app: App) -> None:
    views: dict[str, Any] = {}
    for number, ((missing, partial), fallback) in enumerate(product(POLICIES, FALLBACKS)):
        policy = {} if partial is None else {"partialPolicy": {"allowed": partial[0], "optionalOnly": partial[1]}}
        views[f"view.{number}"] = (missing, partial, fallback, policy)
    app.contracts.load(
        [
            view_of(id, missingPolicy=missing, **policy, **FALLBACKS[fallback])
            for id, (missing, _, fallback, policy) in views.items()
        ]
    )
    wrong = []
    for id, (missing, partial, fallback, _) in views.items():
        without_required, without_optional = POLICIES[missing, partial]
        defaulted = DEFAULTED[fallback].split()
        for core, notes in product("sx", repeat=2):
            found = ({"CORE": TITLE} if core == "s" else {}) | ({"NOTES": TITLE} if notes == "s" else {})
            allowed = (core == "s" or "CORE" in defaulted or without_required) and (
                notes == "s" or "NOTES" in defaulted or without_optional
            )
            expected = {**dict.fromkeys(defaulted, DEFAULT), **found}
            got = answered(app, id, core + notes)
            if got != (expected if allowed else None):
                wrong.append((missing, partial, fallback, core + notes, got))
    assert wrong == []


def test_every_combination_of_policies_is_in_the_table() -> None:
    partials = [None, *product((True, False), repeat=2)]
    assert set(POLICIES) == set(product(("FAIL_CLOSED", "PARTIAL_ALLOWED"), partials))


def test_data_is_in_the_order_of_the_view(app: App) -> None:
    app.contracts.load(view_of("view.ordered", **FALLBACKS["required"]))
    assert list(app.default.view("view.ordered").get("xs").data) == ["CORE", "NOTES"]


def test_what_is_missing_is_told_with_its_reason(app: App) -> None:
    told = {"partialPolicy": {"allowed": True, "responseMeta": {"includeMissingSlices": True}}}
    app.contracts.load(view_of("view.told", **FALLBACKS["optional"], **told))
    (missing,) = app.default.view("view.told").get("sx").meta.missing_slices or ()
    assert (missing.type, missing.required, missing.defaulted) == ("NOTES", False, True)
    assert (missing.reason, missing.detail) == ("REQUIRED_JOIN_MISSING", "join shelf: SHELF#default#x has no ALL")


def test_a_refusal_names_every_slice_that_it_is_for(app: App) -> None:
    app.contracts.load(view_of("view.strict", partialPolicy={"allowed": False}))
    with pytest.raises(NotFound, match=r"BOOK xx: it lacks CORE \(.*\), NOTES \(.*\)") as caught:
        app.default.view("view.strict").get("xx")
    assert [each.type for each in caught.value.missing] == ["CORE", "NOTES"]
    assert caught.value.kind == "not_found"
