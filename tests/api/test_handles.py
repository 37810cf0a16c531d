"""Handles on workflows: all that can be done with a workflow, without saying again whose it is."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import analemma
from analemma import Workflow, aio
from analemma.errors import Conflict, HeadMoved, Invalid, NotFound
from analemma.testing import failpoints
from tests.stores import Store

WHY = {"model": "m-1", "prompt": "sha256:5d", "reason": "user asked"}


@pytest.fixture
def app(store: Store) -> Iterator[analemma.Store]:
    with store.open() as app:
        yield app


@pytest.fixture
def trip(app: analemma.Store) -> Workflow:
    return app.workflow("trip", owner="ann")


def test_a_handle_reads_nothing_and_begins_nothing(app: analemma.Store, trip: Workflow) -> None:
    assert (trip.key.owner, trip.key.workflow, trip.key.branch) == ("ann", "trip", "main")
    assert app.kernel.list_workflows(owner_id="ann").items == ()
    for read in (trip.load, trip.log, trip.verify, lambda: trip.get("n"), lambda: trip["n"], lambda: trip.at("HEAD")):
        with pytest.raises(NotFound):
            read()


def test_the_owner_is_the_one_of_the_settings(store: Store, app: analemma.Store) -> None:
    with pytest.raises(Invalid) as nobody:
        app.workflow("trip")
    assert "ANALEMMA_OWNER" in (nobody.value.hint or "")
    with store.open(owner="ann") as mine:
        mine.workflow("trip").save({"n": 1})
        assert mine.default.workflow("trip").key == app.workflow("trip", owner="ann").key
        assert mine.workflow("trip", owner="bob").key.owner == "bob"
    assert app.workflow("trip", owner="ann").load() == {"n": 1}


def test_a_handle_saves_and_reads(trip: Workflow) -> None:
    first = trip.save({"goal": "Seoul", "plan": [], "scratch": 1}, message="begin")
    second = trip.save({"/plan/-": {"day": 1}}, delete=["scratch"], expect=first, key="req-7", why=WHY)
    assert trip.save({"/plan/-": {"day": 1}}, delete=["scratch"], expect=first, key="req-7", why=WHY) == second
    assert trip.load() == {"goal": "Seoul", "plan": [{"day": 1}]}
    assert trip.load(first) == trip.load(at=1) == {"goal": "Seoul", "plan": [], "scratch": 1}
    assert (trip.get("/plan/0/day"), trip["goal"], trip.get("scratch"), trip.get("scratch", at=1)) == (
        *(1, "Seoul", None),
        1,
    )
    assert trip.get("scratch", "gone") == "gone"
    with pytest.raises(KeyError):
        trip["scratch"]
    with pytest.raises(HeadMoved):
        trip.save({"goal": "Busan"}, expect=1)
    with pytest.raises(HeadMoved):
        trip.save({"goal": "Busan"}, expect=None)
    assert trip.save({"goal": "Busan"}, expect="HEAD").version == 3


def test_an_edit_saves_what_was_changed_and_nothing_else(trip: Workflow) -> None:
    trip.save({"plan": [{"day": 1}]})
    with trip.edit(message="hotel", why=WHY) as state:
        state["plan"][0]["hotel"] = "Lotte"
    assert state.commit is not None and trip.at(state.commit).why == WHY
    with trip.edit() as state:
        assert state["plan"] == [{"day": 1, "hotel": "Lotte"}]
    assert state.commit is None

    def fail() -> None:
        with trip.edit() as state:
            state["plan"].clear()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [version.message for version in trip.log()] == ["hotel", None]


def test_an_update_changes_the_state_or_says_what_changes(trip: Workflow) -> None:
    assert trip.update(lambda state: {"n": state.get("n", 0) + 1, "list": []}) is not None
    assert trip.update(lambda state: {"/list/-": state["n"]}) is not None
    assert trip.update(lambda state: state["list"].append(2)) is not None
    assert trip.load() == {"n": 1, "list": [1, 2]}
    assert trip.update(lambda state: {"n": 1}) is None
    assert trip.update(lambda state: {}) is None
    assert trip.update(lambda state: state.setdefault("list", {})) is None

    def both(state: dict[str, Any]) -> dict[str, Any]:
        state["n"] = 2
        return {"n": 3}

    with pytest.raises(Invalid):
        trip.update(both)
    with pytest.raises(Invalid):
        trip.update(lambda state: {"/nothing/deep": 1})
    assert trip.load() == {"n": 1, "list": [1, 2]}


def test_an_update_is_tried_again_when_somebody_was_faster(store: Store, trip: Workflow) -> None:
    trip.save({"n": 0})
    count = lambda: trip.update(lambda state: {"n": state["n"] + 1})  # noqa: E731
    with store.open() as rival, failpoints.paused("commit.before_transaction", count) as held:
        rival.workflow("trip", owner="ann").update(lambda state: {"n": state["n"] + 10})
        held.go_on()
    assert trip.load() == {"n": 11}


def test_a_version_keeps_its_metadata_and_where_it_comes_from(trip: Workflow) -> None:
    plain = trip.save({"n": 1})
    told = trip.save({"n": 2}, why=WHY, metadata={"cost": 3})
    found = trip.at(told)
    assert (found.version, found.why, found.metadata) == (2, WHY, {"cost": 3, "why": WHY})
    assert (found.load(), found.get("n"), found.get("m", 0)) == ({"n": 2}, 2, 0)
    assert (trip.at(plain).why, trip.at(plain).metadata) == (None, None)
    trip.update(lambda state: {"n": 3}, why={"actor": "bob"})
    assert trip.at("HEAD").why == {"actor": "bob"}
    assert trip.checkpoint({"n": 4}, why={"tool": "search"}).wait().version == 4
    assert trip.at("HEAD").why == {"tool": "search"}
    assert trip.verify().ok


def test_the_reserved_key_of_metadata_is_refused(app: analemma.Store, trip: Workflow) -> None:
    name: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
    for save in (
        lambda: trip.save({}, metadata={"why": 1}),
        lambda: trip.checkpoint({}, metadata={"why": 1}),
        lambda: trip.update(lambda state: {"n": 1}, metadata={"why": 1}),
        lambda: trip.edit(metadata={"why": 1}),
        lambda: app.kernel.save_state_delta({}, metadata={"why": 1}, **name),
        lambda: app.kernel.save(analemma.SmartStateBag(), metadata={"why": 1}, **name),
    ):
        with pytest.raises(Invalid) as refused:
            save()
        assert "reserved" in refused.value.message
    for why in ("because", {}, {1: "a"}, ["model"]):
        with pytest.raises(Invalid):
            trip.save({}, why=why)  # type: ignore[arg-type]


def test_the_log_reads_a_page_when_it_comes_to_it(trip: Workflow) -> None:
    for number in range(5):
        trip.save({"n": number}, execution=f"run-{number % 2}")
    assert [version.version for version in islice(trip.log(), 2)] == [5, 4]
    assert [version.version for version in trip.log(execution="run-1")] == [4, 2]
    assert [version.version for version in trip.log(until=dt.datetime(2001, 1, 1, tzinfo=dt.UTC))] == []
    side = trip.branch("side", at=2)
    side.save({"n": 9})
    assert [(version.branch, version.version) for version in side.log()] == [
        *(("side", 4), ("side", 3)),
        *(("main", 2), ("main", 1)),
    ]


def test_a_difference_can_say_what_was_there_before(trip: Workflow) -> None:
    first = trip.save({"list": ["a", "b", {"x": [1]}, "d"], "gone": {"deep": 1}, "n": 1})
    second = trip.save({"list": ["b", {"x": [2]}, "d", "e"], "n": 2}, delete=["gone"])
    plain, told = trip.diff(first, second), trip.diff(first, "HEAD", old_values=True)
    assert [{name: item for name, item in change.items() if name != "old"} for change in told] == plain
    assert [(change["path"], change["old"]) for change in told if change["op"] != "add"] == [
        ("/gone", {"deep": 1}),
        ("/n", 1),
        ("/list/0", "a"),
        ("/list/1/x/0", 1),
    ]
    assert all("old" not in change for change in told if change["op"] == "add")


def test_branches_are_made_on_purpose(trip: Workflow) -> None:
    first = trip.save({"goal": "Seoul"})
    trip.save({"days": 3})
    with pytest.raises(NotFound):
        trip.branch("draft")
    draft = trip.branch("draft", at="HEAD~1", message="another goal")
    assert (draft.key.branch, draft.load()) == ("draft", {"goal": "Seoul"})
    with pytest.raises(Conflict):
        trip.branch("draft", at=first)
    draft.save({"goal": "Busan"})
    assert trip.branch("draft")["goal"] == "Busan"
    assert [branch.name for branch in trip.branches()] == ["main", "draft"]
    assert trip.merge(draft, preview=True).commit is None
    merged = trip.merge(draft)
    assert merged.commit is not None and trip.load() == {"goal": "Busan", "days": 3}
    assert trip.rollback(first).version == merged.commit.version + 1
    assert trip.load() == {"goal": "Seoul"}
    assert trip.rollback("draft").version == merged.commit.version + 2
    assert trip.load() == {"goal": "Busan"} and trip.verify().ok


def test_branches_of_other_workflows_are_merged_by_what_they_are(app: analemma.Store, trip: Workflow) -> None:
    first = trip.save({"goal": "Seoul"})
    app.kernel.fork(first.manifest_id, workflow_id="other", owner_id="ann")
    other = app.workflow("other", owner="ann")
    other.save({"hotel": "Lotte"})
    assert trip.merge(other).commit is not None
    assert trip.load() == {"goal": "Seoul", "hotel": "Lotte"}
    for refused in (lambda: trip.branch("x", at=other.at("HEAD")), lambda: trip.rollback(other.at(1))):
        with pytest.raises(Invalid):
            refused()


def test_tags_name_versions(trip: Workflow) -> None:
    trip.save({"n": 1})
    second = trip.save({"n": 2})
    assert trip.tag("good", 1).version == 1
    assert trip.tag("newest").manifest_id == second.manifest_id
    with pytest.raises(Conflict):
        trip.tag("good", second)
    trip.tag("good", second, force=True)
    assert [(tag.name, tag.version) for tag in trip.tags()] == [("newest", 2), ("good", 2)]
    trip.untag("newest")
    assert (trip.load("good"), [tag.name for tag in trip.tags()]) == ({"n": 2}, ["good"])


def test_a_ticket_waits_for_its_version(trip: Workflow) -> None:
    ticket = trip.checkpoint({"n": 1}, key="once", message="soon")
    assert ticket.wait(30).version == 1
    assert (ticket.look().status, ticket.look().version) == ("committed", 1)
    assert analemma.Ticket.parse(str(ticket)) == ticket.ticket
    with pytest.raises(Invalid):
        trip.checkpoint({"/no/where": 1}).wait()


def test_a_branch_is_verified_and_watched(trip: Workflow) -> None:
    first = trip.save({"n": 1})
    trip.save({"n": 2})
    assert trip.verify(expect=first).ok and trip.verify(expect=first.receipt).ok
    assert [version.version for version in trip.watch(since=0, timeout_s=0)] == [1, 2]
    assert trip.blame("/n").version == 2


def test_a_handle_of_coroutines_is_derived(store: Store) -> None:
    async def work() -> None:
        async with aio.open(store.url, objects=store.objects) as app:
            trip = app.workflow("trip", owner="ann")
            assert (await app.tenant("shop")).workflow("trip", owner="ann").key == trip.key
            first = await trip.save({"goal": "Seoul"}, why=WHY)
            async with trip.edit() as state:
                state["days"] = 3
            await trip.update(lambda state: {"days": state["days"] + 1})
            draft = await trip.branch("draft", at="HEAD~1")
            await draft.save({"hotel": "Lotte"})
            assert (await trip.merge(draft)).commit is not None
            assert await trip.load() == {"goal": "Seoul", "days": 4, "hotel": "Lotte"}
            version = await trip.at(first)
            assert (version.why, await version.load()) == (WHY, {"goal": "Seoul"})
            assert await trip.diff(version, first) == []
            ticket = await trip.checkpoint({"n": 1})
            assert (await ticket.wait(30)).version == 5
            assert [each.version async for each in trip.log()][:2] == [5, 4]
            assert [each.version async for each in trip.watch(since=3, timeout_s=0)] == [4, 5]

    asyncio.run(work())
