"""Four writers, two collectors and a packer in processes of their own, with no grace, killed at random: every branch
verifies, and at rest two passes leave exactly what is needed, in packs that are not mostly dead."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analemma import BranchKey
from analemma.catalog.packing import SqlPacking
from analemma.gc.repacking import is_wasteful
from tests import programs
from tests.api.gc.collections import later
from tests.crash.gc_worker import SETTINGS
from tests.property.gc_world import World
from tests.stores import Store

ROOT = Path(__file__).parents[2]
JOBS = ["write"] * 4 + ["collect"] * 2 + ["pack"]
SECONDS = float(os.environ.get("ANALEMMA_GC_SOAK_S", "600"))


def start(store: Store, job: str, seconds: float, seed: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.crash.gc_worker",
        store.url,
        store.objects or "",
        job,
        str(seconds),
        str(seed),
    ]
    return programs.Program(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def churn(store: Store, seconds: float, seed: int) -> int:
    """Run everybody for so long, killing and replacing somebody now and then; how many were killed."""
    pick = random.Random(seed)
    end = time.monotonic() + seconds
    numbers = iter(range(1_000_000))
    running = [(job, start(store, job, seconds, next(numbers))) for job in JOBS]
    killed = 0
    while time.monotonic() < end:
        time.sleep(pick.uniform(0.5, 1.5))
        place = pick.randrange(len(running))
        job, process = running[place]
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.communicate()
            killed += 1
            left = max(0.1, end - time.monotonic())
            running[place] = (job, start(store, job, left, next(numbers)))
    for job, process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, f"{job}: {errors}"
    return killed


def check(store: Store) -> None:
    with store.open(**SETTINGS) as app:
        for row in app.catalog.workflows(app.default.id, "ann"):
            for branch in app.catalog.branches(app.default.id, "ann", row.workflow):
                key = BranchKey("ann", row.workflow, branch.branch)
                assert app.default.verify(key).problems == []
        app.checkpoints.drain()
        collector = app.collector(database_clock=later(2 * 86_400))
        reports = [collector.run(grace_s=0, expire=False) for _ in range(2)]
        assert all(report.ok for report in reports), reports
        assert reports[0].total > reports[0].referenced > 0 or reports[0].deleted == 0
        world = World.__new__(World)
        world.app, world.tenant = app, app.default
        assert set(collector._parts.catalog.scan(app.default.id)) == world.check()
        # What died in packs while the passes ran is the packer's to clear away, and its old packs the collector's.
        assert app.packing.repack().problems == ()
        assert collector.run(grace_s=0, expire=False).ok
        assert set(collector._parts.catalog.scan(app.default.id)) == world.check()
        packs = SqlPacking(app.catalog.engine).pack_usage(app.default.id, limit=100_000)
        assert [usage for usage in packs if is_wasteful(usage, app.settings.pack_waste)] == []
        assert app.objects is not None
        rows = app.catalog.engine.all("ready_uploads", tenant=app.default.id, after=b"", limit=100_000)
        assert {row[0] for row in rows} == world.used == {usage.upload for usage in packs}
        assert {info.key for info in app.objects.list()} == {row[1] for row in rows}


def test_writers_and_collectors_that_are_killed_lose_nothing(store: Store) -> None:
    assert churn(store, 10, seed=1) > 3
    check(store)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_writers_and_collectors_lose_nothing_for_long(store: Store) -> None:
    churn(store, SECONDS, seed=2)
    check(store)
