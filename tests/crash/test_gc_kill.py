"""kill -9 at every failpoint of a pass, and at every one of a save that uploads: the reopened store is whole, the next
passes finish the work, and nothing else is lost."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.crash.gc_worker import PLACE, text
from tests.crash.points import COMMIT, kills
from tests.raw_rows import change, is_sqlite, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
COLLECTING = {"gc_object_delay_s": 0, "gc_upload_age_s": 0}
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
# Between these and their neighbours nothing is written.
CHOSEN = [point for point in PASS if point not in ("gc.after_snapshot", "gc.before_doom")]
UPLOADING = ("upload.before_intent", "upload.after_intent", "upload.after_object")


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


def save_versions(app: App, count: int) -> None:
    """Versions that share one block and each have one of their own."""
    for number in range(count):
        value = {"shared": text("shared", 4000), "own": text(f"own {number}", 4000), "n": number}
        app.kernel.save_state_delta(value, **PLACE)


@pytest.mark.parametrize("point", kills(PASS, test=CHOSEN, postgres=["gc.before_delete", "gc.after_delete"]))
def test_a_collector_that_is_killed_costs_nothing_but_time(point: str, store: Store) -> None:
    with store.open(pack_threshold_bytes=1500, **COLLECTING) as app:
        save_versions(app, 4)
        app.kernel.set_retention(**PLACE, keep_last=2)
        app.gc.run(grace_s=0)
        save_versions(app, 1)
        app.kernel.set_retention(**PLACE, keep_last=1)
    assert run_killed(store, "once", point)
    with store.open(**COLLECTING) as app:
        assert app.kernel.verify(**PLACE).problems == []
        # When the lease of the one that died has ended.
        change(store, "UPDATE gc SET lease_until = 0")
        reports = [app.gc.run(grace_s=0) for _ in range(3)]
        assert all(report.ok for report in reports) and reports[-1].deleted == 0
        assert select(store, "SELECT count(*) FROM block") == [(reports[-1].referenced,)]
        # All of the newest version lies in the first one's object.
        assert len(objects_of(app)) == 1
        assert objects_of(app) == {
            key for (key,) in select(store, "SELECT object_key FROM upload WHERE state = 'ready'")
        }
        assert app.kernel.verify(**PLACE).problems == []
        assert [run.state for run in app.gc.status().runs][3] == "aborted"


@pytest.mark.parametrize(
    "point",
    kills(
        [*UPLOADING, *COMMIT],
        test=[*UPLOADING[1:], "commit.before_commit", "commit.after_commit"],
        postgres=["upload.after_object"],
    ),
)
def test_an_offloading_save_that_is_killed_leaves_only_an_intent_that_is_collected(point: str, store: Store) -> None:
    with store.open(**COLLECTING) as app:
        app.kernel.save_state_delta({"n": 1}, **PLACE)
    killed = run_killed(store, "save", point)
    # PostgreSQL commits in one statement, so there is no stopping inside it.
    assert killed or (not is_sqlite(store) and point.startswith("commit."))
    committed = not killed or point == "commit.after_commit"
    intents = 0 if committed or point == "upload.before_intent" else 1
    with store.open(**COLLECTING) as app:
        assert ("large" in app.kernel.load_latest_state(**PLACE)) == committed
        assert app.gc.run().objects == intents
        assert [entry.reason for entry in app.gc.audit()] == ["commit_timeout"] * intents
        assert len(objects_of(app)) == (1 if committed else 0)
        assert app.kernel.verify(**PLACE).problems == []
        app.kernel.save_state_delta({"more": text("more", 8000)}, **PLACE)
        assert app.kernel.load_latest_state(**PLACE)["more"] == text("more", 8000)
