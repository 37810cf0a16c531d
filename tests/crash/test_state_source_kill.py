"""kill -9 around commits that a state source takes: the event is there exactly if the version is, and what was told has
its effect once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from analemma import App, BranchKey
from analemma.testing import failpoints
from tests import programs
from tests.api.pipeline.test_state_sources import RULESET, SCHEMA, SOURCE, core, raws
from tests.crash.points import COMMIT, kills
from tests.crash.state_source_worker import NAME, VERBS
from tests.raw_rows import change, is_sqlite, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
INGEST = ["ingest.before_transaction", "ingest.after_blocks", "ingest.before_commit", "ingest.after_commit"]
IN_ONE_STATEMENT = {"commit.after_head", "commit.after_blocks", "commit.before_commit"}


def prepare(app: App) -> None:
    app.contracts.load([SCHEMA, RULESET, SOURCE])
    kernel = app.tenant("agents").kernel
    kernel.save_state_delta({"status": "A", "goal": "old"}, **NAME)
    app.worker(1).drain()


def run(store: Store, verb: str, point: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "tests.crash.state_source_worker", store.url, store.objects or "", verb],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )


def told(store: Store) -> list[int]:
    sql = "SELECT seq FROM outbox WHERE aggregatetype = 'STATE' ORDER BY seq"
    return [row[0] for row in select(store, sql)]


def versions(store: Store) -> list[int]:
    return [row[0] for row in select(store, "SELECT version FROM manifest ORDER BY version")]


@pytest.mark.parametrize("point", kills(COMMIT, test=["commit.before_commit", "commit.after_commit"]))
def test_a_version_and_its_event_are_there_together(point: str, store: Store) -> None:
    with store.open() as app:
        prepare(app)
    done = run(store, "save", point)
    unreached = not is_sqlite(store) and point in IN_ONE_STATEMENT
    assert done.returncode == (0 if unreached else -signal.SIGKILL), done.stderr
    assert len(told(store)) == len(versions(store)) == (2 if unreached or point == "commit.after_commit" else 1)
    with store.open(outbox_lease_s=1) as app:
        VERBS["work"](app)
        goal = app.tenant("agents").kernel.load_latest_state(**NAME)["goal"]
        assert core(app.tenant("agents"))["goal"] == goal


@pytest.mark.parametrize("point", kills(COMMIT, test=["commit.before_commit", "commit.after_commit"]))
def test_what_is_pending_is_told_with_its_versions(point: str, store: Store) -> None:
    with store.open(checkpoint_close_s=0) as app:
        prepare(app)
    came, go_on = threading.Event(), threading.Event()

    def stand() -> None:
        came.set()
        assert go_on.wait(60)

    with store.open(checkpoint_close_s=0) as app, failpoints.call("apply.before_transaction", stand):
        # Entered, and left to whoever comes: whoever would apply them here stands.
        for goal in "123":
            app.tenant("agents").kernel.checkpoint_async({"goal": goal}, **NAME)
        assert came.wait(60)
        killed = run(store, "settle", point)
        assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
        assert len(told(store)) == len(versions(store))
        go_on.set()
    with store.open(outbox_lease_s=1) as app:
        agents = app.tenant("agents")
        agents.checkpoints.drain()
        assert len(told(store)) == len(versions(store)) == 4
        VERBS["work"](app)
        assert (core(agents)["goal"], raws(store)) == ("3", 4)


@pytest.mark.parametrize("point", kills(INGEST, test=INGEST[2:]))
def test_what_was_told_has_its_effect_once(point: str, store: Store) -> None:
    with store.open() as app:
        prepare(app)
        VERBS["save"](app)
    done = run(store, "work", point)
    # On PostgreSQL one statement writes the blocks and what names them: nobody dies between the two.
    unreached = not is_sqlite(store) and point == "ingest.after_blocks"
    assert done.returncode == (0 if unreached else -signal.SIGKILL), (done.stdout, done.stderr)
    # What a dead worker held is free when its lease is over.
    change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")
    with store.open(outbox_lease_s=1) as app:
        assert raws(store) == (2 if unreached or point.endswith("after_commit") else 1)
        agents = app.tenant("agents")
        deadline = time.monotonic() + 20
        # Until the lease of the one that was killed has run out, there is nothing to do.
        while core(agents)["goal"] != "new" and time.monotonic() < deadline:
            VERBS["work"](app)
            time.sleep(0.1)
        assert (core(agents)["goal"], raws(store)) == ("new", 2)
        assert app.outbox.status().dead == 0
        (position,) = select(store, "SELECT version FROM state_source")
        head = agents.head(BranchKey("ann", "run-1"))
        assert head is not None and position == (head.version,)
