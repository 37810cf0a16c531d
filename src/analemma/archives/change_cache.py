"""What a restore left: the inode and ctime of every file, so that the next archive knows which ones nobody has touched.
A cache, beside the volume: without it, or with one of another archive, every file is read."""

from __future__ import annotations

import os
import struct

from analemma.archives.walking import FileVersion, Walk, file_version

_RECORD = struct.Struct("<IQqqq")
_MAGIC = b"ANLMCACHE1 "


def write_cache(path: str, op_id: str, directory: str) -> int:
    """Remember all files below a directory, as those of this archive; the newest ctime among them, or 0."""
    newest = 0
    draft = path + ".draft"
    with open(draft, "wb") as file:
        file.write(_MAGIC + op_id.encode() + b"\n")
        for found in Walk(directory, only_look=True):
            if found.entry.kind == "file":
                version, name = file_version(found.facts), found.entry.path
                newest = max(newest, version.ctime_ns)
                file.write(_RECORD.pack(len(name), *version) + name)
    os.replace(draft, path)
    return newest


def read_cache(path: str, op_id: str) -> dict[bytes, FileVersion]:
    """What was remembered of this archive; nothing if there is no such cache, or it is damaged."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}
    head = _MAGIC + op_id.encode() + b"\n"
    if not data.startswith(head):
        return {}
    found: dict[bytes, FileVersion] = {}
    offset = len(head)
    while offset < len(data):
        if offset + _RECORD.size > len(data):
            return {}
        length, *version = _RECORD.unpack_from(data, offset)
        offset += _RECORD.size
        name = data[offset : offset + length]
        if len(name) != length:
            return {}
        found[name] = FileVersion(*version)
        offset += length
    return found
