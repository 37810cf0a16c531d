"""What code cannot reach: files, the network, other processes, powers; and that it dies with the program."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analemma.flows.node_types.code_running import CodeRunner
from tests.api.flows.node_types.code_runners import closed, code, isolated, nothing_is_left, run, runner

__all__ = ["closed", "nothing_is_left", "runner"]


def test_nothing_outside_is_written_or_read(closed: CodeRunner, tmp_path: Path) -> None:
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
        outcome = run(closed, text)
        assert not outcome.ok and outcome.error is not None, text
        assert outcome.error["type"] in ("FileNotFoundError", "PermissionError", "OSError"), outcome


def test_there_is_no_network(closed: CodeRunner) -> None:
    outcome = run(closed, "import socket; socket.create_connection(('127.0.0.1', 1), 5)")
    assert outcome.error is not None and "unreachable" in outcome.error["message"]
    outcome = run(closed, "import socket; socket.create_connection(('8.8.8.8', 53), 5)")
    assert outcome.error is not None and "unreachable" in outcome.error["message"]


def test_the_environment_and_other_processes_are_not_seen(closed: CodeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "nobody-may-see-it")
    text = """
import glob, os
seen = [dict(os.environ)]
for path in glob.glob("/proc/*/environ") + glob.glob("/proc/*/cmdline"):
    try: seen.append(open(path, "rb").read().decode())
    except OSError: pass
result = [str(seen), sorted(int(each) for each in os.listdir("/proc") if each.isdigit()), os.listdir("/proc/self/fd")]
"""
    outcome = run(closed, text)
    assert outcome.ok, outcome
    seen, processes, files = outcome.result
    assert "nobody-may-see-it" not in seen and "A_SECRET" not in seen
    assert processes == [1, 2]
    # Input, output, errors, the result, and the list itself.
    assert len(files) == 5


def test_no_powers_can_be_had(closed: CodeRunner) -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
status = open("/proc/self/status").read()
held = [line.split()[1] for line in status.splitlines() if line.startswith(("CapPrm", "CapEff", "NoNewPrivs"))]
result = [held, libc.unshare(0x10000000), libc.mount(b"x", b"/tmp", b"tmpfs", 0, None), libc.sethostname(b"x", 1)]
"""
    outcome = run(closed, text)
    assert outcome.result == [["0000000000000000", "0000000000000000", "1"], -1, -1, -1], outcome


def test_code_that_nobody_waits_for_is_ended(runner: CodeRunner) -> None:
    began = time.monotonic()
    asked = iter([False, False, True])
    assert runner.run(code("while True: pass"), lambda: next(asked, True)) is None
    assert time.monotonic() - began < 6


@isolated
def test_code_dies_with_the_program(tmp_path: Path) -> None:
    program = """
from analemma.clock import SystemClock
from analemma.flows.node_types.code_running import Code, CodeRunner
import os, threading
threading.Timer(1.5, lambda: os.kill(os.getpid(), 9)).start()
code = Code("import time; time.sleep(77.5)", {}, 64, 5, 1, 60, False)
CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code, lambda: False)
"""
    ended = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert ended.returncode == -9
    until = time.monotonic() + 5
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


def test_a_program_with_many_open_files_runs_code(closed: CodeRunner) -> None:
    program = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
held = [os.open("/dev/null", 0) for _ in range(1100)]
from analemma.clock import SystemClock
from analemma.flows.node_types.code_running import Code, CodeRunner
code = Code("import os; result = len(os.listdir('/proc/self/fd'))", {}, 64, 5, 1, 20, False)
print(CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code, lambda: False).result)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "5", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_what_is_mounted_below_a_library_cannot_be_written_to(closed: CodeRunner) -> None:
    place = next(str(each) for each in sorted(Path("/usr/lib").iterdir()) if each.is_dir() and not each.is_symlink())
    tries = f"""
result = []
for name in ("{place}/x", "{place}/a b/x"):
    try: open(name, "w").write("x"); result.append("written")
    except OSError as exc: result.append(exc.strerror)
"""
    program = f"""
import os
from analemma.clock import SystemClock
from analemma.flows.node_types import code_child
from analemma.flows.node_types.code_running import Code, CodeRunner
code_child.call("unshare", code_child.CLONE_NEWNS)
code_child.mount("none", "/", None, code_child.MS_REC | code_child.MS_PRIVATE)
code_child.mount("tmpfs", {place!r}, "tmpfs", 0, "mode=1777,size=1m")
os.mkdir({place!r} + "/a b")
code_child.mount("tmpfs", {place!r} + "/a b", "tmpfs", 0, "mode=1777,size=1m")
code = Code({tries!r}, {{}}, 64, 5, 1, 20, False)
print(CodeRunner(isolation="namespaces", python=None, clock=SystemClock()).run(code, lambda: False))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.count("Read-only file system") == 2, (done.stdout, done.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="not every kernel lets others change these")
def test_there_is_no_shared_memory_that_counts_for_nobody(closed: CodeRunner) -> None:
    text = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
result = [libc.shmget(0, ctypes.c_size_t(4096), 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600)]
"""
    assert run(closed, text).result == [-1, -1, -1]
