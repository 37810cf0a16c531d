"""kill -9 of whoever runs a backfill, at every failpoint and anywhere: it is gone on with, and each entity is done and
counted once. Several processes at one, and a pause from another process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict
from analemma.testing import failpoints
from tests import programs
from tests.api.pipeline.backfill_shop import TENANT, book, fill
from tests.crash.points import kills
from tests.depth import count, some
from tests.raw_rows import select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
BOOKS = count(60, deep=120)
LEASE_S = 0.5
POINTS = [
    "backfill.after_lease",
    "backfill.before_advance",
    "backfill.before_advance:3",
    "backfill.after_advance",
    "backfill.after_advance:2",
    "backfill.before_leave",
    "fanout.after_blocks:2",
]


def start(
    store: Store, verb: str, backfill: str = "", executor: str = "threads:2", point: str | None = None
) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != failpoints.VARIABLE}
    if point is not None:
        environment[failpoints.VARIABLE] = point
    arguments = [store.url, store.objects or "", verb, backfill, executor, str(LEASE_S)]
    return programs.Program(
        [sys.executable, "-m", "tests.crash.backfill_worker", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def counts(backfill: Any) -> dict[str, int]:
    """What it has done, as far as that is anything."""
    return {name: number for name, number in backfill.counts._asdict().items() if number}


def check_all_done_once(store: Store, app: App, done: Any) -> None:
    """Every entity was compiled by exactly one transaction, and that one counted it."""
    assert done.state == "DONE" and done.total == BOOKS + 5
    assert counts(done) == {"done": BOOKS + 5, "changed": BOOKS + 5, "slices": BOOKS * 4 + 10, "requested": BOOKS}
    assert select(store, "SELECT count(*), max(revision) FROM compile") == [(BOOKS + 5, 1)]
    assert select(store, "SELECT count(*) FROM outbox WHERE type = 'ShipRequested'") == [(BOOKS,)]
    assert select(store, "SELECT count(*) FROM entity WHERE newest_raw IS NOT NULL AND compile_seq <> 1") == [(0,)]
    assert app.backfills.verify(TENANT).ok


def resume(app: App, backfill: str) -> Any:
    """As soon as the dead one's lease is over."""
    return app.backfills.resume(backfill, wait_s=30)


@pytest.mark.parametrize(
    "point",
    kills(
        POINTS,
        test=[*POINTS[:1], "backfill.before_advance:3", "backfill.after_advance:2", "backfill.before_leave"],
        postgres=["backfill.after_advance:2"],
    ),
)
def test_a_kill_loses_nothing_and_does_nothing_twice(store: Store, point: str) -> None:
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, BOOKS)
        made = app.backfills.create(TENANT, page=20)
    killed = start(store, "resume", made.id, point=point)
    _, errors = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, errors
    with store.open(backfill_lease_s=LEASE_S) as app:
        left = app.backfills.get(made.id)
        assert select(store, "SELECT count(*) FROM compile") == [(left.counts.done,)]
        assert left.counts.slices == select(store, "SELECT count(*) FROM slice")[0][0]
        check_all_done_once(store, app, resume(app, made.id))


@pytest.mark.parametrize(
    "point",
    some(
        ["compile.before_commit:7", "compile.after_commit:7", "backfill.before_advance:8"],
        test=["compile.after_commit:7"],
    ),
)
def test_a_kill_between_the_versions_of_an_entity_loses_none_of_them(store: Store, point: str) -> None:
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, 10)
        for number in range(10):
            app.tenant("shop").ingest("BOOK", f"b{number:05}", book(number, price=number + 1000))
        made = app.backfills.create({**TENANT, "types": ("BOOK",), "versions": "all"})
    killed = start(store, "resume", made.id, executor="threads:1", point=point)
    _, errors = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, errors
    with store.open(backfill_lease_s=LEASE_S) as app:
        left = app.backfills.get(made.id)
        assert select(store, "SELECT count(*) FROM compile") == [(left.counts.changed,)]
        assert 0 < left.counts.changed < 20 and left.counts.done == left.counts.changed // 2
        done = resume(app, made.id)
        assert counts(done) == {"done": 10, "changed": 20, "slices": 50, "requested": 20}
        assert select(store, "SELECT count(*), max(revision) FROM compile") == [(20, 1)]


