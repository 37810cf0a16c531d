"""What the machine says of its processes: how much memory this one may have, how much it may read at once, by which
name it holds leases, and whether the holder of one is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

LAMBDA_MEMORY = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"
MIB = 1024 * 1024


def reader_count(memory_mb: int | None = None) -> int:
    """How many threads read at once: one per 128 MB that this process may use, at least two and at most ten.

    >>> [reader_count(memory_mb) for memory_mb in (128, 512, 1024, 2048)]
    [2, 4, 8, 10]
    """
    if memory_mb is None:
        memory_mb = _own_limit_mb(os.environ.get(LAMBDA_MEMORY))
    return min(max(memory_mb // 128, 2), 10)


@cache
def _own_limit_mb(_configured: str | None) -> int:
    # To look at the files costs more than to read a small payload.
    return memory_limit_mb()


def memory_limit_mb(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """The least of what the function's configuration, the container's cgroups and the machine allow."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // MIB]
    with suppress(ValueError):
        limits.append(int(environ.get(LAMBDA_MEMORY, "")))
    for file in _limit_files(root / "sys/fs/cgroup", root / "proc/self/cgroup"):
        # What is not there, or says "max", limits nothing.
        with suppress(OSError, ValueError):
            limits.append(int(file.read_text(encoding="ascii")) // MIB)
    return min(limit for limit in limits if limit > 0)


def _limit_files(mounts: Path, own: Path) -> Iterator[Path]:
    """Where a cgroup's limit may be written: of version 1, and of version 2, where those of all above apply too."""
    yield mounts / "memory/memory.limit_in_bytes"
    yield mounts / "memory.max"
    with suppress(OSError, ValueError):
        for line in own.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                inner = mounts / line.removeprefix("0::").lstrip("/")
                yield from [folder / "memory.max" for folder in (inner, *inner.parents) if mounts in folder.parents]


def holder_name(token: str) -> str:
    """What leases say of who holds them: this machine, this process, and what tells its parts from each other."""
    return f"{os.uname().nodename}:{os.getpid()}:{token}"


def is_dead(holder: str) -> bool:
    """Whether a holder is a process of this machine that is no more."""
    host, _, rest = holder.partition(":")
    process, _, _ = rest.partition(":")
    if host != os.uname().nodename or not process.isdigit() or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
