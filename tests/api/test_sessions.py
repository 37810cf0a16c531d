"""Sessions and updates: what was changed becomes a version, what was only looked at does not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import analemma
import analemma.aio
from analemma.errors import Conflict, HeadMoved, Invalid, NotFound
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


def versions(app: analemma.App) -> int:
    return app.kernel.history(limit=1, **NAME)[0].version


def test_a_session_that_only_looked_makes_no_version(app: analemma.App) -> None:
    app.kernel.save_state_delta({"n": 1, "plan": [{"x": 1}], "big": list(range(3000))}, **NAME)
    with app.kernel.session(message="look", **NAME) as state:
        assert state["plan"][0]["x"] == state["n"] and len(state["big"]) == 3000
    assert state.commit is None and versions(app) == 1
    with app.kernel.session(**NAME) as state:
        state["n"] = 1
        state["plan"].append(2)
        state["plan"].pop()
    assert state.commit is None and versions(app) == 1
    with app.kernel.session(**NAME) as state:
        state["n"] += 1
    assert state.commit is not None and versions(app) == 2


def test_a_session_that_only_looked_is_not_in_the_way_of_others(app: analemma.App) -> None:
    app.kernel.save_state_delta({"n": 1}, **NAME)
    with app.kernel.session(**NAME) as state:
        assert state["n"] == 1
        app.kernel.save_state_delta({"n": 2}, **NAME)
    assert versions(app) == 2


def test_a_session_that_saved_in_between_adds_no_empty_version(app: analemma.App) -> None:
    with app.kernel.session(**NAME) as state:
        state["n"] = 1
        saved = app.kernel.save(state, **NAME)
    assert state.commit == saved and versions(app) == 1


def test_looking_at_a_branch_that_does_not_exist_does_not_begin_it(app: analemma.App) -> None:
    with app.kernel.session(**NAME) as state:
        assert state == {}
    with pytest.raises(NotFound):
        app.kernel.load_latest_state(**NAME)
    assert app.kernel.update(lambda state: None, **NAME) is None
    with pytest.raises(NotFound):
        app.kernel.load_latest_state(**NAME)


def test_a_save_without_changes_still_makes_a_version(app: analemma.App) -> None:
    app.kernel.save_state_delta({"n": 1}, **NAME)
    bag = app.kernel.load_latest_state(lazy=True, **NAME)
    assert app.kernel.save(bag, message="seen").version == 2


def test_an_update_changes_the_newest_state_and_gives_the_commit(app: analemma.App) -> None:
    for number in range(1, 4):
        commit = app.kernel.update(count, message=f"count to {number}", **NAME)
        assert commit is not None and commit.version == number
    newest = app.kernel.history(limit=1, **NAME)[0]
    assert (newest.message, app.kernel.load_latest_state(**NAME)) == ("count to 3", {"n": 3})
    assert app.kernel.update(lambda state: state.setdefault("n", 9), **NAME) is None
    assert app.kernel.update(count, branch="idea", **NAME) is not None
    assert app.kernel.load_latest_state(branch="idea", **NAME) == {"n": 1}


def test_what_the_function_of_an_update_raises_is_raised_and_nothing_is_saved(app: analemma.App) -> None:
    calls = 0

    def fail(state: Any) -> None:
        nonlocal calls
        calls += 1
        state["n"] = 1
        raise HeadMoved("of something else")

    with pytest.raises(HeadMoved, match="something else"):
        app.kernel.update(fail, **NAME)
    assert calls == 1
    with pytest.raises(NotFound):
        app.kernel.load_latest_state(**NAME)


async def later(state: Any) -> None:
    state["n"] = 1


@pytest.mark.parametrize("function", [lambda state: {**state, "n": 1}, later], ids=["another dict", "a coroutine"])
def test_a_function_whose_work_would_be_lost_is_refused(app: analemma.App, function: Any) -> None:
    with pytest.raises(Invalid, match="the function of an update"):
        app.kernel.update(function, **NAME)


def test_strategies_without_a_rebase_are_refused(app: analemma.App) -> None:
    with pytest.raises(Invalid, match="rebase"), app.kernel.session(strategies={"n": "ours"}, **NAME):
        raise AssertionError("it was refused before")
    with pytest.raises(Invalid, match="rebase"):
        app.kernel.save(analemma.SmartStateBag(n=1), strategies={"n": "ours"}, **NAME)
    with pytest.raises(Invalid, match="no merge strategy"):
        app.kernel.save(analemma.SmartStateBag(n=1), rebase=True, strategies={"n": "best"}, **NAME)  # type: ignore[dict-item]


def test_a_function_for_the_whole_state_decides_a_rebase(app: analemma.App) -> None:
    app.kernel.save_state_delta({"n": 1, "loop_counter": 1}, **NAME)
    bag = app.kernel.load_latest_state(lazy=True, **NAME)
    bag["n"], bag["loop_counter"] = 2, 5
    app.kernel.save_state_delta({"n": 3, "m": 1}, **NAME)
    app.kernel.save(bag, rebase=True, strategies={"": lambda base, ours, theirs: {**ours, **theirs}})
    assert app.kernel.load_latest_state(**NAME) == {"n": 2, "m": 1, "loop_counter": 5} == bag


def count(state: Any) -> None:
    state["n"] = state.get("n", 0) + 1


async def overtaken(app: analemma.aio.AsyncApp) -> None:
    async with app.kernel.session(rebase=True, **NAME) as state:
        count(state)
        await app.kernel.update(count, **NAME)


def test_coroutines_update_and_look_too(store: Store) -> None:
    async def work() -> None:
        async with analemma.aio.open(store.url, objects=store.objects, migrate=True) as app:
            await asyncio.gather(*[app.kernel.update(count, **NAME) for _ in range(8)])
            async with app.kernel.session(**NAME) as state:
                assert state["n"] == 8
            assert state.commit is None
            with pytest.raises(Conflict):
                await overtaken(app)
            assert (await app.kernel.load_latest_state(**NAME))["n"] == 9

    asyncio.run(work())
