"""Three workers on PostgreSQL take a run over from each other. One that was stopped, and comes back when another has
its run, commits nothing; one that was killed has left nothing behind that is not whole."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from tests.crash.flow_matrix import INPUT, MOST_AT_ONCE, OWNER, TENANT, make_flow, open_store, place
from tests.crash.flow_matrix_checks import Course, Interrupted, facts
from tests.crash.flow_matrix_forks import Forks
from tests.crash.test_flow_matrix import alone, forks
from tests.programs import Program
from tests.raw_rows import select
from tests.stores import Store

__all__ = ["alone", "forks"]

WORKERS = 3
PATIENCE_S = 60.0
LONG_S = 600.0
"""A lease that lasts longer than any test."""
LOST = re.compile("goes on elsewhere|runs are out of reach")
"""What a worker says of a run that is somebody else's, and of a transaction that was ended while it was stopped."""
WRITTEN = (
    "SELECT number, execution, status, head, position, fence, holder, incarnation FROM run ORDER BY number",
    "SELECT run, incarnation, seq, segment, status, input, output, attempts FROM run_segment ORDER BY run, seq",
    "SELECT run, incarnation, seq, item, status, root FROM run_task ORDER BY run, seq, item",
    "SELECT run, incarnation, key, state, result, body, attempts FROM effect ORDER BY run, key",
    "SELECT id FROM outbox ORDER BY id",
    "SELECT id FROM manifest ORDER BY id",
    "SELECT count(*) FROM raw",
)
"""All that a worker could commit."""

BEFORE_APPROVAL = [
    ("run.before_segment", 5),
    ("run.after_segment", 9),
    ("run.before_advance", 3),
    ("effect.after_intent", 20),
    ("effect.before_result", 30),
    ("task.before_record", 2),
    ("commit.before_transaction", 10),
    ("ingest.before_transaction", 2),
    # Inside of a transaction, whose locks it keeps until PostgreSQL ends it.
    ("ingest.before_commit", 2),
]
AFTER_APPROVAL = [
    ("run.before_segment", 1),
    ("run.before_segment", 3),
    ("effect.before_result", 2),
    ("effect.after_intent", 3),
    ("commit.before_transaction", 3),
]
UPLOADED = ("upload.after_object", 1)
"""Only by the first run: the others find what they would store."""


class Pool:
    """Workers in processes of their own."""

    def __init__(self, runs: Interrupted, lease_s: float) -> None:
        self.runs = runs
        self.lease_s = lease_s
        self.programs: dict[int, Program] = {}
        self.asleep: list[int] = []
        self.interrupted = 0
        self.set = ""

    def launch(self, lease_s: float | None = None) -> int:
        """One more."""
        outside, lease_s = self.runs.folder / "outside", lease_s or self.lease_s
        program = self.runs.forks.worker(self.runs.store, outside, lease_s=lease_s)
        self.programs[program.pid] = program
        return program.pid

    @property
    def processes(self) -> list[int]:
        """Those that there are, also if they are stopped."""
        return list(self.programs)

    def trap(self, point: str, count: int, how: signal.Signals) -> None:
        """Whoever passes a failpoint so often from now on is stopped or killed there."""
        self.set = f"{point}:{count}"
        self.runs.forks.trap(point, count, how)

    def stopped(self) -> int:
        """Wait for whoever was to be stopped."""
        return self._trapped("T")

    def killed(self) -> None:
        """Wait for whoever was to be killed, and put another in its place."""
        self.end(self._trapped("Z"))
        self.launch()

    def _trapped(self, state: str) -> int:
        known = set(self.asleep)
        found = eventually(
            lambda: [each for each in self.processes if each not in known and state_of(each) == state], self.set
        )
        self.count()
        process: int = found[0]
        if state == "T":
            self.asleep.append(process)
        return process

    def wake(self, process: int) -> None:
        self.asleep.remove(process)
        os.kill(process, signal.SIGCONT)

    def count(self) -> None:
        self.interrupted += 1
        # Where keys are not honoured, whatever was under way may be done once more.
        self.runs.unknown += MOST_AT_ONCE

    def end(self, process: int) -> None:
        """As `kill -9` does."""
        program = self.programs.pop(process)
        if process in self.asleep:
            self.asleep.remove(process)
        program.kill()
        program.wait()

    def close(self) -> None:
        for process in self.processes:
            self.end(process)


@contextmanager
def pool(store: Store, forks: Forks, folder: Path, lease_s: float) -> Iterator[tuple[App, Pool]]:
    runs = Interrupted(store, forks, folder)
    forks.begin()
    workers = Pool(runs, lease_s)
    try:
        with open_store(store) as app:
            for _ in range(WORKERS):
                workers.launch()
            yield app, workers
    finally:
        workers.close()


