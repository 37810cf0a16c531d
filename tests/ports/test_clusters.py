"""Executors pass their suite on real clusters, and backfills and groups of runs come to the same there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("cluster_cases.py")
ROOT = Path(__file__).parents[2]
CASE_S, LONGEST_S = 300, 1500


@pytest.mark.deep("a cluster takes half a minute to start")
@pytest.mark.timeout(LONGEST_S + 60)
@pytest.mark.parametrize("kind", ["Dask", "Ray"])
def test_a_cluster_runs_calls_as_every_executor_does(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", f"--timeout={CASE_S}"]
    command += [f"{CASES}::Test{kind}", f"--basetemp={tmp_path / 'cases'}"]
    # With all that it starts in a session of its own, which is ended as a whole.
    program = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = program.communicate(timeout=LONGEST_S)
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.communicate()
    assert program.returncode == 0, output
