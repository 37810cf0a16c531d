"""Somebody takes a run over in the middle of a segment, because its lease ran out: whoever had it begins, records and
commits nothing any more, while the run is under way elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
Step = Callable[[Any, Any], Any]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def look(state: Any, ctx: Any) -> None:
    """Changes nothing."""


def trip(step: Step, *, further: bool = False) -> analemma.Flow:
    """A run of one step, which is called by one name whoever runs it; or of one more."""
    step.__name__ = "plan"
    flow = analemma.Flow("trip", checkpoints="node")
    flow.step(step, writes=["plan"])
    if further:
        flow.step(look)
    return flow


class Rival:
    """Another opener, who takes the run and stands there."""

    def __init__(self, store: Store, app: analemma.App, step: Step, stack: ExitStack) -> None:
        self._store = store
        self._app = app
        self._stack = stack
        self.held: Any = None
        for further in (True, False):
            app.flows.register(trip(step, further=further))

    def take(self, execution: str) -> None:
        assert change(self._store, "UPDATE run SET due_at = 0 WHERE holder IS NOT NULL") == 1
        go_on = lambda: self._app.flows.resume(execution)  # noqa: E731
        self.held = self._stack.enter_context(failpoints.paused("run.after_claim", go_on))


@contextmanager
def rival(store: Store, step: Step) -> Iterator[tuple[analemma.App, Rival]]:
    # The first need not renew its lease while the test ends it.
    with store.open(run_lease_s=3600) as app, store.open() as other, ExitStack() as stack:
        yield app, Rival(store, other, step, stack)


def lose(app: analemma.App, step: Step, *, further: bool = False) -> None:
    """Run the trip until it is somebody else's, and see that it is left where it was."""
    done = app.flows.run(trip(step, further=further), {}, **PLACE)
    assert (done.status, done.segments, done.state) == ("RUNNING", (), {})
    assert len(app.kernel.history(**PLACE)) == 1


def test_no_effect_is_begun_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: the beginning of an effect is written under the fence of the run."""
    paid: list[str] = []

    def pay(name: str) -> Callable[[str], str]:
        return lambda key: paid.append(name) or name  # type: ignore[func-returns-value]

    with rival(store, lambda state, ctx: {"plan": ctx.once("pay", pay("other"))}) as (app, other):

        def step(state: Any, ctx: Any) -> Any:
            other.take(ctx.execution_id)
            return {"plan": ctx.once("pay", pay("first"))}

        lose(app, step)
        assert paid == []
        assert select(store, "SELECT count(*) FROM effect") == [(0,)]
        done = other.held.go_on()
        assert (done.status, done.state, paid) == ("COMPLETED", {"plan": "other"}, ["other"])


def test_no_effect_is_ended_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: what an effect came to is written under the fence of the run."""
    with rival(store, lambda state, ctx: {"plan": ctx.once("pay", lambda key: "other")}) as (app, other):

        def pay(key: str) -> str:
            other.take(key.partition(":")[0])
            return "first"

        lose(app, lambda state, ctx: {"plan": ctx.once("pay", pay)})
        assert select(store, "SELECT state FROM effect") == [("intent",)]
        done = other.held.go_on()
        assert (done.status, done.state) == ("COMPLETED", {"plan": "other"})


