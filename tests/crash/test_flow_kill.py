"""kill -9 at every failpoint of a run: after resuming, the state is that of a run that nobody interrupted, what happens
in the database happened once, and what happens outside at most once more per kill, under the same key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.actors import Actor
from tests.crash.points import kills
from tests.depth import some
from tests.flow_program import EFFECTS, EVENTS, INPUT, KEY, PLACE, drive, make_flow, to_file
from tests.stores import Store, local

ROOT = Path(__file__).parents[2]
POINTS = [
    "run.before_segment",
    "run.after_segment",
    "run.before_advance",
    "run.after_advance",
    "run.after_claim",
    "effect.after_intent",
    "effect.before_result",
    "effect.after_result",
    "task.before_record",
    "task.after_record",
    "commit.before_transaction",
    "commit.after_head",
    "commit.after_blocks",
    "commit.before_commit",
    "commit.after_commit",
]
CHOSEN = [
    *("run.after_claim", "run.after_segment", "run.before_advance", "run.after_advance"),
    *("effect.after_intent", "effect.before_result", "task.before_record", "commit.before_commit"),
]
INSIDE_ONE_STATEMENT = ("commit.after_head", "commit.after_blocks")
"""PostgreSQL does these in one statement, so there is no stopping between them."""
TIMES = some((1, 3, 8), test=(1, 3))
"""When each start is killed: the first time that it passes, the second, and so on."""


def launch(store: Store, log: Path, failpoint: str | None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != failpoints.VARIABLE}
    if failpoint is not None:
        environment[failpoints.VARIABLE] = failpoint
    return programs.run(
        [sys.executable, "-m", "tests.crash.flow_worker", store.url, store.objects or "", str(log)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """The root of the state that it comes to, and the segments that it takes."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with local(folder).open() as app:
        run = drive(app, make_flow(to_file(folder / "log")))
        root = app.kernel.history(**PLACE)[0].root_hash
        return root, [each.segment_id for each in run.segments]


def check(app: App, log: Path, kills: int, uninterrupted: tuple[str, list[str]]) -> None:
    root, segments = uninterrupted
    (run,) = app.flows.runs()
    assert (run.status, run.idempotency_key) == ("COMPLETED", KEY)
    assert app.kernel.history(**PLACE)[0].root_hash == root
    assert [each.segment_id for each in run.segments] == segments
    assert app.kernel.verify(**PLACE).problems == []
    # In the database: exactly once.
    assert app.outbox.status().pending == EVENTS
    # Outside: each effect under one key, and for a receiver that honours it once; else once more per kill at most.
    calls = Counter(log.read_text().splitlines())
    assert len(calls) == EFFECTS
    assert sum(calls.values()) <= EFFECTS + kills


@pytest.mark.parametrize("point", kills(POINTS, test=CHOSEN, postgres=["run.before_advance", "run.after_advance"]))
def test_a_run_killed_again_and_again_comes_to_the_same(
    point: str, store: Store, tmp_path: Path, uninterrupted: tuple[str, list[str]]
) -> None:
    log = tmp_path / "log"
    log.touch()
    kills = 0
    for times in TIMES:
        done = launch(store, log, f"{point}:{times}")
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    reached = not (store.url.startswith("postgresql") and point in INSIDE_ONE_STATEMENT)
    assert (kills > 0) == reached
    with store.open() as app:
        drive(app, make_flow(to_file(log)))
        check(app, log, kills, uninterrupted)


def test_a_run_is_taken_over_from_a_worker_that_was_killed(
    store: Store, tmp_path: Path, uninterrupted: tuple[str, list[str]]
) -> None:
    """Another process goes on at once, where it can see that the worker is dead, and commits what is left."""
    log = tmp_path / "log"
    assert launch(store, log, "effect.before_result:2").returncode == -signal.SIGKILL
    with store.open() as app:
        (run,) = app.flows.runs()
        assert run.status == "RUNNING" and run.holder is not None
        drive(app, make_flow(to_file(log)))
        check(app, log, 1, uninterrupted)
        calls: Any = Counter(log.read_text().splitlines())
        assert sum(calls.values()) == EFFECTS + 1


def cancel(url: str, objects: str | None, execution: str) -> None:
    with Store(url, objects).open() as app:
        app.flows.cancel(execution)


@pytest.mark.parametrize(("point", "status"), [("run.before_move", "PENDING"), ("run.after_move", "CANCELLED")])
def test_a_cancellation_that_is_killed_has_happened_or_has_not(point: str, status: str, store: Store) -> None:
    with store.open() as app:
        run = app.flows.start(make_flow(lambda name, key: None), INPUT, **PLACE)
    with Actor(cancel, store.url, store.objects, run.execution_id, at=point, then="kill") as actor:
        assert actor.wait() == -signal.SIGKILL, actor.errors
    with store.open() as app:
        assert app.flows.get(run.execution_id).status == status
        assert app.flows.cancel(run.execution_id).status == "CANCELLED"
