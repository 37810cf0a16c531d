"""A payload fits: exactly measured, largest fields first, pointers counted, many tiny fields together."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import App, FieldPolicy
from analemma.errors import Invalid, Limit
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send
from tests.stores import Store, local

KIB = 1024


def size(payload: Any) -> int:
    return len(json.dumps(payload))


def puts(app: App) -> int:
    """How many objects were written."""
    return app.object_metrics.snapshot()["put_object"].count


def test_a_small_state_stays_whole_and_writes_nothing(store: Store) -> None:
    with store.open() as app:
        state = {"ownerId": "ann", "plan": {"day": 1}, "n": [1, 2.5, None]}
        payload = send(app, state)
        assert {name: payload[name] for name in state} == state
        assert app.stats().blocks == 0 and app.payloads.leases(owner_id="ann", workflow_id="report") == []


def test_ten_thousand_tiny_fields_fit(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        state = {f"field {number}": number for number in range(10_000)}
        payload = send(app, state)
        assert size(payload) <= 10 * KIB
        assert "overflow" in payload["__payload__"]
        # Room that is there is used: one more field inline would not have fitted.
        assert size(payload) > 10 * KIB - 100
        arrived = receive(app, payload)
        assert len(arrived) == 10_000 and "field 9999" in arrived and arrived["field 5000"] == 5000
        assert arrived == state


def test_one_field_of_500_kb_fits(store: Store) -> None:
    with store.open() as app:
        state = {"text": "x" * 500_000, "n": 1}
        payload = send(app, state)
        assert size(payload) < KIB and receive(app, payload) == state


def test_a_deep_field_takes_about_as_long_as_a_flat_one(app: App) -> None:
    flat: Any = [1] * 300_000
    deep = flat
    for _ in range(100):
        deep = [deep]
    policy = FieldPolicy(field_bytes=2_000 * KIB, target_bytes=2_000 * KIB, limit_bytes=2_000 * KIB)

    def took_s(value: Any) -> float:
        began = time.process_time()
        assert app.payloads.dehydrate({"v": value}, **NAMES, policy=policy)["v"] == value
        return time.process_time() - began

    took_s(flat)
    assert min(took_s(deep), took_s(deep)) < 5 * took_s(flat)


def test_a_thousand_fields_that_are_each_a_pointers_worth_fit(app: App) -> None:
    state = {f"field {number:04}": "x" * 2 * KIB for number in range(1_000)}
    payload = send(app, state)
    assert size(payload) <= 10 * KIB and receive(app, payload) == state


def test_the_largest_leave_first(app: App) -> None:
    state = {f"field {number}": "x" * number * KIB for number in range(1, 9)}
    payload = send(app, state)
    left = {name for name in state if isinstance(payload[name], dict)}
    assert left == {"field 8", "field 7", "field 6", "field 5", "field 4"}
    assert size(payload) <= 10 * KIB


def test_a_field_over_the_threshold_leaves_though_it_would_fit(app: App) -> None:
    at = {"field": "x" * (10 * KIB - 2)}
    roomy = FieldPolicy(target_bytes=100 * KIB)
    assert send(app, at, policy=roomy)["field"] == at["field"]
    above = {"field": "x" * (10 * KIB - 1)}
    assert send(app, above, policy=roomy)["field"]["__pointer__"] == 1


def test_fields_of_the_data_plane_leave_before_others(app: App) -> None:
    state = {"notes": "x" * 7 * KIB, "messages": ["x" * 4 * KIB]}
    payload = send(app, state)
    assert payload["notes"] == state["notes"] and payload["messages"]["__pointer__"] == 1


def test_forced_fields_leave_however_small(app: App) -> None:
    payload = send(app, {"input": {}, "n": 1}, force_offload_fields={"input", "missing"})
    assert payload["input"]["field_name"] == "input" and payload["n"] == 1 and "missing" not in payload
    assert receive(app, payload) == {"input": {}, "n": 1}


def test_control_fields_cannot_be_forced_out(app: App) -> None:
    with pytest.raises(Invalid, match="ownerId"):
        send(app, {"ownerId": "ann"}, force_offload_fields={"ownerId"})
    with pytest.raises(Invalid):
        send(app, {"n": 1}, force_offload_fields="input")


def test_control_fields_stay_above_the_target(app: App) -> None:
    state = {"light_config": "x" * 100 * KIB, "execution_id": "run-1", "plan": "x" * 300}
    payload = send(app, state)
    assert payload["light_config"] == state["light_config"]
    assert 100 * KIB < size(payload) <= 256 * KIB
    # Everything else has left as far as that helps.
    assert payload["plan"]["__pointer__"] == 1


@pytest.mark.parametrize("parts", [1, 5])
def test_control_fields_alone_over_the_limit_are_refused(parts: int, app: App) -> None:
    names = ["light_config", "distributed_strategy", "distributed_mode", "MOCK_MODE", "loop_counter"][:parts]
    state = dict.fromkeys(names, "x" * (300 * KIB // parts))
    with pytest.raises(Limit, match="262144"):
        send(app, {**state, "plan": LARGE})
    assert app.stats(app.settings.tenant).blocks == 0
    assert app.payloads.leases(owner_id="ann", workflow_id="report") == []


def test_the_limit_is_exact(app: App) -> None:
    room = 256 * KIB - size(send(app, {"light_config": ""}))
    assert size(send(app, {"light_config": "x" * room})) == 256 * KIB
    with pytest.raises(Limit):
        send(app, {"light_config": "x" * (room + 1)})


def test_the_target_is_exact(app: App) -> None:
    policy = FieldPolicy(field_bytes=KIB * KIB)
    room = 10 * KIB - size(send(app, {"notes": ""}))
    kept = send(app, {"notes": "x" * room}, policy=policy)
    assert size(kept) == 10 * KIB and kept["notes"] == "x" * room
    assert send(app, {"notes": "x" * (room + 1)}, policy=policy)["notes"]["__pointer__"] == 1


def test_text_is_measured_as_the_most_wasteful_encoder_writes_it(app: App) -> None:
    korean = "가" * 1_800
    payload = send(app, {"a": korean, "b": "x" * 500})
    assert payload["a"]["__pointer__"] == 1 and payload["b"] == "x" * 500
    assert receive(app, payload) == {"a": korean, "b": "x" * 500}


def test_names_that_no_pointer_can_hold_leave_together(store: Store) -> None:
    with store.open() as app:
        state = {"x" * 600: LARGE, "nul\0": LARGE, "__payload__": {"mine": True}, "": LARGE, "é" * 300: LARGE}
        payload = send(app, state)
        assert set(payload) == {"__payload__", ""}
        assert receive(app, payload) == state


def test_settings_are_the_default_policy(tmp_path: Path) -> None:
    settings = {"payload_field_bytes": 100, "payload_target_bytes": 2_000, "payload_limit_bytes": 3_000}
    with local(tmp_path).open(**settings) as app:
        payload = send(app, {"a": "x" * 101, "b": "x" * 90, **{f"c{number}": "x" * 80 for number in range(40)}})
        assert payload["a"]["__pointer__"] == 1 and size(payload) <= 2_000
        with pytest.raises(Limit):
            send(app, {"ownerId": "x" * 3_000})


@pytest.mark.parametrize("count", [1, 8])
def test_all_large_fields_of_a_payload_are_one_object(count: int, store: Store) -> None:
    with store.open() as app:
        state: dict[str, Any] = {f"field {number}": f"{number} " * 400_000 for number in range(count)}
        state |= {f"bytes {number}": bytes([number, *range(256)]) * 2_000 for number in range(count)}
        for settings in ({}, {"execution_id": "run-2"}):
            before = puts(app)
            payload = send(app, state, **settings)
            assert puts(app) - before <= 1
        assert receive(app, payload) == state


def test_incompressible_fields_are_exactly_one_object(tmp_path: Path) -> None:
    made = random.Random(7)
    with local(tmp_path).open() as app:
        send(app, {f"field {number}": made.randbytes(200_000) for number in range(10)})
        assert puts(app) == 1


def test_equal_fields_are_stored_once(store: Store) -> None:
    with store.open() as app:
        send(app, {"plan": LARGE})
        blocks = app.stats().blocks
        send(app, {"plan": LARGE}, execution_id="run-2")
        assert app.stats().blocks == blocks


def placed(payload: dict[str, Any], state: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    """The fields that stayed, those that are pointers, and those that left together."""
    pointed = [name for name in state if isinstance(payload.get(name), dict) and "__pointer__" in payload[name]]
    inline = [name for name in state if name in payload and name not in pointed]
    return inline, pointed, [name for name in state if name not in payload]


def test_only_as_much_leaves_as_must(app: App) -> None:
    state = {"a": "x" * 500, "b": "x" * 400}
    whole = size(send(app, state))
    kept, cut = (send(app, state, policy=FieldPolicy(target_bytes=target)) for target in (whole, whole - 1))
    assert placed(kept, state) == (["a", "b"], [], []) and size(kept) == whole
    assert placed(cut, state) == (["b"], ["a"], []) and size(cut) < whole


def test_a_field_smaller_than_its_pointer_does_not_leave_alone(app: App) -> None:
    state = {"a": "x" * 40}
    assert placed(send(app, state, policy=FieldPolicy(target_bytes=100)), state) == (["a"], [], [])


def test_pointers_that_are_too_many_go_together(app: App) -> None:
    state = {f"{number:02}": "x" * 500 for number in range(20)}
    target = 1_000
    payload = send(app, state, policy=FieldPolicy(target_bytes=target))
    inline, pointed, grouped = placed(payload, state)
    # As many pointers stay as there is room for.
    pointer = size({pointed[0]: payload[pointed[0]]})
    assert not inline and grouped and target - pointer < size(payload) <= target
    assert receive(app, payload) == state


def test_a_group_is_not_made_when_it_would_cost_more_than_it_holds(app: App) -> None:
    state = {"nul\0": "x" * 10}
    assert placed(send(app, state, policy=FieldPolicy(target_bytes=100)), state) == (["nul\0"], [], [])


def test_over_the_limit_is_refused_with_the_size(app: App) -> None:
    whole = size(send(app, {"ownerId": "x" * 500}))
    with pytest.raises(Limit) as caught:
        send(app, {"ownerId": "x" * 500}, policy=FieldPolicy(target_bytes=100, limit_bytes=whole - 1))
    assert (caught.value.bytes, caught.value.limit) == (whole, whole - 1)


def test_policies_that_contradict_themselves_are_refused() -> None:
    contradictions: list[dict[str, Any]] = [
        {"target_bytes": 2, "limit_bytes": 1},
        {"field_bytes": -1},
        {"control_fields": frozenset({"messages"})},
        {"control_fields": frozenset({"__payload__"})},
    ]
    for options in contradictions:
        with pytest.raises(Invalid):
            FieldPolicy(**options)


def test_a_policy_of_ones_own_decides(app: App) -> None:
    policy = FieldPolicy(control_fields=frozenset({"ticket"}), data_fields=frozenset({"notes"}))
    state = {"ticket": "x" * 8_700, "ownerId": "x" * 20_000, "notes": "x" * 600, "more": "x" * 700}
    payload = send(app, state, policy=policy)
    assert (payload["ticket"], payload["more"]) == (state["ticket"], state["more"])
    assert payload["ownerId"]["__pointer__"] == 1 and payload["notes"]["__pointer__"] == 1


def test_names_of_the_execution_are_in_every_payload(app: App) -> None:
    payload = send(app, {}, segment_id=3)
    named = payload["__payload__"].pop("state")
    assert payload == {"__payload__": {"version": 1, **NAMES, "segment_id": 3}} and len(named) == 32
