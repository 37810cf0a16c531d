"""Writers, two collectors and a packer in processes of their own, with no grace, killed at random: every branch
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

from tests import programs
from tests.crash.gc_worker import SETTINGS
from tests.depth import count as so_many
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
JOBS = ["write"] * so_many(2, deep=4) + ["collect"] * 2 + ["pack"]
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
    with store.open(**{**SETTINGS, "gc_upload_age_s": 0}) as app:
        kernel = app.kernel
        app.checkpoints.drain()
        for row in kernel.list_workflows(owner_id="ann").items:
            for branch in kernel.branches(workflow_id=row.workflow_id, owner_id="ann"):
                report = kernel.verify(workflow_id=row.workflow_id, owner_id="ann", branch=branch.name)
                assert report.problems == []
        change(store, "UPDATE gc SET lease_until = 0")
        reports = [app.gc.run(grace_s=0, expire=False) for _ in range(2)]
        assert all(report.ok for report in reports), reports
        assert reports[0].total > reports[0].referenced > 0 or reports[0].deleted == 0
        # What died in packs while the passes ran is the packer's to clear away, and its old packs the collector's.
        assert app.packing.repack().problems == ()
        last = app.gc.run(grace_s=0, expire=False)
        assert last.ok and last.deleted == 0
        assert select(store, "SELECT count(*) FROM block") == [(last.referenced,)]
        assert app.packing.repack().packs == 0
        assert app.objects is not None
        ready = {key for (key,) in select(store, "SELECT object_key FROM upload WHERE state = 'ready'")}
        used = "SELECT object_key FROM upload WHERE EXISTS (SELECT 1 FROM block WHERE block.upload = upload.id)"
        assert {info.key for info in app.objects.list()} == ready == {key for (key,) in select(store, used)}


def test_writers_and_collectors_that_are_killed_lose_nothing(store: Store) -> None:
    assert churn(store, so_many(2, deep=10), seed=1) >= 1
    check(store)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_writers_and_collectors_lose_nothing_for_long(store: Store) -> None:
    churn(store, SECONDS, seed=2)
    check(store)
