"""The background runner: when a collection is due, in one tenant and in all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from analemma import App
from analemma.clock import SystemClock
from analemma.gc.worker import Job, Worker, collection_jobs
from tests.api.gc.collections import PLACE, blocks_of, later, save_versions, text
from tests.api.gc.packing_stores import query
from tests.interrupting import interrupt
from tests.stores import Store

HOUR_S = 3600


def collecting(app: App, tenant: str | None, seconds: float = 0) -> Job:
    """The job that collects, so many seconds from now, in a process that has not collected yet."""
    collector = app.collector(database_clock=later(seconds))
    return collection_jobs(collector, interval_s=HOUR_S, tenant=tenant)[0]


def do(job: Job) -> str | None:
    return job.work(lambda: False)


def two_tenants(app: App) -> None:
    save_versions(app, 1)
    app.tenant("other").kernel.save_state_delta({"large": text("other")}, **PLACE)


def test_a_worker_of_one_tenant_leaves_the_others_alone(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        said = do(collecting(app, "other"))
        blocks = len(blocks_of(app.tenant("other"), app))
        assert said is not None and f"{blocks} blocks" in said and blocks < len(blocks_of(app.default, app))


def test_the_command_works_in_the_tenant_that_it_is_told(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        blocks = len(blocks_of(app.tenant("other"), app))
    objects = [] if store.objects is None else ["--objects", store.objects]
    program = str(Path(sys.executable).with_name("analemma"))
    command = [program, "worker", "-u", store.url, *objects, "--tenant", "other", "--once"]
    # Everything is cold, and no pack is too small.
    settings = {"ANALEMMA_PACK_AFTER_S": "0", "ANALEMMA_PACK_LEAST_BYTES": "0"}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    packed = [line for line in done.stdout.splitlines() if line.startswith("pack: ")]
    assert len(packed) == 1 and "of other" in packed[0] and "of default" not in packed[0]
    with store.open() as app:
        assert [run.total for run in app.gc.status().runs] == [blocks]


def test_a_run_in_one_tenant_does_not_keep_a_worker_from_the_others(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        assert do(collecting(app, "other")) is not None
        assert do(collecting(app, "other")) is None
        assert do(collecting(app, "default")) is not None
        # Every tenant was visited within the hour.
        assert do(collecting(app, None)) is None
        assert do(collecting(app, "other", HOUR_S)) is not None
        assert do(collecting(app, None, HOUR_S)) is not None
        assert do(collecting(app, None, HOUR_S)) is None


def test_a_tenant_that_cannot_be_collected_is_not_tried_every_minute(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        other = app.tenant("other").id
        query(store, "UPDATE block SET body = ? WHERE tenant = ?", b"damaged", other)
        job = collecting(app, None)
        said = do(job)
        assert said is not None and "other" in said
        assert do(job) is None
        # Another worker has not met it yet.
        assert do(collecting(app, None)) is not None


def test_a_worker_does_its_jobs_once(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        told: list[str] = []
        jobs = collection_jobs(app.gc, interval_s=HOUR_S, tenant="default", always=True)
        worker = Worker(jobs, clock=SystemClock(), tell=lambda job, said: told.append(f"{job}: {said}"))
        assert worker.run(once=True) == 0
        assert len(told) == 1 and told[0].startswith("gc: pass ")


def test_a_signal_may_stop_it_at_any_place() -> None:
    """Also while it holds a lock of what it waits with."""
    for place in range(30):
        worker = Worker([Job("none", HOUR_S, lambda stop: None)], clock=SystemClock(), tell=lambda job, said: None)
        thread = threading.Thread(target=interrupt, args=(worker.run, worker.stop, place), daemon=True)
        thread.start()
        # Where the signal did not come, because there is no such place.
        thread.join(0.05)
        ending = threading.Thread(target=worker.stop, daemon=True)
        ending.start()
        ending.join(10)
        thread.join(30)
        assert not thread.is_alive()
