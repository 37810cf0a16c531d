"""Several processes commit to the same workflows while worker processes follow them, and some are killed: every version
of every workflow is a version of its entity, once, and the newest is the last."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import BranchKey
from tests import programs
from tests.api.pipeline.test_state_sources import RULESET, SCHEMA, SOURCE
from tests.crash.bookshop_chain import wait_until_quiet, workers
from tests.depth import count
from tests.raw_rows import select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
WORKFLOWS = 4
EVERY = {**SOURCE, "constants": {"version": "{version}"}, "when": "EVERY_COMMIT"}


def start(store: Store, number: int, turns: int) -> subprocess.Popen[str]:
    given = [store.url, store.objects or "", str(number), str(turns)]
    return programs.Program(
        [sys.executable, "-m", "tests.crash.test_state_source_processes", *given],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def commit(store: Store, number: int, turns: int) -> None:
    """Save, checkpoint and roll back, here and there."""
    chance = random.Random(number)
    with store.open() as app:
        kernel = app.tenant("agents").kernel
        for turn in range(turns):
            name: dict[str, Any] = {"workflow_id": f"run-{chance.randrange(WORKFLOWS)}", "owner_id": "ann"}
            if chance.random() < 0.3:
                kernel.checkpoint_async({"status": "A", "goal": f"{number}.{turn}"}, **name)
            elif chance.random() < 0.2:
                try:
                    kernel.rollback_to_version(version=1, **name)
                except KeyError:
                    continue
            else:
                kernel.save_state_delta({"status": "A", "goal": f"{number}.{turn}"}, **name)


@pytest.mark.timeout(600)
def test_every_version_is_taken_once_and_the_newest_last(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([SCHEMA, RULESET, EVERY])
    chance = random.Random(7)
    with workers(store) as running:
        committers = [start(store, number, count(10, deep=30)) for number in range(2)]
        for _ in range(count(1, deep=3)):
            time.sleep(0.5)
            running.kill_one(chance)
        for process in committers:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
        wait_until_quiet(store, 300)
    with store.open() as app:
        agents = app.tenant("agents")
        assert app.outbox.status(count_processed=False).dead == 0
        for number in range(WORKFLOWS):
            name = f"run-{number}"
            head = agents.head(BranchKey("ann", name))
            assert head is not None
            # Each has another document: its version is in it.
            sql = "SELECT raw.version, raw.root FROM raw JOIN entity ON entity.id = raw.entity WHERE entity.key = ?"
            rows = select(store, sql, [name])
            assert len(rows) == len({root for _, root in rows}) == head.version
            state = agents.kernel.load_latest_state(workflow_id=name, owner_id="ann")
            assert agents.slices("RUN", name)["CORE"].data == {
                "status": "A",
                "goal": state["goal"],
                "version": head.version,
            }


if __name__ == "__main__":
    url, objects, given, times = sys.argv[1:]
    commit(Store(url, objects or None), int(given), int(times))
