"""What code cannot reach: files, the network, other processes, powers; and that it dies with the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from tests.api.flows.node_types.code_runners import answer, closed, failure, flow, nothing_is_left, runner

__all__ = ["closed", "nothing_is_left", "runner"]


def test_nothing_outside_is_written_or_read(closed: App, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o666)
    for place in (tmp_path, *tmp_path.parents[:-2]):
        place.chmod(place.stat().st_mode | 0o055)
    for text in (
        f"result = open({str(secret)!r}).read()",
        f"open({str(secret)!r}, 'w')",
        "open('/etc/passwd').read()",
        "import os; os.mkdir('/x')",
        "import sys; open(sys.modules['os'].__file__, 'a')",
        "import os; os.chroot('.')",
    ):
        assert failure(closed, text).partition(":")[0] in ("FileNotFoundError", "PermissionError", "OSError"), text


def test_there_is_no_network(closed: App) -> None:
    for place in (("127.0.0.1", 1), ("8.8.8.8", 53)):
        assert "unreachable" in failure(closed, f"import socket; socket.create_connection({place!r}, 5)")


def test_the_environment_and_other_processes_are_not_seen(closed: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "nobody-may-see-it")
    text = """
import glob, os
seen = [dict(os.environ)]
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
    try: seen.append(open(path, "rb").read().decode())
    except OSError: pass
result = [str(seen), sorted(int(each) for each in os.listdir("/proc") if each.isdigit()), os.listdir("/proc/self/fd")]
"""
    found = answer(closed, text)
    assert found["ok"], found
    seen, processes, files = found["result"]
    assert "nobody-may-see-it" not in seen and "A_SECRET" not in seen
    assert processes == [1, 2]
    # Input, output, errors, the result, and the list itself.
    assert len(files) == 5


def test_no_powers_can_be_had(closed: App) -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
status = open("/proc/self/status").read()
held = [line.split()[1] for line in status.splitlines() if line.startswith(("CapPrm", "CapEff", "NoNewPrivs"))]
result = [held, libc.unshare(0x10000000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), libc.sethostname(b"x", 1)]
"""
    found = answer(closed, text)
    assert found["result"] == [["0000000000000000", "0000000000000000", "1"], -1, -1, -1], found


def test_code_that_nobody_waits_for_is_ended(runner: App) -> None:
    ended: list[str] = []
    running = threading.Thread(target=lambda: ended.append(flow(runner, code="while True: pass").status), daemon=True)
    running.start()
    end = time.monotonic() + 60
    while not (found := runner.flows.runs(status="RUNNING")):
        assert time.monotonic() < end
        time.sleep(0.01)
    runner.flows.cancel(found[0].execution_id)
    running.join(60)
    assert ended == ["CANCELLED"]


RUN = """
import analemma

def run(text):
    node = {"id": "calc", "type": "code_interpreter", "code_path": "program", "memory_mb": 64, "disk_mb": 1}
    with analemma.open("sqlite:///:memory:") as app:
        document = {"workflow": "w", "nodes": [node]}
        return app.flows.run(document, {"program": text}, workflow_id="w", owner_id="me").state["calc"]["result"]
"""


def program(text: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a program of its own does."""
    return subprocess.run([sys.executable, "-c", RUN + text], capture_output=True, text=True, timeout=60, **options)


def test_code_dies_with_the_program(closed: App, tmp_path: Path) -> None:
    ended = program(
        f"""
import os, threading, time

def die():
    while not any(os.scandir({str(tmp_path)!r})):
        time.sleep(0.01)
    time.sleep(0.3)
    os.kill(os.getpid(), 9)

threading.Thread(target=die, daemon=True).start()
run("import time; time.sleep(77.5)")
""",
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == -9, ended.stderr
    until = time.monotonic() + 60
    while (left := _running(str(tmp_path))) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def _running(directory: str) -> list[str]:
    """Processes of the code that was given this directory: their guard works in it."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/cwd").startswith(directory):
                found.append(process)
        except OSError:
            continue
    return found


def test_a_program_with_many_open_files_runs_code(closed: App) -> None:
    done = program("""
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [os.open("/dev/null", 0) for _ in range(1100)]
print(run("import os; result = len(os.listdir('/proc/self/fd'))"))
""")
    assert done.stdout.strip() == "5", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_is_mounted_below_a_library_cannot_be_written_to(closed: App) -> None:
    place = next(str(each) for each in sorted(Path("/usr/lib").iterdir()) if each.is_dir() and not each.is_symlink())
    tries = f"""
result = []
for name in ("{place}/x", "{place}/a b/x"):
    try: open(name, "w").write("x"); result.append("written")
    except OSError as exc: result.append(exc.strerror)
"""
    done = program(f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)

def mount(source, target, kind, flags, options):
    assert libc.mount(source, target.encode(), kind, flags, options) == 0, os.strerror(ctypes.get_errno())

assert libc.unshare(0x20000) == 0
mount(b"none", "/", None, 0x44000, None)
mount(b"tmpfs", {place!r}, b"tmpfs", 0, b"mode=1777,size=1m")
os.mkdir({place!r} + "/a b")
mount(b"tmpfs", {place!r} + "/a b", b"tmpfs", 0, b"mode=1777,size=1m")
print(run({tries!r}))
""")
    assert done.stdout.count("Read-only file system") == 2, (done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="not every kernel lets others change these")
def test_there_is_no_shared_memory_that_counts_for_nobody(closed: App) -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = [libc.shmget(0, ctypes.c_size_t(4096), 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
"""
    assert answer(closed, text)["result"] == [-1, -1, -1]
