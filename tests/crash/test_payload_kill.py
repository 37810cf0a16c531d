"""kill -9 at every failpoint of dehydrating: all of the payload's leases are there with all they lead to, or none."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import App
from analemma.blocks.packs import read_footer
from analemma.errors import Denied
from analemma.testing import failpoints
from tests import programs
from tests.crash.payload_worker import NAMES, state
from tests.stores import Store

ROOT = Path(__file__).parents[2]
UPLOADING = ["upload.before_intent", "upload.after_intent", "upload.after_object"]
LEASING = ["payload.before_transaction", "payload.after_blocks", "payload.before_commit", "payload.after_commit"]
RELEASING = ["payload.before_release", "payload.after_release"]
ENDING = ["payload.before_renewal", "payload.before_hold", "payload.before_end"]
"""Tried in tests/two_actors/test_payload_leases.py."""


def test_every_failpoint_of_payloads_is_tried_here() -> None:
    assert {name for name in failpoints.names() if name.startswith("payload.")} == {*LEASING, *RELEASING, *ENDING}


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    """Whatever a test wants to know of the database."""
    postgres = store.url.startswith("postgresql")
    connection: Any = psycopg.connect(store.url) if postgres else sqlite3.connect(Path(store.url) / "catalog.db")
    try:
        return [tuple(row) for row in connection.execute(sql).fetchall()]
    finally:
        connection.close()


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("point", [*UPLOADING, *LEASING])
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
    unreached = size == "small" and point in UPLOADING
    expected = (0, "acknowledged\n") if unreached else (-signal.SIGKILL, "")
    assert (done.returncode, done.stdout) == expected, done.stderr
    happened = unreached or point == "payload.after_commit"
    with store.open(cache_bytes=0) as app:
        leases = app.payloads.leases(owner_id="ann", workflow_id="report")
        assert {lease.field for lease in leases} == ({"bytes", "more"} if happened else set())
        for lease in leases:
            assert app.default.trees.read(lease.root) == state(size)[lease.field or ""]
        check_store(store, app, committed=happened, uploaded=size == "large" and point != "upload.before_intent")
        # Whoever was killed tries again.
        payload = app.payloads.dehydrate(state(size), **NAMES)
        assert app.payloads.hydrate(payload) == state(size)


@pytest.mark.parametrize("point", RELEASING)
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
    states = [row[0] for row in rows(store, "SELECT state FROM upload")]
    assert states == (["ready" if committed else "temp"] if uploaded else [])
    blocks = app.stats().blocks
    assert (blocks > 0) == committed
    ready = "SELECT id FROM upload WHERE state = 'ready'"
    assert {row[0] for row in rows(store, "SELECT upload FROM block WHERE upload IS NOT NULL")} <= {
        row[0] for row in rows(store, ready)
    }
    assert app.objects is not None
    named = {row[0] for row in rows(store, "SELECT object_key FROM upload")}
    for found in app.objects.list("packs"):
        assert found.key in named and read_footer(app.objects, found.key)
