"""Errors are for people: they name what is wrong, and do not repeat megabytes of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import analemma
from analemma.errors import AnalemmaError
from tests.stores import Store

LONG = "k" * 1_000_000
AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}

MISTAKES: dict[str, Callable[[analemma.App], object]] = {
    "a key behind a value": lambda app: app.kernel.save_state_delta({"n": {LONG: object()}}, **AT),
    "a path": lambda app: app.kernel.blame(path=f"/{LONG}", **AT),
    "a workflow": lambda app: app.kernel.load_latest_state(workflow_id=LONG, owner_id="ann"),
    "a manifest": lambda app: app.kernel.load_state(LONG),
    "a tag": lambda app: app.kernel.untag(LONG, **AT),
    "a tenant": lambda app: app.tenant(LONG),
    "a ticket": lambda app: app.kernel.ticket(LONG),
    "a view": lambda app: app.default.view(LONG).get("x"),
    "an entity": lambda app: app.default.ingest(LONG, LONG, {}),
    "a run": lambda app: app.flows.get(LONG),
    "a setting": lambda app: analemma.Settings(**{LONG: 1}),
    "a setting's value": lambda app: analemma.Settings(tenant=LONG),
}


def test_an_error_does_not_repeat_all_of_what_it_was_given(store: Store) -> None:
    long, changed = [], []
    with store.open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
        for mistake, call in MISTAKES.items():
            with pytest.raises(AnalemmaError) as caught:
                call(app)
            if len(str(caught.value)) >= 3000 or len(repr(caught.value)) >= 3000:
                long.append(mistake)
            if str(pickle.loads(pickle.dumps(caught.value))) != str(caught.value):
                changed.append(mistake)
    assert (long, changed) == ([], [])


def test_what_is_short_is_shown_whole(store: Store) -> None:
    with store.open() as app, pytest.raises(AnalemmaError, match="k" * 300):
        app.kernel.load_latest_state(workflow_id="k" * 300, owner_id="ann")
