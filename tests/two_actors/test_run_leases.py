"""A run is held by a lease, and a run that begins another holds on to itself meanwhile: whoever lost either changes
nothing of it, and an end that comes at the same moment as the waiting for it is not overlooked."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, is_sqlite, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
LONGEST_S = 60
LEASE_S = 0.3
FOR_LONG_S = 3600


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def look(state: Any, ctx: Any) -> None:
    """Changes nothing."""


def flow_of(step: Callable[[Any, Any], Any], name: str, **options: Any) -> analemma.Flow:
    """A run of one step, which is called by one name whoever runs it."""
    step.__name__ = "step"
    flow = analemma.Flow(name)
    flow.step(step, **options)
    return flow


@contextmanager
def renewals(store: Store, app: analemma.App) -> Iterator[Callable[[], None]]:
    """Something to wait for: that this opener has renewed every lease it has, after being asked.

    It holds another run meanwhile, whose lease moves with each round."""
    inside, over = threading.Event(), threading.Event()

    def step(state: Any, ctx: Any) -> None:
        inside.set()
        assert over.wait(LONGEST_S)

    def until() -> int:
        return int(select(store, "SELECT due_at FROM run WHERE workflow = 'beside'")[0][0])

    def wait() -> None:
        end, seen, moved = time.monotonic() + LONGEST_S, until(), 0
        # Of two rounds that end from here on, the second began from here on.
        while moved < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
            moved, seen = moved + (until() != seen), until()

    with beside(lambda: app.flows.run(flow_of(step, "beside"), {}, workflow_id="beside", owner_id="ann")):
        assert inside.wait(LONGEST_S)
        try:
            yield wait
        finally:
            over.set()


def due_at(store: Store) -> int | None:
    """When the lease of the trip ends, or when somebody is to look at it."""
    found = select(store, "SELECT due_at FROM run WHERE workflow = 'trip'")[0][0]
    return None if found is None else int(found)


class Rival:
    """Another opener, who takes the trip over and stands there."""

    def __init__(self, app: analemma.App, stack: ExitStack) -> None:
        self._app = app
        self._stack = stack
        self.held: Any = None

    def take(self) -> None:
        (run,) = self._app.flows.runs(workflow_id="trip")
        go_on = lambda: self._app.flows.resume(run.execution_id, take_over=True)  # noqa: E731
        self.held = self._stack.enter_context(failpoints.paused("run.after_claim", go_on))


@contextmanager
def rival(store: Store, flow: analemma.Flow, **settings: Any) -> Iterator[tuple[analemma.App, Rival]]:
    with store.open(**settings) as app, store.open(run_lease_s=FOR_LONG_S) as other, ExitStack() as stack:
        other.flows.register(flow)
        yield app, Rival(other, stack)


def test_a_lease_is_renewed_by_whoever_has_the_run_and_by_nobody_else(store: Store) -> None:
    """Guard: a lease is renewed under the fence of the run."""
    inside, over = threading.Event(), threading.Event()

    def step(state: Any, ctx: Any) -> None:
        inside.set()
        assert over.wait(LONGEST_S)

    with rival(store, flow_of(look, "trip"), run_lease_s=LEASE_S) as (app, other):
        first = lambda: app.flows.run(flow_of(step, "trip"), {}, **PLACE)  # noqa: E731
        with renewals(store, app) as wait_for_renewal, beside(first):
            assert inside.wait(LONGEST_S)
            try:
                other.take()
                until = due_at(store)
                wait_for_renewal()
                assert due_at(store) == until
            finally:
                over.set()
        assert other.held.go_on().status == "COMPLETED"


def test_a_run_that_was_let_go_of_is_not_renewed(store: Store) -> None:
    """Guard: a lease is renewed only while somebody holds the run, not when it waits for its next try."""

    def step(state: Any, ctx: Any) -> None:
        raise OSError("not yet")

    flow = flow_of(step, "trip", retries={"times": 1, "delay_s": 100_000, "maximum_delay_s": 100_000})
    with store.open(run_lease_s=LEASE_S) as app, renewals(store, app) as wait_for_renewal:
        app.flows.start(flow, {}, **PLACE)
        with failpoints.paused("run.after_move", lambda: app.run_worker(1).drain()) as held:
            until = due_at(store)
            wait_for_renewal()
            assert due_at(store) == until
            held.go_on()


def test_whoever_lost_a_run_does_not_give_it_back(store: Store) -> None:
    """Guard: a run is let go of under its fence."""
    with rival(store, flow_of(look, "trip")) as (app, other):
        lost = app.flows.run(flow_of(lambda state, ctx: other.take(), "trip"), {}, **PLACE)
        assert lost.status == "RUNNING" and lost.holder is not None
        with pytest.raises(Conflict):
            app.flows.resume(lost.execution_id)
        assert other.held.go_on().status == "COMPLETED"


def trip(**options: Any) -> analemma.Flow:
    """Waits for another, for which somebody decides."""
    hotel = analemma.Flow("hotel")
    hotel.human("ask", choices=["yes"])
    flow = analemma.Flow("trip")
    flow.subflow("book", hotel, outputs={"said": "/ask/choice"}, **options)
    return flow


def children(app: analemma.App) -> list[str]:
    return [run.status for run in app.flows.runs() if run.parent is not None]


def test_no_subflow_is_begun_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: a run that begins another is held, under its fence, by the commit that does."""
    with rival(store, trip()) as (app, other):
        with failpoints.call("subflow.before_begin", other.take):
            lost = app.flows.run(trip(), {}, **PLACE)
        assert children(app) == []
        assert other.held.go_on().waiting is not None
        assert children(app) == ["WAITING_HUMAN"]
        assert app.flows.get(lost.execution_id).status == "RUNNING"


