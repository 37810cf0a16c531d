"""Runs foreign code: the program of the process that `code_running` starts. Imports nothing of Analemma, and is given
everything through its standard input.

Three processes: the guard (this program, which keeps time and kills), the first process of a new namespace, which
builds a file system with nothing in it but the interpreter, and below it the code. Where only limits are asked for,
there is no second."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from io import TextIOWrapper
from typing import Any

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_NOATIME, MS_NODIRATIME, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 1024, 2048, 4096, 16384, 1 << 18, 1 << 21
ST_RELATIME = 4096
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE = 1, 38, 36, 4
CAPABILITY_VERSION = 0x20080522
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine)

PROCESSES = 16
"""Processes and threads of the code, together."""
FILES = 64
INODES = 1024
MIB = 1 << 20
RESULT, REPORT, LIFE = 3, 4, 5
"""Where the pipes are, whatever numbers they were given."""
REFUSED, LOST = 96, 97
"""Exits: isolation could not be had; the report of the code could not be written."""

NOT_SHARED = {"shmmni": "0", "shmall": "0", "msgmni": "0", "sem": "0 0 0 0"}
"""Of the kernel's shared memory, queues and semaphores there is to be none: they count for no process, and outlive
those that made them."""

LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/share/zoneinfo")

libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The kernel does not let us isolate what we run."""


