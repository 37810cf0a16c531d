"""The field sets and rings that the reference page lists are those that payloads go by."""

from __future__ import annotations

import re
from typing import Any

from analemma import App, FieldPolicy, RingPolicy
from tests.docs.pages import DOCS

PAGE = (DOCS / "reference" / "payloads.md").read_text(encoding="utf-8")
WORKFLOW: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


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
    policy = FieldPolicy()
    assert table("set") == {"control": policy.control_fields, "data": policy.data_fields}


def test_the_page_lists_the_rings() -> None:
    policy = RingPolicy()
    assert table("node type") == policy.base_fields
    assert table("capability") == policy.capability_fields
    assert table("ring") == policy.ring_restrictions
    never = next(line for line in PAGE.splitlines() if line.startswith("Never visible"))
    assert set(re.findall(r"`([^`]+)`", never)) == {*policy.always_excluded, *policy.reserved_prefixes}


def test_control_fields_are_those_that_no_merge_overwrites(app: App) -> None:
    policy = FieldPolicy()
    names = [*policy.control_fields, *policy.data_fields, "other"]
    first = app.kernel.save_state_delta(dict.fromkeys(names, "ours"), **WORKFLOW)
    app.kernel.fork(first.manifest_id, branch="idea", owner_id="ann")
    app.kernel.save_state_delta(dict.fromkeys(names, "theirs"), branch="idea", **WORKFLOW)
    app.kernel.merge(source="idea", strategy="last_write_wins", **WORKFLOW)
    state = app.kernel.load_latest_state(**WORKFLOW)
    assert {name for name in names if state[name] == "ours"} == policy.control_fields
