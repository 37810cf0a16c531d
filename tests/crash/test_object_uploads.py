"""Saves that upload, killed at any moment: there is no object without its intent, what was acknowledged is whole, and
the collector takes what is left over."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.crash.object_worker import content
from tests.depth import count
from tests.raw_rows import select
from tests.stores import Store

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(count(1, deep=4)))
def test_uploads_killed_at_any_moment_leave_whole_objects_and_intents(migrated_directory: Path, seed: int) -> None:
    chance = random.Random(seed)
    store = Store(str(migrated_directory))
    for _ in range(3):
        command = [sys.executable, "-m", "tests.crash.object_worker", store.url]
        with programs.Program(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            acknowledged = [int(process.stdout.readline())]
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
            # A line that was cut off by the kill tells of nothing.
            acknowledged += [int(line) for line in process.stdout.read().split("\n")[:-1]]
        with store.open() as app:
            assert app.objects is not None
            uploads = dict(select(store, "SELECT object_key, state FROM upload"))
            stored = {info.key for info in app.objects.list()}
            assert stored <= uploads.keys()
            assert {key for key, state in uploads.items() if state == "ready"} <= stored
            for number in acknowledged:
                name: dict[str, Any] = {"workflow_id": f"w-{number:06}", "owner_id": "ann"}
                assert app.kernel.load_latest_state(**name) == {"content": content(number)}
                assert app.kernel.verify(**name).problems == []
    with store.open(gc_upload_age_s=0, gc_object_delay_s=0) as app:
        assert app.objects is not None
        assert all(app.gc.run(grace_s=0).ok for _ in range(3))
        ready = {key for (key,) in select(store, "SELECT object_key FROM upload WHERE state = 'ready'")}
        assert {info.key for info in app.objects.list()} == ready
