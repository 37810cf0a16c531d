"""A commit has reached the disk when it returns: seen from outside, by the system calls of the process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from analemma.catalog.opening import open_catalog
from analemma.testing.commits import make_block, make_request
catalog = open_catalog(sys.argv[1], synchronous=sys.argv[2])
tenant = catalog.tenant("default")
head = None
for number in range(3):
    request = make_request(tenant, head, [make_block()])
    head = request.head
    os.write(2, b"begin-%d" % number)
    catalog.commit(request)
    os.write(2, b"end-%d" % number)
catalog.close()
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


def between(trace: str, number: int) -> list[str]:
    """The calls made while one commit ran."""
    start, end = trace.index(f'"begin-{number}"'), trace.index(f'"end-{number}"')
    return trace[start:end].splitlines()


def test_the_log_is_synced_after_its_last_write_and_before_commit_returns(tmp_path: Path) -> None:
    trace = system_calls(tmp_path, "full")
    for number in range(3):
        calls = [line for line in between(trace, number) if "catalog.db-wal" in line]
        writes = [place for place, line in enumerate(calls) if "pwrite64" in line]
        syncs = [place for place, line in enumerate(calls) if re.search(r"\bf(data)?sync\(", line)]
        assert writes, "the commit wrote nothing"
        assert syncs and syncs[-1] > writes[-1], calls


def test_normal_mode_leaves_the_sync_to_checkpoints(tmp_path: Path) -> None:
    trace = system_calls(tmp_path, "normal")
    assert not [line for line in between(trace, 2) if re.search(r"\bf(data)?sync\(", line)]


def test_the_name_of_a_new_database_is_synced(tmp_path: Path) -> None:
    trace = system_calls(tmp_path, "full")
    before_first_commit = trace[: trace.index('"begin-0"')]
    store = re.escape(str(tmp_path / "store"))
    assert re.search(rf"fsync\(\d+<{store}>\)", before_first_commit), "the directory was not synced"
    assert re.search(rf"fsync\(\d+<{re.escape(str(tmp_path))}>\)", before_first_commit), "nor was the one above it"
