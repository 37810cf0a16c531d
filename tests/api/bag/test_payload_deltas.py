"""What changed in a hydrated state, as a delta for the kernel: the same that a delta payload would carry."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import analemma
from analemma import App, FieldPolicy, HydratedState, SmartStateBag
from analemma.errors import Conflict, Invalid
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send
from tests.stores import Store

STATE: dict[str, Any] = {
    "plan": LARGE,
    "notes": ["a", {"b": 1}],
    "n": 1,
    "gone": 2,
    "/slash": {"x": (1, 2)},
    "group": {f"key {number}": number for number in range(2_000)},
}
WORKFLOW: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def test_a_delta_of_a_hydrated_state_saves_what_changed(store: Store) -> None:
    with store.open() as app:
        app.kernel.save(SmartStateBag(copy.deepcopy(STATE)), **WORKFLOW)
        state = receive(app, send(app, STATE))
        state["notes"][1]["b"] = 2
        state["plan"].append("more")
        state["/slash"] = {"x": (1, 3)}
        state["new"] = {"deep": [1]}
        state["group"]  # Read, and not changed.
        del state["gone"]
        delta = state.get_delta()
        assert set(delta.changed_fields) == {"notes", "plan", "/slash", "new"} and delta.deleted_fields == ("gone",)
        app.kernel.save_state_delta(delta, **WORKFLOW)
        assert app.kernel.load_latest_state(**WORKFLOW) == dict(state)
        # What it holds are copies.
        state["new"]["deep"].append(2)
        assert next(operation.value for operation in delta.operations if operation.path == ("new",)) == {"deep": [1]}


def test_a_delta_agrees_with_the_payload_of_the_same_changes(app: App) -> None:
    fields = {f"field {number}": number for number in range(3_000)} | STATE
    state = receive(app, send(app, fields))
    assert state.get_delta().operations == () and state.not_loaded()
    state["field 7"] = 7.0
    state["field 8"] = 8
    state["group"]["key 1"] = "other"
    for name in ("field 9", "plan"):
        del state[name]
    delta, payload = state.get_delta(), send(app, state)
    assert set(delta.changed_fields) == set(payload) - {"__payload__"} == {"field 7", "group"}
    assert set(delta.deleted_fields) == set(payload["__payload__"]["deleted"]) == {"field 9", "plan"}
    # Asking is not answering: it is still relative to what was hydrated.
    assert set(state.get_delta().changed_fields) == {"field 7", "group"}


def test_a_delta_over_a_base_is_relative_to_both_together(app: App) -> None:
    base = send(app, STATE)
    state = receive(app, base)
    state["n"] = 2
    merged = receive(app, send(app, state), base=base)
    assert merged.get_delta().operations == ()
    merged["n"] = 1
    assert [tuple(operation) for operation in merged.get_delta().operations] == [("put", ("n",), 1)]


def test_a_delta_is_refused_over_any_other_state_than_its_own(store: Store) -> None:
    with store.open() as app:
        base, equal = send(app, STATE), send(app, STATE)
        first, second = receive(app, base), receive(app, base)
        first["n"], second["n"] = 2, 3
        one, two = send(app, first), send(app, second)
        assert one["__payload__"]["base"] == base["__payload__"]["state"]
        assert receive(app, one, base=base)["n"] == 2 and receive(app, two, base=base)["n"] == 3
        for other in (equal, send(app, first, return_delta=False), {"n": 1}):
            with pytest.raises(Conflict, match="another state"):
                receive(app, one, base=other)
        # What one of them made is no base of the other, nor is a delta one without its own.
        with pytest.raises(Invalid, match="delta"):
            receive(app, two, base=one)
        # Fields that are skipped, or filtered out, do not make it another state.
        assert receive(app, one, base=base, skip_fields={"plan"})["n"] == 2
        segment = {"nodes": [{"type": "llm_chat", "reads": ["n"]}]}
        seen = [dict(app.payloads.filter_event_payload(event, segment)) for event in (one, base)]
        assert receive(app, seen[0], base=seen[1]) == {"n": 2}


def test_a_delta_of_an_event_of_others_is_of_what_that_held(app: App) -> None:
    event = {"plan": LARGE, "n": 1, "ownerId": "ann", "workflowId": "report"}
    state = receive(app, event)
    state["n"] = 2
    delta = send(app, state)
    assert receive(app, delta, base=dict(reversed(event.items())))["n"] == 2
    with pytest.raises(Conflict):
        receive(app, delta, base={**event, "n": 5})


def test_a_delta_that_does_not_name_its_base_is_refused(app: App) -> None:
    base = send(app, STATE)
    state = receive(app, base)
    state["n"] = 2
    delta = send(app, state)
    for name in (None, "", "x" * 32, 7):
        note = {key: value for key, value in delta["__payload__"].items() if key != "base"}
        with pytest.raises(Invalid):
            receive(app, {**delta, "__payload__": note if name is None else {**note, "base": name}}, base=base)


def test_a_state_that_was_not_hydrated_is_all_new(app: App) -> None:
    delta = HydratedState({"n": 1, "plan": [1]}).get_delta()
    assert [tuple(operation) for operation in delta.operations] == [("put", ("n",), 1), ("put", ("plan",), [1])]
    assert analemma.HydratedState is HydratedState


def test_what_is_gone_from_a_workflow_that_never_had_it_is_refused(app: App) -> None:
    app.kernel.save_state_delta({"other": 1}, **WORKFLOW)
    state = receive(app, send(app, {"n": 1}))
    del state["n"]
    with pytest.raises(Invalid, match="cannot be applied"):
        app.kernel.save_state_delta(state.get_delta(), **WORKFLOW)
    assert app.kernel.load_latest_state(**WORKFLOW) == {"other": 1}


@pytest.mark.parametrize("wrapper", ["state_data", "state_bag"])
def test_a_pointer_in_the_place_of_a_wrapper_is_a_field(wrapper: str, app: App) -> None:
    payload = send(app, {wrapper: {"plan": LARGE}})
    event = {wrapper: payload[wrapper], "ownerId": "ann", "workflowId": "report"}
    assert receive(app, event)[wrapper] == {"plan": LARGE}


@pytest.mark.parametrize("noted", [False, True])
def test_a_field_larger_than_the_policy_leaves_inline_is_no_change(noted: bool, app: App) -> None:
    event: dict[str, Any] = {"plan": LARGE, "n": 1}
    if noted:
        event = send(app, event, policy=FieldPolicy(field_bytes=200_000, target_bytes=200_000))
        assert isinstance(event["plan"], list)
    state = receive(app, event, owner_id="ann", workflow_id="report")
    assert state.get_delta().operations == ()
    assert set(app.payloads.dehydrate(state, **NAMES)) == {"__payload__"}
    state["plan"][0]["n"] = "other"
    assert state.get_delta().changed_fields == ("plan",)
    assert set(app.payloads.dehydrate(state, **NAMES)) == {"__payload__", "plan"}


@pytest.mark.parametrize("kind", ["bag", "hydrated"])
def test_a_state_given_as_a_delta_sets_every_field_and_deletes_none(kind: str, app: App) -> None:
    app.kernel.save_state_delta({"n": 1, "plan": LARGE, "kept": 1}, **WORKFLOW)
    state: Any = app.kernel.load_latest_state(lazy=True, **WORKFLOW)
    if kind == "hydrated":
        state = receive(app, send(app, state.to_dict()))
    state["plan"].append(1)
    del state["kept"]
    app.kernel.save_state_delta(state, **WORKFLOW)
    assert app.kernel.load_latest_state(**WORKFLOW) == {"n": 1, "plan": [*LARGE, 1], "kept": 1}
    ticket = app.kernel.checkpoint_async(state, **WORKFLOW)
    state["plan"].append("after the call")
    assert app.kernel.load_state_with_consistency(ticket) == {"n": 1, "plan": [*LARGE, 1], "kept": 1}
