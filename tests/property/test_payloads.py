"""Payloads: any state comes back exactly, within the budget, with at most one object written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import analemma
from analemma import App
from analemma.bag.payload_json import Decoder, Encoder, measure
from analemma.blocks.metrics import PUT
from analemma.canon.standard_types import standard_registry
from analemma.errors import Conflict
from analemma.testing.strategies import SeededValues, shown, values
from tests.stores import Store, local

NAMES: dict[str, Any] = {"owner_id": "ann", "workflow_id": "report", "execution_id": "run-1"}
KIB = 1024
MIB = 1024 * KIB
REGISTRY = standard_registry()
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


def check(app: App, state: dict[str, Any]) -> None:
    if app.ownership is not None and app.ownership.owner().state == "unclaimed":
        # The first object of a store is preceded by the marker that makes objects the store's.
        app.ownership.take_turn()
    puts = app.object_metrics.snapshot()[PUT].count
    payload = app.payloads.dehydrate(state, return_delta=False, **NAMES)
    assert app.object_metrics.snapshot()[PUT].count - puts <= 1
    text = json.dumps(payload)
    assert len(text) <= app.payloads.policy.target_bytes
    assert shown(dict(app.payloads.hydrate(json.loads(text)))) == shown(state)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    # A cache of nothing: what is read was stored.
    with local(tmp_path_factory.mktemp("payloads")).open(cache_bytes=0) as app:
        yield app


@pytest.fixture(scope="module")
def tight() -> Iterator[App]:
    """A store whose payloads have room for very little, so that even small states have pointers and groups."""
    with analemma.open("sqlite:///:memory:", settings=analemma.Settings(payload_target_bytes=400)) as app:
        yield app


@pytest.mark.parametrize("start", range(0, 100, 20))
def test_random_states_come_back_within_the_budget(start: int, app: App) -> None:
    for seed in range(start, start + 20):
        check(app, random_state(seed)[1])


@pytest.mark.soak
@pytest.mark.parametrize("start", range(0, 1000, 50))
def test_a_thousand_random_states_come_back_within_the_budget(start: int, store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        for seed in range(start, start + 50):
            check(app, random_state(seed)[1])


def test_the_random_states_are_as_large_as_they_should_be() -> None:
    sizes = [random_state(seed)[0] for seed in range(98, 100)]
    assert sizes[0] <= 300 * KIB and 5 * MIB <= sizes[1] <= 50 * MIB


def test_random_states_come_back_on_every_catalog(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        for seed in range(1000, 1010):
            check(app, random_state(seed)[1])


@given(state=fields)
@settings(max_examples=100, deadline=None)
def test_any_state_comes_back_exactly(state: dict[str, Any], tight: App) -> None:
    payload = tight.payloads.dehydrate(state, return_delta=False, **NAMES)
    assert shown(dict(tight.payloads.hydrate(json.loads(json.dumps(payload))))) == shown(state)


@given(values())
@settings(max_examples=200, deadline=None)
def test_the_measured_size_is_that_of_the_json(value: Any) -> None:
    made = Encoder(REGISTRY).encode("field", value, MIB)
    assert made is not None
    text = json.dumps(made.json)
    assert made.size == len(text) == measure(made.json)
    assert shown(Decoder(REGISTRY, "refuse", limit_bytes=MIB).decode("field", json.loads(text))) == shown(value)
    # The measurement stops at the limit, exactly there.
    assert Encoder(REGISTRY).encode("field", value, made.size) == made
    assert Encoder(REGISTRY).encode("field", value, made.size - 1) is None


@given(before=fields, after=fields)
@settings(max_examples=100, deadline=None)
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


def test_the_store_of_many_payloads_is_whole(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        for seed in range(20):
            check(app, random_state(seed)[1])
        roots = [lease.root for lease in app.payloads.leases(owner_id="ann", workflow_id="report")]
        assert roots
        for root in roots:
            app.default.trees.read(root)
