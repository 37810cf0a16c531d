"""kill -9 where subflows are begun and tried again, where ticks are passed and where places in a queue are taken: after
going on everything has happened once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests import programs
from tests.crash.schedule_worker import LONG_S, SHORT_S, finish, order, order_here, slow
from tests.depth import some
from tests.raw_rows import change
from tests.stores import Store

ROOT = Path(__file__).parents[2]


class Processes:
    """Workers on one store, which write to one file."""

    def __init__(self, store: Store, log: Path) -> None:
        self._store = store
        self.log = log
        log.touch()

    def start(self, what: str, failpoint: str | None = None, lease_s: float = LONG_S) -> programs.Program:
        environment = {key: value for key, value in os.environ.items() if key != failpoints.VARIABLE}
        if failpoint is not None:
            environment[failpoints.VARIABLE] = failpoint
        place = (self._store.url, self._store.objects or "", str(self.log), str(lease_s))
        return programs.Program(
            [sys.executable, "-m", "tests.crash.schedule_worker", what, *place],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, what: str, failpoint: str) -> None:
        process = self.start(what, failpoint, SHORT_S)
        _, said = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, (failpoint, said)


@pytest.fixture
def processes(store: Store, tmp_path: Path) -> Processes:
    return Processes(store, tmp_path / "log")


def check_order(store: Store) -> None:
    with store.open() as app:
        child, parent = app.flows.runs()
        assert (parent.status, child.status) == ("COMPLETED", "COMPLETED")
        assert (parent.state, child.state) == ({"n": 1111}, {"n": 111})
        assert [each.segment_id for each in child.segments] == ["pack", "send"]
        assert app.outbox.status().pending == 3
        assert app.kernel.verify(workflow_id="order-1", owner_id="me").problems == []


def test_a_subflow_that_is_killed_again_and_again_happens_once(store: Store, processes: Processes) -> None:
    """One run after the other point of its way: the parent's segment, the child's birth, the wait for it, its end."""
    points = ("subflow.before_begin", "subflow.after_begin", "run.after_advance", "subflow.before_resume")
    for point in points:
        processes.kill("workers", point)
    with store.open() as app:
        finish(app, order(processes.log))
    check_order(store)


@pytest.mark.parametrize(
    "point",
    some(
        ["subflow.after_begin", "commit.after_commit:4", "commit.after_commit:5"],
        test=["subflow.after_begin", "commit.after_commit:5"],
    ),
)
def test_a_subflow_that_was_killed_in_one_process_goes_on_in_the_next(
    point: str, store: Store, processes: Processes
) -> None:
    """Whoever resumes the parent sees that the process which held the child is dead. The fourth and fifth commit are
    those of the child's segments, the last of which wakes the parent."""
    processes.log.write_text("failed\n")
    processes.kill("here", point)
    with store.open() as app:
        order_here(app, processes.log)
    check_order(store)


def test_a_tick_whose_worker_is_killed_has_one_run(store: Store, processes: Processes) -> None:
    year = datetime.now(UTC).year
    with store.open() as app:
        app.flows.schedules.add(
            "yearly", slow(processes.log), owner_id="me", cron="0 0 1 1 *", catch_up="all", workflow_id="y-{tick}"
        )
    # Nobody has looked for so long.
    first_us = int(datetime(year - 2, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    assert change(store, "UPDATE schedule SET next_at = ?, look_at = ?", [first_us, first_us]) == 1
    expected = [f"schedule/yearly/{year - 2 + number}-01-01T00:00:00Z" for number in range(3)]
    for point, begun in (
        ("schedule.before_tick", 0),
        ("commit.before_transaction", 0),
        ("commit.after_commit", 1),
        ("schedule.after_tick", 2),
    ):
        processes.kill("schedule", point)
        with store.open() as app:
            assert sorted(run.idempotency_key or "" for run in app.flows.runs()) == expected[:begun]
    with store.open() as app:
        schedules = app.flows.schedules
        assert (schedules.tend(), schedules.tend()) == (1, 0)
        assert sorted(run.idempotency_key or "" for run in app.flows.runs()) == expected
        assert schedules.get("yearly").next_at == datetime(year + 1, 1, 1, tzinfo=UTC)


def most_at_once(log: Path) -> int:
    """How many were at work at one time."""
    now = most = 0
    for _, step, _ in sorted(tuple(map(int, line.split())) for line in log.read_text().splitlines()):
        now += step
        most = max(most, now)
    return most


def test_processes_keep_to_the_limits_of_a_queue_and_a_dead_one_gives_back_its_place(
    store: Store, processes: Processes
) -> None:
    with store.open() as app:
        app.flows.queues.set("mail", concurrency=2)
        for number in range(8):
            app.flows.start(slow(processes.log), workflow_id=f"w-{number}", owner_id="me", queue="mail")
    # Both places are taken by processes that die before anything of their runs is done.
    for point in ("queue.before_claim", "run.after_claim", "run.after_claim"):
        processes.kill("queue", point)
    for process in [processes.start("queue") for _ in range(2)]:
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
    with store.open() as app:
        assert [run.status for run in app.flows.runs()] == ["COMPLETED"] * 8
    assert len(processes.log.read_text().splitlines()) == 16
    assert most_at_once(processes.log) == 2
