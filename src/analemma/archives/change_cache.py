"""What a restore left: the inode and ctime of every file, so that the next archive knows which ones nobody has touched.
A cache, beside the volume: without it, or with one of another archive, every file is read."""

from __future__ import annotations

import contextlib
import os
import struct

from analemma.archives.walking import FileVersion, Walk, file_version

_RECORD = struct.Struct("<IQqqq")
_TIME = struct.Struct("<q")
_MAGIC = b"ANLMCACHE2 "
_SECOND_NS = 1_000_000_000


def write_cache(path: str, op_id: str, directory: str, *, verified_at_us: int) -> int:
    """Remember all files below a directory, as those of this archive, all of which was read from the store at this time
    or later; the newest ctime among them, or 0. Nothing is remembered where a file system counts whole seconds: what is
    written to within the second of the restore would look as it was restored."""
    newest = 0
    exact = False
    draft = path + ".draft"
    with open(draft, "wb") as file:
        file.write(_head(op_id) + _TIME.pack(verified_at_us))
        for found in Walk(directory, only_look=True):
            if found.entry.kind == "file":
                version, name = file_version(found.facts), found.entry.path
                newest = max(newest, version.ctime_ns)
                exact = exact or version.ctime_ns % _SECOND_NS != 0
                with contextlib.suppress(struct.error):  # A time after 2262: such a file is read.
                    file.write(_RECORD.pack(len(name), *version) + name)
    if exact:  # guard: volume.seconds
        os.replace(draft, path)
    else:
        for each in (draft, path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(each)
    return newest


def read_cache(path: str, op_id: str) -> tuple[dict[bytes, FileVersion], int]:
    """What was remembered of this archive, and when all of it was read; nothing if there is no such cache, or it is
    damaged."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}, 0
    head = _head(op_id)
    offset = len(head) + _TIME.size
    if not data.startswith(head) or offset > len(data):
        return {}, 0
    [verified_at_us] = _TIME.unpack_from(data, len(head))
    found: dict[bytes, FileVersion] = {}
    while offset < len(data):
        if offset + _RECORD.size > len(data):
            return {}, 0
        length, *version = _RECORD.unpack_from(data, offset)
        offset += _RECORD.size
        name = data[offset : offset + length]
        if len(name) != length:
            return {}, 0
        found[name] = FileVersion(*version)
        offset += length
    return found, verified_at_us


def _head(op_id: str) -> bytes:
    return _MAGIC + op_id.encode() + b"\n"
