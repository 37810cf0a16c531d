"""Saving a bag: what it costs, what others did meanwhile, what was moved from elsewhere, and what stays as it was."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import analemma.aio
from analemma import App, SmartStateBag
from analemma.errors import Conflict, HeadMoved, Invalid
from tests.api.bag.read_counts import IN_OBJECTS, counted
from tests.api.bag.saved_whole import root_of
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
WORDS = [random.Random(number).randbytes(4).hex() for number in range(400)]


def message(number: int) -> dict[str, Any]:
    return {"role": "user", "text": " ".join(random.Random(number).choices(WORDS, k=30))}


@pytest.fixture
def stored(store: Store) -> Iterator[App]:
    with store.open() as opened:
        yield opened


def bag_of(app: App, state: dict[str, Any] | None = None, **name: Any) -> SmartStateBag:
    if state is not None:
        app.kernel.save_state_delta(state, **(name or NAME))
    return app.kernel.load_latest_state(lazy=True, **(name or NAME))


def newest(app: App, **name: Any) -> dict[str, Any]:
    state: dict[str, Any] = app.kernel.load_latest_state(**(name or NAME))
    return state


# What it costs.


def test_appending_to_a_long_list_reads_and_writes_only_its_end(store: Store) -> None:
    with store.open(**IN_OBJECTS) as app:
        written = app.kernel.save_state_delta({"messages": [message(n) for n in range(5_000)], "n": 0}, **NAME)
    assert written.bytes_written > 500_000
    with counted(store) as reads:
        app = reads.app
        bag = bag_of(app)
        for step in range(5):
            reads.since()
            bag["messages"].append(message(20_000 + step))
            bag["n"] += 1
            commit = app.kernel.save(bag)
            # The root and the right edge of the list; afterwards they are at hand.
            assert reads.since()[1] < (100_000 if step == 0 else 5_000)
            assert commit.bytes_written < 40_000
            assert commit.blocks_stored <= 6
        messages = bag["messages"]
        assert len(messages) == 5_005 and messages[-1] == message(20_004) and messages[4_999] == message(4_999)
        assert newest(app)["messages"] == [message(n) for n in [*range(5_000), *range(20_000, 20_005)]]


def test_the_next_save_costs_only_the_next_change(app: App) -> None:
    bag = bag_of(app, {"messages": [message(n) for n in range(3000)], "scratch": {}, "n": 0})
    bag["scratch"] = {"notes": [message(n) for n in range(5000, 5500)], "index": {f"k{n}": [n] for n in range(500)}}
    assert app.kernel.save(bag).bytes_written > 20_000
    bag["n"] = 1
    assert [tuple(operation) for operation in bag.get_delta().operations] == [("put", ("n",), 1)]
    bag["scratch"]["notes"][7]["role"] = "me"
    assert [operation.path for operation in bag.get_delta().operations] == [
        ("n",), ("scratch", "notes", "7", "role")
    ]  # fmt: skip
    assert app.kernel.save(bag).bytes_written < 20_000
    assert newest(app)["scratch"]["notes"][7]["role"] == "me"


def test_a_moved_part_is_linked_and_not_read(store: Store) -> None:
    with store.open(**IN_OBJECTS) as app:
        app.kernel.save_state_delta({"big": {"list": [message(n) for n in range(3000)]}, "archive": {}}, **NAME)
    with counted(store) as reads:
        app = reads.app
        bag = bag_of(app)
        big = bag.pop("big")
        bag["renamed"] = big
        commit = app.kernel.save(bag)
        assert reads.since()[1] < 20_000 and commit.blocks_stored <= 3
        assert newest(app)["renamed"]["list"] == [message(n) for n in range(3000)]
        bag["renamed"]["list"].append("more")
        bag["archive"]["deep"] = bag.pop("renamed")
        app.kernel.save(bag)
        assert newest(app)["archive"]["deep"]["list"][-2:] == [message(2999), "more"]
        assert app.kernel.verify(**NAME).ok


def test_a_moved_part_cannot_end_deeper_than_can_be_read(app: App) -> None:
    deep: Any = "x" * 3000
    for _ in range(100):
        deep = [deep]
    shallow: Any = {"here": None}
    for _ in range(60):
        shallow = {"in": shallow}
    bag = bag_of(app, {"deep": deep, "shallow": shallow})
    inner = bag["shallow"]
    for _ in range(60):
        inner = inner["in"]
    inner["here"] = bag["deep"]
    with pytest.raises(Invalid, match="nesting deeper") as refused:
        app.kernel.save(bag)
    assert refused.value.pointer.startswith("/shallow/in/in")
    inner["here"] = bag["deep"][0]
    for _ in range(45):
        inner["here"] = inner["here"][0]
    app.kernel.save(bag)
    assert newest(app) == bag.to_dict()


# What others did.


def test_a_moved_head_changes_nothing_and_leaves_the_bag_as_it_was(stored: App) -> None:
    bag = bag_of(stored, {"n": 1, "plan": [1]})
    other = bag_of(stored)
    other["n"] = 2
    stored.kernel.save(other)
    bag["plan"].append(2)
    for _ in range(2):
        with pytest.raises(HeadMoved):
            stored.kernel.save(bag)
        assert bag == {"n": 1, "plan": [1, 2]} and bag.is_changed and bag.version == 1 and bag.commit is None
    assert newest(stored) == {"n": 2, "plan": [1]}


def test_rebase_keeps_what_others_changed_and_the_bag_shows_it(stored: App) -> None:
    bag = bag_of(
        stored,
        {"n": 1, "plan": {"a": 1, "b": [1, 2]}, "log": [message(n) for n in range(800)], "gone": 1, "loop_counter": 1},
    )
    plan, log = bag["plan"], bag["log"]
    plan["a"] = 5
    log.append("mine")
    bag["loop_counter"] = 7
    bag["shared"] = bag["also moved"] = {"x": 1}
    stored.kernel.save_state_delta(
        {"n": 2, "/plan/b/0": 9, "/plan/c": {"new": [1]}, "shared": {"y": 1}}, deleted=["gone"], **NAME
    )
    commit = stored.kernel.save(bag, rebase=True)
    expected = {
        "n": 2,
        "plan": {"a": 5, "b": [9, 2], "c": {"new": [1]}},
        "log": [*[message(n) for n in range(800)], "mine"],
        "loop_counter": 7,
        "shared": {"x": 1, "y": 1},
        "also moved": {"x": 1},
    }
    assert commit.version == 3 and commit.root_hash == root_of(stored, expected)
    assert newest(stored) == expected
    # The bag, and what was handed out before, is the merged state; changes are tracked on.
    assert plan is bag["plan"] and plan["b"] == [9, 2] and log is bag["log"] and not bag.is_changed
    plan["c"]["new"].append(2)
    log.append("more")
    stored.kernel.save(bag)
    assert newest(stored)["plan"]["c"] == {"new": [1, 2]} and newest(stored)["log"][-2:] == ["mine", "more"]
    assert bag == newest(stored)
    assert stored.kernel.verify(**NAME).ok


def test_rebase_surfaces_conflicts_and_changes_nothing(stored: App) -> None:
    bag = bag_of(stored, {"n": 1, "list": [1, 2], "map": {"a": {"b": 1}}, "same": 1})
    bag["n"] = 3
    bag["list"].insert(0, 3)
    bag["map"]["a"]["b"] = 5
    bag["same"] = 2
    stored.kernel.save_state_delta({"n": 2, "/list/0": 9, "same": 2}, deleted=["map"], **NAME)
    with pytest.raises(Conflict) as conflict:
        stored.kernel.save(bag, rebase=True)
    assert [each["path"] for each in conflict.value.conflicts] == ["/list", "/map", "/n", "/same"]
    assert bag["n"] == 3 and bag.version == 1 and bag.is_changed
    assert newest(stored) == {"n": 2, "list": [9, 2], "same": 2}


def test_many_threads_rebase_onto_each_other(stored: App) -> None:
    stored.kernel.save_state_delta({"counts": {}}, **NAME)

    def work(number: int) -> None:
        for step in range(5):
            with stored.kernel.session(rebase=True, **NAME) as state:
                state["counts"][f"{number}/{step}"] = step

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(newest(stored)["counts"]) == 20
    assert stored.kernel.history(**NAME)[0].version == 21


# Beginning.


def test_a_bag_made_from_a_dict_begins_a_branch(stored: App) -> None:
    mine = [1, 2]
    bag = SmartStateBag({"list": mine}, n=1)
    assert (bag.manifest_id, bag.version, bag.workflow_id, bag.owner_id, bag.branch) == (None,) * 5
    assert bag["list"] is mine
    with pytest.raises(Invalid, match="workflow_id"):
        stored.kernel.save(bag)
    commit = stored.kernel.save(bag, **NAME, branch="idea", message="first")
    assert (commit.version, bag.branch, bag.version, bag.manifest_id) == (1, "idea", 1, commit.manifest_id)
    mine.append(3)
    stored.kernel.save(bag)
    assert newest(stored, **NAME, branch="idea") == {"list": [1, 2, 3], "n": 1}
    with pytest.raises(HeadMoved):
        stored.kernel.save(SmartStateBag(n=2), **NAME, branch="idea")
    other = SmartStateBag(m=2)
    stored.kernel.save(other, rebase=True, **NAME, branch="idea")
    assert other == {"list": [1, 2, 3], "n": 1, "m": 2}
    with pytest.raises(Invalid, match="belongs to"):
        stored.kernel.save(bag, workflow_id="another")
    with pytest.raises(Invalid, match="no bag"):
        stored.kernel.save({"n": 1}, **NAME)  # type: ignore[arg-type]


def test_an_empty_bag_is_saved_as_an_empty_state(stored: App) -> None:
    stored.kernel.save(SmartStateBag(), **NAME)
    assert newest(stored) == {}
    bag = bag_of(stored)
    assert stored.kernel.save(bag).version == 2 and bag == {}


def test_metadata_message_execution_and_segment_are_kept(stored: App) -> None:
    bag = SmartStateBag(n=1)
    stored.kernel.save(
        bag, **NAME, execution_id="run 1", segment_id=3, message="why", metadata={"by": "me", "at": ["x" * 4000]}
    )
    version = stored.kernel.history(**NAME)[0]
    assert (version.execution_id, version.segment_id, version.message) == ("run 1", 3, "why")
    assert stored.kernel.verify(**NAME).ok


def test_metadata_of_a_session_may_be_said_until_its_end(app: App) -> None:
    metadata: dict[str, Any] = {"cost": 0}
    with app.kernel.session(**NAME, metadata=metadata) as state:
        state["n"] = 1
        metadata["cost"] = 5
    assert app.workflow(NAME["workflow_id"], owner=NAME["owner_id"]).at(1).metadata == {"cost": 5}
    with pytest.raises(Invalid, match="reserved"), app.kernel.session(**NAME, metadata={"why": 1}) as state:
        pytest.fail("it is refused before anything is done")


def test_the_same_key_gives_the_same_commit_and_another_request_is_refused(stored: App) -> None:
    bag, twin = bag_of(stored, {"n": 1}), bag_of(stored)
    for each in (bag, twin):
        each["n"] = 2
    commit = stored.kernel.save(bag, idempotency_key="step 1")
    stored.kernel.save_state_delta({"m": 1}, **NAME)
    assert stored.kernel.save(twin, idempotency_key="step 1") == commit
    assert twin.manifest_id == commit.manifest_id and not twin.is_changed
    twin["n"] = 3
    with pytest.raises(Conflict, match="another request"):
        stored.kernel.save(twin, idempotency_key="step 1")
    assert stored.kernel.history(**NAME)[0].version == 3


# Sessions.


def test_a_session_commits_at_its_end_and_nothing_on_an_exception(stored: App) -> None:
    with stored.kernel.session(**NAME, message="made") as state:
        state["n"] = 1
        state["list"] = [1]
    assert state.commit is not None and state.commit.version == 1
    with stored.kernel.session(**NAME) as state:
        state["n"] += 1
        state["list"].append(2)
    assert newest(stored) == {"n": 2, "list": [1, 2]} and state.commit is not None and state.commit.version == 2
    with pytest.raises(KeyError, match="missing"):
        failing_session(stored)
    assert newest(stored)["n"] == 2
    with pytest.raises(HeadMoved):
        session_that_is_overtaken(stored)
    assert newest(stored) == {"n": 2, "list": [1, 2], "m": 1}


def failing_session(app: App) -> None:
    with app.kernel.session(**NAME) as state:
        state["n"] = 5
        state["missing"]


def session_that_is_overtaken(app: App) -> None:
    with app.kernel.session(**NAME) as state:
        state["n"] = 6
        app.kernel.save_state_delta({"m": 1}, **NAME)


def test_a_session_sees_what_was_checkpointed(stored: App) -> None:
    stored.kernel.save_state_delta({"n": 1}, **NAME)
    stored.kernel.checkpoint_async({"n": 2}, **NAME)
    with stored.kernel.session(**NAME) as state:
        state["m"] = state["n"]
    assert newest(stored) == {"n": 2, "m": 2}


def test_sessions_and_bags_in_asyncio(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            async with app.kernel.session(**NAME) as state:
                state["list"] = [1]
            with pytest.raises(ZeroDivisionError):
                async with app.kernel.session(**NAME) as state:
                    state["list"].append(1 / 0)
            bag = await app.kernel.load_latest_state(lazy=True, **NAME)
            bag["list"].append(2)
            commit = await app.kernel.save(bag)
            assert commit.version == 2
            assert await app.kernel.load_state(commit.manifest_id) == {"list": [1, 2]}
            assert (await app.kernel.load_state(commit.manifest_id, lazy=True))["list"] == [1, 2]

    asyncio.run(work())


@pytest.mark.parametrize("large", [False, True], ids=["loaded list", "shell"])
def test_what_a_variable_holds_is_compared_at_every_save(stored: App, large: bool) -> None:
    start = [message(number) for number in range(3000)] if large else []
    bag = bag_of(stored, {"messages": start, "notes": {}})
    held: list[dict[str, Any]] = []
    for number in range(30):
        mine = message(10_000 + number)
        note = {"number": number}
        bag["messages"].append(mine)
        bag["notes"][f"note {number}"] = note
        stored.kernel.save(bag)
        # Seen at the next save, because it is still the same object that stands in the bag.
        mine["late"] = note["late"] = number
        held = [*held[-2:], mine]
    stored.kernel.save(bag)
    state = newest(stored)
    assert [item["late"] for item in state["messages"][len(start) :]] == list(range(30))
    assert [note["late"] for note in state["notes"].values()] == [note["number"] for note in state["notes"].values()]
    # And those that nobody holds any more are still tracked, however they are reached.
    bag["messages"][len(start)]["again"] = bag["notes"]["note 0"]["again"] = True
    stored.kernel.save(bag)
    state = newest(stored)
    assert state["messages"][len(start)]["again"] and state["notes"]["note 0"]["again"]