def failing(fails: list[str]) -> analemma.Flow:
    """Tries another again, which fails once."""

    def book(state: Any, ctx: Any) -> None:
        if fails:
            raise OSError(fails.pop())

    flow = analemma.Flow("trip")
    flow.subflow("book", flow_of(book, "hotel"), retries={"times": 1, "delay_s": 0.001})
    return flow


def test_no_subflow_is_tried_again_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: the run that lets another go on is held, under its fence, in the same transaction."""
    with rival(store, failing([])) as (app, other):
        with failpoints.call("subflow.before_resume", other.take):
            app.flows.run(failing(["full"]), {}, **PLACE)
        assert children(app) == ["FAILED"]
        assert other.held.go_on().status == "COMPLETED"
        assert children(app) == ["COMPLETED"]


def test_no_subflow_is_ended_by_whoever_lost_the_run(store: Store) -> None:
    """Guard: the run that ends another, whose time is over, is held, under its fence, in the same transaction."""
    with rival(store, trip(timeout_s=60)) as (app, other):
        app.flows.register(trip(timeout_s=60))
        app.flows.run(trip(timeout_s=60), {}, **PLACE)
        assert children(app) == ["WAITING_HUMAN"]
        # The time of the one below is over, and whoever waits for it is to look.
        change(store, "UPDATE run SET begun_at = 1, due_at = CASE WHEN parent IS NULL THEN 1 END")
        with failpoints.call("run.before_move", other.take):
            app.run_worker(1).drain()
        assert children(app) == ["WAITING_HUMAN"]
        late = other.held.go_on()
        assert late.error is not None and (late.status, late.error.kind) == ("FAILED", "timeout")
        assert children(app) == ["CANCELLED"]


def test_a_run_is_not_cancelled_without_the_one_that_it_is_about_to_begin(store: Store) -> None:
    """Guard: the run that begins another is locked until that is there, so that whoever cancels it sees both."""
    with store.open() as app, store.open() as other:
        with failpoints.paused("commit.before_commit", lambda: app.flows.run(trip(), {}, **PLACE), time=2) as held:
            (run,) = other.flows.runs()
            with beside(lambda: other.flows.cancel(run.execution_id)) as cancelling:
                if not is_sqlite(store):
                    wait_for_waiting(store.url, cancelling)
                held.go_on()
        assert [run.status for run in other.flows.runs()] == ["CANCELLED", "CANCELLED"]


def test_an_end_at_the_moment_at_which_somebody_begins_to_wait_for_it_is_not_overlooked(
    migrated_url: str, tmp_path: Path
) -> None:
    """Guard: whoever ends a run locks the one that began it, whether or not that waits by now."""
    store = Store(migrated_url, str(tmp_path / "objects"))

    def book(state: Any, ctx: Any) -> dict[str, int]:
        # The end of this run is written, as far as whoever waits for it is told, and not yet committed.
        between.execute("SELECT FROM run WHERE parent IS NOT NULL FOR UPDATE")
        return {"booked": 1}

    flow = analemma.Flow("trip")
    flow.subflow("book", flow_of(book, "hotel"), outputs={"booked": "booked"})
    with store.open() as app, store.open() as other, connect(store.url) as between:
        for each in (app, other):
            each.flows.register(flow)
        run = app.flows.start(flow, {}, **PLACE)
        with (
            failpoints.paused("subflow.after_begin", lambda: app.run_worker(1).drain()) as waits,
            beside(lambda: other.run_worker(1).drain()) as ends,
        ):
            wait_for_waiting(store.url, ends)
            with beside(waits.go_on) as begins:
                wait_for_waiting(store.url, ends, begins)
                between.rollback()
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).state == {"booked": 1}
