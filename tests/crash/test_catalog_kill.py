"""kill -9 at every failpoint of the catalog: what is found afterwards is the old state or the new one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from analemma import BlockId, BranchKey
from analemma.catalog import commits
from analemma.catalog.opening import FILE_NAME, open_catalog
from analemma.catalog.port import UploadId
from analemma.testing import failpoints
from analemma.testing.commits import make_block, make_request
from tests import programs

ROOT = Path(__file__).parents[2]
KEY = BranchKey("ann", "report")

INSIDE_THE_TRANSACTION = {"commit.after_head", "commit.after_blocks", "commit.before_commit"}
NEW_STATE = {"commit.after_commit"}
POINTS = sorted({"commit.before_transaction"} | INSIDE_THE_TRANSACTION | NEW_STATE)


def crash_at(point: str, url: str) -> list[str]:
    """Run one commit in a process that dies at `point`; what it printed before."""
    done: subprocess.CompletedProcess[str] = programs.run(
        [sys.executable, "-m", "tests.crash.catalog_worker", "crash", url],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.split()


def check_after_crash(point: str, url: str) -> None:
    catalog = open_catalog(url)
    tenant = catalog.tenant("default")
    first = make_request(tenant, None, [make_block()])
    catalog.commit(first)
    catalog.close()

    printed = crash_at(point, url)

    catalog = open_catalog(url)
    upload = catalog.upload(tenant, UploadId(bytes.fromhex(printed[0])))
    assert upload is not None
    head = catalog.head(tenant, KEY)
    assert head is not None
    stats = catalog.stats(tenant)
    if point in NEW_STATE:
        assert head.manifest.hex() == printed[1]
        assert (head.version, stats.manifests, stats.blocks, upload.state) == (2, 2, 4, "ready")
        assert [row.version for row in catalog.history(tenant, KEY)] == [2, 1]
    else:
        assert head == first.head
        assert (stats.manifests, stats.blocks, upload.state) == (1, 2, "temp")
        if len(printed) > 1:
            assert catalog.manifest(tenant, BlockId(bytes.fromhex(printed[1]))) is None
    # The store is usable at once, without anyone cleaning up.
    catalog.commit(make_request(tenant, head))
    catalog.close()


def test_every_failpoint_of_a_commit_is_tried_here() -> None:
    declared = {value for name, value in vars(commits).items() if name.isupper() and value in failpoints.names()}
    assert declared == set(POINTS)


@pytest.mark.parametrize("point", POINTS)
def test_sqlite_survives_a_kill(point: str, tmp_path: Path) -> None:
    check_after_crash(point, str(tmp_path))
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


@pytest.mark.parametrize("point", sorted(set(POINTS) - INSIDE_THE_TRANSACTION))
def test_postgres_survives_a_kill(point: str, postgres_url: str) -> None:
    check_after_crash(point, postgres_url)
