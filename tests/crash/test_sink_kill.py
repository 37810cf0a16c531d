"""kill -9 of a process that ships: what was acknowledged is there, and the next process goes on."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import read_snapshot
from analemma.testing import failpoints
from tests import programs
from tests.crash.sink_worker import BATCH

ROOT = Path(__file__).parents[2]


def _start(target: dict[str, Any], first: int, point: str = "") -> subprocess.Popen[str]:
    return programs.Program(
        [sys.executable, "-m", "tests.crash.sink_worker", json.dumps(target), str(first)],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point} if point else dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("point", ["jsonl.after_write", "jsonl.after_flush"])
def test_a_kill_between_writing_and_answering_leaves_whole_lines(point: str, tmp_path: Path) -> None:
    target = {"type": "JSONL", "path": str(tmp_path / "out.jsonl")}
    worker = _start(target, 0, f"{point}:3")
    printed, _ = worker.communicate(timeout=60)
    assert worker.returncode == -signal.SIGKILL and printed.split() == ["0", "1"]
    # The third batch is in the file, though nobody was told.
    assert len(list(read_snapshot(tmp_path / "out.jsonl"))) == 3 * BATCH
    with _start(target, 2) as again:
        assert again.stdout is not None and again.stdout.readline() == "2\n"
        again.kill()
    found = {line.doc_id for line in read_snapshot(tmp_path / "out.jsonl")}
    assert found >= {f"{number}-{place}" for number in range(3) for place in range(BATCH)}


@pytest.mark.parametrize("kind", ["jsonl", "sqlite", "postgres"])
def test_kills_at_any_moment_lose_nothing_that_was_acknowledged(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target: dict[str, Any] = {"type": "JSONL", "path": str(tmp_path / "out.jsonl")}
    if kind != "jsonl":
        url = f"sqlite:///{tmp_path / 'out.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
        target = {"type": "TABLE", "url": url, "table": "documents", "create": True}
    moments = random.Random(11)
    acknowledged: list[int] = []
    for _ in range(4):
        first = max(acknowledged, default=-1) + 1
        with _start(target, first) as worker:
            assert worker.stdout is not None
            # Not before it ships, or nothing would be tried.
            acknowledged.append(int(worker.stdout.readline()))
            time.sleep(moments.random() * 0.15)
            worker.kill()
            acknowledged += [int(number) for number in worker.stdout.read().split()]
    assert acknowledged == list(range(len(acknowledged)))
    found = _found(kind, target)
    assert found >= {f"{number}-{place}" for number in acknowledged for place in range(BATCH)}


def _found(kind: str, target: dict[str, Any]) -> set[str]:
    if kind == "jsonl":
        # The last line may be cut off by the last kill, and is left out; any other that is broken raises.
        return {line.doc_id for line in read_snapshot(target["path"])}
    query = "SELECT doc_id FROM documents"
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(target["url"].removeprefix("sqlite:///"))) as connection:
            return {row[0] for row in connection.execute(query)}
    with psycopg.connect(target["url"]) as server:
        return {row[0] for row in server.execute(query)}
