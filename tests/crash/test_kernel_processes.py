"""Many processes on one workflow and on their own: versions are unique and gapless, and no acknowledged save is
lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import programs
from tests.stores import Store

ROOT = Path(__file__).parents[2]
PROCESSES = 8
SAVES = 60
MANY_SAVES = 500


def start(
    store: Store, workflow: str, name: str, count: int, mode: str, told: Path | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.kernel_worker"]
    command += [store.url, store.objects or "", workflow, name, str(count), mode]
    if told is None:
        return programs.Program(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with told.open("w") as file:
        return programs.Program(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE, text=True)


def acknowledged(worker: subprocess.Popen[str]) -> list[int]:
    out, errors = worker.communicate(timeout=600)
    assert worker.returncode == 0, errors
    return [int(line) for line in out.splitlines()]


def check_one_workflow(store: Store, saves: int) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"log": []}, workflow_id="shared", owner_id="ann")
    workers = [start(store, "shared", f"w{n}", saves, "append") for n in range(PROCESSES)]
    versions = [acknowledged(worker) for worker in workers]
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
    workers = [start(store, "counter", f"w{n}", saves, "count") for n in range(4)]
    versions = [acknowledged(worker) for worker in workers]
    assert sorted(version for given in versions for version in given) == list(range(2, 4 * saves + 2))
    with store.open() as app:
        assert app.kernel.load_latest_state(workflow_id="counter", owner_id="ann") == {"n": 4 * saves}


def check_distinct_workflows(store: Store, saves: int) -> None:
    with store.open() as app:
        for number in range(PROCESSES):
            app.kernel.save_state_delta({"log": []}, workflow_id=f"own {number}", owner_id="ann")
    workers = [start(store, f"own {n}", "w", saves, "append") for n in range(PROCESSES)]
    for worker in workers:
        assert acknowledged(worker) == list(range(2, saves + 2))
    with store.open() as app:
        for number in range(PROCESSES):
            state = app.kernel.load_latest_state(workflow_id=f"own {number}", owner_id="ann")
            assert state["log"] == [f"w:{save}" for save in range(saves)]
            assert app.kernel.verify(workflow_id=f"own {number}", owner_id="ann").ok


def test_eight_processes_on_one_workflow(store: Store) -> None:
    check_one_workflow(store, SAVES)


def test_no_update_is_lost_under_compare_and_set(store: Store) -> None:
    check_compare_and_set(store, SAVES // 2)


def test_eight_processes_on_their_own_workflows(store: Store) -> None:
    check_distinct_workflows(store, SAVES)


@pytest.mark.soak
def test_eight_processes_at_length(store: Store) -> None:
    check_one_workflow(store, MANY_SAVES)
    check_compare_and_set(store, MANY_SAVES)
    check_distinct_workflows(store, MANY_SAVES)


@pytest.mark.parametrize("after_s", [0.4, 0.7])
def test_a_killed_process_loses_no_acknowledged_save(store: Store, after_s: float, tmp_path: Path) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"log": []}, workflow_id="shared", owner_id="ann")
    told = [tmp_path / f"told {n}" for n in range(3)]
    workers = [start(store, "shared", f"w{n}", 100_000, "append", told[n]) for n in range(3)]
    deadline = time.monotonic() + 60
    while not all(path.stat().st_size for path in told) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(after_s)
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
        worker.communicate()
    versions = [int(line) for path in told for line in path.read_text().split("\n")[:-1]]
    with store.open() as app:
        kernel = app.kernel
        assert kernel.verify(workflow_id="shared", owner_id="ann").problems == []
        newest = kernel.history(workflow_id="shared", owner_id="ann", limit=1)[0]
        state = kernel.load_latest_state(workflow_id="shared", owner_id="ann")
        # A version that was acknowledged is there; at most one per process happened without its process learning of it.
        assert max(versions) <= newest.version and len(state["log"]) == newest.version - 1
        assert len(set(versions)) == len(versions) >= 3
        assert newest.version - 1 - len(versions) <= len(workers)
        kernel.save_state_delta({"after": True}, workflow_id="shared", owner_id="ann")
