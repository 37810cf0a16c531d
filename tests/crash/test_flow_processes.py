"""Three workers on one store, killed at random and taking over from each other: every run comes to the same state, and
what happens in the database happened once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from tests import programs
from tests.depth import count
from tests.flow_program import EFFECTS, EVENTS, INPUT, drive, make_flow, to_file
from tests.stores import Store, local

ROOT = Path(__file__).parents[2]
WORKERS = 3


def launch(store: Store, log: Path, how: str) -> subprocess.Popen[str]:
    """A worker that has begun to look for runs."""
    worker = programs.Program(
        [sys.executable, "-m", "tests.crash.flow_pool_worker", store.url, store.objects or "", str(log), how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    return worker


def end(workers: list[subprocess.Popen[str]]) -> None:
    """As `kill -9` does."""
    for worker in workers:
        worker.kill()
        worker.communicate()


def begin(app: App, runs: int, log: Path) -> None:
    """Runs whose first human has decided, so that there is something to do."""
    flow = make_flow(to_file(log))
    for number in range(runs):
        run = app.flows.run(flow, INPUT, workflow_id=f"w-{number}", owner_id="me")
        app.flows.approve(run.execution_id, "go", "me", wait=False)


def finish(app: App) -> None:
    for _ in range(200):
        app.run_worker(2).drain()
        for run in app.flows.runs(status="WAITING_HUMAN"):
            app.flows.approve(run.execution_id, "fine", "me", wait=False)
        if all(run.status == "COMPLETED" for run in app.flows.runs()):
            return
        # What a killed worker held is free when its lease is over.
        time.sleep(0.1)
    raise AssertionError([(run.status, run.error) for run in app.flows.runs()])


def kill_and_check(store: Store, tmp_path: Path, *, runs: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    log = tmp_path / "log"
    log.touch()
    with store.open(run_lease_s=0.5) as app:
        begin(app, runs, log)
        before = app.outbox.status().pending
        workers: list[subprocess.Popen[str]] = []
        try:
            workers += [launch(store, log, "run") for _ in range(WORKERS)]
            for _ in range(kills):
                time.sleep(chance.uniform(0.01, 0.3))
                end([workers.pop(chance.randrange(WORKERS))])
                workers.append(launch(store, log, "run"))
        finally:
            end(workers)
        app.handlers.add_all(make_flow(to_file(log)))
        finish(app)
        with local(tmp_path / "alone").open() as alone:
            run = drive(alone, make_flow(to_file(tmp_path / "alone-log")))
            segments = [each.segment_id for each in run.segments]
            root = alone.kernel.history(workflow_id="t-1", owner_id="me")[0].root_hash
        assert before == 0
        assert app.outbox.status().pending == EVENTS * runs
        for number in range(runs):
            place: dict[str, Any] = {"workflow_id": f"w-{number}", "owner_id": "me"}
            assert app.kernel.history(**place)[0].root_hash == root
            assert app.kernel.verify(**place).problems == []
        assert all([each.segment_id for each in run.segments] == segments for run in app.flows.runs())
        calls = Counter(log.read_text().splitlines())
        assert len(calls) == EFFECTS * runs
        # Each kill takes at most the two runs that the worker was at, each in one effect.
        assert sum(calls.values()) <= EFFECTS * runs + 2 * (kills + WORKERS)


def test_workers_take_over_from_each_other(store: Store, tmp_path: Path) -> None:
    kill_and_check(store, tmp_path, runs=count(2, deep=4), kills=count(1, deep=3), seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_workers_take_over_from_each_other_many_times(store: Store, tmp_path: Path, seed: int) -> None:
    kill_and_check(store, tmp_path, runs=20, kills=30, seed=seed)
