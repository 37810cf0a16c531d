"""Archives that nobody archived: made by hand, and put where a workspace finds them."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Any

import orjson
import zstandard

from analemma import App
from tests.stores import local

TAR_GZ, TAR_ZST = 0, 1
"""Formats: as another program made it, or as this one does."""


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


def plant(
    app: App, data: bytes, *, format: int = TAR_GZ, counts: dict[str, int] | None = None, tenant: str = "default"
) -> None:
    """Put an archive where an adopted workspace finds it."""
    assert app.objects is not None
    if format == TAR_ZST:
        stored, name = zstandard.compress(data), "home-0123456789abcdef.tar.zst"
        full = {"files": 0, "directories": 0, "links": 0, "bytes": 0} | (counts or {})
        sha256 = hashlib.sha256(stored).hexdigest()
        facts = {"workspace": "evil", "op_id": "op1", "data": name, "size": len(stored), "sha256": sha256}
        meta = orjson.dumps({"format": TAR_ZST, **facts, "counts": full, "notes": []}, option=orjson.OPT_INDENT_2)
    else:
        stored, name = gzip.compress(data), "home.tar.gz"
        meta = hashlib.sha256(stored).hexdigest().encode()
    folder = f"tenants/{tenant}/archives/evil/op1"
    app.objects.put(f"{folder}/{name}", stored)
    app.objects.put(f"{folder}/home.meta", meta)


def archived(folder: Path, files: dict[str, bytes]) -> tuple[bytes, dict[str, int]]:
    """The tar of a volume with these files, as this program makes it, and what it is said to hold."""
    volume = folder / "volume"
    volume.mkdir(parents=True)
    for name, data in files.items():
        (volume / name).write_bytes(data)
    with local(folder).open() as app:
        app.archives.create("ws1", owner_id="ann", volume=volume)
        unit = app.archives.archive("ws1")
        assert app.objects is not None
        meta = orjson.loads(app.objects.get(unit.key))
        stored = app.objects.get(f"{unit.key.rpartition('/')[0]}/{meta['data']}")
        return zstandard.ZstdDecompressor().stream_reader(stored).read(), meta["counts"]
