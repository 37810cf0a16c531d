"""A store in memory is a directory that goes with it, however its process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import analemma

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
LARGE = os.urandom(1 << 20)

PROGRAM = """
import os, signal, sys
import analemma

app = analemma.open("sqlite:///:memory:")
app.kernel.save_state_delta({"large": os.urandom(1 << 20)}, workflow_id="w", owner_id="ann")
held = {os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
print(next(path for path in held if os.path.basename(path).startswith("analemma-memory-")), flush=True)
if sys.argv[1] == "close":
    app.close()
elif sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def left_by(ending: str) -> Path:
    done = subprocess.run([sys.executable, "-c", PROGRAM, ending], capture_output=True, text=True)
    assert done.returncode == (-signal.SIGKILL if ending == "kill" else 0), done
    return Path(done.stdout.strip())


def test_whoever_reads_while_a_store_is_closed_reads_to_the_end() -> None:
    app = analemma.open("sqlite:///:memory:")
    with ExitStack() as stack:
        readers = [stack.enter_context(app.catalog.engine.snapshot()) for _ in range(3)]
        app.close()
        assert [reader.value("tenant_count") for reader in readers] == [0, 0, 0]


@pytest.mark.parametrize("ending", ["close", "end"])
def test_nothing_is_left_of_a_store_that_was_closed_or_whose_process_ended(ending: str) -> None:
    assert not left_by(ending).exists()


def test_what_a_killed_process_left_goes_when_the_next_store_is_opened() -> None:
    left = left_by("kill")
    assert list(left.iterdir()) != []
    # Younger than a minute it might be one that is just being made.
    os.utime(left, (0, 0))
    with analemma.open("sqlite:///:memory:") as app, analemma.open("sqlite:///:memory:") as other:
        assert not left.exists()
        app.kernel.save_state_delta({"large": LARGE}, **AT)
        other.kernel.save_state_delta({"n": 1}, **AT)
        assert app.kernel.load_latest_state(**AT) == {"large": LARGE}
        assert other.kernel.load_latest_state(**AT) == {"n": 1}
        assert app.info()["objects"] == "memory://" and app.info()["url"] == "sqlite:///:memory:"
