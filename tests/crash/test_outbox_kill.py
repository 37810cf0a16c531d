"""Workers killed at random and at every failpoint: no effect is lost, those that settle in their own transaction happen
once, the events of an aggregate stay in order, and a worker that is asked to stop strands nothing."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from analemma import App
from analemma.testing import events, failpoints
from tests import programs
from tests.crash import outbox_worker
from tests.crash.outbox_worker import DEADLY, POISON_ATTEMPTS, RETURNED, SETTINGS, SETTLED
from tests.crash.points import kills
from tests.depth import count
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
SOAK_EVENTS = int(os.environ.get("ANALEMMA_OUTBOX_SOAK_EVENTS", "200000"))
POINTS = ["outbox.after_claim", "outbox.before_acknowledge", "outbox.after_acknowledge"]
SETTLE_POINTS = ["outbox.before_settle", "outbox.after_settle"]


@dataclass(frozen=True)
class Outbox:
    """Events of one store, and the workers that handle them."""

    store: Store
    log: Path

    def start(self, job: str, point: str | None = None) -> subprocess.Popen[str]:
        place = [self.store.url, self.store.objects or "", str(self.log), job]
        return programs.Program(
            [sys.executable, "-m", "tests.crash.outbox_worker", *place],
            cwd=ROOT,
            env={**os.environ, **({} if point is None else {failpoints.VARIABLE: point})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def die(self, job: str, point: str | None = None) -> None:
        process = self.start(job, point)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, stderr
        self.end_leases()

    def end_leases(self) -> None:
        """What a dead worker held is free when its lease is over."""
        change(self.store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")

    def drain(self, app: App) -> int:
        return app.worker(2, handlers=outbox_worker.handlers(app, self.log)).drain().delivered

    def effects(self) -> list[tuple[str, str]]:
        return outbox_worker.effects(self.store, self.log)

    def check(self, made: dict[str, list[str]]) -> int:
        """Every event had its effect, in order; how many had it again."""
        happened: dict[str, list[str]] = {}
        for lane, event in self.effects():
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


@pytest.fixture
def outbox(store: Store, tmp_path: Path) -> Outbox:
    return Outbox(store, tmp_path / "log")


def make(lane: str, number: int, kind: str) -> events.OutboxEvent:
    return events.OutboxEvent(f"{lane}-{number}", "RAW_DATA", lane, kind, b"{}")


def produce(app: App, how_many: int, lanes: int, *, outside: int = 4) -> dict[str, list[str]]:
    """Events in lanes of both kinds, of so many one with effects outside; the ids of each lane, in order."""
    made: dict[str, list[str]] = {}
    batch: list[events.OutboxEvent] = []
    for number in range(how_many):
        place = number % lanes
        lane = f"{'once' if place % outside else 'atleast'}-{place}"
        event = make(lane, number, SETTLED if place % outside else RETURNED)
        made.setdefault(lane, []).append(event.id)
        batch.append(event)
        if len(batch) == 500 or number == how_many - 1:
            events.produce(app, batch)
            batch = []
    return made


def churn(outbox: Outbox, workers: int, seed: int, most_kills: int) -> None:
    """Work until everything is delivered, killing and replacing workers now and then."""
    pick = random.Random(seed)
    running = [outbox.start("run") for _ in range(workers)]
    with outbox.store.open(**SETTINGS) as app:
        try:
            while (left := app.outbox.status(count_processed=False)).lanes:
                assert left.dead == 0, app.outbox.dead_letters()
                # To start a process takes a part of a processor: killed more often, they would do little else.
                time.sleep(pick.uniform(0.125, 0.375) * workers)
                place = pick.randrange(workers)
                if most_kills > 0:
                    running[place].send_signal(signal.SIGKILL)
                    running[place].communicate()
                    most_kills -= 1
                    running[place] = outbox.start("run")
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            ended = [process.communicate(timeout=60) for process in running]
    for process, (_, stderr) in zip(running, ended, strict=True):
        # Asked before it had set up its handler, a process ends by the signal itself.
        assert process.returncode in (0, -signal.SIGTERM), stderr


def churn_and_check(outbox: Outbox, *, how_many: int, lanes: int, workers: int, seed: int, most: int = 1 << 30) -> None:
    with outbox.store.open(**SETTINGS) as app:
        made = produce(app, how_many, lanes)
        churn(outbox, workers, seed, most)
        outbox.check(made)
        assert (app.outbox.status().lanes, app.outbox.status().dead) == (0, 0)


def test_killed_workers_lose_nothing_and_repeat_nothing_that_settles(outbox: Outbox) -> None:
    churn_and_check(
        outbox,
        how_many=count(200, deep=4_000),
        lanes=count(20, deep=100),
        workers=count(2, deep=4),
        seed=2,
        most=count(2, deep=1 << 30),
    )


@pytest.mark.soak
def test_killed_workers_for_a_long_time(outbox: Outbox) -> None:
    churn_and_check(outbox, how_many=SOAK_EVENTS // 10, lanes=500, workers=4, seed=4)


@pytest.mark.parametrize(
    "point",
    kills(
        [*POINTS, *SETTLE_POINTS],
        test=[*POINTS, *SETTLE_POINTS],
        postgres=["outbox.before_acknowledge", "outbox.after_acknowledge"],
    ),
)
def test_a_kill_at_a_failpoint_leaves_everything_to_others(outbox: Outbox, point: str) -> None:
    with outbox.store.open(**SETTINGS) as app:
        made = produce(app, 40, 8)
    # Where it can be, not the first time: something was settled before.
    outbox.die("drain", f"{point}:2" if point in SETTLE_POINTS else point)
    with outbox.store.open(**SETTINGS) as app:
        outbox.drain(app)
        assert app.outbox.status().lanes == 0
    # What a worker had handled and not settled comes again, and nothing else does.
    assert outbox.check(made) <= 10


def test_an_event_that_kills_its_worker_ends_dead_and_blames_no_other(outbox: Outbox) -> None:
    with outbox.store.open(**SETTINGS) as app:
        rows = [make("once-1", 1, SETTLED), make("once-1", 2, DEADLY), make("once-1", 3, SETTLED)]
        rows += [make(f"once-{lane}", 1, SETTLED) for lane in range(2, 6)]
        events.produce(app, rows)
    deaths = 0
    while (process := outbox.start("poison")) and (said := process.communicate(timeout=60)) and process.returncode:
        assert process.returncode == -signal.SIGKILL, said
        deaths += 1
        assert deaths <= POISON_ATTEMPTS + 1
        outbox.end_leases()
    with outbox.store.open() as app:
        entry = app.outbox.get("once-1-2")
        assert (entry.status, entry.attempts) == ("DEAD", POISON_ATTEMPTS)
        assert entry.failure_reason is not None and "died" in entry.failure_reason
        assert app.outbox.get("once-1-3").status == "PENDING"
        statuses = Counter(
            status for (status,) in select(outbox.store, "SELECT status FROM outbox WHERE type <> 'Happened'")
        )
        assert statuses == {"DEAD": 1, "PENDING": 1, "PROCESSED": 5}
        app.outbox.discard("once-1-2")
        outbox.drain(app)
    assert Counter(outbox.effects()).most_common(1)[0][1] == 1
    assert len(outbox.effects()) == 6


def test_a_worker_that_is_asked_to_stop_strands_nothing(outbox: Outbox) -> None:
    with outbox.store.open(**SETTINGS) as app:
        made = produce(app, count(400, deep=3000), count(40, deep=300))
        process = outbox.start("run")
        assert process.stdout is not None
        process.stdout.readline()
        deadline = time.monotonic() + 60
        while not outbox.effects():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        status = app.outbox.status()
        assert (status.processing, status.stale) == (0, 0)
        outbox.drain(app)
    assert outbox.check(made) == 0


def test_a_kill_while_housekeeping_leaves_what_is_not_settled(outbox: Outbox) -> None:
    with outbox.store.open(**SETTINGS) as app:
        made = produce(app, 1500, 50, outside=1)
        outbox.drain(app)
        events.produce(app, [make("atleast-1", 9999, RETURNED)])
    outbox.die("housekeep", "outbox.after_housekeeping")
    with outbox.store.open(**SETTINGS) as app:
        assert app.outbox.status().processed == 500
        assert app.outbox.housekeep(processed_after_s=0) == 500
        assert outbox.drain(app) == 1
    made["atleast-1"].append("atleast-1-9999")
    assert outbox.check(made) == 0