def state_of(process: int) -> str:
    """R, S, T: it is stopped; Z: it is dead."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def eventually(look: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < until, f"never: {what}"
        time.sleep(0.01)
    return found


def begin(app: App, workers: Pool) -> None:
    flow = make_flow(workers.runs.outside)
    app.tenant(TENANT).flows.start(flow, INPUT, **place(workers.runs.number), idempotency_key=f"{workers.runs.number}")


def until(app: App, workers: Pool, *status: str) -> None:
    def reached() -> bool:
        run = workers.runs.run(app)
        assert run is not None
        assert run.status != "FAILED", run.error
        return run.status in status

    eventually(reached, f"{status}")


def approve(app: App, workers: Pool, choice: str) -> None:
    run = workers.runs.run(app)
    assert run is not None
    app.tenant(TENANT).flows.approve(run.execution_id, choice, OWNER, wait=False)


def written(store: Store) -> list[Any]:
    return [select(store, each) for each in WRITTEN]


def come_back(workers: Pool, process: int) -> None:
    """Let a worker go on that was stopped and has lost its run: nothing changes. Nobody else does anything now."""
    before = written(workers.runs.store)

    def said() -> int:
        return len(LOST.findall(workers.runs.forks.said(process)))

    known = said()
    workers.wake(process)
    eventually(lambda: said() > known, f"{process} knows that it lost its run")
    assert written(workers.runs.store) == before


def lose(app: App, workers: Pool) -> None:
    """Whoever is stopped comes back when others have gone on with its run until it waits for a decision."""
    stopped = workers.stopped()
    until(app, workers, "WAITING_HUMAN")
    come_back(workers, stopped)


def lose_to_another(app: App, workers: Pool) -> None:
    """Whoever is stopped comes back while another is at its run: that one stops too, behind what it committed since,
    and nobody takes the run from it."""
    stopped = workers.stopped()
    for each in workers.processes:
        if each != stopped:
            workers.end(each)
    # Where the first was, and the segment behind it.
    workers.trap("run.before_segment", 2, signal.SIGSTOP)
    other = workers.launch(LONG_S)
    assert workers.stopped() == other
    come_back(workers, stopped)
    workers.launch()
    workers.wake(other)
    until(app, workers, "WAITING_HUMAN")
    # What it would hold next, it would hold for too long.
    workers.end(other)
    workers.launch()


def finish(app: App, workers: Pool, reference: Course, ended: int) -> int:
    """The end of one run; how often there was an interruption since the one before."""
    approve(app, workers, "fine")
    until(app, workers, "COMPLETED")
    workers.runs.check_end(app, reference, workers.interrupted - ended)
    workers.runs.number += 1
    return workers.interrupted


@pytest.mark.deep("tests/two_actors/test_lost_runs.py has each of these moments by itself")
def test_who_was_fenced_out_commits_nothing(migrated_url: str, forks: Forks, alone: Course, tmp_path: Path) -> None:
    store = Store(migrated_url, str(tmp_path / "objects"))
    with pool(store, forks, tmp_path, lease_s=0.5) as (app, workers):
        workers.trap("task.before_record", 2, signal.SIGKILL)
        begin(app, workers)
        workers.killed()
        # Nobody is at it before the lease of the one that was killed is over.
        workers.trap("effect.before_result", 2, signal.SIGSTOP)
        lose(app, workers)
        workers.trap("commit.before_transaction", 2, signal.SIGSTOP)
        approve(app, workers, "yes")
        lose_to_another(app, workers)
        finish(app, workers, alone, 0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_workers_stopped_and_killed_everywhere(
    migrated_url: str, forks: Forks, alone: Course, tmp_path: Path, seed: int
) -> None:
    """Every place at which a worker may lose its run, in an order of its own for each seed, with kills between."""
    chance = random.Random(seed)
    store = Store(migrated_url, str(tmp_path / "objects"))
    early, late = list(BEFORE_APPROVAL), list(AFTER_APPROVAL)
    chance.shuffle(early)
    chance.shuffle(late)
    with pool(store, forks, tmp_path, lease_s=1.0) as (app, workers):
        ended = 0
        for number, first in enumerate(early):
            if chance.random() < 0.5:
                workers.trap("run.after_segment", chance.randint(1, 3), signal.SIGKILL)
                begin(app, workers)
                workers.killed()
                workers.trap(*first, signal.SIGSTOP)
            else:
                workers.trap(*first, signal.SIGSTOP)
                begin(app, workers)
            chance.choice([lose, lose_to_another])(app, workers)
            workers.trap(*(late[number % len(late)] if number else UPLOADED), signal.SIGSTOP)
            approve(app, workers, "yes")
            chance.choice([lose, lose_to_another])(app, workers)
            ended = finish(app, workers, alone, ended)
        print(f"seed {seed}: {workers.interrupted} interruptions, {facts(workers.runs)}")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
def test_workers_stopped_and_killed_at_random(
    migrated_url: str, forks: Forks, alone: Course, tmp_path: Path, seed: int
) -> None:
    """Stopped for shorter and longer than a lease, and killed, while runs are begun and decided one after the other."""
    chance = random.Random(seed)
    store = Store(migrated_url, str(tmp_path / "objects"))
    stops = 0
    with pool(store, forks, tmp_path, lease_s=1.0) as (app, workers):
        ended = 0
        while workers.interrupted < 60:
            begin(app, workers)
            asleep: list[tuple[float, int]] = []
            until_end = time.monotonic() + PATIENCE_S
            while True:
                run = workers.runs.run(app)
                assert run is not None
                assert run.status != "FAILED", run.error
                assert time.monotonic() < until_end, run
                if run.status == "WAITING_HUMAN":
                    assert run.waiting is not None
                    if run.waiting.node == "end":
                        break
                    approve(app, workers, "yes")
                time.sleep(chance.uniform(0.0, 0.3))
                now = time.monotonic()
                for due, process in [each for each in asleep if each[0] <= now]:
                    asleep.remove((due, process))
                    os.kill(process, signal.SIGCONT)
                awake = [each for each in workers.processes if each not in {process for _, process in asleep}]
                if len(awake) == WORKERS and chance.random() < 0.5:
                    workers.count()
                    workers.end(chance.choice(awake))
                    workers.launch()
                elif len(awake) > 1:
                    victim = chance.choice(awake)
                    workers.count()
                    stops += 1
                    os.kill(victim, signal.SIGSTOP)
                    asleep.append((now + chance.choice([0.2, 1.5, 2.5]), victim))
            for _, process in asleep:
                os.kill(process, signal.SIGCONT)
            ended = finish(app, workers, alone, ended)
    print(f"seed {seed}: {stops} stops of {workers.interrupted}, {facts(workers.runs)}")
