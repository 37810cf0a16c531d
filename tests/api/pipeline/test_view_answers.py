"""What a view answers without a slice: the whole truth table of its policies."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from analemma import load_contracts
from analemma.contracts.models import ViewDefinition
from analemma.pipeline.view_answers import MissingSlices, choose_slices

CORE, NOTES = {"title": "Solaris"}, {"text": "a note"}
DEFAULT: dict[str, Any] = {"title": "?"}


def view_of(**more: Any) -> ViewDefinition:
    """A view with the required slice CORE and the optional slice NOTES, as its contract says."""
    common = {"version": "1.0.0", "status": "ACTIVE", "entityType": "BOOK"}
    rule = {"type": "PassThrough", "fields": ["title"]}
    contracts = load_contracts(
        [
            {"kind": "ENTITY_SCHEMA", "id": "entity", "fields": [{"name": "title", "type": "string"}], **common},
            {
                "kind": "RULESET",
                "id": "ruleset",
                "slices": [{"type": "CORE", "buildRules": rule}, {"type": "NOTES", "buildRules": rule}],
                **common,
            },
            {
                "kind": "VIEW_DEFINITION",
                "id": "view",
                "requiredSlices": ["CORE"],
                "optionalSlices": ["NOTES"],
                **common,
                **more,
            },
        ]
    )
    return contracts.view("view")


def answered(view: ViewDefinition, found: dict[str, Any]) -> dict[str, Any] | None:
    """The data, or None where the view refuses."""
    try:
        return choose_slices(view, found, {}, "BOOK 1")[0]
    except MissingSlices:
        return None


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


@pytest.mark.parametrize("fallback", FALLBACKS)
@pytest.mark.parametrize(("missing_policy", "partial"), POLICIES, ids=str)
def test_every_policy_does_what_its_row_says(
    missing_policy: str, partial: tuple[bool, bool] | None, fallback: str
) -> None:
    policy = {} if partial is None else {"partialPolicy": {"allowed": partial[0], "optionalOnly": partial[1]}}
    view = view_of(missingPolicy=missing_policy, **policy, **FALLBACKS[fallback])
    without_required, without_optional = POLICIES[missing_policy, partial]
    defaulted = DEFAULTED[fallback].split()
    for has_core, has_notes in product((True, False), repeat=2):
        found = ({"CORE": CORE} if has_core else {}) | ({"NOTES": NOTES} if has_notes else {})
        allowed = (has_core or "CORE" in defaulted or without_required) and (
            has_notes or "NOTES" in defaulted or without_optional
        )
        expected = {**dict.fromkeys(defaulted, DEFAULT), **found}
        assert answered(view, found) == (expected if allowed else None), (has_core, has_notes)


def test_every_combination_of_policies_is_in_the_table() -> None:
    partials = [None, *product((True, False), repeat=2)]
    assert set(POLICIES) == set(product(("FAIL_CLOSED", "PARTIAL_ALLOWED"), partials))


def test_data_is_in_the_order_of_the_view() -> None:
    view = view_of(fallback={"mode": "DEFAULT_VALUE", "defaults": {"CORE": DEFAULT}})
    data, _ = choose_slices(view, {"NOTES": NOTES}, {}, "BOOK 1")
    assert list(data) == ["CORE", "NOTES"]


def test_what_is_missing_is_told_with_its_reason() -> None:
    view = view_of(fallback={"mode": "DEFAULT_VALUE", "defaults": {"NOTES": DEFAULT}})
    absent = {"NOTES": ("REQUIRED_JOIN_MISSING", "join author: /authorId is absent")}
    _, (missing,) = choose_slices(view, {"CORE": CORE}, absent, "BOOK 1")
    assert (missing.type, missing.required, missing.defaulted) == ("NOTES", False, True)
    assert (missing.reason, missing.detail) == ("REQUIRED_JOIN_MISSING", "join author: /authorId is absent")


def test_a_refusal_names_every_slice_that_it_is_for() -> None:
    view = view_of(partialPolicy={"allowed": False})
    with pytest.raises(MissingSlices, match=r"BOOK 1: it lacks CORE \(NOT_BUILT\), NOTES \(gone\)") as caught:
        choose_slices(view, {}, {"NOTES": ("DELETED", "gone")}, "BOOK 1")
    assert [each.type for each in caught.value.missing] == ["CORE", "NOTES"]
    assert caught.value.kind == "not_found"
