"""Many processes on one catalog: nobody starves, nothing is lost, no lock error or deadlock comes up."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from analemma import BranchKey
from analemma.catalog.opening import FILE_NAME, open_catalog
from analemma.catalog.port import KernelCatalog, TenantId
from tests import programs

PROCESSES = 8
ROOT = Path(__file__).parents[2]


def run_workers(scenario: str, url: str, argument: str) -> list[int]:
    """Start them all, let them go at the same moment, and collect what each prints."""
    workers = [
        programs.Program(
            [sys.executable, "-m", "tests.crash.catalog_worker", scenario, url, f"worker-{number}", argument],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * PROCESSES, [stderr for _, stderr in answers]
    return [int(stdout) for stdout, _ in answers]


def versions(catalog: KernelCatalog, tenant: TenantId, workflow: str) -> list[int]:
    return [row.version for row in catalog.history(tenant, BranchKey("ann", workflow), limit=1_000_000)]


def hammer_sqlite(folder: Path, seconds: str) -> None:
    counts = run_workers("hammer", str(folder), seconds)
    assert min(counts) >= sum(counts) / PROCESSES / 4, counts
    catalog = open_catalog(folder)
    tenant = catalog.tenant("default")
    for number, count in enumerate(counts):
        assert versions(catalog, tenant, f"worker-{number}") == list(range(count, 0, -1))
    assert catalog.stats(tenant).manifests == sum(counts)
    catalog.close()
    connection = sqlite3.connect(folder / FILE_NAME)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_eight_processes_on_one_sqlite_file_share_it_fairly(tmp_path: Path) -> None:
    hammer_sqlite(tmp_path, os.environ.get("ANALEMMA_HAMMER_S", "6"))


@pytest.mark.soak
def test_eight_processes_on_one_sqlite_file_share_it_fairly_for_long(tmp_path: Path) -> None:
    hammer_sqlite(tmp_path, os.environ.get("ANALEMMA_HAMMER_S", "30"))


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_commit_the_same_blocks_never_deadlock(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path) if kind == "sqlite" else request.getfixturevalue("postgres_url")
    rounds = 20
    wins = run_workers("share", url, str(rounds))
    catalog = open_catalog(url)
    tenant = catalog.tenant("default")
    for number in range(PROCESSES):
        assert versions(catalog, tenant, f"worker-{number}") == list(range(rounds, 0, -1))
    assert versions(catalog, tenant, "common") == list(range(sum(wins), 0, -1))
    # Fifty shared blocks, and one manifest block for every commit.
    assert catalog.stats(tenant).blocks == 50 + PROCESSES * rounds + sum(wins)
    catalog.close()
