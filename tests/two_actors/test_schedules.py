"""Two workers at one schedule, or a worker and whoever changes it: a tick has one run, and that of what the schedule is
by then."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Invalid
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, is_sqlite, select
from tests.stores import Store

DAY_S = 86_400
LATE: dict[str, Any] = {"sqlite_lock_timeout_s": 60}
FLOW = analemma.Flow("nightly")


@FLOW.step(reads=["n"], writes=["seen"])
def look(state: Any, ctx: Any) -> dict[str, Any]:
    return {"seen": state.get("n")}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def add(app: analemma.App, n: int = 1, **more: Any) -> Any:
    return app.flows.schedules.add("nightly", FLOW, {"n": n}, owner_id="ann", every_s=DAY_S, **more)


def pass_a_day(store: Store) -> None:
    """As if so much time had passed: its ticks are so much earlier."""
    assert change(store, "UPDATE schedule SET next_at = next_at - ?, look_at = 1", [DAY_S * 1_000_000]) == 1


@contextmanager
def due(store: Store) -> Iterator[tuple[analemma.App, analemma.App]]:
    """Two openers of a store with a tick that is due."""
    with store.open(**LATE) as app, store.open(**LATE) as other:
        add(app)
        other.flows.register(FLOW)
        pass_a_day(store)
        yield app, other


def tick(app: analemma.App) -> Callable[[], int]:
    """Begin what is due; how many runs."""
    return lambda: app.run_worker(1).drain().begun


@pytest.mark.parametrize("point", ["schedule.before_tick", "commit.before_transaction", "schedule.after_tick"])
def test_two_who_come_to_a_tick_begin_one_run(store: Store, point: str) -> None:
    """Guard: the run of a tick has the tick's key, and the schedule goes on from the tick that was seen."""
    with due(store) as (app, other):
        with failpoints.paused(point, tick(app)) as held:
            begun = [tick(other)(), held.go_on()]
        assert sorted(begun) == [0, 1]
        assert [run.status for run in app.flows.runs()] == ["COMPLETED"]
        schedule = app.flows.schedules.get("nightly")
        assert schedule.error is None and schedule.next_at is not None and schedule.last_at is not None
        assert (schedule.next_at - schedule.last_at).total_seconds() == DAY_S


def test_a_tick_whose_run_is_over_and_forgotten_is_not_begun_again(store: Store) -> None:
    """Guard: the schedule goes on only from the tick that was seen, in the transaction of the run."""
    with due(store) as (app, other):
        with failpoints.paused("schedule.before_tick", tick(app)) as held:
            assert tick(other)() == 1
            assert other.flows.forget(-1) == 1
            assert held.go_on() == 0
        assert app.flows.runs() == []


def test_a_schedule_that_was_paused_meanwhile_begins_nothing(store: Store) -> None:
    """Guard: the schedule goes on only while it is not paused."""
    with due(store) as (app, other):
        with failpoints.paused("schedule.before_tick", tick(app)) as held:
            other.flows.schedules.pause("nightly")
            assert held.go_on() == 0
        assert app.flows.runs() == [] and app.flows.schedules.get("nightly").paused
        # Resumed, it ticks from then on.
        other.flows.schedules.resume("nightly")
        assert tick(app)() == 0
        pass_a_day(store)
        assert tick(app)() == 1


def test_a_schedule_that_was_replaced_meanwhile_begins_nothing_of_the_old(store: Store) -> None:
    """Guard: the schedule goes on only as what it was seen to be."""
    with due(store) as (app, other):
        with failpoints.paused("schedule.before_tick", tick(app)) as held:
            add(other, 2, replace=True)
            assert held.go_on() == 0
        # Its tick is due as before.
        assert tick(app)() == 1
        assert [run.state for run in app.flows.runs()] == [{"n": 2, "seen": 2}]


def test_a_schedule_that_was_removed_meanwhile_begins_nothing(store: Store) -> None:
    """Guard: there is a schedule that goes on."""
    with due(store) as (app, other):
        with failpoints.paused("schedule.before_tick", tick(app)) as held:
            other.flows.schedules.remove("nightly")
            assert held.go_on() == 0
        assert app.flows.runs() == [] and app.flows.schedules.list() == []


