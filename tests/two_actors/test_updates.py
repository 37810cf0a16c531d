"""Two who change one state at the same time: what both did is there, or one of them is told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.actors import Actor
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
WORKERS = 3
TIMES = 6


@pytest.fixture
def one(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


@pytest.fixture
def other(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


def newest(app: analemma.App) -> dict[str, Any]:
    state: dict[str, Any] = app.kernel.load_latest_state(**NAME)
    return state


def count(state: Any) -> None:
    state["n"] = state.get("n", 0) + 1
    state.setdefault("log", []).append("tick")


def bag_of(app: analemma.App) -> Any:
    return app.kernel.load_latest_state(lazy=True, **NAME)


ALIKE: dict[str, tuple[Any, Any]] = {
    # What stands there, and what both make of it.
    "counted": (1, 2),
    "set a field that was not there": (None, 2),
    "removed": (1, None),
    "replaced an item": ([1, 2], [1, 5]),
    "removed an item": ([1, 2, 3], [1, 3]),
    "inserted an item": ([1, 2], [1, 7, 2]),
    "changed a field of an item": ([{"n": 1}], [{"n": 2}]),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_a_rebase_onto_an_equal_change_is_a_conflict(one: analemma.App, other: analemma.App, kind: str) -> None:
    before, after = ALIKE[kind]
    one.kernel.save_state_delta({"a": 1} if before is None else {"a": 1, "x": before}, **NAME)
    bags = [bag_of(one), bag_of(other)]
    for bag in bags:
        if after is None:
            del bag["x"]
        else:
            bag["x"] = after
    one.kernel.save(bags[0], rebase=True)
    saved = newest(one)
    with pytest.raises(Conflict) as conflict:
        other.kernel.save(bags[1], rebase=True)
    assert [each["path"] for each in conflict.value.conflicts] == ["/x"]
    assert newest(one) == saved and len(one.kernel.history(**NAME)) == 2


def test_what_both_append_stands_both_also_if_it_is_equal(one: analemma.App, other: analemma.App) -> None:
    one.kernel.save_state_delta({"log": ["tick", "tick"], "deep": [{"log": []}, 1]}, **NAME)
    bags = [bag_of(one), bag_of(other)]
    for number, bag in enumerate(bags):
        bag["log"] += ["tick", number]
        bag["deep"][0]["log"].append("tick")
        bag.setdefault("new", []).append("tick")
    one.kernel.save(bags[0], rebase=True)
    other.kernel.save(bags[1], rebase=True)
    assert newest(one) == {
        "log": ["tick", "tick", "tick", 0, "tick", 1],
        "deep": [{"log": ["tick", "tick"]}, 1],
        "new": ["tick", "tick"],
    }
    assert bags[1] == newest(one) and not bags[1].is_changed


def test_changes_at_different_places_of_a_list_stand_both(one: analemma.App, other: analemma.App) -> None:
    one.kernel.save_state_delta({"plan": [1, 2, 3]}, **NAME)
    bags = [bag_of(one), bag_of(other)]
    bags[0]["plan"][0] = 10
    bags[1]["plan"].append(4)
    one.kernel.save(bags[0], rebase=True)
    other.kernel.save(bags[1], rebase=True)
    assert newest(one) == {"plan": [10, 2, 3, 4]} == bags[1]


def test_strategies_decide_what_both_changed_alike(one: analemma.App, other: analemma.App) -> None:
    one.kernel.save_state_delta({"n": 1, "who": "x", "cost": {"a": 1}, "gone": 1}, **NAME)
    strategies: dict[str, Any] = {
        "n": lambda base, ours, theirs: ours + theirs - base,
        "who": "last_write_wins",
        "cost": lambda base, ours, theirs: {**ours, **theirs, "seen": sorted({*ours, *theirs})},
        "gone": "ours",
    }
    for number, app in enumerate((one, other)):
        with app.kernel.session(rebase=True, strategies=strategies, **NAME) as state:
            if number == 0:
                count_beside(other, strategies)
            state["n"] += 1
            state["who"] = "me"
            state["cost"][f"field {number}"] = 1
            state.pop("gone", None)
    cost = {"a": 1, "field 0": 1, "field 1": 1, "field 2": 1}
    assert newest(one) == {"n": 4, "who": "me", "cost": {**cost, "seen": ["a", "field 0", "field 2"]}}


def count_beside(app: analemma.App, strategies: dict[str, Any]) -> None:
    """Somebody who is done before a session that began earlier ends."""
    with app.kernel.session(rebase=True, strategies=strategies, **NAME) as state:
        state["n"] += 1
        state["who"] = "me"
        state["cost"]["field 2"] = 1
        del state["gone"]


def test_an_update_that_is_overtaken_is_computed_again(one: analemma.App, other: analemma.App) -> None:
    one.kernel.save_state_delta({"n": 0}, **NAME)
    seen: list[int] = []

    def slowly(state: Any) -> None:
        seen.append(state["n"])
        count(state)

    with failpoints.paused("commit.before_transaction", lambda: one.kernel.update(slowly, **NAME)) as late:
        other.kernel.update(count, **NAME)
        commit = late.go_on()
    assert seen == [0, 1] and commit is not None and commit.version == 3
    assert newest(one) == {"n": 2, "log": ["tick", "tick"]}


def test_two_updates_may_begin_a_branch(one: analemma.App, other: analemma.App) -> None:
    with failpoints.paused("commit.before_transaction", lambda: one.kernel.update(count, **NAME)) as late:
        other.kernel.update(count, **NAME)
        late.go_on()
    assert newest(one) == {"n": 2, "log": ["tick", "tick"]}


def test_an_update_whose_version_expires_while_it_is_read_begins_again(one: analemma.App, other: analemma.App) -> None:
    one.kernel.save_state_delta({"n": 0, "text": "x" * 100_000}, **NAME)
    one.kernel.set_retention(keep_last=1, workflow_id="trip", owner_id="ann")
    attempts = 0

    def read_slowly(state: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            other.kernel.save_state_delta({"n": 5, "text": "y"}, **NAME)
            other.kernel.expire(**NAME)
            for _ in range(2):
                other.gc.run(grace_s=0)
        state["n"] += len(state["text"])

    one.kernel.update(read_slowly, **NAME)
    assert attempts == 2 and newest(one)["n"] == 6


def test_an_update_with_a_key_is_made_once(one: analemma.App, other: analemma.App) -> None:
    def pay() -> Any:
        return one.kernel.update(count, idempotency_key="order 7", **NAME)

    with failpoints.paused("commit.before_transaction", pay) as late:
        first = other.kernel.update(count, idempotency_key="order 7", **NAME)
        other.kernel.update(count, **NAME)
        assert late.go_on() == first
    assert other.kernel.update(count, idempotency_key="order 7", **NAME) == first
    assert newest(one)["n"] == 2
    with pytest.raises(Conflict, match="another request"):
        one.kernel.update(count, idempotency_key="order 7", message="another", **NAME)


def update_often(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        for _ in range(TIMES):
            app.kernel.update(count, **NAME)


def rebase_often(url: str, objects: str | None) -> None:
    """Counts by strategy, and appends: no attempt is lost, and none has to be made again."""
    with Store(url, objects).open() as app:
        for _ in range(TIMES):
            with app.kernel.session(
                rebase=True, strategies={"n": lambda base, ours, theirs: ours + theirs - base}, **NAME
            ) as state:
                count(state)


def retry_often(url: str, objects: str | None) -> None:
    """Tries again when told that somebody else counted too."""
    with Store(url, objects).open() as app:
        done = 0
        while done < TIMES:
            try:
                with app.kernel.session(rebase=True, **NAME) as state:
                    count(state)
            except Conflict:
                continue
            done += 1


@pytest.mark.parametrize("work", [update_often, rebase_often, retry_often])
def test_no_update_of_many_processes_is_lost(store: Store, one: analemma.App, work: Any) -> None:
    one.kernel.save_state_delta({"n": 0, "log": []}, **NAME)
    actors = [Actor(work, store.url, store.objects) for _ in range(WORKERS)]
    assert [(actor.wait(), actor.errors) for actor in actors] == [(0, "")] * WORKERS
    assert newest(one) == {"n": WORKERS * TIMES, "log": ["tick"] * WORKERS * TIMES}
    assert one.kernel.history(limit=1, **NAME)[0].version == WORKERS * TIMES + 1
