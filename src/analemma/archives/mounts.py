"""What is mounted inside a directory. Deleting goes through mounts as if they were folders, so nothing is deleted that
has one in it."""

from __future__ import annotations

import os
import re

from analemma.errors import Conflict

MOUNT_TABLE = "/proc/self/mountinfo"

_ESCAPED = re.compile(rb"\\([0-7]{3})")
_MOUNT_POINT = 4


def mounts_in(path: str) -> list[str]:
    """The mount points at or below a directory, as this process sees them.

    The device alone does not tell: another directory of the same file system can be mounted too, or a single file."""
    root = os.fsencode(os.path.realpath(path))
    try:
        with open(MOUNT_TABLE, "rb") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return _mounts_met(path)
    points = [_ESCAPED.sub(_unescape, line.split(b" ")[_MOUNT_POINT]) for line in lines]
    return sorted({os.fsdecode(point) for point in points if point == root or point.startswith(root + b"/")})


def check_mounts(path: str) -> None:
    """Conflict if something is mounted at a directory or below it."""
    found = mounts_in(path)
    if found:
        raise Conflict(
            f"another file system is mounted at {ascii(found[0])[1:-1]}",
            hint="unmount it, or move it elsewhere",
            mount=found[0],
        )


def _mounts_met(path: str) -> list[str]:
    """Where the kernel has no table: what looks like a mount on a walk."""
    if not os.path.lexists(path):
        return []
    found = [path] if os.path.ismount(path) else []
    device = os.lstat(path).st_dev
    for folder, folders, files in os.walk(path):
        for name in folders + files:
            each = os.path.join(folder, name)
            if not os.path.islink(each) and (os.lstat(each).st_dev != device or os.path.ismount(each)):
                found.append(each)
    return found


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 0xFF])
