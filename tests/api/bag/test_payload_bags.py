"""Bags as payloads: what was loaded from a version goes out as values, and a payload never leans on a version."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from analemma import App, SmartStateBag
from analemma.errors import Conflict
from tests.api.bag.payload_stores import LARGE, NAMES, receive, send
from tests.stores import Store

STATE: dict[str, Any] = {"plan": LARGE, "notes": ["a", {"b": 1}], "n": 1, "old": 2}
WORKFLOW: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def saved_bag(app: App) -> Any:
    app.kernel.save_state_delta(STATE, **WORKFLOW)
    return app.kernel.load_latest_state(**WORKFLOW, lazy=True)


def test_a_bag_goes_out_whole(store: Store) -> None:
    with store.open() as app:
        bag = saved_bag(app)
        payload = send(app, bag, return_delta=False)
        assert payload["notes"] == STATE["notes"] and receive(app, payload) == STATE


def test_a_bag_of_a_version_goes_out_as_what_changed(store: Store) -> None:
    with store.open() as app:
        bag = saved_bag(app)
        before = send(app, bag, return_delta=False)
        assert before["__payload__"]["state"] == bag.manifest_id
        bag["plan"].append("new")
        bag["notes"][1]["b"] = 2
        del bag["old"]
        delta = send(app, bag)
        assert delta["__payload__"]["base"] == bag.manifest_id
        assert set(delta) == {"__payload__", "plan", "notes"} and delta["__payload__"]["deleted"] == ["old"]
        expected = {"plan": [*LARGE, "new"], "notes": ["a", {"b": 2}], "n": 1}
        assert receive(app, delta, base=before) == expected
        # What was changed already is no payload of the version, and an equal state is another.
        for other in (send(app, bag, return_delta=False), send(app, STATE)):
            with pytest.raises(Conflict):
                receive(app, delta, base=other)


def test_a_new_bag_is_everything(app: App) -> None:
    bag = SmartStateBag(copy.deepcopy(STATE))
    payload = send(app, bag)
    assert "delta" not in payload["__payload__"] and receive(app, payload) == STATE


def test_a_part_of_a_bag_in_a_plain_dict_is_written_whole(store: Store) -> None:
    with store.open(cache_bytes=0) as app, store.open() as other:
        bag = saved_bag(app)
        payload = send(app, {"mine": {"plan": bag["plan"]}, "notes": bag["notes"], "small": [bag["notes"]]})
        assert (payload["notes"], payload["small"]) == (STATE["notes"], [STATE["notes"]])
        # Whatever becomes of the version: its lease keeps every block of the payload.
        app.kernel.save_state_delta({"plan": []}, **WORKFLOW)
        app.kernel.set_retention(keep_last=1, **WORKFLOW)
        assert len(app.kernel.expire(**WORKFLOW).expired) == 1
        for _ in range(2):
            other.gc.run(grace_s=0, force=True)
        expected = {"mine": {"plan": LARGE}, "notes": STATE["notes"], "small": [STATE["notes"]]}
        assert receive(app, payload) == expected
        app.payloads.release(**NAMES)
        blocks = app.stats().blocks
        for _ in range(2):
            other.gc.run(grace_s=0, force=True)
        assert app.stats().blocks < blocks


def test_a_hydrated_state_in_a_bag_or_a_dict_is_written_whole(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        event = send(app, STATE)
        inner = receive(app, event)
        assert inner["notes"] == STATE["notes"] and set(inner.not_loaded()) == {"plan"}
        bag = SmartStateBag({"inner": inner})
        app.kernel.save(bag, **WORKFLOW)
        assert app.kernel.load_latest_state(**WORKFLOW) == {"inner": STATE}
        # It stays the same object, and is watched.
        inner["notes"].append("more")
        app.kernel.save(bag)
        expected = {"inner": {**STATE, "notes": [*STATE["notes"], "more"]}}
        assert app.kernel.load_latest_state(**WORKFLOW) == expected
        assert receive(app, send(app, {"inner": receive(app, event)})) == {"inner": STATE}