def test_nothing_is_noted_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: what a node reads, its time and its chance are written under the fence of the run."""
    with rival(store, lambda state, ctx: {"plan": ctx.reading("look", lambda: "other")}) as (app, other):

        def look() -> str:
            other.take(select(store, "SELECT execution FROM run")[0][0])
            return "first"

        lose(app, lambda state, ctx: {"plan": ctx.reading("look", look)})
        assert select(store, "SELECT count(*) FROM effect") == [(0,)]
        done = other.held.go_on()
        assert (done.status, done.state) == ("COMPLETED", {"plan": "other"})


def test_no_task_of_a_group_is_recorded_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: what the tasks of a group came to is written under the fence of the run."""

    def each(step: Step) -> analemma.Flow:
        step.__name__ = "square"
        flow = analemma.Flow("squares")
        flow.step(step, reads=["item"], writes=["answer"])
        flow.for_each("each", over="numbers", step="square", result="/answer", into="squares")
        return flow

    with store.open(run_lease_s=3600) as app, store.open() as other, ExitStack() as stack:
        other.flows.register(each(lambda state, ctx: {"answer": state["item"] ** 2}))
        taken: list[Any] = []

        def square(state: Any, ctx: Any) -> dict[str, int]:
            if not taken:
                assert change(store, "UPDATE run SET due_at = 0 WHERE holder IS NOT NULL") == 1
                go_on = lambda: other.flows.resume(ctx.execution_id)  # noqa: E731
                taken.append(stack.enter_context(failpoints.paused("run.after_claim", go_on)))
            return {"answer": 0}

        done = app.flows.run(each(square), {"numbers": [1, 2, 3]}, **PLACE, executor="threads:1")
        assert done.status == "RUNNING"
        assert select(store, "SELECT count(*) FROM run_task") == [(0,)]
        done = taken[0].go_on()
        assert (done.status, done.state["squares"]) == ("COMPLETED", [1, 4, 9])


def test_a_run_that_is_resumed_while_it_is_forgotten_stays(migrated_url: str, tmp_path: Path) -> None:
    """Guard: a run is forgotten only if it is over when its row is locked, and not when it was looked for."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app, connect(store.url) as holder:
        done = app.flows.run(trip(lambda state, ctx: None), {}, **PLACE)
        holder.execute("UPDATE run SET status = 'RUNNING', ended_at = NULL")
        with beside(lambda: app.flows.forget(0)) as forgetting:
            wait_for_waiting(store.url, forgetting)
            holder.commit()
        assert app.flows.get(done.execution_id).status == "RUNNING"


@pytest.mark.parametrize("further", [True, False], ids=["in between", "at the end"])
@pytest.mark.parametrize("changes", [True, False], ids=["with a version", "without a version"])
@pytest.mark.parametrize("tells", [True, False], ids=["with an event", "without an event"])
def test_no_segment_is_committed_by_whoever_lost_the_run(
    store: Store, changes: bool, tells: bool, further: bool
) -> None:
    """Guard: a segment's version, its events and where the run stands are committed under the fence of the run."""

    def work(ctx: Any, name: str) -> dict[str, str]:
        if tells:
            ctx.emit({"type": "Planned", "payload": {"by": name}})
        return {"plan": name} if changes else {}

    with rival(store, lambda state, ctx: work(ctx, "other")) as (app, other):

        def step(state: Any, ctx: Any) -> Any:
            other.take(ctx.execution_id)
            return work(ctx, "first")

        lose(app, step, further=further)
        assert select(store, "SELECT count(*) FROM outbox WHERE type = 'Planned'") == [(0,)]
        done = other.held.go_on()
        assert (done.status, done.state) == ("COMPLETED", {"plan": "other"} if changes else {})
        assert select(store, "SELECT count(*) FROM outbox WHERE type = 'Planned'") == [(int(tells),)]
        assert app.kernel.verify(**PLACE).ok


@pytest.mark.parametrize("verb", ["begin", "end", "note"])
def test_whoever_is_about_to_lose_the_run_waits_to_hear_of_it(migrated_url: str, tmp_path: Path, verb: str) -> None:
    """Guard: on PostgreSQL the fence is looked at under a lock on the run, so that nothing is begun, ended or noted
    between the moment at which somebody takes it and the moment at which that is committed."""
    paid: list[str] = []

    def take() -> None:
        holder.execute("UPDATE run SET fence = fence + 1, holder = 'another'")

    def act(key: str = "") -> str:
        if verb != "begin":
            take()
        paid.append(key)
        return "first"

    def step(state: Any, ctx: Any) -> Any:
        if verb == "begin":
            take()
        return {"plan": ctx.reading("look", act) if verb == "note" else ctx.once("pay", act)}

    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open() as app, connect(store.url) as holder:
        with beside(lambda: lose(app, step)) as running:
            wait_for_waiting(store.url, running)
            holder.commit()
        assert len(paid) == (verb != "begin")
        assert select(store, "SELECT state FROM effect") == ([("intent",)] if verb == "end" else [])
