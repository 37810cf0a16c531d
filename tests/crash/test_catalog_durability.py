"""A commit has reached the disk when it returns: seen from outside, by the system calls of the process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, analemma
settings = analemma.Settings(sqlite_synchronous=sys.argv[2])
with analemma.open(sys.argv[1], settings=settings) as app:
    for number in range(3):
        os.write(2, b"begin-%d" % number)
        app.kernel.save_state_delta({"n": number}, workflow_id="report", owner_id="ann")
        os.write(2, b"end-%d" % number)
"""


def system_calls(folder: Path, synchronous: str) -> str:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    log = folder / "trace"
    command = [strace, "-f", "-y", "-e", "trace=fsync,fdatasync,write,pwrite64", "-o", str(log)]
    done = subprocess.run(
        [*command, sys.executable, "-c", SCRIPT, str(folder / "store"), synchronous], capture_output=True, timeout=120
    )
    if done.returncode != 0 and b"ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.decode().strip()}")
    assert done.returncode == 0, done.stderr
    return log.read_text()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where the store is, and the calls of a process that saves to it."""
    folder = tmp_path_factory.mktemp("full")
    return folder, system_calls(folder, "FULL")


def between(trace: str, number: int) -> list[str]:
    """The calls made while one commit ran."""
    start, end = trace.index(f'"begin-{number}"'), trace.index(f'"end-{number}"')
    return trace[start:end].splitlines()


def test_the_log_is_synced_after_its_last_write_and_before_commit_returns(full: tuple[Path, str]) -> None:
    _, trace = full
    for number in range(3):
        calls = [line for line in between(trace, number) if "catalog.db-wal" in line]
        writes = [place for place, line in enumerate(calls) if "pwrite64" in line]
        syncs = [place for place, line in enumerate(calls) if re.search(r"\bf(data)?sync\(", line)]
        assert writes, "the commit wrote nothing"
        assert syncs and syncs[-1] > writes[-1], calls


def test_normal_mode_leaves_the_sync_to_checkpoints(tmp_path: Path) -> None:
    trace = system_calls(tmp_path, "NORMAL")
    assert not [line for line in between(trace, 2) if re.search(r"\bf(data)?sync\(", line)]


def test_the_name_of_a_new_database_is_synced(full: tuple[Path, str]) -> None:
    folder, trace = full
    before_first_commit = trace[: trace.index('"begin-0"')]
    store = re.escape(str(folder / "store"))
    assert re.search(rf"fsync\(\d+<{store}>\)", before_first_commit), "the directory was not synced"
    assert re.search(rf"fsync\(\d+<{re.escape(str(folder))}>\)", before_first_commit), "nor was the one above it"
