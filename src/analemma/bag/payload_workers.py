"""How many threads load fields at once: as many as the memory that this process may use allows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

LAMBDA_MEMORY = "AWS_LAMBDA_FUNCTION_MEMORY_SIZE"
MIB = 1024 * 1024
FEWEST, MOST, MIB_PER_WORKER = 2, 10, 128
_UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2^63 for "no limit"."""


def worker_count(memory_mb: int) -> int:
    """One thread per 128 MB, at least two and at most ten.

    >>> [worker_count(memory_mb) for memory_mb in (128, 512, 1024, 2048)]
    [2, 4, 8, 10]
    """
    return min(max(memory_mb // MIB_PER_WORKER, FEWEST), MOST)


def memory_limit_mb(environ: Mapping[str, str] | None = None, root: Path = Path("/")) -> int:
    """What this process may use: the least of what the function's configuration, the container's cgroups (version 1 or
    2, of the process or above it) and the machine allow."""
    named = (os.environ if environ is None else environ).get(LAMBDA_MEMORY, "")
    limits = [int(named) * MIB] if named.isascii() and named.isdigit() and int(named) else []
    for file in _limit_files(root):
        try:
            text = file.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdigit() and 0 < int(text) < _UNLIMITED:
            limits.append(int(text))
    machine = _machine_bytes(root)
    if machine is not None:
        limits.append(machine)
    return min(limits, default=FEWEST * MIB_PER_WORKER * MIB) // MIB


def _limit_files(root: Path) -> list[Path]:
    """Where a limit may be written. Limits of all cgroups above apply too, so each is looked at."""
    files = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        lines = []
    mounts = root / "sys/fs/cgroup"
    for line in [*lines, "0::/", "0:memory:/"]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            folder, name = mounts, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = mounts / "memory", "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", ".", "..")]
        files += [folder.joinpath(*parts[:length], name) for length in range(len(parts) + 1)]
    return list(dict.fromkeys(files))


def _machine_bytes(root: Path) -> int | None:
    try:
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
