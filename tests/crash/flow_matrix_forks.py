"""Processes that run the flow of `flow_matrix`, forked from one that has imported everything: killing hundreds takes no
longer than running the flow.

`python -m tests.crash.flow_matrix_forks DIRECTORY` reads requests, one line of JSON each, and answers them. A process
dies, or stops, as SIGKILL and SIGSTOP do it, at failpoints whose passing is counted over all processes of a run."""

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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analemma import failpoints
from tests.crash.flow_matrix import TENANT, Outside, drive, make_flow, open_store
from tests.stores import Store

ROOT = Path(__file__).parents[2]
MOST_POINTS = 400
COUNT_BYTES = 8
PARENT_DEATH_SIGNAL = 1
"""Of prctl, on Linux."""
LONGEST_IDLE_S = 2.0
"""Of a worker inside of a transaction."""


class Counts:
    """How often each failpoint was passed, by all processes that were forked since the beginning; and a trap for the
    first of them that passes one so often from now on."""

    def __init__(self) -> None:
        # Shared with whatever is forked.
        self._memory = mmap.mmap(-1, MOST_POINTS * COUNT_BYTES)
        self._trap = mmap.mmap(-1, 3 * COUNT_BYTES)
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}

    def begin(self) -> None:
        """Count from zero again."""
        self._memory[:] = bytes(MOST_POINTS * COUNT_BYTES)
        self._names = {name: number for number, name in enumerate(sorted(failpoints.NAMES))}
        assert len(self._names) <= MOST_POINTS

    def passed(self, name: str) -> int:
        """One more; how many by now. Of processes that run at the same time none counts for the others."""
        where = self._names[name] * COUNT_BYTES
        with self._lock:
            count = int.from_bytes(self._memory[where : where + COUNT_BYTES], "big") + 1
            self._memory[where : where + COUNT_BYTES] = count.to_bytes(COUNT_BYTES, "big")
        return count

    def set_trap(self, name: str, count: int, how: int) -> None:
        """Whoever passes a failpoint this often from now on gets a signal."""
        numbers = (self._names[name], count, how)
        self._trap[:] = b"".join(number.to_bytes(COUNT_BYTES, "big") for number in numbers)

    def trapped(self, name: str) -> int:
        """The signal to get, if it is so far; else 0."""
        with self._lock:
            data = bytes(self._trap)
            number, left, how = (int.from_bytes(data[at : at + COUNT_BYTES], "big") for at in (0, 8, 16))
            if not left or number != self._names[name]:
                return 0
            self._trap[COUNT_BYTES : 2 * COUNT_BYTES] = (left - 1).to_bytes(COUNT_BYTES, "big")
        return how if left == 1 else 0

    def all(self) -> dict[str, int]:
        """Those that were passed."""
        found = {
            name: int.from_bytes(self._memory[number * COUNT_BYTES : (number + 1) * COUNT_BYTES], "big")
            for name, number in self._names.items()
        }
        return {name: count for name, count in found.items() if count}


def watch(passed: Callable[[str], None]) -> None:
    """Hear of every failpoint that this process passes."""
    known = failpoints.hit
    for module in list(sys.modules.values()):
        if getattr(module, "hit", None) is known:
            module.hit = passed  # type: ignore[attr-defined]


