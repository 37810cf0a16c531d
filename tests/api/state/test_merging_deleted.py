"""Merges of lines of history that lead through branches which were deleted: what was merged there before counts."""

from __future__ import annotations

from typing import Any

import pytest

import analemma
from analemma.errors import Corrupt
from tests.api.state.merged_branches import OWNER, latest, merge, save, start
from tests.raw_rows import change, select
from tests.stores import Store

pytestmark = pytest.mark.both_stores("which rows a deletion and the collector leave is each database's procedure")


def collect(store: Store) -> None:
    with store.open(delete_grace_s=0) as app:
        for _ in range(2):
            assert app.gc.run(grace_s=0, force=True).problems == ()


def branched(app: analemma.Store) -> None:
    """`late` goes on from `mid`, into which `dev` was merged; both have gone on since."""
    first = start(app, {"list": [0], "level": "low"}, "dev")
    app.kernel.fork(first, owner_id="ann", branch="mid")
    save(app, {"list": [0, "dev"], "level": "high"}, "dev")
    save(app, {"mid": 1}, "mid")
    last = merge(app, "dev", into="mid").commit.manifest_id
    app.kernel.fork(last, owner_id="ann", branch="late")
    save(app, {"level": "higher"}, "late")
    save(app, {"dev": 2}, "dev")


def merged(app: analemma.Store) -> dict[str, Any]:
    """What comes of merging again, with strategies that would take a change twice if nothing was merged before."""
    merge(app, "dev", into="late", strategies={"/list": "append", "/level": "last_write_wins"})
    return latest(app, "late")


WANTED = {"list": [0, "dev"], "level": "higher", "mid": 1, "dev": 2}


@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_what_was_merged_into_a_branch_that_is_deleted_is_not_merged_twice(
    store: Store, collected: bool, again: bool
) -> None:
    with store.open() as app:
        branched(app)
        app.kernel.delete(**OWNER, branch="mid")
        if collected:
            collect(store)
        if again:
            # The journal of the name goes on, and ends in the life of another branch.
            for number in (1, 2):
                save(app, {"other": number}, "mid")
        assert merged(app) == WANTED


def test_what_was_merged_is_known_when_later_lives_of_the_name_are_removed(store: Store) -> None:
    with store.open() as app:
        branched(app)
        app.kernel.delete(**OWNER, branch="mid")
        collect(store)
        save(app, {"other": 1}, "mid")
        app.kernel.delete(**OWNER, branch="mid")
        collect(store)
        assert app.kernel.deleted(**OWNER) == []
        assert merged(app) == WANTED


def test_lines_meet_in_a_branch_that_is_deleted(store: Store) -> None:
    with store.open() as app:
        start(app, {"base": 1}, "dev")
        second = save(app, {"dev": 1}, "dev")
        app.kernel.fork(second, owner_id="ann", branch="feature")
        save(app, {"feature": 1}, "feature")
        save(app, {"main": 1})
        app.kernel.delete(**OWNER, branch="dev")
        assert merge(app, "feature", preview=True).ancestor == "found"
        collect(store)
        assert merge(app, "main", into="feature").ancestor == "found"
        assert latest(app, "feature") == {"base": 1, "dev": 1, "feature": 1, "main": 1}


def test_the_journal_goes_with_the_last_version_that_others_were_forked_from(store: Store) -> None:
    with store.open() as app:
        branched(app)
        app.kernel.delete(**OWNER, branch="mid")
        collect(store)
        save(app, {"other": 1}, "mid")
        app.kernel.delete(**OWNER, branch="late")
        collect(store)
        (records,) = select(store, "SELECT min(seq), max(seq) FROM journal WHERE branch = 'mid'")
        assert records == (4, 5), "the tombstone, and the life behind it"
        assert app.kernel.verify(**OWNER, branch="mid").problems == []


def test_the_journal_stays_where_it_tells_of_what_was_had_back(store: Store) -> None:
    with store.open() as app:
        branched(app)
        app.kernel.delete(**OWNER, branch="mid")
        collect(store)
        save(app, {"other": 1}, "mid")
        app.kernel.delete(**OWNER, branch="mid")
        app.kernel.undelete(**OWNER, branch="mid")
        app.kernel.delete(**OWNER, branch="late")
        collect(store)
        assert select(store, "SELECT count(*) FROM manifest WHERE owner <> 'ann'") == [(0,)]
        save(app, {"other": 2}, "mid")
        assert app.kernel.verify(**OWNER, branch="mid").problems == []


def test_a_name_that_is_used_again_is_merged(store: Store) -> None:
    """Its journal begins with a tombstone."""
    with store.open() as app:
        first = start(app, {"base": 1})
        save(app, {"idea": 1}, "idea")
        app.kernel.delete(**OWNER, branch="idea")
        collect(store)
        app.kernel.fork(first, owner_id="ann", branch="idea")
        save(app, {"idea": 2}, "idea")
        save(app, {"main": 1})
        assert merge(app).commit is not None
        save(app, {"main": 2})
        assert merge(app, "main", into="idea").ancestor == "found"
        assert latest(app, "idea") == {"base": 1, "idea": 2, "main": 2}


def test_records_that_are_lost_are_missed_where_the_branch_is_deleted(store: Store) -> None:
    with store.open() as app:
        branched(app)
        app.kernel.delete(**OWNER, branch="mid")
        assert change(store, "DELETE FROM journal WHERE branch = 'mid' AND seq = 2") == 1
    with store.open() as app, pytest.raises(Corrupt, match="lacks records"):
        merged(app)
