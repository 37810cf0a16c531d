"""kill -9 at every failpoint of a pass, and at every one of a save that uploads: the reopened store is whole, the next
passes finish the work, and nothing else is lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from analemma import App, BranchKey
from analemma.blocks.metrics import LIST
from analemma.catalog.port import UploadId
from analemma.gc.uploads import COMMIT_TIMEOUT
from analemma.testing import failpoints
from tests import programs
from tests.api.gc.collections import DAY_S, PLACE, blocks_of, later, save_versions, text
from tests.stores import Store

ROOT = Path(__file__).parents[2]
KEY = BranchKey("ann", "trip")
PASS = [
    "gc.after_lease",
    "gc.after_snapshot",
    "gc.before_doom",
    "gc.after_doom",
    "gc.before_delete",
    "gc.after_delete",
    "gc.after_claim",
    "gc.after_object",
    "gc.before_finish",
]
SAVE = [
    "upload.before_intent",
    "upload.after_intent",
    "upload.after_object",
    "commit.before_transaction",
    "commit.after_head",
    "commit.after_blocks",
    "commit.before_commit",
    "commit.after_commit",
]


def run_killed(store: Store, job: str, point: str) -> bool:
    """Run a job until the failpoint; whether it got there."""
    done = programs.run(
        [sys.executable, "-m", "tests.crash.gc_worker", store.url, store.objects or "", job, "0", "0"],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def objects_of(app: App) -> set[str]:
    assert app.objects is not None
    return {info.key for info in app.objects.list()}


@pytest.mark.parametrize("point", PASS)
def test_a_collector_that_is_killed_costs_nothing_but_time(point: str, store: Store) -> None:
    with store.open(pack_threshold_bytes=1500, gc_object_delay_s=0) as app:
        save_versions(app, 4)
        app.kernel.set_retention(**PLACE, keep_last=2)
        app.gc.run(grace_s=0)
        save_versions(app, 1)
        app.kernel.set_retention(**PLACE, keep_last=1)
    assert run_killed(store, "once", point)
    with store.open(gc_object_delay_s=0) as app:
        assert app.default.verify(KEY).problems == []
        tomorrow = app.collector(database_clock=later(4 * DAY_S))
        reports = [tomorrow.run(grace_s=0) for _ in range(3)]
        assert all(report.ok for report in reports) and reports[-1].deleted == 0
        assert len(blocks_of(app.default, app)) == reports[-1].referenced
        # All of the newest version lies in the first one's object.
        assert len(objects_of(app)) == 1
        ids = [UploadId(bytes.fromhex(key.rpartition("/")[2])) for key in objects_of(app)]
        assert all(app.catalog.upload(app.default.id, upload) is not None for upload in ids)
        assert app.default.verify(KEY).problems == []
        assert [run.state for run in app.gc.status().runs][3] == "aborted"


@pytest.mark.parametrize("point", SAVE)
def test_an_offloading_save_that_is_killed_leaves_only_an_intent_that_is_collected(point: str, store: Store) -> None:
    with store.open(gc_object_delay_s=0) as app:
        app.kernel.save_state_delta({"n": 1}, **PLACE)
    killed = run_killed(store, "save", point)
    # PostgreSQL commits in one statement, so there is no stopping inside it.
    assert killed or ("postgres" in store.url and point.startswith("commit."))
    committed = not killed or point == "commit.after_commit"
    intents = 0 if committed or point == "upload.before_intent" else 1
    with store.open(gc_object_delay_s=0) as app:
        assert ("large" in app.kernel.load_latest_state(**PLACE)) == committed
        report = app.collector(database_clock=later(DAY_S + 60)).run()
        assert report.objects == intents and app.object_metrics.snapshot()[LIST].count == 0
        assert [entry.reason for entry in app.gc.audit()] == [COMMIT_TIMEOUT] * intents
        assert len(objects_of(app)) == (1 if committed else 0)
        assert app.default.verify(KEY).problems == []
        app.kernel.save_state_delta({"more": text("more", 8000)}, **PLACE)
        assert app.kernel.load_latest_state(**PLACE)["more"] == text("more", 8000)
