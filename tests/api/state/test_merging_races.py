"""Merging while others write: the target moves, the source expires, somebody else merges the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.api.state.merged_branches import OWNER, latest, merge, save, start
from tests.stores import Store


def meanwhile(act: Callable[[], object]) -> AbstractContextManager[None]:
    """Let something happen between a merge's planning and its commit."""
    return failpoints.call("commit.before_transaction", act)


def test_a_target_that_moves_is_merged_into_as_it_then_is(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"theirs": 1}, "idea")
        with meanwhile(lambda: save(app, {"n": 1})):
            merged = merge(app)
        assert merged.commit is not None and merged.commit.version == 3 and not merged.fast_forward
        assert latest(app) == {"n": 1, "theirs": 1}
        assert app.kernel.verify(**OWNER).ok


def test_a_target_that_moves_into_a_conflict_is_not_overwritten(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1}, "idea")
        with meanwhile(lambda: save(app, {"n": 2})), pytest.raises(Conflict) as caught:
            merge(app)
        assert caught.value.conflicts == [{"path": "/n", "base": 0, "ours": 2, "theirs": 1}]
        assert latest(app) == {"n": 2}


def test_two_merges_of_the_same_source_make_one_version(store: Store) -> None:
    with store.open() as app:
        start(app, {"n": 0})
        save(app, {"n": 1}, "idea")
        with meanwhile(lambda: merge(app)):
            assert merge(app).commit is None
        assert len(app.kernel.history(**OWNER)) == 2
