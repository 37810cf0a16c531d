"""Somebody has a table of the database locked, perhaps somebody who is frozen: a run that waits for it too long is let
go of where it stands, and has not failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import App, Flow, Run
from analemma.errors import Timeout
from tests.api.flows.runs import PLACE
from tests.raw_rows import connect
from tests.stores import Store


@pytest.fixture
def store(migrated_url: str, tmp_path: Path) -> Store:
    """Only a server lets tables be locked."""
    return Store(migrated_url, str(tmp_path / "objects"))


class Other:
    """Somebody else, who has locked what a run needs."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def lock(self, table: str) -> None:
        self._connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())

    def lock_heads(self) -> None:
        self._connection.execute("SELECT FROM head FOR UPDATE")

    def go(self) -> None:
        self._connection.rollback()


@contextmanager
def locking(store: Store) -> Iterator[tuple[App, Other]]:
    with connect(store.url) as connection, store.open(statement_timeout_s=0.3) as app:
        yield app, Other(connection)


def is_let_go(run: Run) -> None:
    assert (run.status, run.holder, run.error) == ("RUNNING", None, None)


def one_step() -> Flow:
    flow = Flow("one")

    @flow.step(writes=["a"])
    def step(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    return flow


def test_a_commit_that_waits_too_long_lets_the_run_go(store: Store) -> None:
    calls: list[str] = []
    flow = Flow("locked")
    with locking(store) as (app, other):

        @flow.step(writes=["n"])
        def step(state: Any, ctx: Any) -> dict[str, int]:
            def lock(key: str) -> None:
                calls.append(key)
                other.lock_heads()

            ctx.once("lock", lock)
            return {"n": 1}

        with pytest.raises(Timeout):
            app.flows.run(flow, **PLACE)
        (run,) = app.flows.runs()
        is_let_go(run)
        other.go()
        done = app.flows.resume(run.execution_id)
        assert (done.status, done.state, len(calls)) == ("COMPLETED", {"n": 1}, 1)
        assert len(app.kernel.history(**PLACE)) == 2


def test_tasks_that_cannot_be_looked_for_let_the_run_go(store: Store) -> None:
    fails = [1]
    flow = Flow("items")

    @flow.step(reads=["item"], writes=["twice"])
    def double(state: Any, ctx: Any) -> dict[str, int]:
        if fails:
            raise ValueError(fails.pop())
        return {"twice": state["item"] * 2}

    flow.for_each("each", over="items", step=double, result="twice", into="all", max_parallel=1)
    with locking(store) as (app, other):
        run = app.flows.run(flow, {"items": [1, 2]}, **PLACE)
        assert run.status == "FAILED"
        other.lock("run_task")
        with pytest.raises(Timeout):
            app.flows.resume(run.execution_id)
        is_let_go(app.flows.get(run.execution_id))
        other.go()
        done = app.flows.resume(run.execution_id)
        assert (done.status, done.state["all"]) == ("COMPLETED", [2, 4])


@pytest.mark.parametrize("who", ["worker", "resume"])
def test_a_run_whose_version_cannot_be_read_is_let_go(store: Store, who: str) -> None:
    with store.open() as app:
        run = app.flows.start(one_step(), **PLACE)
    with locking(store) as (app, other):
        app.flows.register(one_step())
        other.lock("manifest")
        if who == "worker":
            # One that waits for the store keeps no other run waiting.
            assert app.run_worker(1).drain().failed == 1
        else:
            with pytest.raises(Timeout):
                app.flows.resume(run.execution_id)
        is_let_go(app.flows.get(run.execution_id))
        other.go()
        assert app.flows.resume(run.execution_id).status == "COMPLETED"


@pytest.mark.parametrize("where", ["step", "condition", "for_each"])
def test_a_part_of_the_state_that_cannot_be_read_lets_the_run_go(store: Store, where: str) -> None:
    asked: list[int] = []
    others: list[Other] = []
    flow = Flow("lazy")

    def look(state: Any, ctx: Any) -> dict[str, int]:
        asked.append(1)
        if len(asked) == 1:
            others[0].lock("block")
        return {"m": len(state["big"]["k250"])}

    def answer(state: Any, ctx: Any) -> None:
        pass

    def is_long(state: Any, ctx: Any) -> bool:
        return look(state, ctx)["m"] > 10

    if where == "condition":
        flow.branch("is_it", [(is_long, flow.step(answer))], default=[], reads=["big"])
    else:
        flow.step(look, reads=["big"], writes=["m"])
    if where == "for_each":
        flow.for_each("each", over="items", step=look, result="m", max_parallel=1)
    big = {f"k{number}": "x" * 5000 + str(number) for number in range(300)}
    with store.open() as app:
        run = app.flows.start(flow, {"big": big, "items": [1]}, **PLACE)
    # Nothing is cached in a process that has just begun.
    with locking(store) as (app, other):
        others.append(other)
        app.flows.register(flow)
        with pytest.raises(Timeout):
            app.flows.resume(run.execution_id)
        is_let_go(app.flows.get(run.execution_id))
        other.go()
        assert app.flows.resume(run.execution_id).status == "COMPLETED"
        assert len(asked) == 2


def test_a_look_at_the_lease_that_is_late_is_no_reason_to_fail(store: Store) -> None:
    flow, asked = Flow("x"), list[bool]()
    with locking(store) as (app, other):

        @flow.step(writes=["a"])
        def slow(state: Any, ctx: Any) -> dict[str, int]:
            # So long nobody looks again.
            time.sleep(0.6)
            other.lock("run")
            asked.append(ctx.cancelled)
            other.go()
            return {"a": 1}

        assert app.flows.run(flow, **PLACE).status == "COMPLETED"
    assert asked == [False]
