"""Archives that nobody archived: made by hand, and put where a workspace finds them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from typing import Any

import zstandard

from analemma import App
from analemma.archives.entries import Entry, Totals
from analemma.archives.metas import TAR_ZST, Meta, encode_meta
from analemma.archives.tar_writing import end_of_archive, entry_header

FOLDER = "tenants/default/archives/evil/op1"


def member(name: str, kind: bytes = tarfile.REGTYPE, *, target: str = "", data: bytes = b"", **more: Any) -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(data)
    for field, value in more.items():
        setattr(info, field, value)
    return info, data


def tar_of(*members: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def plant(app: App, data: bytes, *, format: int = 0, counts: dict[str, int] | None = None) -> None:
    """Put an archive where an adopted workspace finds it."""
    assert app.objects is not None
    if format == TAR_ZST:
        stored, name = zstandard.compress(data), "home-0123456789abcdef.tar.zst"
        full = {"files": 0, "directories": 0, "links": 0, "bytes": 0} | (counts or {})
        sha256 = hashlib.sha256(stored).hexdigest()
        meta = encode_meta(Meta(TAR_ZST, "evil", "op1", name, len(stored), sha256, full))
    else:
        stored, name = gzip.compress(data), "home.tar.gz"
        meta = hashlib.sha256(stored).hexdigest().encode()
    app.objects.put(f"{FOLDER}/{name}", stored)
    app.objects.put(f"{FOLDER}/home.meta", meta)


def whole(*entries: tuple[Entry, bytes]) -> bytes:
    totals = Totals()
    parts = []
    root = Entry(b"", "directory", 0o755, 0, 0, 0)
    for entry, data in ((root, b""), *entries):
        totals.count(entry)
        parts.append(entry_header(entry) + data + bytes(-len(data) % 512))
    return b"".join(parts) + end_of_archive(totals, root)


FILE = Entry(b"f", "file", 0o644, 0, 0, 0, size=3)
COUNTS = {"files": 1, "directories": 1, "links": 0, "bytes": 3}
