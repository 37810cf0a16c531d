"""A segment sees what its nodes are granted, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from analemma import App, RingPolicy
from analemma.errors import Invalid, Limit
from tests.api.bag.payload_stores import LARGE, receive, send

STANDARD = RingPolicy()
EVENT: dict[str, Any] = {
    "node": {"id": 1},
    "config": {"model": "m"},
    "branches": [],
    "branch_results": [],
    "event_config": {},
    "code": "print(1)",
    "request_config": {},
    "tools": [],
    "tool_schemas": [],
    "memory_context": {},
    "state_schema": {},
    "plan": {"steps": []},
    "notes": "x",
    "internal_state": 1,
    "credentials": 2,
    "workflow_metadata": 3,
    "workflow_config": 4,
    "partition_map": 5,
    "debug_info": 6,
    "internal_cache": 7,
    "_kernel_fence": 8,
    "__secret": 9,
    "_meta": 10,
    "ownerId": "ann",
}


def seen(app: App, *nodes: dict[str, Any], ring: str = "ring_3") -> set[str]:
    return set(app.payloads.filter_event_payload(EVENT, {"nodes": list(nodes)}, ring))


def test_a_node_sees_the_fields_of_its_type(app: App) -> None:
    assert {kind: seen(app, {"type": kind}) for kind in STANDARD.base_fields} == STANDARD.base_fields
    assert STANDARD.base_fields["aggregator"] == {"branch_results"}


def test_a_capability_adds_its_fields(app: App) -> None:
    assert STANDARD.capability_fields
    for capability, fields in STANDARD.capability_fields.items():
        assert seen(app, {"type": "aggregator", "capabilities": [capability]}) == {"branch_results", *fields}


def test_a_node_sees_what_it_reads_and_writes(app: App) -> None:
    assert seen(app, {"reads": ["plan", "none"], "writes": ["notes"]}) == {"plan", "notes"}
    assert seen(app, {"reads": ["/plan/steps/0"]}) == {"plan"}
    assert seen(app, {"reads": ["*", "/*", ""]}) == set()


def test_nodes_see_together_what_each_is_granted(app: App) -> None:
    assert seen(app, {"type": "aggregator"}, {"reads": ["plan"]}) == {"branch_results", "plan"}


def test_an_empty_segment_sees_nothing(app: App) -> None:
    segments: list[dict[str, Any]] = [{}, {"nodes": []}, {"nodes": None}, {"segment_config": {}}, {"reads": ["plan"]}]
    for segment in segments:
        for ring in ("ring_0", "ring_1", "ring_2", "ring_3"):
            filtered = app.payloads.filter_event_payload(EVENT, segment, ring)
            assert filtered == {} and filtered.report.bytes_after == 0 and filtered.report.reduction == 1


def test_unknown_types_and_capabilities_grant_nothing(app: App) -> None:
    assert seen(app, {"type": "rootkit", "capabilities": ["sudo"]}, {"type": None}, {"type": ["llm_chat"]}, {}) == set()


ASKS = ["internal_state", "credentials", "workflow_metadata"]


def test_rings_take_away_what_nodes_ask_for(app: App) -> None:
    for ring, granted in {"ring_0": ASKS, "ring_1": ASKS[1:], "ring_2": ASKS[2:], "ring_3": []}.items():
        assert seen(app, {"reads": ASKS, "writes": ASKS}, ring=ring) == set(granted), ring


def test_the_least_privileged_ring_is_the_default(app: App) -> None:
    segment = {"nodes": [{"reads": ASKS}]}
    assert app.payloads.filter_event_payload(EVENT, segment) == {}
    assert app.payloads.filter_event_payload(EVENT, segment).report.ring == "ring_3"


@pytest.mark.parametrize("ring", ["ring_0", "ring_3"])
def test_some_fields_no_node_sees_in_any_ring(ring: str, app: App) -> None:
    hidden = ["_kernel_fence", "__secret", "/workflow_config/nodes", "/_kernel_fence", "__payload__"]
    hidden += ["workflow_config", "partition_map", "debug_info", "internal_cache"]
    assert seen(app, {"type": "llm_chat", "reads": hidden, "writes": hidden}, ring=ring) == {"node", "config"}
    # A leading underscore alone opens nothing.
    assert "_meta" not in seen(app, {"type": "llm_chat"}, ring=ring)
    assert seen(app, {"reads": ["_meta"]}, ring=ring) == {"_meta"}


def test_an_unknown_ring_is_refused(app: App) -> None:
    rings: list[Any] = ["ring_4", "", "RING_3", None, 3, ["ring_0"]]
    for ring in rings:
        for segment in ({"nodes": [{"type": "llm_chat"}]}, {}):
            with pytest.raises(Invalid, match="ring"):
                assert app.payloads.filter_event_payload(EVENT, segment, ring) is None, ring


MALFORMED: list[Any] = [
    None,
    [],
    {"nodes": "llm_chat"},
    {"nodes": ["llm_chat"]},
    {"nodes": [{"reads": "plan"}]},
    {"nodes": [{"reads": [1]}]},
    {"nodes": [{"writes": {"plan": 1}}]},
    {"nodes": [{"capabilities": "tool_use"}]},
    {"nodes": [{"reads": ["/a~2"]}]},
]


def test_a_malformed_segment_is_refused(app: App) -> None:
    for segment in MALFORMED:
        with pytest.raises(Invalid):
            assert app.payloads.filter_event_payload(EVENT, segment) is None, segment


def test_a_wrapped_segment_is_looked_into(app: App) -> None:
    wrapped = {"segment_config": {"nodes": [{"type": "aggregator"}]}}
    assert set(app.payloads.filter_event_payload(EVENT, wrapped)) == {"branch_results"}


def test_the_report_says_what_went(app: App) -> None:
    filtered = app.payloads.filter_event_payload(EVENT, {"nodes": [{"reads": ["plan"]}]})
    report = filtered.report
    assert report.bytes_before == len(json.dumps(EVENT)) and report.bytes_after == len(json.dumps(filtered))
    assert set(report.fields_removed) == set(EVENT) - {"plan"}
    assert report.reduction == pytest.approx(1 - report.bytes_after / report.bytes_before)
    assert json.loads(json.dumps(filtered)) == {"plan": {"steps": []}}


def test_the_event_itself_is_left_as_it_was(app: App) -> None:
    before = json.dumps(EVENT)
    app.payloads.filter_event_payload(EVENT, {"nodes": [{"type": "llm_chat"}]})
    assert json.dumps(EVENT) == before


def test_pointers_that_are_visible_can_be_read_afterwards(app: App) -> None:
    payload = send(app, {"plan": LARGE, "credentials": LARGE[1:], "notes": "x"})
    filtered = app.payloads.filter_event_payload(payload, {"nodes": [{"reads": ["plan", "credentials"]}]})
    assert set(filtered) == {"__payload__", "plan"}
    assert receive(app, dict(filtered)) == {"plan": LARGE}


def test_fields_that_are_together_behind_one_pointer_are_no_way_around(app: App) -> None:
    state = {f"field {number:04}": number for number in range(5_000)} | {"credentials": "secret"}
    payload = send(app, state)
    inside = next(name for name in state if name not in payload)
    filtered = app.payloads.filter_event_payload(payload, {"nodes": [{"reads": [inside, "credentials", "none"]}]})
    assert "overflow" not in filtered["__payload__"]
    assert receive(app, dict(filtered)) == {inside: state[inside]}


def test_a_field_of_a_group_that_is_too_large_for_the_event_is_refused(app: App) -> None:
    payload = send(app, {"x" * 600: "y" * 300_000})
    with pytest.raises(Limit):
        app.payloads.filter_event_payload(payload, {"nodes": [{"reads": ["x" * 600]}]})


def test_names_of_deleted_fields_are_filtered_too(app: App) -> None:
    base = send(app, {"plan": 1, "credentials": 2, "n": 3})
    state = receive(app, base)
    del state["plan"], state["credentials"]
    filtered = app.payloads.filter_event_payload(send(app, state), {"nodes": [{"reads": ["plan", "credentials"]}]})
    assert filtered["__payload__"]["deleted"] == ["plan"]


def test_a_state_is_filtered_before_it_is_hydrated(app: App) -> None:
    with pytest.raises(Invalid, match="before"):
        app.payloads.filter_event_payload(receive(app, {"n": 1}), {"nodes": [{"reads": ["n"]}]})


def test_a_cycle_in_an_event_ends(app: App) -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(Limit):
        app.payloads.filter_event_payload({"plan": loop}, {"nodes": [{"reads": ["plan"]}]})


def test_a_policy_of_ones_own_decides(app: App) -> None:
    policy = RingPolicy(
        base_fields={"robot": frozenset({"arm"})}, ring_restrictions={"inner": frozenset(), "outer": frozenset({"arm"})}
    )
    segment = {"nodes": [{"type": "robot"}]}
    with pytest.raises(Invalid):
        app.payloads.filter_event_payload({"arm": 1}, segment, "ring_3", policy=policy)
    assert app.payloads.filter_event_payload({"arm": 1}, segment, "inner", policy=policy) == {"arm": 1}
    assert app.payloads.filter_event_payload({"arm": 1}, segment, "outer", policy=policy) == {}


@pytest.mark.parametrize("key", ["state_data", "state_bag"])
def test_naming_the_key_of_a_wrapped_state_grants_nothing_in_it(app: App, key: str) -> None:
    hidden = {"credentials": "secret", "workflow_config": 1, "_kernel_fence": 2, "other": 3}
    for inner in ({"plan": 1, **hidden}, send(app, {"plan": 1, **hidden, "debug_info": LARGE})):
        event = {key: inner, "notes": "x"}
        for granted in ([key], [f"/{key}/plan", "notes"]):
            filtered = app.payloads.filter_event_payload(event, {"nodes": [{"reads": granted}]}, "ring_0")
            assert set(filtered) - {key} == set(granted) & {"notes"}
            assert set(filtered.get(key, {})) <= {"__payload__"} and receive(app, filtered.get(key, {})) == {}
        filtered = app.payloads.filter_event_payload(event, {"nodes": [{"reads": ["plan", key, "credentials"]}]})
        assert set(filtered) == {key} and "credentials" in filtered.report.fields_removed
        assert receive(app, filtered) == {"plan": 1}


@pytest.mark.parametrize("key", ["state_data", "state_bag"])
def test_the_report_lists_the_key_of_a_wrapped_state_if_it_went(app: App, key: str) -> None:
    def removed(event: dict[str, Any], *reads: str) -> tuple[str, ...]:
        filtered = app.payloads.filter_event_payload(event, {"nodes": [{"reads": list(reads)}]})
        assert set(event) - set(filtered) == set(event) & set(filtered.report.fields_removed)
        return filtered.report.fields_removed

    state = {"plan": 1, "other": 2}
    assert removed({key: state}, "plan") == ("other",)
    assert removed({key: state}, "plan", "other") == ()
    assert removed({key: state}, key) == (key, "plan", "other")
    assert removed({key: state}) == (key, "plan", "other")
    assert removed({key: {}}, "plan") == (key,)
    assert removed({key: {}}, key) == (key,)
    assert removed({"notes": 0, key: state, "code": 0}, "plan", "code") == ("notes", "other")
    assert removed({"notes": 0, key: state, "code": 0}, key, "notes") == (key, "code", "plan", "other")


def test_a_field_that_has_the_name_of_a_wrapper_is_a_field(app: App) -> None:
    segment = {"nodes": [{"reads": ["state_data"]}]}
    payload = send(app, {"state_data": {"n": 1}, "credentials": 2})
    assert receive(app, app.payloads.filter_event_payload(payload, segment)) == {"state_data": {"n": 1}}
    assert app.payloads.filter_event_payload({"state_data": [1], "n": 1}, segment) == {"state_data": [1]}


def test_an_event_whose_keys_are_no_text_is_refused(app: App) -> None:
    with pytest.raises(Invalid):
        app.payloads.filter_event_payload({5: 1}, {"nodes": [{"reads": ["plan"]}]})  # type: ignore[dict-item]
