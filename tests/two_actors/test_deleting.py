"""Somebody saves, begins a branch or a run, forks, brings back or collects while something is deleted or brought back:
one of the two was first, and nothing is half gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import analemma
from analemma import Workflow
from analemma.errors import Conflict, NotFound
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.api.state.pending import left_behind
from tests.langgraph.graphs import put
from tests.stores import Store

POINT = "remove.before_transaction"


@pytest.fixture
def app(store: Store) -> Iterator[analemma.Store]:
    with store.open(sqlite_synchronous="NORMAL") as app:
        yield app


@pytest.fixture
def other(store: Store) -> Iterator[analemma.Store]:
    """The second actor, for whom no deletion has a grace."""
    with store.open(sqlite_synchronous="NORMAL", delete_grace_s=0) as app:
        yield app


@pytest.fixture
def trip(app: analemma.Store) -> Workflow:
    trip = app.workflow("trip", owner="ann")
    for number in (1, 2, 3):
        trip.save({"n": number})
    return trip


@pytest.fixture
def same(other: analemma.Store) -> Workflow:
    return other.workflow("trip", owner="ann")


def collect(app: analemma.Store) -> None:
    assert app.gc.run(grace_s=0, force=True).problems == ()


def whole(trip: Workflow) -> bool:
    return all(trip.branch(each.name).verify().problems == [] for each in trip.branches())


def test_what_is_saved_while_it_is_deleted_is_deleted_with_it(trip: Workflow, same: Workflow) -> None:
    with failpoints.call(POINT, lambda: same.save({"n": 4})):
        assert [each.version for each in trip.delete()] == [4]
    with pytest.raises(NotFound):
        trip.load()
    trip.undelete()
    assert trip.load() == {"n": 4} and whole(trip)


def test_what_is_tagged_while_it_is_deleted_is_deleted_with_it(trip: Workflow, same: Workflow) -> None:
    with failpoints.call(POINT, lambda: same.tag("mark", 1)):
        trip.delete()
    assert trip.save({"fresh": 1}).version == 4 and trip.tags() == [] and whole(trip)
    trip.delete()
    trip.undelete()
    assert whole(trip)


def test_a_branch_that_begins_while_its_workflow_is_deleted_is_deleted_with_it(trip: Workflow, same: Workflow) -> None:
    with failpoints.call(POINT, lambda: same.branch("draft", at=2)):
        assert [each.branch for each in trip.delete()] == ["draft", "main"]
    assert trip.save({"fresh": 1}).version == 4 and [each.name for each in trip.branches()] == ["main"]


@pytest.mark.both_stores("a branch that begins waits for a lock, which each database has in a way of its own")
def test_a_checkpoint_that_begins_a_branch_comes_before_the_deletion_or_fails(
    store: Store, other: analemma.Store, trip: Workflow
) -> None:
    place: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann", "branch": "draft"}
    late = left_behind(other, store, {"d": 1}, **place)
    with failpoints.call("apply.before_transaction", trip.delete):
        other.checkpoints.drain()
    assert "deleted" in str(other.kernel.ticket(late).reason)
    trip.save({"fresh": 1})
    assert [each.name for each in trip.branches()] == ["main"]
    early = left_behind(other, store, {"d": 1}, **place)
    with failpoints.call(POINT, other.checkpoints.drain):
        assert [each.branch for each in trip.delete()] == ["draft", "main"]
    assert other.kernel.ticket(early).status == "committed"


def test_of_two_who_delete_one_does(trip: Workflow, same: Workflow) -> None:
    with failpoints.call(POINT, same.delete), pytest.raises(NotFound):
        trip.delete()
    assert len(trip.deleted()) == 1


def test_what_is_forked_while_it_is_deleted_keeps_what_it_has(
    app: analemma.Store, other: analemma.Store, trip: Workflow
) -> None:
    second = trip.at(2).manifest_id

    def fork() -> None:
        other.kernel.fork(second, owner_id="ann", workflow_id="copy")

    with failpoints.call(POINT, fork):
        trip.delete()
    collect(other)
    copy = app.workflow("copy", owner="ann")
    assert [row.version for row in copy.log()] == [1, 2, 1] and copy.load() == {"n": 2} and whole(copy)


def test_what_is_forked_from_what_others_have_of_it_while_it_is_removed_keeps_that(
    app: analemma.Store, other: analemma.Store, trip: Workflow
) -> None:
    second = trip.at(2).manifest_id
    app.kernel.fork(second, owner_id="ann", workflow_id="copy")
    trip.delete()
    with failpoints.call(POINT, lambda: app.kernel.fork(second, owner_id="ann", workflow_id="more")):
        collect(other)
    app.workflow("copy", owner="ann").delete()
    collect(other)
    more = app.workflow("more", owner="ann")
    assert [row.version for row in more.log()] == [1, 2, 1] and more.load(at=1) == {"n": 2} and whole(more)


def test_a_name_that_is_used_again_meanwhile_stays_as_it_is(trip: Workflow, same: Workflow) -> None:
    trip.delete()
    with failpoints.call(POINT, lambda: same.save({"fresh": 1})), pytest.raises(Conflict):
        trip.undelete()
    assert trip.load() == {"fresh": 1} and [row.version for row in trip.log()] == [4] and whole(trip)


def test_what_was_deleted_before_does_not_come_back_over_what_is_deleted_meanwhile(
    trip: Workflow, same: Workflow
) -> None:
    trip.delete()

    def again() -> None:
        same.save({"fresh": 1})
        same.delete()

    with failpoints.call(POINT, again), pytest.raises(Conflict):
        trip.undelete()
    assert [each.version for each in trip.undelete()] == [4] and whole(trip)


def test_of_two_who_bring_back_one_does(trip: Workflow, same: Workflow) -> None:
    trip.delete()
    with failpoints.call(POINT, same.undelete), pytest.raises(NotFound):
        trip.undelete()
    assert trip.load() == {"n": 3} and whole(trip)


def test_what_the_collector_removes_meanwhile_does_not_come_back(
    trip: Workflow, same: Workflow, other: analemma.Store
) -> None:
    trip.delete()
    with failpoints.call(POINT, lambda: collect(other)), pytest.raises(NotFound):
        trip.undelete()
    assert trip.deleted() == [] and trip.save({"fresh": 1}).version == 4 and whole(trip)


def test_what_is_brought_back_when_it_is_about_to_be_removed_stays(trip: Workflow, other: analemma.Store) -> None:
    trip.branch("draft", at=2)
    trip.delete()
    with failpoints.call(POINT, trip.undelete):
        collect(other)
    collect(other)
    assert trip.load() == {"n": 3} and sorted(each.name for each in trip.branches()) == ["draft", "main"]
    assert whole(trip) and trip.save({"n": 4}).version == 4


def test_a_tag_that_moves_away_while_its_branch_is_deleted_stays(trip: Workflow, same: Workflow) -> None:
    trip.branch("draft", at=2).save({"d": 1})
    trip.tag("mark", "draft")
    with failpoints.call(POINT, lambda: same.tag("mark", 1, force=True)):
        trip.delete_branch("draft")
    assert [(each.name, each.version) for each in trip.tags()] == [("mark", 1)] and whole(trip)
    trip.undelete_branch("draft")
    assert whole(trip)


def test_a_checkpoint_that_waits_keeps_a_thread_whose_runs_go(app: analemma.Store, other: analemma.Store) -> None:
    """Only who deletes a workflow as a whole says that what waits for it is not wanted."""
    saver = AnalemmaSaver(app)
    put(saver, {"v": 1}, run_id="r0")
    tickets: list[Any] = []

    def enter() -> None:
        tickets.append(other.kernel.checkpoint_async({"x": 1}, workflow_id="t", owner_id="langgraph"))

    with failpoints.call(POINT, enter):
        saver.delete_for_runs(["r0"])
    assert app.kernel.wait_for(tickets[0]).committed
