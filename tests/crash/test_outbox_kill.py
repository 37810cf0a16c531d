"""Workers killed at random and at every failpoint: no effect is lost, those that settle in their own transaction happen
once, the events of an aggregate stay in order, and a worker that is asked to stop strands nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from analemma import App
from analemma.catalog.engine import Transaction
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.port import OutboxEvent
from analemma.testing import failpoints
from tests import programs
from tests.crash.outbox_worker import (
    DEADLY,
    POISON_ATTEMPTS,
    RETURNED,
    SETTINGS,
    SETTLED,
    effects,
    handlers,
    prepare,
)
from tests.stores import Store

ROOT = Path(__file__).parents[2]
SOAK_EVENTS = int(os.environ.get("ANALEMMA_OUTBOX_SOAK_EVENTS", "200000"))
POINTS = ["outbox.after_claim", "outbox.before_acknowledge", "outbox.after_acknowledge"]
SETTLE_POINTS = ["outbox.before_settle", "outbox.after_settle"]


def start(store: Store, job: str, point: str | None = None) -> subprocess.Popen[str]:
    return programs.Program(
        [sys.executable, "-m", "tests.crash.outbox_worker", store.url, store.objects or "", job],
        cwd=ROOT,
        env={**os.environ, **({} if point is None else {failpoints.VARIABLE: point})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def make(lane: str, number: int, kind: str) -> OutboxEvent:
    return OutboxEvent(f"{lane}-{number}", "RAW_DATA", lane, kind, b"{}")


def produce(app: App, events: int, lanes: int) -> dict[str, list[str]]:
    """Events in lanes of both kinds; the ids of each lane, in order."""
    tenant = app.catalog.tenant("default")
    made: dict[str, list[str]] = {}
    batch: list[OutboxEvent] = []
    for number in range(events):
        place = number % lanes
        lane = f"{'once' if place % 4 else 'atleast'}-{place}"
        event = make(lane, number, SETTLED if place % 4 else RETURNED)
        made.setdefault(lane, []).append(event.id)
        batch.append(event)
        if len(batch) == 500 or number == events - 1:
            rows, batch = batch, []
            app.catalog.engine.write(lambda tx, rows=rows: enqueue(tx, tenant, rows, now_us=1))  # type: ignore[misc]
    return made


def check(store: Store, made: dict[str, list[str]]) -> int:
    """Every event had its effect, in order; how many had it again."""
    happened: dict[str, list[str]] = {}
    for lane, event in effects(store):
        happened.setdefault(lane, []).append(event)
    repeated = 0
    for lane, ids in made.items():
        found = happened.get(lane, [])
        if lane.startswith("once"):
            assert found == ids
            continue
        # Again, perhaps, but each time in order from where it was settled: first occurrences are in order.
        assert list(dict.fromkeys(found)) == ids
        repeated += len(found) - len(ids)
    assert set(happened) == set(made)
    return repeated


def churn(store: Store, workers: int, seed: int) -> int:
    """Work until everything is delivered, killing and replacing workers all the time; how many were killed."""
    pick = random.Random(seed)
    running = [start(store, "run") for _ in range(workers)]
    killed = 0
    with store.open(**SETTINGS) as app:
        try:
            while (left := app.outbox.status(count_processed=False)).lanes:
                assert left.dead == 0, app.outbox.dead_letters()
                # To start a process takes a second of a processor: killed more often, they would do little else.
                time.sleep(pick.uniform(0.125, 0.375) * workers)
                place = pick.randrange(workers)
                if running[place].poll() is None:
                    running[place].send_signal(signal.SIGKILL)
                    running[place].communicate()
                    killed += 1
                    running[place] = start(store, "run")
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            ended = [process.communicate(timeout=60) for process in running]
    for process, (_, stderr) in zip(running, ended, strict=True):
        # Asked before it had set up its handler, a process ends by the signal itself.
        assert process.returncode in (0, -signal.SIGTERM), stderr
    return killed


def churn_and_check(store: Store, *, events: int, lanes: int, workers: int, seed: int) -> None:
    # Its own transaction stalls for as long as the others work, which may be long on a busy machine.
    with store.open(**SETTINGS, statement_timeout_s=300) as app:
        prepare(store)
        made = produce(app, events, lanes)
        stalled, go_on = threading.Event(), threading.Event()
        late = None
        if store.url.startswith("postgresql"):
            # A transaction that began before all workers, and commits when the rest is done.
            def stall(tx: Transaction) -> None:
                enqueue(tx, app.catalog.tenant("default"), [make("once-late", 0, SETTLED)], now_us=1)
                stalled.set()
                assert go_on.wait(250)

            app.catalog.tenant("default")
            late = threading.Thread(target=lambda: app.catalog.engine.write(stall))
            late.start()
            assert stalled.wait(30)
        killed = churn(store, workers, seed)
        assert killed > 0
        if late is not None:
            go_on.set()
            late.join()
            made["once-late"] = ["once-late-0"]
            assert app.worker(1, handlers=handlers(app)).drain().delivered == 1
        check(store, made)
        status = app.outbox.status()
        assert (status.lanes, status.processed) == (0, sum(map(len, made.values())))


def test_killed_workers_lose_nothing_and_repeat_nothing_that_settles_on_postgres(migrated_url: str) -> None:
    churn_and_check(Store(migrated_url), events=10_000, lanes=400, workers=8, seed=1)


def test_killed_workers_lose_nothing_and_repeat_nothing_that_settles_on_sqlite(tmp_path: Path) -> None:
    churn_and_check(Store(str(tmp_path / "store")), events=4_000, lanes=100, workers=3, seed=2)


@pytest.mark.soak
def test_killed_workers_for_a_long_time_on_postgres(migrated_url: str) -> None:
    churn_and_check(Store(migrated_url), events=SOAK_EVENTS, lanes=3000, workers=8, seed=3)


@pytest.mark.soak
def test_killed_workers_for_a_long_time_on_sqlite(tmp_path: Path) -> None:
    churn_and_check(Store(str(tmp_path / "store")), events=SOAK_EVENTS // 10, lanes=500, workers=4, seed=4)


@pytest.mark.parametrize("point", [*POINTS, *SETTLE_POINTS])
def test_a_kill_at_a_failpoint_leaves_everything_to_others(store: Store, point: str) -> None:
    with store.open(**SETTINGS) as app:
        prepare(store)
        made = produce(app, 40, 8)
    # Where it can be, not the first time: something was settled before.
    process = start(store, "drain", f"{point}:2" if point in SETTLE_POINTS else point)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, stderr
    with store.open(**SETTINGS) as app:
        deadline = time.monotonic() + 30
        while app.outbox.status().lanes:
            app.worker(2, handlers=handlers(app)).drain()
            assert time.monotonic() < deadline
            time.sleep(0.1)
    # What a worker had handled and not settled comes again, and nothing else does.
    assert check(store, made) <= 10


def test_an_event_that_kills_its_worker_ends_dead_and_blames_no_other(store: Store) -> None:
    with store.open(**SETTINGS) as app:
        prepare(store)
        tenant = app.catalog.tenant("default")
        rows = [make("once-1", 1, SETTLED), make("once-1", 2, DEADLY), make("once-1", 3, SETTLED)]
        rows += [make(f"once-{lane}", 1, SETTLED) for lane in range(2, 6)]
        app.catalog.engine.write(lambda tx: enqueue(tx, tenant, rows, now_us=1))
    deaths = 0
    while True:
        process = start(store, "poison")
        _, stderr = process.communicate(timeout=60)
        if process.returncode == 0:
            with store.open() as app:
                if app.outbox.status().stale == 0 and app.outbox.status().processing == 0:
                    break
            time.sleep(0.2)
            continue
        assert process.returncode == -signal.SIGKILL, stderr
        deaths += 1
        assert deaths <= POISON_ATTEMPTS + 1
    with store.open() as app:
        entry = app.outbox.get("once-1-2")
        assert (entry.status, entry.attempts) == ("DEAD", POISON_ATTEMPTS)
        assert entry.failure_reason is not None and "died" in entry.failure_reason
        assert app.outbox.get("once-1-3").status == "PENDING"
        status = app.outbox.status()
        assert (status.dead, status.pending, status.processed) == (1, 1, 5)
        app.outbox.discard("once-1-2")
        app.worker(1, handlers=handlers(app)).drain()
    assert Counter(effects(store)).most_common(1)[0][1] == 1
    assert len(effects(store)) == 6


def test_a_worker_that_is_asked_to_stop_strands_nothing(store: Store) -> None:
    with store.open(**SETTINGS) as app:
        prepare(store)
        made = produce(app, 3000, 300)
        process = start(store, "run")
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 30
        while not effects(store):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        status = app.outbox.status()
        assert (status.processing, status.stale) == (0, 0)
        app.worker(2, handlers=handlers(app)).drain()
    assert check(store, made) == 0


def test_a_kill_while_housekeeping_leaves_what_is_not_settled(store: Store) -> None:
    with store.open(**SETTINGS) as app:
        prepare(store)
        made = produce(app, 2500, 50)
        app.worker(2, handlers=handlers(app)).drain()
        tenant = app.catalog.tenant("default")
        app.catalog.engine.write(lambda tx: enqueue(tx, tenant, [make("once-1", 9999, SETTLED)], now_us=1))
    process = start(store, "housekeep", "outbox.after_housekeeping")
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, stderr
    with store.open(**SETTINGS) as app:
        assert app.outbox.status().processed == 1500
        assert app.outbox.housekeep(processed_after_s=0) == 1500
        assert app.worker(1, handlers=handlers(app)).drain().delivered == 1
    made["once-1"].append("once-1-9999")
    check(store, made)
