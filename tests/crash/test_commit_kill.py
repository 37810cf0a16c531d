"""kill -9 at every failpoint of a save: the store opens, verifies, and holds the old state or the new one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from analemma import Operation
from analemma.testing import failpoints
from tests import programs
from tests.crash.commit_worker import large_value
from tests.declared_failpoints import declared_failpoints
from tests.internals import commit_change, commit_value, state_of
from tests.stores import Store

ROOT = Path(__file__).parents[2]
IN_THE_TRANSACTION = ["commit.after_head", "commit.after_blocks", "commit.before_commit"]
UPLOADING = ["upload.before_intent", "upload.after_intent", "upload.after_object"]
AROUND = ["commit.before_transaction", "commit.after_commit"]
ELSEWHERE = [
    "archive.after_aside",
    "archive.after_commit",
    "archive.after_data",
    "archive.after_meta",
    "archive.after_remove",
    "archive.after_verify",
    "archive_gc.after_claim",
    "archive_gc.after_forget",
    "archive_gc.after_lease",
    "archive_gc.after_list",
    "archive_gc.after_look",
    "archive_gc.after_mark",
    "archive_gc.after_markers",
    "archive_gc.after_objects",
    "archive_gc.before_claim",
    "backfill.after_advance",
    "backfill.after_lease",
    "backfill.after_plan",
    "backfill.before_advance",
    "backfill.before_leave",
    "backfill.before_plan",
    "detach.after_copy",
    "detach.after_detach",
    "jsonl.after_flush",
    "jsonl.after_write",
    "objects.after_generation",
    "objects.after_intent",
    "objects.after_marker",
    "remove.after_aside",
    "remove.after_markers",
    "remove.after_objects",
    "remove.after_volume",
    "restore.after_extract",
    "restore.after_mark",
    "restore.after_swap",
    "workspace.after_begin",
    "workspace.before_finish",
    "contracts.before_commit",
    "contracts.after_commit",
    "ingest.before_transaction",
    "ingest.after_blocks",
    "ingest.before_commit",
    "ingest.after_commit",
    "compile.before_transaction",
    "compile.after_blocks",
    "compile.before_commit",
    "compile.after_commit",
    "ship.after_read",
    "ship.after_answer",
    "ship.before_settle",
    "deploy.stored",
    "deploy.begun",
    "deploy.moved",
    "deploy.compiled",
    "deploy.failed",
    "deploy.answered",
    "deploy.retried",
    "deploy.after_housekeeping",
    "fanout.asked",
    "fanout.before_transaction",
    "fanout.after_blocks",
    "fanout.before_commit",
    "fanout.after_commit",
    "record.before_transaction",
    "record.before_commit",
    "record.after_commit",
    "expire.before_commit",
    "expire.after_commit",
    "payload.before_transaction",
    "payload.after_blocks",
    "payload.before_commit",
    "payload.after_commit",
    "payload.before_release",
    "payload.after_release",
    "payload.before_renewal",
    "payload.before_hold",
    "payload.before_end",
    "ledger.before_insert",
    "ledger.after_insert",
    "apply.before_transaction",
    "apply.before_commit",
    "apply.after_commit",
    "gc.after_lease",
    "gc.after_snapshot",
    "gc.before_doom",
    "gc.after_doom",
    "gc.before_delete",
    "gc.after_delete",
    "gc.before_forget",
    "gc.after_claim",
    "gc.after_object",
    "gc.before_finish",
    "pack.after_check",
    "pack.before_commit",
    "pack.after_commit",
    "unpack.before_commit",
    "unpack.after_commit",
    "remove.before_commit",
    "remove.after_commit",
    "thread.before_writes",
    "thread.after_writes",
    "thread.before_drop",
    "thread.after_drop",
    "thread.copy_before_commit",
    "thread.copy_after_commit",
    "items.before_transaction",
    "items.before_commit",
    "items.after_commit",
    "items.after_sweep",
    "outbox.after_claim",
    "outbox.before_settle",
    "outbox.after_settle",
    "outbox.before_acknowledge",
    "outbox.after_acknowledge",
    "outbox.after_housekeeping",
    "run.before_segment",
    "run.after_segment",
    "run.before_advance",
    "run.after_advance",
    "run.after_claim",
    "run.before_move",
    "run.after_move",
    "effect.after_intent",
    "effect.before_result",
    "effect.after_result",
    "task.before_record",
    "task.after_record",
    "subflow.before_begin",
    "subflow.after_begin",
    "subflow.before_resume",
    "queue.before_claim",
    "schedule.before_tick",
    "schedule.after_tick",
]


def test_every_failpoint_is_tried_here_or_in_a_test_of_its_own() -> None:
    assert set(declared_failpoints()) == {*IN_THE_TRANSACTION, *UPLOADING, *AROUND, *ELSEWHERE}


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("point", [*UPLOADING, *AROUND, *IN_THE_TRANSACTION])
def test_a_kill_leaves_the_old_state_or_the_new(point: str, size: str, store: Store) -> None:
    postgres = store.url.startswith("postgresql")
    # PostgreSQL commits in one statement, which cannot be stopped half-way from here; small saves upload nothing.
    unreached = (postgres and point in IN_THE_TRANSACTION) or (size == "small" and point in UPLOADING)
    old = {"text": "old", "numbers": list(range(2000))}
    new = {**old, "changed": large_value(2) if size == "large" else {"small": True}}
    with store.open() as app:
        commit_value(app.default, old)

    done = programs.run(
        [sys.executable, "-m", "tests.crash.commit_worker", store.url, store.objects or "", size],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if unreached:
        assert (done.returncode, done.stdout) == (0, "acknowledged\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr

    with store.open() as app:
        tenant = app.default
        assert state_of(tenant) == (new if unreached or point == "commit.after_commit" else old)
        report = tenant.verify(commit_change(tenant, Operation("put", ("after",), 1)).receipt.key)
        assert report.problems == []
        assert report.records == (3 if unreached or point == "commit.after_commit" else 2)
