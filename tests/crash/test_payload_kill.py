"""kill -9 at every failpoint of dehydrating: all of the payload's leases are there with all they lead to, or none."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from analemma import App
from analemma.errors import Denied
from analemma.testing import failpoints
from tests import programs
from tests.crash.payload_worker import NAMES, state
from tests.crash.points import kills
from tests.raw_rows import is_sqlite, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
UPLOADING = ["upload.before_intent", "upload.after_intent", "upload.after_object"]
LEASING = ["payload.before_transaction", "payload.after_blocks", "payload.before_commit", "payload.after_commit"]
RELEASING = ["payload.before_release", "payload.after_release"]
CASES = [*((point, "large") for point in (*UPLOADING, *LEASING)), *((point, "small") for point in LEASING)]
CHOSEN = [
    *((point, "large") for point in (*UPLOADING[1:], "payload.after_commit")),
    *((point, "small") for point in LEASING if point != "payload.after_blocks"),
]
AROUND_COMMIT = [(point, "small") for point in ("payload.before_transaction", "payload.after_commit")]


@pytest.mark.parametrize(("point", "size"), kills(CASES, test=CHOSEN, postgres=AROUND_COMMIT))
def test_a_kill_leaves_all_of_it_or_nothing(point: str, size: str, store: Store) -> None:
    with store.open() as app:
        assert app.payloads.leases(owner_id="ann", workflow_id="report") == []
    done = programs.run(
        [sys.executable, "-m", "tests.crash.payload_worker", store.url, store.objects or "", size],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # On PostgreSQL one call writes the blocks and the leases: nobody dies between the two.
    reached = is_sqlite(store) or point != "payload.after_blocks"
    assert done.returncode == (-signal.SIGKILL if reached else 0), done.stderr
    assert done.stdout == "" or not reached
    happened = point == "payload.after_commit" or not reached
    with store.open(cache_bytes=0) as app:
        leases = app.payloads.leases(owner_id="ann", workflow_id="report")
        assert {lease.field for lease in leases} == ({"bytes", "more"} if happened else set())
        blocks = app.stats().blocks
        check_store(store, app, committed=happened, uploaded=size == "large" and point != "upload.before_intent")
        # Whoever was killed tries again.
        payload = app.payloads.dehydrate(state(size), **NAMES)
        assert app.payloads.hydrate(payload) == state(size)
        # Nothing was missing of what the leases led to.
        assert not happened or app.stats().blocks == blocks


@pytest.mark.parametrize("point", kills(RELEASING, test=RELEASING))
def test_a_kill_leaves_an_execution_ended_or_not(point: str, store: Store) -> None:
    with store.open() as app:
        payload = app.payloads.dehydrate(state("small"), **NAMES)
    done = programs.run(
        [sys.executable, "-m", "tests.crash.payload_worker", store.url, store.objects or "", "release"],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    with store.open() as app:
        if point == "payload.before_release":
            assert app.payloads.hydrate(payload) == state("small")
            assert app.payloads.hydrate(app.payloads.dehydrate(state("small"), **NAMES)) == state("small")
        else:
            with pytest.raises(Denied):
                app.payloads.hydrate(payload)
            with pytest.raises(Denied):
                app.payloads.dehydrate(state("small"), **NAMES)
        # Whoever was killed tries again.
        assert app.payloads.release(**NAMES) == (4 if point == "payload.before_release" else 0)


def check_store(store: Store, app: App, *, committed: bool, uploaded: bool) -> None:
    """Nothing dangles: blocks are there only with their leases, and an upload without commit is `temp`."""
    assert [row[0] for row in select(store, "SELECT state FROM upload")] == (
        ["ready" if committed else "temp"] if uploaded else []
    )
    assert (app.stats().blocks > 0) == committed
    ready = select(store, "SELECT id FROM upload WHERE state = 'ready'")
    assert set(select(store, "SELECT upload FROM block WHERE upload IS NOT NULL")) <= set(ready)
    assert app.objects is not None
    named = {key for (key,) in select(store, "SELECT object_key FROM upload")}
    assert {found.key for found in app.objects.list("packs")} <= named