class Server:
    """Forks, and says what became of what it forked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._counts = Counts()

    def serve(self) -> None:
        self._warm_up()
        for line in sys.stdin:
            asked = json.loads(line)
            answer = getattr(self, asked.pop("do"))(**asked)
            print(json.dumps(answer), flush=True)

    def begin(self) -> dict[str, int]:
        """Count from zero again."""
        self._counts.begin()
        return {}

    def counts(self) -> dict[str, int]:
        """What was passed since."""
        return self._counts.all()

    def drive(
        self, url: str, objects: str | None, outside: str, number: int, die: dict[str, list[int]], after_s: float | None
    ) -> dict[str, Any]:
        """A process that goes on with a run until it is over, or dies: where it is told to, or after a time."""

        def work() -> None:
            with open_store(Store(url, objects)) as app:
                drive(app, Outside(Path(outside)), number)

        process = self._fork(work, die)
        if after_s is not None:
            time.sleep(after_s)
            os.kill(process, signal.SIGKILL)
        return {"code": self.end(process)["code"], "said": self._said(process), "at": self._place(process)}

    def trap(self, name: str, count: int, how: int) -> dict[str, int]:
        """For processes that run already."""
        self._counts.set_trap(name, count, how)
        return {}

    def worker(self, url: str, objects: str | None, outside: str, lease_s: float, concurrency: int) -> dict[str, int]:
        """A process that goes on with whatever is due until it is killed."""

        def work() -> None:
            logging.getLogger("analemma.flows").setLevel(logging.WARNING)
            # What it has locked when it is stopped, others have to wait for.
            with open_store(Store(url, objects), run_lease_s=lease_s, statement_timeout_s=LONGEST_IDLE_S) as app:
                app.tenant(TENANT).flows.register(make_flow(Outside(Path(outside))))
                app.run_worker(concurrency).run()

        return {"process": self._fork(work, {})}

    def end(self, process: int) -> dict[str, Any]:
        """Wait for the end of a process."""
        _, status = os.waitpid(process, 0)
        return {"code": os.waitstatus_to_exitcode(status), "said": self._said(process)}

    def _fork(self, work: Callable[[], None], die: dict[str, list[int]]) -> int:
        process = os.fork()
        if process:
            return process
        code = 1
        try:
            # Nobody would end it if whoever asked were gone.
            ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
            error = os.open(self._file("said", os.getpid()), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(error, 1)
            os.dup2(error, 2)
            # `kill -USR1` has it say where it is.
            faulthandler.register(signal.SIGUSR1, file=2)

            def passed(name: str) -> None:
                count = self._counts.passed(name)
                if count in die.get(name, ()):
                    self._file("at", os.getpid()).write_text(f"{name}:{count}")
                    os.kill(os.getpid(), signal.SIGKILL)
                if how := self._counts.trapped(name):
                    # To this thread: one that is meant for the process may reach another first.
                    signal.raise_signal(how)

            watch(passed)
            work()
            code = 0
        except BaseException:
            logging.getLogger(__name__).exception("a process of the matrix failed")
        finally:
            os._exit(code)

    def _warm_up(self) -> None:
        """Import whatever the flow needs, by running it."""
        logging.basicConfig()
        logging.getLogger("analemma.flows").setLevel(logging.ERROR)
        with open_store(Store(str(self._directory / "warm"))) as app:
            from tests.unit.contracts.bookshop import EXAMPLE

            app.contracts.load(EXAMPLE)
            drive(app, Outside(self._directory / "warm-outside"))
        import psycopg_pool  # noqa: F401

        # Whatever a thread holds stays held in what is forked.
        assert threading.active_count() == 1, threading.enumerate()
        self._counts.begin()

    def _file(self, kind: str, process: int) -> Path:
        return self._directory / f"{kind}-{process}"

    def _said(self, process: int) -> str:
        path = self._file("said", process)
        return path.read_text()[-4000:] if path.exists() else ""

    def _place(self, process: int) -> str | None:
        path = self._file("at", process)
        if not path.exists():
            return None
        place = path.read_text()
        # Numbers of processes come again.
        path.unlink()
        return place


@dataclass(slots=True)
class Forks:
    """What tests ask of a server."""

    directory: Path
    _server: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.flow_matrix_forks", str(self.directory)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **asked: Any) -> dict[str, Any]:
        assert self._server.stdin is not None and self._server.stdout is not None
        print(json.dumps({"do": do, **asked}), file=self._server.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._server.stdout.readline())
        return answer

    def said(self, process: int) -> str:
        """What a process has written so far."""
        path = self.directory / f"said-{process}"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        # Its input ends, and with it what it does.
        self._server.communicate(timeout=30)


if __name__ == "__main__":
    Server(Path(sys.argv[1])).serve()
