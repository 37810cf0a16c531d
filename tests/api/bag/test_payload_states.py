"""A hydrated state is a dict, wherever its fields are; what changed in it is found, and the rest stays in the store."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import enum
import json
import operator
import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import BaseModel

from analemma import App, HydratedState
from analemma.errors import Conflict, Denied, Invalid
from analemma.testing.strategies import shown
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send
from tests.stores import Store, local

STATE: dict[str, Any] = {"plan": LARGE, "notes": ["a", {"b": 1}], "n": 1, "more": {"list": copy.deepcopy(LARGE)}}


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Step:
    name: str
    done: bool


class Model(BaseModel):
    at: dt.datetime
    parts: tuple[int, ...]


def arrived(app: App) -> HydratedState:
    return receive(app, send(app, STATE))


READS: dict[str, Callable[[Any], Any]] = {
    "getitem": lambda state: state["plan"],
    "get": lambda state: (state.get("plan"), state.get("none"), state.get("none", 3)),
    "keys": lambda state: sorted(state.keys()),
    "iteration": sorted,
    "length": len,
    "in": lambda state: ("plan" in state, "none" in state),
    "items": lambda state: sorted(state.items()),
    "values": lambda state: len(list(state.values())),
    "dict": dict,
    "unpacking": lambda state: {**state},
    "copy": lambda state: state.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda state: pickle.loads(pickle.dumps(state)),
    "json": lambda state: json.loads(json.dumps(state, sort_keys=True)),
    "equality": lambda state: (state == STATE, state == {}, state != STATE, operator.eq(STATE, state)),
    "or": lambda state: state | {"n": 2},
    "ror": lambda state: {"n": 2, "x": 3} | state,
    "reversed": lambda state: len(list(reversed(state))),
    "bool": bool,
    "match": lambda state: "plan" if isinstance(state, dict) else None,
    "update another": lambda state: dict.fromkeys("x") | dict(state),
}


def test_reading_gives_what_a_dict_gives(app: App) -> None:
    payload = send(app, STATE)
    wrong: list[str] = []
    for name, read in READS.items():
        found, expected = read(receive(app, payload)), read(copy.deepcopy(STATE))
        if found != expected or type(found) is not type(expected):
            wrong.append(name)
    assert wrong == []


WRITES: dict[str, Callable[[Any], Any]] = {
    "set": lambda state: state.__setitem__("plan", 1),
    "delete": lambda state: state.__delitem__("plan"),
    "pop": lambda state: (state.pop("plan"), state.pop("none", 4)),
    "setdefault": lambda state: (state.setdefault("plan", 1), state.setdefault("new", [])),
    "update": lambda state: state.update(plan=2, new=3),
    "ior": lambda state: state.__ior__({"plan": 5}) is state,
    "clear": lambda state: state.clear(),
    "nested": lambda state: state["plan"].append(1),
    "deeply nested": lambda state: state["more"]["list"][7].update(n=-1),
}


def test_writing_does_what_it_does_to_a_dict(app: App) -> None:
    payload = send(app, STATE)
    wrong: list[str] = []
    for name, write in WRITES.items():
        state, plain = receive(app, payload), copy.deepcopy(STATE)
        if write(state) != write(plain) or state != plain:
            wrong.append(name)
    assert wrong == []


def test_what_is_missing_is_missing_as_in_a_dict(app: App) -> None:
    state = arrived(app)
    with pytest.raises(KeyError):
        state["none"]
    with pytest.raises(KeyError):
        state.pop("none")
    with pytest.raises(KeyError):
        del state["none"]
    state.clear()
    with pytest.raises(KeyError):
        state.popitem()
    with pytest.raises(TypeError):
        hash(state)


def test_popitem_takes_the_last(app: App) -> None:
    state = arrived(app)
    for name in reversed(list(state)):
        assert state.popitem() == (name, STATE[name])


def test_code_that_reads_past_the_methods_fails_instead_of_lying(app: App) -> None:
    with pytest.raises(TypeError):
        orjson.dumps(arrived(app))
    state = arrived(app)
    state.load()
    assert orjson.loads(orjson.dumps(state)) == STATE


def test_what_is_printed_loads_nothing(app: App) -> None:
    state = arrived(app)
    assert "not loaded" in repr(state) and set(state.not_loaded()) == {"plan", "more"}


def test_skipped_fields_are_left_out_and_others_loaded(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        state = receive(app, send(app, STATE), load_fields={"plan", "none"}, skip_fields={"more", "n"})
        assert set(state) == {"plan", "notes"} and state.not_loaded() == {}
        assert state == {"plan": LARGE, "notes": STATE["notes"]}


def test_skipped_fields_of_a_group_are_left_out(app: App) -> None:
    payload = send(app, {f"field {number}": number for number in range(5_000)})
    skipped = {f"field {number}" for number in range(0, 5_000, 2)}
    assert len(receive(app, payload, skip_fields=skipped)) == 2_500


@pytest.mark.parametrize("wrapper", ["state_data", "state_bag"])
def test_a_state_may_come_wrapped(wrapper: str, app: App) -> None:
    payload = send(app, STATE)
    assert receive(app, {wrapper: payload, "segment": 3}) == STATE
    assert receive(app, {wrapper: {"n": 1}}) == {"n": 1}
    assert receive(app, {wrapper: "no object", "n": 1}) == {wrapper: "no object", "n": 1}


def test_a_state_with_a_field_of_a_wrappers_name_comes_back(app: App) -> None:
    state = {"state_data": {"n": 1}, "state_bag": {}, "ownerId": "someone else"}
    assert receive(app, send(app, state)) == state


KINDS: dict[str, Any] = {
    "bytes": b"\x00\xff",
    "datetime": dt.datetime(2026, 2, 19, 5, 30, tzinfo=dt.UTC),
    "decimal": Decimal("1.10"),
    "tuple": (1, (2, [3])),
    "set": {1, "a", (2, 3)},
    "frozenset": frozenset({b"x"}),
    "minus zero": -0.0,
    "a float without fraction": [1.0, 1e300, 0.1],
    "big integers": [2**53, -(2**53), 2**64 - 1, -(2**63)],
    "an enum": Colour.RED,
    "a dataclass": Step("x", False),
    "a model": Model(at=dt.datetime(2026, 1, 1), parts=(1, 2)),
    "a pointer's look": {"__pointer__": 1, "hash": "00" * 32, "size_bytes": 1, "field_name": "f", "lease": "00" * 16},
    "an S3 pointer's look": {"__s3_pointer__": True, "bucket": "b", "key": "k"},
    "a deep pointer's look": [{"a": {"__pointer__": 1}}],
    "an empty key": {"": 1},
    "a tag's look": {"": ["datetime", "x"]},
    "a form's look": {"": {"bytes": "aGk="}},
    "a map's look": {"": {"map": {"": {"map": {}}}}},
    "a note's look": {"__payload__": {"version": 1}},
    "nothing": None,
}


@pytest.mark.parametrize("leaves", [False, True], ids=["inline", "stored"])
def test_every_kind_of_value_comes_back_exactly(leaves: bool, app: App) -> None:
    wrong: list[str] = []
    for kind, value in KINDS.items():
        state = {"field": value, "list": [value]}
        payload = send(app, state, force_offload_fields=set(state) if leaves else None)
        assert ("__pointer__" in str(payload["field"])) >= leaves
        if shown(dict(receive(app, payload))) != shown(state):
            wrong.append(kind)
    assert wrong == []


def test_numbers_survive_readers_that_know_only_doubles(app: App) -> None:
    state = {"numbers": [1.0, -0.0, 0.5, 1e300, 1, 2**53 - 1, 2**53 + 1, -(2**63), 2**64 - 1]}

    def double(text: str) -> Any:
        number = float(text)
        return int(number) if number.is_integer() else number

    text = json.dumps(app.payloads.dehydrate(state, **NAMES))
    arrived = json.loads(text, parse_float=double, parse_int=double)
    assert shown(dict(receive(app, arrived))) == shown(state)


@pytest.mark.parametrize("size", [0, 20_000])
def test_what_cannot_be_stored_is_refused_with_its_place(size: int, app: App) -> None:
    for value in (float("nan"), 2**64, {1: 2}, "\ud800", object, {"a": [{"b": float("inf")}]}):
        with pytest.raises(Invalid) as caught:
            send(app, {"n": 1, "field": ["x" * size, value]})
        assert caught.value.pointer.startswith("/field/1"), value
    assert app.stats(app.settings.tenant).blocks == 0


def test_cycles_and_too_deep_values_are_refused(app: App) -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: Any = 0
    for _ in range(200):
        deep = (deep,)
    for value in (loop, deep):
        with pytest.raises(Invalid):
            send(app, {"field": value})


def test_what_is_no_state_is_refused(app: App) -> None:
    hostile: list[Any] = [None, [1], "text", {1: 2}, {"\ud800": 1}, {"x" * 70_000: 1}]
    for number, state in enumerate(hostile):
        with pytest.raises(Invalid):
            assert app.payloads.dehydrate(state, **NAMES) is None, number


def test_a_delta_has_what_changed_and_what_went(store: Store) -> None:
    with store.open() as app:
        base = send(app, STATE)
        state = receive(app, base)
        state["notes"][1]["b"] = 2
        state["more"]["list"].append("new")
        state["extra"] = True
        del state["n"]
        delta = send(app, state)
        assert set(delta) == {"__payload__", "notes", "more", "extra"}
        assert (delta["__payload__"]["delta"], delta["__payload__"]["deleted"]) == (True, ["n"])
        merged = receive(app, delta, base=base)
        assert set(merged.not_loaded()) == {"plan", "more"}
        assert merged == dict(state) and "n" not in merged


def test_a_delta_of_an_unchanged_state_is_empty_and_leases_nothing(app: App) -> None:
    event = send(app, STATE)
    state = receive(app, event)
    assert state == STATE
    leases = app.payloads.leases(owner_id="ann", workflow_id="report")
    delta = send(app, state)
    assert delta["__payload__"].pop("state") != event["__payload__"]["state"]
    base = event["__payload__"]["state"]
    assert delta == {"__payload__": {"version": 1, **NAMES, "delta": True, "base": base, "deleted": []}}
    assert app.payloads.leases(owner_id="ann", workflow_id="report") == leases


def test_a_change_of_type_is_a_change(app: App) -> None:
    pairs: list[tuple[Any, Any]] = [(1, True), (1, 1.0), (0.0, -0.0), ([1], (1,)), ("1", 1)]
    for before, after in pairs:
        for forced in ({}, {"force_offload_fields": {"field"}}):
            state = receive(app, send(app, {"field": before}, **forced))
            assert "field" not in send(app, state), before
            state["field"] = after
            assert "field" in send(app, state), (before, after)


def test_a_delta_without_its_base_is_refused(app: App) -> None:
    state = receive(app, send(app, STATE))
    state["n"] = 2
    delta = send(app, state)
    with pytest.raises(Invalid, match="base"):
        receive(app, delta)
    with pytest.raises(Denied):
        receive(app, delta, base=send(app, STATE, workflow_id="other"))
    with pytest.raises(Conflict):
        receive(app, delta, base={"m": 1})


def test_a_delta_of_a_plain_dict_is_everything(app: App) -> None:
    payload = send(app, STATE)
    assert "delta" not in payload["__payload__"] and receive(app, payload) == STATE


def test_deltas_build_on_each_other(app: App) -> None:
    event = send(app, STATE)
    expected = copy.deepcopy(STATE)
    for number in range(4):
        state = receive(app, event)
        state["n"] = expected["n"] = number
        state["more"]["list"][number] = expected["more"]["list"][number] = "changed"
        delta = send(app, state)
        merged = receive(app, delta, base=event)
        event = send(app, merged, return_delta=False)
    assert receive(app, event) == expected


def test_deletions_that_are_many_are_behind_a_pointer(app: App) -> None:
    base = send(app, {f"field {number}": number for number in range(5_000)})
    state = receive(app, base)
    for number in range(4_000):
        del state[f"field {number}"]
    delta = send(app, state)
    assert len(json.dumps(delta)) < 1_000
    assert receive(app, delta, base=base) == {f"field {number}": number for number in range(4_000, 5_000)}


def test_skipped_fields_are_not_deleted_by_a_delta(app: App) -> None:
    base = send(app, STATE)
    state = receive(app, base, skip_fields={"plan"})
    state["n"] = 2
    delta = send(app, state)
    assert delta["__payload__"]["deleted"] == []
    assert receive(app, delta, base=base) == {**STATE, "n": 2}


def test_what_was_not_touched_is_passed_on_without_loading(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        event = send(app, STATE)
        state = receive(app, event)
        state["n"] = 2
        blocks = app.stats().blocks
        passed = send(app, state, return_delta=False)
        assert set(state.not_loaded()) == {"plan", "more"} and app.stats().blocks == blocks
        # The same execution: the same lease, also for what was read but not changed.
        assert (passed["plan"], passed["more"]) == (event["plan"], event["more"])
        assert state["plan"] == LARGE
        assert send(app, state, return_delta=False)["plan"] == event["plan"]
        assert receive(app, passed) == {**STATE, "n": 2}


def test_another_execution_has_leases_of_its_own_on_the_same_trees(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        event = send(app, STATE)
        passed = send(app, receive(app, event), return_delta=False, execution_id="run-2")
        assert passed["plan"]["hash"] == event["plan"]["hash"] and passed["plan"]["lease"] != event["plan"]["lease"]
        app.payloads.release(**NAMES)
        assert receive(app, passed) == STATE
        with pytest.raises(Denied):
            receive(app, event)


def test_a_state_whose_leases_were_released_cannot_be_passed_on(store: Store) -> None:
    with store.open() as app:
        state = receive(app, send(app, STATE))
        app.payloads.release(**NAMES)
        with pytest.raises(Denied):
            send(app, state, return_delta=False)
        assert app.payloads.leases(owner_id="ann", workflow_id="report") == []


def test_a_state_for_another_workflow_or_tenant_is_written_anew(store: Store) -> None:
    with store.open() as app:
        state = receive(app, send(app, STATE))
        other = send(app, state, workflow_id="other")
        shop = app.tenant("shop").payloads.dehydrate(receive(app, send(app, STATE)), **NAMES)
        app.payloads.release(**NAMES)
        assert "delta" not in other["__payload__"]
        assert receive(app, other) == STATE
        assert app.tenant("shop").payloads.hydrate(shop) == STATE


def test_an_untouched_group_is_passed_on(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        fields = {f"field {number}": number for number in range(3_000)}
        event = send(app, fields)
        inline = next(name for name in event if name != "__payload__")
        inside = next(name for name in fields if name not in event)
        state = receive(app, event)
        del state[inline]
        same = send(app, state, return_delta=False)
        assert same["__payload__"]["overflow"] == event["__payload__"]["overflow"]
        assert receive(app, same) == {name: value for name, value in fields.items() if name != inline}
        # Of another execution: another lease on the same tree.
        other = send(app, state, return_delta=False, execution_id="run-2")
        assert other["__payload__"]["overflow"]["hash"] == event["__payload__"]["overflow"]["hash"]
        app.payloads.release(**NAMES)
        assert receive(app, other) == receive(app, other, owner_id="ann")
        # One of its fields is gone: the others find new places.
        state = receive(app, other)
        del state[inside]
        expected = {name: value for name, value in fields.items() if name not in (inline, inside)}
        assert receive(app, send(app, state, return_delta=False, execution_id="run-2")) == expected


def test_a_group_that_needs_room_is_made_anew(app: App) -> None:
    fields = {f"field {number}": number for number in range(3_000)}
    state = receive(app, send(app, fields))
    state.update({f"more {number}": number for number in range(3_000)})
    assert receive(app, send(app, state, return_delta=False)) == dict(state)


def test_fields_that_a_group_also_has_are_refused(app: App) -> None:
    event = send(app, {f"field {number}": number for number in range(3_000)})
    inside = next(name for name in receive(app, event) if name not in event)
    with pytest.raises(Invalid, match="twice"):
        receive(app, {**event, inside: 0})


def test_loading_in_threads_gives_each_field_its_own_value(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        fields = {f"field {number}": [number] * (number + 1) + LARGE for number in range(25)}
        state = receive(app, send(app, fields), load_fields=set(fields))
        assert state.not_loaded() == {} and state == fields


def test_every_kind_of_value_comes_back_from_a_group(app: App) -> None:
    wrong: list[str] = []
    for kind, value in KINDS.items():
        state = {f"{'x' * 600}{number}": value for number in range(3)}
        payload = send(app, state, force_offload_fields=set(state))
        assert set(payload) == {"__payload__"}
        arrived = receive(app, payload)
        assert send(app, arrived)["__payload__"]["deleted"] == []
        # Read, and still the same.
        if shown(dict(arrived)) != shown(state) or set(send(app, arrived)) != {"__payload__"}:
            wrong.append(kind)
    assert wrong == []
