"""Merging while others write: the target moves, the source expires, somebody else merges the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analemma import App, Proposal
from analemma.errors import Conflict, Expired
from analemma.state.committer import Outcome
from tests.api.state.merged_branches import OWNER, latest, merge, save, start
from tests.api.state.test_store import run_sql
from tests.stores import Store


def before_first_merge_commit(app: App, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen between a merge's planning and its commit."""
    commit = app.default.committer.commit
    done = False

    def interrupted(proposal: Proposal, *rest: Any) -> Outcome:
        nonlocal done
        if proposal.kind == "merged" and not done:
            done = True
            act()
        return commit(proposal, *rest)

    monkeypatch.setattr(app.default.committer, "commit", interrupted)


def test_a_target_that_moves_is_merged_into_as_it_then_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"theirs": 1}, "idea")
        before_first_merge_commit(app, monkeypatch, lambda: save(app, {"n": 1}))
        merged = merge(app)
        assert merged.commit is not None and merged.commit.version == 3 and not merged.fast_forward
        assert latest(app) == {"n": 1, "theirs": 1}
        assert app.kernel.verify(**OWNER).ok


def test_a_target_that_moves_into_a_conflict_is_not_overwritten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1}, "idea")
        before_first_merge_commit(app, monkeypatch, lambda: save(app, {"n": 2}))
        with pytest.raises(Conflict) as caught:
            merge(app)
        assert caught.value.conflicts == [{"path": "/n", "base": 0, "ours": 2, "theirs": 1}]
        assert latest(app) == {"n": 2}


def test_two_merges_of_the_same_source_make_one_version(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1}, "idea")
        before_first_merge_commit(app, monkeypatch, lambda: merge(app))
        assert merge(app).commit is None
        assert len(app.kernel.history(**OWNER)) == 2


def test_a_source_that_expires_meanwhile_is_not_linked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        source = save(app, {"n": 1}, "idea")
        save(app, {"n": 2}, "idea")

        def expire() -> None:
            run_sql(store, "DELETE FROM manifest WHERE id = ?", bytes.fromhex(source))

        before_first_merge_commit(app, monkeypatch, expire)
        with pytest.raises(Expired):
            merge(app, source)
        assert latest(app) == {"n": 0}
