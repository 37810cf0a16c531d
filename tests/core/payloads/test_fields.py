"""The field sets and rings that the reference page lists are those of the code."""

from __future__ import annotations

import re

from analemma.bag.fields import CONTROL_PLANE_FIELDS, DATA_PLANE_FIELDS, FieldPolicy
from analemma.bag.rings import ALWAYS_EXCLUDED, BASE_FIELDS, CAPABILITY_FIELDS, RESERVED_PREFIXES, RING_RESTRICTIONS
from analemma.state.reserved_fields import RESERVED_FIELDS
from tests.docs.pages import DOCS

PAGE = (DOCS / "reference" / "payloads.md").read_text(encoding="utf-8")


def table(heading: str) -> dict[str, frozenset[str]]:
    """The table whose first column is headed so: per row, what stands in backquotes in the second."""
    lines = PAGE.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    found: dict[str, frozenset[str]] = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, fields = line.strip("|").split("|")
        found[name.strip(" `")] = frozenset(re.findall(r"`([^`]+)`", fields))
    return found


def test_the_page_lists_the_field_sets() -> None:
    assert table("set") == {"control": CONTROL_PLANE_FIELDS, "data": DATA_PLANE_FIELDS}


def test_the_page_lists_the_rings() -> None:
    assert table("node type") == BASE_FIELDS
    assert table("capability") == CAPABILITY_FIELDS
    assert table("ring") == RING_RESTRICTIONS
    never = next(line for line in PAGE.splitlines() if line.startswith("Never visible"))
    assert set(re.findall(r"`([^`]+)`", never)) == {*ALWAYS_EXCLUDED, *RESERVED_PREFIXES}


def test_control_fields_are_those_that_no_merge_overwrites() -> None:
    assert CONTROL_PLANE_FIELDS == RESERVED_FIELDS


def test_a_policy_knows_its_fields() -> None:
    policy = FieldPolicy()
    assert policy.names == CONTROL_PLANE_FIELDS | DATA_PLANE_FIELDS
    assert policy.is_control("ownerId") and not policy.is_control("messages") and not policy.is_control("other")
