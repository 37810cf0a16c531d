"""Many processes on one workflow and on their own: versions are unique and gapless, no acknowledged save is lost, and
nobody waits in a circle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.crash.kernel_worker import PARTS
from tests.depth import count, some
from tests.postgres_locks import deadlocks
from tests.raw_rows import is_sqlite
from tests.stores import Store

ROOT = Path(__file__).parents[2]
PROCESSES = count(4, deep=8)
SAVES = count(8, deep=60)
MANY_SAVES = 500
HAMMER_S = os.environ.get("ANALEMMA_HAMMER_S", "30")


def start(store: Store, workflow: str, name: str, saves: int | str, mode: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.kernel_worker"]
    command += [store.url, store.objects or "", workflow, name, str(saves), mode]
    pipe = subprocess.PIPE
    return programs.Program(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def let_go(workers: list[subprocess.Popen[str]]) -> None:
    """All at the same moment, when the last of them is ready."""
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()


def run(workers: list[subprocess.Popen[str]]) -> list[list[int]]:
    """The versions that each was told of."""
    let_go(workers)
    told = []
    for worker in workers:
        out, errors = worker.communicate(timeout=600)
        assert worker.returncode == 0, errors
        told.append([int(line) for line in out.splitlines()])
    return told


def check_one_workflow(store: Store, saves: int) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"log": []}, workflow_id="shared", owner_id="ann")
    versions = run([start(store, "shared", f"w{n}", saves, "append") for n in range(PROCESSES)])
    assert sorted(version for given in versions for version in given) == list(range(2, PROCESSES * saves + 2))
    with store.open() as app:
        kernel = app.kernel
        state = kernel.load_latest_state(workflow_id="shared", owner_id="ann")
        # The log tells the order in which the saves took effect: each process's own are in order, and none is missing.
        for number in range(PROCESSES):
            assert [entry for entry in state["log"] if entry.startswith(f"w{number}:")] == [
                f"w{number}:{save}" for save in range(saves)
            ]
            assert state[f"w{number}"] == saves - 1
        assert kernel.verify(workflow_id="shared", owner_id="ann").problems == []


def check_compare_and_set(store: Store, saves: int) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 0}, workflow_id="counter", owner_id="ann")
    versions = run([start(store, "counter", f"w{n}", saves, "count") for n in range(4)])
    assert sorted(version for given in versions for version in given) == list(range(2, 4 * saves + 2))
    with store.open() as app:
        assert app.kernel.load_latest_state(workflow_id="counter", owner_id="ann") == {"n": 4 * saves}


def check_distinct_workflows(store: Store, saves: int) -> None:
    with store.open() as app:
        for number in range(PROCESSES):
            app.kernel.save_state_delta({"log": []}, workflow_id=f"own {number}", owner_id="ann")
    told = run([start(store, f"own {n}", "w", saves, "append") for n in range(PROCESSES)])
    assert told == [list(range(2, saves + 2))] * PROCESSES
    with store.open() as app:
        for number in range(PROCESSES):
            state = app.kernel.load_latest_state(workflow_id=f"own {number}", owner_id="ann")
            assert state["log"] == [f"w:{save}" for save in range(saves)]
            assert app.kernel.verify(workflow_id=f"own {number}", owner_id="ann").ok


def test_processes_on_one_workflow(store: Store) -> None:
    check_one_workflow(store, SAVES)


def test_no_update_is_lost_under_compare_and_set(store: Store) -> None:
    check_compare_and_set(store, SAVES // 2)


@pytest.mark.deep("they meet less than those on one workflow do")
def test_processes_on_their_own_workflows(store: Store) -> None:
    check_distinct_workflows(store, SAVES)


@pytest.mark.soak
def test_processes_at_length(store: Store) -> None:
    check_one_workflow(store, MANY_SAVES)
    check_compare_and_set(store, MANY_SAVES)
    check_distinct_workflows(store, MANY_SAVES)


def test_processes_that_store_the_same_blocks_never_wait_in_a_circle(store: Store) -> None:
    rounds = count(5, deep=20)
    told = run([start(store, f"own {n}", str(n), rounds, "share") for n in range(PROCESSES)])
    assert told == [list(range(1, rounds + 1))] * PROCESSES
    with store.open() as app:
        states = [app.kernel.load_latest_state(workflow_id=f"own {n}", owner_id="ann") for n in range(PROCESSES)]
    assert states == [{f"part {n}": f"{rounds - 1} {n} " * 300 for n in range(PARTS)}] * PROCESSES
    if not is_sqlite(store):
        assert deadlocks(store.url) == 0


@pytest.mark.soak
def test_processes_on_one_sqlite_file_share_it_fairly(migrated_directory: Path) -> None:
    store = Store(str(migrated_directory))
    with store.open() as app:
        for number in range(8):
            app.kernel.save_state_delta({"log": []}, workflow_id=f"own {number}", owner_id="ann")
    counts = [told[0] for told in run([start(store, f"own {n}", "w", HAMMER_S, "hammer") for n in range(8)])]
    assert min(counts) >= sum(counts) / len(counts) / 4, counts


@pytest.mark.parametrize("least", some([1, 20], test=[20]))
def test_a_killed_process_loses_no_acknowledged_save(store: Store, least: int) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"log": []}, workflow_id="shared", owner_id="ann")
    workers = [start(store, "shared", f"w{n}", 100_000, "append") for n in range(3)]
    let_go(workers)
    versions = []
    for worker in workers:
        assert worker.stdout is not None
        versions += [int(worker.stdout.readline()) for _ in range(least)]
    for worker in workers:
        worker.kill()
    for worker in workers:
        assert worker.stdout is not None
        out = worker.stdout.read()
        worker.communicate()
        # A line that was cut off by the kill tells of nothing.
        versions += [int(line) for line in out.split("\n")[:-1]]
    with store.open() as app:
        kernel = app.kernel
        assert kernel.verify(workflow_id="shared", owner_id="ann").problems == []
        newest = kernel.history(workflow_id="shared", owner_id="ann", limit=1)[0]
        state = kernel.load_latest_state(workflow_id="shared", owner_id="ann")
        # A version that was acknowledged is there; at most one per process happened without its process learning of it.
        assert max(versions) <= newest.version and len(state["log"]) == newest.version - 1
        assert len(set(versions)) == len(versions) >= 3 * least
        assert newest.version - 1 - len(versions) <= len(workers)
        kernel.save_state_delta({"after": True}, workflow_id="shared", owner_id="ann")