@pytest.mark.parametrize("point", ["backfill.before_plan", "backfill.after_plan"])
def test_a_kill_while_planning_leaves_a_whole_plan_or_none(store: Store, point: str) -> None:
    with store.open() as app:
        fill(app, BOOKS)
    killed = start(store, "create", point=point)
    _, errors = killed.communicate(timeout=120)
    assert killed.returncode == -signal.SIGKILL, errors
    with store.open() as app:
        found = app.backfills.list()
        assert len(found) == (point == "backfill.after_plan")
        if found:
            check_all_done_once(store, app, app.backfills.run(found[0].id))


@pytest.mark.deep("a kill anywhere is a kill at one of the points above")
@pytest.mark.parametrize("executor", ["threads:2", "processes:2"])
def test_kills_at_random_times_one_after_the_other(store: Store, executor: str) -> None:
    chance = random.Random(7)
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, BOOKS)
        made = app.backfills.create(TENANT, page=5, rate=200)
        for _ in range(3):
            worker = start(store, "follow", made.id, executor)
            assert worker.stdout is not None and worker.stdout.readline() == "begins\n"
            time.sleep(chance.uniform(0.05, 0.6) + (0.7 if executor.startswith("processes") else 0))
            worker.kill()
            worker.wait()
            worker.stdout.close()
            assert worker.stderr is not None
            worker.stderr.close()
        check_all_done_once(
            store, app, resume(app, made.id) if not app.backfills.get(made.id).over else app.backfills.get(made.id)
        )


def test_only_one_of_several_processes_runs_it(store: Store) -> None:
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, BOOKS)
        made = app.backfills.create(TENANT, page=5, rate=100)
        workers = [start(store, "resume", made.id) for _ in range(3)]
        answers = [worker.communicate(timeout=120) for worker in workers]
        ends = [out.splitlines()[-1] for out, _ in answers]
        assert ends.count(f"DONE {BOOKS + 5}") == 1, answers
        assert sum("runs backfill" in each or "it is DONE" in each for each in ends) == 2, answers
        check_all_done_once(store, app, app.backfills.get(made.id))


def test_a_pause_from_another_process_stops_it_and_a_third_goes_on(store: Store) -> None:
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, BOOKS)
        made = app.backfills.create(TENANT, page=5, rate=60)
        worker = start(store, "resume", made.id)
        deadline = time.monotonic() + 90
        while app.backfills.get(made.id).counts.done < 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert app.backfills.pause(made.id).state == "PAUSED"
        out, errors = worker.communicate(timeout=60)
        assert out.splitlines()[-1].startswith("PAUSED "), errors
        paused = app.backfills.get(made.id)
        assert paused.holder is None and 10 <= paused.counts.done < BOOKS
        time.sleep(0.3)
        assert app.backfills.get(made.id).counts == paused.counts
        with pytest.raises(Conflict, match="it is PAUSED"):
            app.backfills.run(made.id)
        third = start(store, "resume", made.id)
        out, errors = third.communicate(timeout=120)
        assert out.splitlines()[-1] == f"DONE {BOOKS + 5}", errors
        check_all_done_once(store, app, app.backfills.get(made.id))


def test_workers_end_with_the_process_that_started_them(store: Store) -> None:
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, BOOKS)
        made = app.backfills.create(TENANT, page=5, rate=20)
    worker = start(store, "resume", made.id, "processes:2")
    deadline = time.monotonic() + 90
    children: list[int] = []
    while len(children) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        children = _children(worker.pid)
    worker.kill()
    worker.communicate()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "orphans work on for nobody"
        time.sleep(0.1)


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    return [int(each) for each in found]
