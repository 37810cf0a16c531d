"""Merges and forks come after what was accepted for the branches they are about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict
from tests.api.state.pending import left_behind
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def test_a_merge_sees_what_was_accepted_for_either_branch(app: App, store: Store) -> None:
    first = app.kernel.save_state_delta({"n": 1, "m": 1}, **NAME)
    app.kernel.fork(first.manifest_id, owner_id="ann", branch="side")
    left_behind(app, store, {"n": 2}, branch="side", **NAME)
    ours = left_behind(app, store, {"m": 2}, **NAME)
    preview = app.kernel.merge(source="side", preview=True, **NAME)
    assert [change["path"] for change in preview.changes] == ["/n"] and not preview.fast_forward
    assert preview.target_id == app.kernel.ticket(ours).manifest_id
    left_behind(app, store, {"n": 3}, branch="side", **NAME)
    left_behind(app, store, {"m": 3}, **NAME)
    assert app.kernel.merge(source="side", **NAME).commit is not None
    assert app.kernel.load_latest_state(**NAME) == {"n": 3, "m": 3} and app.checkpoints.pending == 0


def test_branches_that_only_have_what_was_accepted_can_be_merged(app: App, store: Store) -> None:
    left_behind(app, store, {"n": 1}, branch="side", **NAME)
    left_behind(app, store, {"m": 1}, **NAME)
    app.kernel.merge(source="side", **NAME)
    assert app.kernel.load_latest_state(**NAME) == {"n": 1, "m": 1}


def test_a_fork_does_not_begin_a_branch_before_what_was_accepted_for_it(app: App, store: Store) -> None:
    first = app.kernel.save_state_delta({"n": 1}, **NAME)
    targets: list[dict[str, Any]] = [{"branch": "side"}, {"workflow_id": "other"}]
    for target in targets:
        ticket = left_behind(app, store, {"m": 1}, **{**NAME, **target})
        with pytest.raises(Conflict, match="exists already"):
            app.kernel.fork(first.manifest_id, owner_id="ann", **target)
        assert app.kernel.load_state_with_consistency(ticket) == {"m": 1} and app.kernel.ticket(ticket).version == 1
    # One that fails begins nothing.
    left_behind(app, store, {"/no/where": 1}, branch="third", **NAME)
    assert app.kernel.fork(first.manifest_id, owner_id="ann", branch="third").version == 2
