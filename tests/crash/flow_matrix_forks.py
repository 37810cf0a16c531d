"""Processes that run the flow of `flow_matrix`, forked as `tests.programs` does: killing hundreds takes no longer than
running the flow. A process dies, or stops, as SIGKILL and SIGSTOP do it, at failpoints whose passing is counted over
all processes of a run.

`python -m tests.crash.flow_matrix_forks WORK` is one of them; WORK is JSON."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from analemma.testing import failpoints
from tests.crash.flow_matrix import TENANT, Outside, drive, make_flow, open_store
from tests.programs import ROOT, Program
from tests.stores import Store

SLOTS = 1 << 20
"""So many that no two failpoints share one; most of the file is a hole."""
NUMBER_BYTES = 8
TRAP = SLOTS
"""Behind the counts: the slot, how often it is still to be passed, and the signal."""
PARENT_DEATH_SIGNAL = 1
"""Of prctl, on Linux."""
LONGEST_IDLE_S = 2.0
"""Of a worker inside of a transaction."""


class Counts:
    """How often each failpoint was passed by the processes that share the file; and a trap for the first of them that
    passes one so often from now on."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate((TRAP + 3) * NUMBER_BYTES)
            self._memory = mmap.mmap(file.fileno(), 0)
        self._lock = threading.Lock()

    def passed(self, name: str) -> int:
        """One more; how many by now. Of processes that run at the same time none counts for the others."""
        with self._lock:
            count = self._number(_slot(name)) + 1
            self._set(_slot(name), count)
        return count

    def set_trap(self, name: str, count: int, how: int) -> None:
        """Whoever passes a failpoint this often from now on gets a signal."""
        for number, value in enumerate((_slot(name), count, how)):
            self._set(TRAP + number, value)

    def trapped(self, name: str) -> int:
        """The signal to get, if it is so far; else 0."""
        with self._lock:
            slot, left, how = (self._number(TRAP + number) for number in range(3))
            if not left or slot != _slot(name):
                return 0
            self._set(TRAP + 1, left - 1)
        return how if left == 1 else 0

    def _number(self, slot: int) -> int:
        return int.from_bytes(self._memory[slot * NUMBER_BYTES : (slot + 1) * NUMBER_BYTES], "big")

    def _set(self, slot: int, value: int) -> None:
        self._memory[slot * NUMBER_BYTES : (slot + 1) * NUMBER_BYTES] = value.to_bytes(NUMBER_BYTES, "big")


def _slot(name: str) -> int:
    return zlib.crc32(name.encode()) % SLOTS


def watch(passed: Callable[[str], None]) -> None:
    """Hear of every failpoint that this process passes."""
    assert len({_slot(name) for name in failpoints.names()}) == len(failpoints.names())
    known = failpoints.hit
    for name, module in list(sys.modules.items()):
        if name.startswith("analemma.") and getattr(module, "hit", None) is known:
            module.hit = passed  # type: ignore[attr-defined]


def warm_up() -> None:
    """Read the flow's document: what reads it is made when it is first needed, and takes longer than that."""
    make_flow(lambda *_: None).workflow()


@dataclass(frozen=True, slots=True)
class Work:
    """What a process does: it goes on with the run of a number until that is over, or, without one, with whatever is
    due until it is killed."""

    url: str
    objects: str | None
    outside: str
    counts: str
    asked_by: int
    number: int | None = None
    die: dict[str, list[int]] = field(default_factory=dict)
    """Where it is killed, by how often that was passed."""
    lease_s: float = 0.0

    def run(self) -> None:
        self._die_with_who_asked()
        # `kill -USR1` has it say where it is.
        faulthandler.register(signal.SIGUSR1, file=2)
        counts = Counts(Path(self.counts))

        def passed(name: str) -> None:
            count = counts.passed(name)
            if count in self.die.get(name, ()):
                os.write(2, f"{KILLED}{name}:{count}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            if how := counts.trapped(name):
                # To this thread: one that is meant for the process may reach another first.
                signal.raise_signal(how)

        watch(passed)
        store, outside = Store(self.url, self.objects), Outside(Path(self.outside))
        logging.basicConfig()
        if self.number is not None:
            logging.getLogger("analemma.flows").setLevel(logging.ERROR)
            with open_store(store) as app:
                drive(app, outside, self.number)
            return
        # What it has locked when it is stopped, others have to wait for.
        with open_store(store, run_lease_s=self.lease_s, statement_timeout_s=LONGEST_IDLE_S) as app:
            app.tenant(TENANT).flows.register(make_flow(outside))
            app.run_worker(1).run()

    def _die_with_who_asked(self) -> None:
        """Nobody would end it if whoever asked were gone."""
        while os.getppid() != self.asked_by:
            # The one that forked it, which leaves at once.
            time.sleep(0.001)
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


KILLED = "killed at "


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    said: str
    at: str | None
    """Where it was killed, if it was told to die there."""


@dataclass(slots=True)
class Forks:
    """The processes of a test."""

    directory: Path
    _begun: int = 0
    _forked: int = 0
    _files: dict[int, Path] = field(default_factory=dict)
    """What each process says goes there."""

    def begin(self) -> None:
        """Count from zero, whatever is forked from now on."""
        self._begun += 1

    def trap(self, name: str, count: int, how: int) -> None:
        """For processes that run already."""
        Counts(self._counts).set_trap(name, count, how)

    def drive(
        self, store: Store, outside: Path, number: int, die: dict[str, list[int]], after_s: float | None
    ) -> Ended:
        """A process that goes on with a run until it is over, or dies: where it is told to, or after a time."""
        process = self._fork(replace(self._work(store, outside), number=number, die=die))
        if after_s is not None:
            time.sleep(after_s)
            process.kill()
        code = process.wait()
        said = self.said(process.pid)
        killed = [line.removeprefix(KILLED) for line in said.splitlines() if line.startswith(KILLED)]
        return Ended(code, said[-4000:], killed[-1] if killed else None)

    def worker(self, store: Store, outside: Path, *, lease_s: float) -> Program:
        """A process that goes on with whatever is due until it is killed."""
        return self._fork(replace(self._work(store, outside), lease_s=lease_s))

    def said(self, process: int) -> str:
        """What a process has written so far."""
        return self._files[process].read_text()

    @property
    def _counts(self) -> Path:
        return self.directory / f"counts-{self._begun}"

    def _work(self, store: Store, outside: Path) -> Work:
        return Work(store.url, store.objects, str(outside), str(self._counts), os.getpid())

    def _fork(self, work: Work) -> Program:
        self._forked += 1
        path = self.directory / f"said-{self._forked}"
        command = [sys.executable, "-m", "tests.crash.flow_matrix_forks", json.dumps(asdict(work))]
        with path.open("wb") as file:
            process = Program(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        self._files[process.pid] = path
        return process


if __name__ == "__main__":
    Work(**json.loads(sys.argv[1])).run()
