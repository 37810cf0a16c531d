"""What a source makes of a state: which paths it reads, what the entity is called, and what leaves the state."""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from analemma import load_contracts
from analemma.errors import Invalid
from tests.core.entry_points.slicing import StateFacts, Tagged, build_document, needed_paths

SCHEMA = {
    "kind": "ENTITY_SCHEMA",
    "id": "entity.run",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "RUN",
    "fields": [
        {"name": "status", "type": "string"},
        {"name": "steps", "type": "list<object>"},
        {"name": "credentials", "type": "object"},
    ],
}
FACTS = StateFacts("shop", "ann", "runs/1", "main", 7, None, 1_700_000_000_000_001)


def source_of(**keys: Any) -> tuple[Any, Any]:
    document = {
        "kind": "STATE_SOURCE",
        "id": "source.run",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "RUN",
        "input": {"type": "STATE", "workflows": ["runs/*"]},
        **keys,
    }
    contracts = load_contracts([SCHEMA, document])
    (source,) = contracts.state_sources()
    return source, contracts.schema("RUN")


def find(state: Any, path: Any) -> Any:
    for name in path:
        state = state[name]
    return state


def made_of(state: dict[str, Any], facts: StateFacts = FACTS, **keys: Any) -> Any:
    source, schema = source_of(**keys)
    found = {}
    for path in needed_paths(source, schema):
        try:
            found[path] = find(state, path)
        except (KeyError, TypeError):
            continue
    return build_document(source, schema, found, facts)


def test_without_fields_those_of_the_schema_are_taken_and_no_others() -> None:
    state = {"status": "DONE", "messages": ["secret"], "credentials": {"token": "secret"}}
    made = made_of(state)
    assert (made.entity_id, made.payload) == ("runs/1", {"status": "DONE"})


def test_fields_keep_their_places_and_mappings_move() -> None:
    state = {"status": "DONE", "plan": {"goal": "g", "private": 1}, "steps": [{"n": 1, "t": "a"}, {"n": 2}]}
    made = made_of(
        state,
        fields=["/plan/goal", "steps"],
        mappings=[{"from": "status", "to": "state.name"}, {"from": "steps[*].n", "to": "numbers"}],
    )
    assert made.payload == {
        "plan": {"goal": "g"},
        "steps": [{"n": 1, "t": "a"}, {"n": 2}],
        "state": {"name": "DONE"},
        "numbers": [1, 2],
    }


def test_only_what_is_needed_is_read() -> None:
    source, schema = source_of(
        fields=["/plan/goal", "/plan", "steps[*].n", "/list/0/name"], entityId={"pattern": "{ownerId}-{/id/of/run}"}
    )
    assert needed_paths(source, schema) == (("id", "of", "run"), ("list",), ("plan",), ("steps",))


def test_a_position_in_a_list_is_one() -> None:
    made = made_of({"steps": [{"n": 1}, {"n": 2}]}, mappings=[{"from": "/steps/1/n", "to": "second"}])
    assert made.payload == {"second": 2}


def test_wildcards_at_the_top_leave_private_fields_inside() -> None:
    state = {"status": "DONE", "_kernel_fence": 1, "__x": 2, "credentials": 3, "internal_state": 4, "debug_info": 5}
    assert made_of(state, fields=["*"]).payload == {"status": "DONE"}
    assert made_of(state, mappings=[{"from": "$", "to": "all"}]).payload == {"all": {"status": "DONE"}}


def test_constants_may_say_where_the_state_stands() -> None:
    constants = {
        "kind": "agent",
        "n": 1,
        "name": "{ownerId}:{workflowId}@{branch}",
        "version": "{version}",
        "text": "v{version}",
        "execution": "{executionId}",
        "at": "{committedAt}",
        "list": [1, "{version}"],
    }
    made = made_of({"status": "DONE"}, fields=["status"], constants=constants)
    assert made.payload == {
        "status": "DONE",
        "kind": "agent",
        "n": 1,
        "name": "ann:runs/1@main",
        "version": 7,
        "text": "v7",
        "at": "2023-11-14T22:13:20.000001+00:00",
        "list": [1, "{version}"],
    }
    assert made.taken == {"status": "DONE"}
    with_execution = made_of(
        {"status": "DONE"}, replace(FACTS, execution="e"), fields=["status"], constants={"execution": "{executionId}"}
    )
    assert with_execution.payload["execution"] == "e"


def test_an_id_may_come_from_the_state() -> None:
    values: list[Any] = ["x", 12, uuid.UUID(int=1)]
    for value in values:
        state = {"run": {"id": value}}
        assert made_of(state, entityId={"path": "/run/id"}, fields=["status"]).entity_id == str(value)
        made = made_of(state, entityId={"pattern": "{ownerId}/{/run/id}"}, fields=["status"])
        assert made.entity_id == f"ann/{value}"


def test_what_is_no_text_and_no_number_is_no_id() -> None:
    values: list[Any] = [None, True, 1.5, ["x"], {"a": 1}]
    for value in values:
        with pytest.raises(Invalid, match="the entity's id, /run/id, is"):
            made_of({"run": {"id": value}}, entityId={"path": "/run/id"}, fields=["status"])
    with pytest.raises(Invalid, match="is not there"):
        made_of({}, entityId={"path": "/run/id"}, fields=["status"])


PLAIN: list[tuple[Any, Any]] = [
    (dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2024-01-02T03:04:05+00:00"),
    (dt.date(2024, 1, 2), "2024-01-02"),
    (dt.time(1, 2), "01:02:00"),
    (dt.timedelta(minutes=1, milliseconds=5), 60.005),
    (Decimal("1.50"), "1.50"),
    (b"\x00\x01", "AAE="),
    ((1, (2, "x")), [1, [2, "x"]]),
    ({3, 1, 2}, [1, 2, 3]),
    (frozenset({"b", "a"}), ["a", "b"]),
    (Tagged("app:Status", {"name": "RUNNING"}), "RUNNING"),
    (Tagged("app:Point", {"x": 1, "y": (2,)}), {"x": 1, "y": [2]}),
    (
        Tagged("app:Plan", {"fields": {"goal": "g"}, "set": ["goal"], "extra": {"more": 1}, "private": None}),
        {"goal": "g", "more": 1},
    ),
    (Tagged("app:Name", "x"), "x"),
]


def test_values_that_json_does_not_have_become_what_it_has() -> None:
    for value, expected in PLAIN:
        assert made_of({"status": {"at": [value]}}, fields=["status"]).payload == {"status": {"at": [expected]}}


def test_what_cannot_be_json_says_where() -> None:
    with pytest.raises(Invalid, match="/a/0 is of type object"):
        made_of({"a": [object()]}, fields=["a"])