@pytest.mark.parametrize("change_it", ["pause", "replace"])
def test_what_could_not_be_begun_says_nothing_of_what_the_schedule_is_by_then(store: Store, change_it: str) -> None:
    """Guard: a tick is put off only of the schedule that is there and not paused."""
    with due(store) as (app, other):

        def fail() -> None:
            if change_it == "pause":
                other.flows.schedules.pause("nightly")
            else:
                other.flows.schedules.remove("nightly")
                add(other, 2)
            raise Invalid("it cannot be begun")

        with failpoints.call("schedule.before_tick", fail):
            assert tick(app)() == 0
        found = app.flows.schedules.get("nightly")
        assert found.paused == (change_it == "pause")
        assert app.flows.runs() == []
        if change_it == "pause":
            assert found.error is None


def test_replacing_does_not_undo_a_tick_of_the_same_moment(store: Store) -> None:
    """Guard: a definition takes the place of another only where that was seen, and at the tick that was seen."""
    with due(store) as (app, _):
        with between(store) as (execute, end):
            # As a worker does that passes a tick: it is committed when the other has looked.
            execute("UPDATE schedule SET next_at = next_at + 86400000000, look_at = next_at + 86400000000")
            with beside(lambda: add(app, 2, replace=True)) as replacing:
                end(replacing)
        assert tick(app)() == 0
        schedule = app.flows.schedules.get("nightly")
        assert schedule.input == {"n": 2} and schedule.next_at is not None
        assert schedule.next_at > schedule.updated_at


def test_what_could_not_be_begun_puts_off_nothing_that_took_its_place(store: Store) -> None:
    """Guard: a tick is put off only of what the schedule was seen to be."""
    with due(store) as (app, other):
        change(store, "UPDATE schedule SET document = replace(document, 'python', 'cobol')")
        with failpoints.paused("schedule.before_postponing", tick(app)) as held:
            add(other, 2, replace=True)
            assert held.go_on() == 0
        assert app.flows.schedules.get("nightly").error is None
        assert tick(app)() == 1
        assert [run.state for run in app.flows.runs()] == [{"n": 2, "seen": 2}]


def test_who_replaces_a_schedule_goes_on_from_the_one_that_is_there_by_then(store: Store) -> None:
    """Guard: a definition takes the place of the one that was seen. Of two who tick alike the second keeps the ticks;
    if another was between them, it ticks from now on."""
    with due(store) as (app, other):
        [(text,)] = select(store, "SELECT definition FROM schedule")
        kept = json.loads(text)
        kept["ticks"]["anchor_us"] -= DAY_S // 2 * 1_000_000
        assert change(store, "UPDATE schedule SET definition = ?", [json.dumps(kept)]) == 1
        with failpoints.paused("schedule.before_replacing", lambda: add(app, 2, replace=True)) as held:
            other.flows.schedules.add("nightly", FLOW, owner_id="ann", every_s=7 * DAY_S, replace=True)
            replaced = held.go_on()
        assert tick(app)() == 1
        found = app.flows.schedules.get("nightly")
        assert (found.every_s, found.input) == (DAY_S, {"n": 2})
        assert found.next_at is not None and (found.next_at - replaced.updated_at).total_seconds() > 0.9 * DAY_S


@contextmanager
def between(store: Store) -> Iterator[tuple[Callable[[str], object], Callable[[threading.Thread], None]]]:
    """A transaction of somebody else: it has the store, or a row, until it is ended, which is when another waits."""
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")

            def end_file(other: threading.Thread) -> None:
                # There is no asking who waits for a file; whoever has not looked by then sees what was committed.
                time.sleep(0.2)
                database.execute("COMMIT")

            yield database.execute, end_file
        return
    with connect(store.url) as connection:

        def end(other: threading.Thread) -> None:
            wait_for_waiting(store.url, other)
            connection.commit()

        yield lambda sql: connection.execute(sql.encode()), end


def test_of_two_who_add_a_schedule_one_does(store: Store) -> None:
    """Guard: a name is taken once."""
    outcomes: list[str] = []

    def try_to(app: analemma.App, n: int) -> None:
        try:
            add(app, n)
            outcomes.append("added")
        except Conflict:
            outcomes.append("refused")

    with store.open(**LATE) as app, store.open(**LATE) as other:
        with beside(lambda: try_to(app, 1)), beside(lambda: try_to(other, 2)):
            pass
        assert sorted(outcomes) == ["added", "refused"]
        assert len(app.flows.schedules.list()) == 1