def call(name: str, *arguments: object) -> None:
    if getattr(libc, name)(*arguments) != 0:
        raise Refused(f"{name}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """The guard."""
    settle_pipes([int(text) for text in sys.argv[1:4]])
    given = json.loads(sys.stdin.buffer.read())
    os.close(0)
    os.open("/dev/null", os.O_RDONLY)
    told: dict[str, Any] = {"reason": "lost"}
    try:
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        told = watch(*start(given), given)
    except Refused as exc:
        told = {"reason": "refused", "why": str(exc)}
    finally:
        kill_all()
        os.write(REPORT, json.dumps(told).encode())


def settle_pipes(numbers: list[int]) -> None:
    """The pipes at numbers that we know, and nothing else open."""
    spare = [fcntl.fcntl(number, fcntl.F_DUPFD, LIFE + 1) for number in numbers]
    for number, target in zip(spare, (RESULT, REPORT, LIFE), strict=True):
        os.dup2(number, target, inheritable=False)
    close_others(RESULT, REPORT, LIFE)


def close_others(*kept: int) -> None:
    """Close every file but those, and the three that everybody has."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def start(given: dict[str, Any]) -> tuple[int, int]:
    """The process that runs the code, or the first of its namespace; and where that says how the code ended."""
    asks, answers = os.pipe()
    endings, ends = os.pipe()
    if given["isolation"] == "namespaces":
        enter_namespaces(given)
    child = os.fork()
    if child == 0:
        os.close(asks)
        die_with_parent()
        try:
            if given["isolation"] == "namespaces":
                build_root(given)
                os._exit(first_process(given, answers, ends))
            run(given, answers)
        except BaseException as exc:
            tell(answers, exc)
        os._exit(REFUSED)
    for number in (answers, ends, RESULT):
        os.close(number)
    # Closed, without a word, when the code begins: everything that isolates it is in place.
    why = os.read(asks, 4096)
    os.close(asks)
    if why:
        os.waitpid(child, 0)
        raise Refused(why.decode("utf-8", "replace"))
    return child, endings


def watch(child: int, endings: int, given: dict[str, Any]) -> dict[str, Any]:
    """Wait for it, for as long as it may take and somebody wants to know."""
    until = time.monotonic() + given["wall_s"]
    wakes, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(LIFE, select.POLLIN)
    poll.register(wakes, select.POLLIN)
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            # The first process of a namespace tells how the code ended; else that was the code.
            said = os.read(endings, 64)
            return {"reason": "ended", **ending(int(said) if said else status)}
        left = until - time.monotonic()
        if left <= 0:
            return {"reason": "time"}
        ready = [number for number, _ in poll.poll(left * 1000 + 1)]
        if LIFE in ready:
            return {"reason": "abandoned"}
        if wakes in ready:
            os.read(wakes, 512)


def ending(status: int) -> dict[str, Any]:
    if os.WIFSIGNALED(status):
        return {"signal": os.WTERMSIG(status)}
    return {"code": os.WEXITSTATUS(status)}


def kill_all() -> None:
    """Kill what is below this process, until there is nothing: what loses its parent comes to us.

    Everything is stopped first: what is stopped makes no more of its kind, and what forks for ever would outrun whoever
    kills one after the other."""
    for _ in range(10_000):
        stopped: set[int] = set()
        while new := below() - stopped:
            send(new, signal.SIGSTOP)
            stopped |= new
        send(stopped, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0):
                pass
        except ChildProcessError:
            return


def send(processes: set[int], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def below() -> set[int]:
    """Every process that this one, or one of those, has made, dead ones included."""
    parents = {each: parent_of(each) for each in all_processes()}
    found = {os.getpid()}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def all_processes() -> list[int]:
    return [int(each) for each in os.listdir("/proc") if each.isdigit()]


def parent_of(process: int) -> int:
    try:
        with open(f"/proc/{process}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def enter_namespaces(given: dict[str, Any]) -> None:
    """Namespaces of our own; the processes' one is entered by who is born next."""
    flags = CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID
    if not given["network"]:
        flags |= CLONE_NEWNET
    if os.geteuid() == 0:
        call("unshare", flags)
        return
    user, group = os.geteuid(), os.getegid()
    call("unshare", flags | CLONE_NEWUSER)
    map_user(user, group)


def map_user(user: int, group: int) -> None:
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        try:
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        except OSError as exc:
            raise Refused(f"{name}: {exc.strerror}") from exc


def build_root(given: dict[str, Any]) -> None:
    """A file system of what the interpreter needs, to be read only, and one small place to write to."""
    user, group = identity(given)
    root = given["directory"]
    os.umask(0o022)
    # Not before: the guard has to see the processes of the machine.
    call("unshare", CLONE_NEWNS)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,nr_inodes=4096,mode=755")
    for path in readable():
        show(root, path)
    for name in ("proc", "tmp", "dev"):
        os.makedirs(f"{root}/{name}", exist_ok=True)
    for name in ("null", "zero", "urandom", "random"):
        with open(f"{root}/dev/{name}", "w"):
            pass
        mount(f"/dev/{name}", f"{root}/dev/{name}", None, MS_BIND)
    mount("proc", f"{root}/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name, most in NOT_SHARED.items():
        # Where the kernel does not let us, they stay as they are: docs/explanation/what-nodes-may-do.md.
        with contextlib.suppress(OSError), open(f"{root}/proc/sys/kernel/{name}", "w") as file:
            file.write(most)
    size = given["disk_mb"] * MIB or 4096
    flags = MS_NOSUID | MS_NODEV | (0 if given["disk_mb"] else MS_RDONLY)
    mount("tmpfs", f"{root}/tmp", "tmpfs", flags, f"size={size},nr_inodes={INODES},mode=700,uid={user},gid={group}")
    mount("none", root, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir(root)
    if SYS_PIVOT_ROOT is None or libc.syscall(SYS_PIVOT_ROOT, b".", b".") != 0:
        raise Refused("pivot_root")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/tmp")


def readable() -> list[str]:
    """What the interpreter needs: its own files, and the machine's libraries. None inside of another."""
    own = [os.path.dirname(os.__file__), f"{sys.base_exec_prefix}/lib", f"{sys.prefix}/lib"]
    there = sorted({os.path.normpath(path) for path in (*LIBRARIES, *own) if os.path.exists(path)})
    return [
        path for path in there if not any(path.startswith(f"{other}/") and not os.path.islink(other) for other in there)
    ]


def show(root: str, path: str) -> None:
    """Make a directory of the machine readable below the new root, at its own path. A link stays one."""
    if os.path.islink(path):
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        os.symlink(os.readlink(path), root + path)
        return
    if os.path.isdir(path):
        os.makedirs(root + path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(root + path), exist_ok=True)
        with open(root + path, "w"):
            pass
    mount(path, root + path, None, MS_BIND | MS_REC)
    # One by one: what is mounted below it came along, and a remount changes one mount only.
    for target in mounts_at(root + path):
        # What a mount forbids already may not be allowed again, or the kernel refuses.
        known = os.statvfs(target).f_flag
        kept = known & (MS_NOEXEC | MS_NOATIME | MS_NODIRATIME) | (MS_RELATIME if known & ST_RELATIME else 0)
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | kept)


def mounts_at(path: str) -> list[str]:
    """What is mounted at a path and below it."""
    with open("/proc/self/mountinfo", "rb") as file:
        targets = [unescaped(line.split()[4]) for line in file]
    return [each for each in targets if each == path or each.startswith(f"{path}/")]


def unescaped(text: bytes) -> str:
    """A path as it stands in a list of mounts, where spaces and the like are octal numbers."""
    first, *others = text.split(b"\\")
    return os.fsdecode(first + b"".join(bytes([int(each[:3], 8)]) + each[3:] for each in others))


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        raise Refused(f"mount {target}: {os.strerror(ctypes.get_errno())}")


def first_process(given: dict[str, Any], answers: int, ends: int) -> int:
    """Starts the code, buries what dies, says how the code ended, and ends with it: the kernel kills what is left
    then."""
    child = os.fork()
    if child == 0:
        die_with_parent()
        try:
            run(given, answers)
        except BaseException as exc:
            tell(answers, exc)
        os._exit(REFUSED)
    close_others(ends)
    while True:
        found, status = os.waitpid(-1, 0)
        if found == child:
            os.write(ends, str(status).encode())
            return 0


def run(given: dict[str, Any], answers: int) -> None:
    """Give everything up that the code is not to have, and be the code."""
    os.setsid()
    user, group = identity(given)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        # Both are lost with the user.
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)
        die_with_parent()
    if given["isolation"] == "namespaces":
        # One more user namespace, in which no other can be made: in one of its own, code would have powers again.
        call("unshare", CLONE_NEWUSER)
        map_user(user, group)
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    elif not os.access(os.__file__, os.R_OK):
        raise Refused("the interpreter cannot be read by other users")
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    drop_capabilities()
    close_others(RESULT, answers)
    limit(given)
    os.environ.clear()
    os.environ.update({"PATH": "/usr/bin:/bin", "HOME": os.getcwd(), "TMPDIR": os.getcwd(), "LANG": "C.UTF-8"})
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    os.close(answers)
    execute(given)


def identity(given: dict[str, Any]) -> tuple[int, int]:
    """Who the code runs as: nobody else on this machine, if we may say so."""
    return (given["user"], given["user"]) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


def drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call("capset", ctypes.byref(header), ctypes.byref(nothing))


def limit(given: dict[str, Any]) -> None:
    with open("/proc/self/statm") as file:
        there = int(file.read().split()[0]) * resource.getpagesize()
    memory = there + given["memory_mb"] * MIB
    cpu = max(1, int(given["cpu_s"] + 0.999))
    for name, soft, hard in (
        ("AS", memory, memory),
        ("CPU", cpu, cpu + 1),
        ("FSIZE", given["disk_mb"] * MIB, given["disk_mb"] * MIB),
        ("NOFILE", FILES, FILES),
        ("NPROC", PROCESSES, PROCESSES),
        ("CORE", 0, 0),
        ("MEMLOCK", 0, 0),
        ("MSGQUEUE", 0, 0),
    ):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def execute(given: dict[str, Any]) -> None:
    """Run the code; what it came to is written to a pipe as JSON."""
    names = {"__name__": "__main__", "__builtins__": __builtins__, "state": given["state"], "result": None}
    told: dict[str, Any]
    try:
        exec(compile(given["code"], "<code>", "exec", dont_inherit=True), names)  # noqa: S102
        told = {"ok": True, "result": names.get("result")}
    except SystemExit as exc:
        quiet = exc.code in (None, 0)
        told = {"ok": quiet, "result": names.get("result")} if quiet else failure(exc)
    except BaseException as exc:
        told = failure(exc)
    code = 0
    try:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        write(told)
    except BaseException:
        code = LOST
    os._exit(code)


def failure(error: BaseException) -> dict[str, Any]:
    try:
        # Not this file's own frame.
        frames = None if error.__traceback__ is None else error.__traceback__.tb_next
        lines = traceback.format_exception(type(error), error, frames)
        shown = "".join(lines)[-4000:]
        message = str(error)[:1000]
    except BaseException:
        shown, message = "", ""
    return {"ok": False, "error": {"type": type(error).__name__, "message": message, "traceback": shown}}


def write(told: dict[str, Any]) -> None:
    try:
        data = json.dumps(told, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError, MemoryError) as exc:
        data = json.dumps(failure(TypeError(f"the result is no JSON: {exc}"))).encode()
    while data:
        data = data[os.write(RESULT, data) :]


def tell(answers: int, error: BaseException) -> None:
    text = str(error) if isinstance(error, Refused) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        os.write(answers, (text or "it did not say why").encode()[:4000])


def die_with_parent() -> None:
    call("prctl", PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    main()
