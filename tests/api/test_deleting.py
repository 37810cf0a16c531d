"""Deleting branches and workflows: what is hidden, what comes back, how a name goes on that is used again, and what
the collector removes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import analemma.aio
from analemma import Workflow
from analemma.errors import Conflict, Corrupt, HeadMoved, Invalid, NotFound
from tests.api.state.pending import left_behind
from tests.raw_rows import change, select
from tests.stores import Store

NOW: dict[str, Any] = {"delete_grace_s": 0}
ROWS = "which rows go where is said in SQL that each database runs in a way of its own"


@pytest.fixture
def app(store: Store) -> Iterator[analemma.Store]:
    with store.open() as app:
        yield app


@pytest.fixture
def trip(app: analemma.Store) -> Workflow:
    return app.workflow("trip", owner="ann")


def three(trip: Workflow) -> list[analemma.Commit]:
    return [trip.save({"n": n, f"big{n}": f"{n}" * 3000}, message=f"message {n}") for n in (1, 2, 3)]


def collect(store: Store, **settings: Any) -> None:
    with store.open(**{**NOW, **settings}) as app:
        for _ in range(2):
            report = app.gc.run(grace_s=0, force=True)
            assert report.problems == ()


def count(store: Store, table: str, without: str = "") -> int:
    rows = select(store, f"SELECT count(*) FROM {table} WHERE workflow <> ?", [without])  # noqa: S608
    return int(rows[0][0])


def verified(trip: Workflow) -> bool:
    assert trip.verify().problems == []
    return True


def test_a_deleted_workflow_is_nowhere_to_be_found(app: analemma.Store, trip: Workflow) -> None:
    first, _, last = three(trip)
    trip.branch("draft", at=2).save({"d": 1})
    trip.tag("good", 2)
    app.kernel.pin(first.manifest_id, owner_id="ann", reason="kept")
    app.kernel.decide(last.manifest_id, "approved", owner_id="ann", actor="bob")
    (gone_draft, gone_main) = sorted(trip.delete(), key=lambda each: each.branch)
    assert (gone_main.owner_id, gone_main.workflow_id, gone_main.branch) == ("ann", "trip", "main")
    assert (gone_main.version, gone_main.manifest_id) == (3, last.manifest_id)
    assert (gone_draft.branch, gone_draft.version) == ("draft", 4)
    kernel: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
    for read in (
        trip.load,
        trip.log,
        trip.verify,
        trip.branches,
        lambda: trip.branch("draft"),
        lambda: trip.load(at="good"),
        lambda: trip.load(at=2),
        lambda: trip.load(first),
        lambda: trip.load(at=first.manifest_id[:8]),
        lambda: trip.blame("/n"),
        lambda: app.kernel.load_state(first.manifest_id),
        lambda: app.kernel.load_state(first.manifest_id, owner_id="ann"),
        lambda: app.kernel.fork(first.manifest_id, owner_id="ann", workflow_id="other"),
        lambda: app.kernel.children(first.manifest_id),
        lambda: app.kernel.get_workflow(**kernel),
        lambda: app.kernel.history(**kernel),
        lambda: app.kernel.last_safe_manifest(**kernel),
        lambda: app.kernel.decisions(last.manifest_id),
        lambda: app.kernel.verify_manifest_integrity(last.manifest_id),
        lambda: trip.delete(),
    ):
        with pytest.raises(NotFound):
            read()
    with pytest.raises(HeadMoved):
        trip.save({"n": 4}, expect=last)
    assert trip.tags() == [] and app.kernel.pins(**kernel) == []
    assert app.kernel.list_workflows(owner_id="ann").items == ()
    assert list(trip.watch(since=0, timeout_s=0)) == []
    with pytest.raises(Invalid):
        app.kernel.list_workflows(owner_id="~deleted/0/ann")


def test_what_is_brought_back_is_as_it_was(app: analemma.Store, trip: Workflow) -> None:
    first, second, last = three(trip)
    draft = trip.branch("draft", at=2)
    draft.save({"d": 1}, key="req-1")
    trip.tag("good", 2, message="why")
    app.kernel.pin(first.manifest_id, owner_id="ann", reason="kept")
    app.kernel.decide(last.manifest_id, "approved", owner_id="ann", actor="bob")
    app.kernel.set_workflow(workflow_id="trip", owner_id="ann", name="A trip", status="RUNNING")
    app.kernel.set_retention(owner_id="ann", workflow_id="trip", keep_last=7)
    kernel: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}

    def everything() -> list[Any]:
        return [
            trip.load(),
            draft.load(),
            [row.to_json() for row in trip.log()],
            [row.to_json() for row in draft.log()],
            trip.branches(),
            trip.tags(),
            app.kernel.pins(**kernel),
            app.kernel.decisions(last.manifest_id),
            app.kernel.last_safe_manifest(**kernel),
            app.kernel.get_workflow(**kernel),
            app.kernel.get_retention(**kernel),
            trip.load(at="good"),
            trip.load(second),
            draft.save({"d": 1}, key="req-1"),
        ]

    before = everything()
    gone = trip.delete()
    assert trip.deleted() == gone
    assert sorted(each.branch for each in trip.undelete()) == ["draft", "main"]
    assert everything() == before and trip.deleted() == []
    assert verified(trip) and verified(draft)
    assert trip.verify(expect=last.receipt).ok
    assert trip.save({"n": 4}).version == 4 and verified(trip)
    for nothing in (trip.undelete, lambda: trip.undelete_branch("draft"), lambda: trip.delete_branch("no")):
        with pytest.raises(NotFound):
            nothing()


def test_a_name_that_is_used_again_goes_on_counting(app: analemma.Store, trip: Workflow) -> None:
    old = three(trip)[-1]
    trip.tag("good", 2)
    trip.delete()
    fresh = trip.save({"fresh": 1})
    assert (fresh.version, fresh.parent_id) == (4, None)
    assert trip.load() == {"fresh": 1} and [row.version for row in trip.log()] == [4]
    assert trip.tags() == [] and verified(trip)
    assert [row.version for row in trip.watch(since=0, timeout_s=0)] == [4]
    for hidden in (3, old, "HEAD~1"):
        with pytest.raises(NotFound):
            trip.load(at=hidden)
    (problem,) = trip.verify(expect=old.receipt).problems
    assert "version 3" in problem and "deleted" in problem
    assert trip.verify(expect=fresh.receipt).ok
    with pytest.raises(Conflict):
        trip.undelete()
    trip.delete()
    assert [each.version for each in trip.undelete()] == [4]
    assert trip.load() == {"fresh": 1} and verified(trip)
    assert trip.save({"n": 5}).version == 5


@pytest.mark.both_stores(ROWS)
def test_what_had_a_name_that_was_used_again_cannot_be_had_back(app: analemma.Store, trip: Workflow) -> None:
    three(trip)
    trip.branch("draft", at=2)
    gone = trip.delete()
    assert trip.deleted() == gone
    trip.save({"stray": 1})
    for _ in range(2):
        assert [(each.branch, each.version) for each in trip.deleted()] == [("draft", 3)]
        with pytest.raises(Conflict, match="cannot be had back: its name was used again") as refused:
            trip.undelete()
        assert "first" not in str(refused.value.hint)
        (stray,) = trip.delete()
        assert trip.deleted() == [stray, gone[0]] and app.kernel.deleted() == trip.deleted()
        assert trip.undelete() == [stray]
    assert trip.undelete_branch("draft") == gone[0] and trip.deleted() == []
    assert verified(trip) and verified(trip.branch("draft"))


def test_a_branch_is_deleted_and_brought_back_by_itself(trip: Workflow) -> None:
    three(trip)
    draft = trip.branch("draft", at=2)
    draft.save({"d": 1})
    trip.tag("mark", "draft")
    gone = trip.delete_branch("draft")
    assert (gone.branch, gone.version) == ("draft", 4) and trip.deleted() == [gone]
    assert [each.name for each in trip.branches()] == ["main"] and trip.tags() == []
    with pytest.raises(NotFound):
        draft.save({"d": 2})
    again = trip.branch("draft", at=1)
    assert [row.version for row in again.log()] == [5, 1] and verified(again) and verified(trip)
    trip.delete_branch("draft")
    trip.delete()
    assert [each.branch for each in trip.undelete()] == ["main"]
    assert trip.undelete_branch("draft").version == 5 and again.load()["n"] == 1
    assert [row.version for row in draft.log()] == [5, 1]


def test_a_tag_that_is_used_again_keeps_its_branch_from_coming_back(trip: Workflow) -> None:
    three(trip)
    trip.branch("draft", at=2)
    trip.tag("mark", "draft")
    trip.delete_branch("draft")
    trip.tag("mark", 1)
    with pytest.raises(Conflict, match="tag"):
        trip.undelete_branch("draft")
    trip.untag("mark")
    assert trip.undelete_branch("draft").version == 3 and trip.load(at="mark")["n"] == 2


def test_those_that_were_forked_from_it_keep_what_they_have_from_it(
    store: Store, app: analemma.Store, trip: Workflow
) -> None:
    first, second, third = three(trip)
    draft = trip.branch("draft", at=2)
    draft.save({"d": 1})
    other = app.workflow("other", owner="ann")
    app.kernel.fork(first.manifest_id, owner_id="ann", workflow_id="other")
    before = [row.to_json() for row in draft.log()]
    blamed = draft.blame("/big1").version
    trip.delete_branch("main")

    def check() -> None:
        assert [row.to_json() for row in draft.log()] == before
        assert draft.blame("/big1").version == blamed == 1
        assert draft.load(at=1)["n"] == 1 and draft.load(second)["n"] == 2 and draft.load(at="HEAD~2")["n"] == 2
        assert [row.version for row in other.log()] == [1, 1]
        assert draft.rollback(1, deep=True) and draft.rollback(before[0]["manifest_id"])
        with pytest.raises(NotFound):
            draft.load(third)
        with pytest.raises(NotFound):
            draft.tag("no", second)
        assert verified(draft) and verified(other)

    check()
    before = [row.to_json() for row in draft.log()]
    collect(store)
    assert trip.deleted() == [] and [row.to_json() for row in draft.log()] == before
    assert select(store, "SELECT max(version) FROM manifest WHERE owner <> 'ann' AND workflow = 'trip'") == [(2,)]
    check()
    trip.delete()
    collect(store)
    assert select(store, "SELECT max(version) FROM manifest WHERE owner <> 'ann' AND workflow = 'trip'") == [(1,)]
    assert [row.version for row in other.log()] == [1, 1] and verified(other)
    other.delete()
    collect(store)
    assert select(store, "SELECT count(*) FROM manifest") == [(0,)]
    assert select(store, "SELECT count(*) FROM branch") == select(store, "SELECT count(*) FROM deletion") == [(0,)]


def test_what_the_collector_leaves_is_the_tombstone(store: Store, app: analemma.Store, trip: Workflow) -> None:
    old = three(trip)[-1]
    trip.save({"n": 4}, key="req-7")
    app.kernel.set_retention(owner_id="ann", workflow_id="trip", keep_last=7)
    trip.tag("good", 2)
    kept = app.workflow("kept", owner="ann")
    kept.save({"k": 1})
    trip.delete()
    for _ in range(2):
        app.gc.run(grace_s=0, force=True)
    assert len(trip.deleted()) == 1, "its grace is not over"
    with store.open(**NOW) as strict:
        assert strict.gc.plan(grace_s=0).tenants[0].expired == 4
        assert strict.gc.run(grace_s=0, force=True).tenants[0].expired == 4
    collect(store)
    with pytest.raises(NotFound):
        trip.undelete()
    for table in ("manifest", "branch", "workflow", "head", "journal"):
        assert count(store, table, "kept") == int(table == "journal")
    for table in ("ref", "idempotency", "retention", "deletion", "expired"):
        assert count(store, table) == 0
    assert app.stats(app.settings.tenant).blocks < 5
    fresh = trip.save({"fresh": 1}, key="req-7")
    assert fresh.version == 5 and verified(trip)
    assert not trip.verify(expect=old.receipt).ok
    trip.tag("good")
    trip.delete()
    trip.undelete()
    assert verified(trip) and verified(kept)


def test_checkpoints_that_wait_are_told(trip: Workflow) -> None:
    trip.save({"n": 1})
    tickets = [trip.checkpoint({"n": n}) for n in (2, 3)]
    trip.delete()
    told = [ticket.look() for ticket in tickets]
    assert all(each.status == "committed" or "deleted" in str(each.reason) for each in told)
    trip.undelete()
    assert next(trip.log()).version == 1 + sum(each.status == "committed" for each in told) and verified(trip)


@pytest.mark.both_stores(ROWS)
def test_a_checkpoint_for_a_branch_that_has_not_begun_is_told(
    store: Store, app: analemma.Store, trip: Workflow
) -> None:
    kernel: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
    trip.save({"n": 1})
    tickets = [left_behind(app, store, {"n": 2}, branch=name, **kernel) for name in ("draft", "main")]
    other = left_behind(app, store, {"n": 2}, workflow_id="other", owner_id="ann")
    trip.delete_branch("main")
    assert [app.kernel.ticket(each).status for each in tickets] == ["pending", "failed"]
    app.checkpoints.drain()
    assert [each.branch for each in trip.delete()] == ["draft"]
    trip.save({"n": 1})
    ticket = left_behind(app, store, {"n": 2}, branch="late", **kernel)
    assert [each.branch for each in trip.delete()] == ["main"]
    app.checkpoints.drain()
    assert "deleted" in str(app.kernel.ticket(ticket).reason) and app.kernel.ticket(other).status == "committed"
    with pytest.raises(NotFound):
        trip.branches()


def test_a_checkpoint_begins_a_name_that_was_used(trip: Workflow) -> None:
    three(trip)
    trip.delete()
    assert [ticket.wait(30).version for ticket in [trip.checkpoint({"c": n}) for n in (1, 2)]] == [4, 5]
    assert verified(trip)


def test_it_works_where_blocks_are_lost(store: Store, app: analemma.Store, trip: Workflow) -> None:
    three(trip)
    trip.branch("draft", at=2)
    change(store, "DELETE FROM block")
    with store.open() as cold:
        damaged = cold.workflow("trip", owner="ann")
        with pytest.raises(Corrupt):
            damaged.load()
        damaged.checkpoint({"n": 5})
        damaged.delete()
        damaged.undelete()
        damaged.delete_branch("draft")
        damaged.delete()
        assert damaged.save({"n": 1}).version == 4 and verified(damaged)
    collect(store)
    assert trip.load() == {"n": 1}


def test_a_key_counts_again_when_its_version_is_back(trip: Workflow) -> None:
    first = trip.save({"n": 1}, key="req-1")
    trip.delete()
    second = trip.save({"n": 1}, key="req-1")
    assert second.version == 2
    trip.delete()
    trip.undelete()
    assert trip.save({"n": 1}, key="req-1") == second != first


def test_everybodys_deletions_are_listed(app: analemma.Store) -> None:
    for owner, name in (("ann", "a"), ("ann", "b"), ("bob", "c")):
        handle = app.workflow(name, owner=owner)
        handle.save({"n": 1})
        handle.delete()
    assert [each.workflow_id for each in app.kernel.deleted()] == ["c", "b", "a"]
    assert [each.workflow_id for each in app.kernel.deleted(owner_id="ann")] == ["b", "a"]
    (one,) = app.kernel.deleted(owner_id="ann", workflow_id="a")
    assert (one.until - one.deleted_at).days == 7 and one.to_json()["until"] == one.until.isoformat()


def test_the_same_as_coroutines(store: Store) -> None:
    async def work() -> None:
        async with analemma.aio.open(store.url, objects=store.objects) as app:
            trip = app.workflow("trip", owner="ann")
            await trip.save({"n": 1})
            await trip.branch("draft", at=1)
            gone = await trip.delete_branch("draft")
            assert await trip.deleted() == [gone] and await trip.undelete_branch("draft") == gone
            assert [each.branch for each in await trip.delete(force=True)] == ["draft", "main"]
            assert len(await app.kernel.deleted()) == 2
            assert [each.branch for each in await trip.undelete()] == ["draft", "main"]
            assert await trip.load() == {"n": 1}

    asyncio.run(work())


@pytest.mark.both_stores(ROWS)
@pytest.mark.parametrize("whole", [True, False])
def test_a_key_whose_version_expired_goes_with_its_branch(app: analemma.Store, trip: Workflow, whole: bool) -> None:
    three(trip)
    draft = trip.branch("draft", at=1)
    old = draft.save({"a": 1}, key="once")
    draft.save({"a": 2})
    app.kernel.set_retention(owner_id="ann", workflow_id="trip", keep_last=1)
    assert app.kernel.expire(owner_id="ann", workflow_id="trip", branch="draft").expired
    assert draft.save({"a": 1}, key="once").version == old.version
    if whole:
        trip.delete()
        trip.save({})
    else:
        trip.delete_branch("draft")
    again = trip.branch("draft", at="HEAD")
    assert again.save({"a": 1}, key="once").version > old.version + 1 and again.load()["a"] == 1


@pytest.mark.both_stores(ROWS)
def test_a_key_whose_version_expired_comes_back_with_its_branch(app: analemma.Store, trip: Workflow) -> None:
    old = trip.save({"n": 1}, key="once")
    trip.save({"n": 2})
    app.kernel.set_retention(owner_id="ann", workflow_id="trip", keep_last=1)
    assert app.kernel.expire(owner_id="ann", workflow_id="trip").expired
    trip.delete()
    trip.undelete()
    assert trip.save({"n": 1}, key="once").version == old.version and trip.load() == {"n": 2}


@pytest.mark.both_stores(ROWS)
def test_a_key_that_was_used_again_leaves_nothing_aside(store: Store, app: analemma.Store, trip: Workflow) -> None:
    trip.save({"n": 1}, key="once")
    draft = trip.branch("draft", at=1)
    trip.delete_branch("main")
    used = draft.save({"d": 1}, key="other")
    trip.undelete_branch("main")
    trip.save({"n": 2}, key="third")
    trip.delete_branch("main")
    again = draft.save({"n": 2}, key="third")
    trip.undelete_branch("main")
    assert draft.save({"d": 1}, key="other") == used and draft.save({"n": 2}, key="third") == again
    keys = select(store, "SELECT owner, key FROM idempotency ORDER BY key")
    assert keys == [("ann", "once"), ("ann", "other"), ("ann", "third")]


@pytest.mark.both_stores(ROWS)
@pytest.mark.parametrize("first", ["main", "draft"])
def test_a_branch_that_is_had_back_by_itself_is_under_its_policy(
    app: analemma.Store, trip: Workflow, first: str
) -> None:
    kernel: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
    three(trip)
    draft = trip.branch("draft", at=1)
    draft.save({"d": 1})
    app.kernel.set_retention(owner_id="ann", keep_last=1)
    app.kernel.set_retention(keep_last=100, **kernel)
    app.kernel.set_workflow(name="Trip", status="COMPLETED", **kernel)
    versions = {name: [row.version for row in trip.branch(name).log()] for name in ("main", "draft")}
    trip.delete()
    for name in (first, *({"main", "draft"} - {first})):
        trip.undelete_branch(name)
        workflow = app.kernel.get_workflow(**kernel)
        assert (workflow.name, workflow.status) == ("Trip", "COMPLETED")
        app.gc.run(grace_s=0, force=True)
        assert [row.version for row in trip.branch(name).log()] == versions[name]
    assert trip.deleted() == [] and verified(trip) and verified(draft)


@pytest.mark.both_stores(ROWS)
def test_a_branch_that_was_deleted_before_its_workflow_is_had_back_under_its_policy(
    store: Store, app: analemma.Store, trip: Workflow
) -> None:
    kernel: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
    three(trip)
    draft = trip.branch("draft", at=1)
    draft.save({"d": 1})
    app.kernel.set_retention(owner_id="ann", keep_last=1)
    app.kernel.set_retention(keep_last=100, **kernel)
    trip.delete_branch("draft")
    trip.delete()
    trip.undelete_branch("draft")
    app.gc.run(grace_s=0, force=True)
    assert [row.version for row in draft.log()] == [3, 2, 1]
    app.kernel.set_retention(keep_last=50, **kernel)
    trip.undelete()
    assert app.kernel.get_retention(**kernel).keep_last == 50, "what is there by then stays as it is"
    trip.delete()
    collect(store)
    for table in ("workflow", "retention"):
        assert count(store, table) == 0


@pytest.mark.both_stores("each database compares text in a way of its own")
def test_an_owner_who_is_nearly_called_like_what_is_deleted_is_there(app: analemma.Store) -> None:
    owner = "~Deleted/x"
    trip = app.workflow("trip", owner=owner)
    first, second, last = three(trip)
    fork = app.kernel.fork(last.manifest_id, owner_id=owner, workflow_id="copy")
    assert [child.version for child in app.kernel.children(first.manifest_id)] == [second.version]
    assert [child.manifest_id for child in app.kernel.children(last.manifest_id)] == [fork.manifest_id]
    assert trip.load(at=second.manifest_id[:10])["n"] == 2
    app.kernel.set_retention(owner_id=owner, workflow_id="trip", keep_last=1)
    assert [each.expired for each in app.kernel.expire_all()] == [2]
