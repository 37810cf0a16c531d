"""kill -9 on a LangGraph store: all of a batch is there or nothing, and what was acknowledged stays."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from langgraph.store.base import PutOp

from analemma.langgraph import AnalemmaStore
from analemma.testing import failpoints
from tests import programs
from tests.crash.langgraph_store_worker import BATCH, EXPIRING
from tests.stores import Store

ROOT = Path(__file__).parents[2]
BATCHES = ["items.before_transaction", "items.before_commit", "items.after_commit"]


def command(store: Store, mode: str, name: str = "") -> list[str]:
    return [sys.executable, "-m", "tests.crash.langgraph_store_worker", store.url, store.objects or "", mode, name]


def killed_at(point: str, store: Store, mode: str) -> None:
    done = programs.run(
        command(store, mode),
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr


@pytest.mark.both_stores("the transaction that a kill must not tear is the database's")
def test_a_kill_leaves_all_of_a_batch_or_nothing(store: Store) -> None:
    for point in BATCHES:
        with store.open() as app:
            memory = AnalemmaStore(app)
            memory.batch([PutOp(op.namespace, op.key, None) for op in BATCH])
            memory.batch([PutOp(("shared", "a"), "a", {"turn": "old"}), PutOp(("gone",), "k", {"turn": "old"})])
        killed_at(point, store, "batch")
        with store.open() as app:
            memory = AnalemmaStore(app)
            found = {item.namespace: item.value["turn"] for item in memory.search(())}
            if point == "items.after_commit":
                assert found == {("shared", name): "new" for name in "abc"}
            else:
                assert found == {("shared", "a"): "old", ("gone",): "old"}
            assert memory.list_namespaces() == sorted(found)
            # Whoever was killed tries again.
            memory.batch(BATCH)
            assert [item.value for item in memory.search(())] == [{"turn": "new"}] * 3


def test_a_sweep_that_was_killed_is_finished_by_the_next(store: Store) -> None:
    with store.open() as app:
        AnalemmaStore(app).batch([*EXPIRING, PutOp(("kept",), "k", {})])
    killed_at("items.after_sweep", store, "sweep")
    with store.open() as app:
        memory = AnalemmaStore(app)
        assert [item.namespace for item in memory.search(())] == [("kept",)]
        left = memory.sweep_ttl()
        assert 0 < left < len(EXPIRING)
        assert memory.list_namespaces() == [("kept",)]


def test_processes_killed_at_random_lose_nothing_they_acknowledged(store: Store, tmp_path: Path) -> None:
    with store.open():
        pass
    names = ["one", "two", "three"]
    told = {name: tmp_path / name for name in names}
    workers = []
    for name in names:
        with told[name].open("w") as file:
            workers.append(programs.Program(command(store, "forever", name), cwd=ROOT, stdout=file))
    try:
        deadline = time.monotonic() + 60
        while not all(len(path.read_text().splitlines()) > 20 for path in told.values()):
            assert time.monotonic() < deadline, "the workers do not come forward"
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    with store.open() as app:
        memory = AnalemmaStore(app)
        for name in names:
            # A line that was cut off by the kill tells of nothing.
            acknowledged = int(told[name].read_text().rpartition("\n")[0].splitlines()[-1])
            sides = [memory.get((side, name), "turn") for side in ("left", "right")]
            turns = {item.value["turn"] for item in sides if item is not None}
            assert turns in ({acknowledged}, {acknowledged + 1})
