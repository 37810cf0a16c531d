"""A process that imports the package, opens a store and loads one state: what a function that is started for one event
pays before it does anything."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import analemma
from bench.harness import Row, temporary_folder

GOAL_MS = 100
PROGRAM = """
import analemma, sys, time
with analemma.open(sys.argv[1]) as store:
    store.kernel.load_latest_state(workflow_id="workflow-7", owner_id="ann")
print(time.process_time())
"""


def run(quick: bool) -> Iterator[Row]:
    """The processor time of such processes, and that of an interpreter which does nothing."""
    workflows, rounds = (100, 7) if quick else (1000, 20)
    with temporary_folder() as folder:
        with analemma.open(folder / "store") as store:
            for number in range(workflows):
                state = {"n": number, "messages": [{"role": "user", "content": "hello"}]}
                store.kernel.save_state_delta(state, workflow_id=f"workflow-{number}", owner_id="ann")
        ours, bare = [], []
        for _ in range(rounds + 1):
            ours.append(_milliseconds(PROGRAM, folder))
            bare.append(_milliseconds("import time; print(time.process_time())", folder))
    # The first one compiles.
    value, floor = statistics.median(ours[1:]), statistics.median(bare[1:])
    against = f"python alone: {floor:.0f} ms"
    yield Row("cold start", value, "ms", value / floor, against, f"<= {GOAL_MS} ms", value <= GOAL_MS)


def _milliseconds(program: str, folder: Path) -> float:
    # With compiled modules, as an installed package has them.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", program, str(folder / "store")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return float(done.stdout) * 1000
