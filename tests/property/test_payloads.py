"""Payloads: any state comes back exactly, within the budget, with at most one object written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analemma
from analemma import App, FieldPolicy
from analemma.errors import Conflict, Limit
from analemma.testing.strategies import SeededValues, shown, values
from tests.depth import count, some
from tests.stores import Store, local

NAMES: dict[str, Any] = {"owner_id": "ann", "workflow_id": "report", "execution_id": "run-1"}
KIB = 1024
MIB = 1024 * KIB
LIMIT = 256 * KIB
fields = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), values(), max_size=8)


def random_state(seed: int) -> tuple[int, dict[str, Any]]:
    """A state of 1 KB to 50 MB, most of them small, in few or many fields, with values of every kind among them."""
    made = SeededValues(seed)
    pick = made.random
    # Every hundredth is really large; the rest is spread evenly over the orders of magnitude from 1 KB to 300 KB.
    size = pick.randrange(5 * MIB, 50 * MIB) if seed % 100 == 99 else int(KIB * 300 ** pick.random())
    state: dict[str, Any] = {f"kind {number}": made.value() for number in range(pick.randrange(4))}
    state["ownerId"] = "ann"
    left = size
    while left > 0:
        share = min(left, pick.choice([30, 300, 3 * KIB, 30 * KIB, size]))
        left -= share
        name = f"field {len(state)}"
        if pick.random() < 0.5:
            state[name] = pick.randbytes(share // 2).hex()
        else:
            state[name] = [{"n": pick.random(), "text": "word " * 30} for _ in range(share // 200 + 1)]
    return size, state


def puts(app: App) -> int:
    """How many objects were written."""
    return app.object_metrics.snapshot()["put_object"].count


def claim_objects(app: App) -> None:
    """The first object of a store is preceded by the marker that makes objects the store's."""
    random_text = SeededValues(0).random.randbytes(MIB).hex()
    app.payloads.dehydrate({"text": random_text}, **{**NAMES, "execution_id": "first"})


def check(app: App, state: dict[str, Any]) -> None:
    before = puts(app)
    payload = app.payloads.dehydrate(state, return_delta=False, **NAMES)
    assert puts(app) - before <= 1
    text = json.dumps(payload)
    assert len(text) <= app.payloads.policy.target_bytes
    assert shown(dict(app.payloads.hydrate(json.loads(text)))) == shown(state)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    # A cache of nothing: what is read was stored.
    with local(tmp_path_factory.mktemp("payloads")).open(cache_bytes=0) as app:
        claim_objects(app)
        yield app


@pytest.fixture(scope="module")
def tight() -> Iterator[App]:
    """A store whose payloads have room for very little, so that even small states have pointers and groups."""
    with analemma.open("sqlite:///:memory:", settings=analemma.Settings(payload_target_bytes=400)) as app:
        yield app


@pytest.mark.parametrize("start", some(range(0, 100, 20), test=[0]))
def test_random_states_come_back_within_the_budget(start: int, app: App) -> None:
    for seed in range(start, start + 20):
        check(app, random_state(seed)[1])


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_a_thousand_random_states_come_back_within_the_budget(start: int, store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        claim_objects(app)
        for seed in range(start, start + 50):
            check(app, random_state(seed)[1])


def test_random_states_come_back_on_every_catalog(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        claim_objects(app)
        for seed in range(1000, count(1003, deep=1010)):
            check(app, random_state(seed)[1])


@given(state=fields)
@settings(max_examples=count(20, deep=100), deadline=None)
def test_any_state_comes_back_exactly(state: dict[str, Any], tight: App) -> None:
    payload = tight.payloads.dehydrate(state, return_delta=False, **NAMES)
    assert shown(dict(tight.payloads.hydrate(json.loads(json.dumps(payload))))) == shown(state)


@given(value=values())
@settings(max_examples=count(25, deep=200), deadline=None)
def test_the_limit_is_held_to_the_byte(value: Any, tight: App) -> None:
    """A control field never leaves, so a payload of it is as large as it is."""

    def dehydrate(limit_bytes: int) -> str:
        policy = FieldPolicy(control_fields=frozenset({"field"}), target_bytes=0, limit_bytes=limit_bytes)
        return json.dumps(tight.payloads.dehydrate({"field": value}, policy=policy, return_delta=False, **NAMES))

    text = dehydrate(LIMIT)
    assert len(dehydrate(len(text))) == len(text)
    with pytest.raises(Limit) as caught:
        dehydrate(len(text) - 1)
    assert (caught.value.bytes, caught.value.limit) == (len(text), len(text) - 1)
    assert shown(tight.payloads.hydrate(json.loads(text))["field"]) == shown(value)


@given(before=fields, after=fields)
@settings(max_examples=count(20, deep=100), deadline=None)
def test_a_delta_over_its_base_is_the_changed_state(before: dict[str, Any], after: dict[str, Any], tight: App) -> None:
    base = json.loads(json.dumps(tight.payloads.dehydrate(before, **NAMES)))
    state = tight.payloads.hydrate(base)
    for name in [name for name in state if name not in after]:
        del state[name]
    state.update(after)
    delta = json.loads(json.dumps(tight.payloads.dehydrate(state, **NAMES)))
    assert delta["__payload__"]["delta"] is True
    assert shown(dict(tight.payloads.hydrate(delta, base=base))) == shown(after)
    # Only what differs is in it.
    changed = {name for name in after if name not in before or shown(before[name]) != shown(after[name])}
    note = {name: value for name, value in delta["__payload__"].items() if name not in ("delta", "base", "deleted")}
    assert set(tight.payloads.hydrate({**delta, "__payload__": note})) == changed
    with pytest.raises(Conflict):
        tight.payloads.hydrate(delta, base={})


def test_what_many_payloads_point_to_outlives_collection(store: Store) -> None:
    with store.open(cache_bytes=0) as app, store.open() as other:
        states = [random_state(seed)[1] for seed in range(count(8, deep=20))]
        payloads = [app.payloads.dehydrate(state, return_delta=False, **NAMES) for state in states]
        for _ in range(2):
            other.gc.run(grace_s=0, force=True)
        found = [shown(dict(app.payloads.hydrate(payload))) for payload in payloads]
        assert found == [shown(state) for state in states]
