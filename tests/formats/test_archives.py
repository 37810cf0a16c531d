"""Stored bytes of archives that must never change: the tar and the marker of format 1, and the blocks of format 2."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import libipld
import pytest
import zstandard

from tests.formats.golden_archives import ODD_NAME, TIMES, WORKSPACE, archive, fill, look
from tests.raw_rows import select
from tests.stores import Store, local

GOLDEN = Path(__file__).parent / "archives"
META: dict[str, Any] = json.loads((GOLDEN / "home.meta").read_text())
CID_PREFIX = b"\x01\x71\x12\x20"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return local(tmp_path)


def adopt(store: Store, volume: Path, **more: Any) -> None:
    """Restore the archive that lies beside this file; its marker may say more."""
    store.open().close()
    folder = Path(store.url) / "objects" / "tenants" / "default" / "archives" / WORKSPACE / META["op_id"]
    folder.mkdir(parents=True)
    (folder / META["data"]).write_bytes((GOLDEN / META["data"]).read_bytes())
    (folder / "home.meta").write_text(json.dumps({**META, **more}))
    with store.open() as app:
        app.archives.adopt(WORKSPACE, owner_id="ann", volume=volume, op_id=META["op_id"])
        app.archives.restore(WORKSPACE)


@pytest.mark.parametrize("more", [{}, {"said_by_a_later_release": 1}], ids=["ours", "of a later release"])
def test_an_old_tar_is_restored_as_it_always_was(store: Store, tmp_path: Path, more: dict[str, Any]) -> None:
    adopt(store, tmp_path / "volume", **more)
    fill(tmp_path / "expected")
    assert look(tmp_path / "volume") == look(tmp_path / "expected")


def members(data: bytes) -> list[tuple[Any, ...]]:
    """What a tar says of each member; not whose it is, nor what depends on the file system."""
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as stream:
        plain = io.BytesIO(stream.read())
    with tarfile.open(fileobj=plain) as tar:
        listed = tar.getmembers()
    found = []
    for member in listed:
        if member.name.rpartition("/")[2] == "holes" or "GNUSparse" in member.name:
            continue
        said = {key: value for key, value in member.pax_headers.items() if not key.startswith("SCHILY.xattr")}
        found.append((member.name, member.type, member.mode, member.size, member.linkname, member.mtime, said))
    return found


def test_a_tar_is_written_as_it_always_was(store: Store, tmp_path: Path) -> None:
    made = archive(store, tmp_path / "volume", "tar")
    meta = json.loads(made.pop("home.meta"))
    assert set(meta) == set(META)
    for name in ("format", "counts", "workspace", "notes", "skipped", "root", "stored"):
        assert meta[name] == META[name], name
    assert meta["sha256"] == sha256(made[meta["data"]]).hexdigest()
    assert members(made[meta["data"]]) == members((GOLDEN / META["data"]).read_bytes())


class Blocks:
    """The blocks of format 2, made by hand from what the page on archives says."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def index(self) -> bytes:
        return bytes(libipld.encode_dag_cbor(["archive-index", 1, [self._entry("", 1, [self._directory("")])]]))

    def _directory(self, folder: str) -> bytes:
        """A link to the only block of a small directory."""
        entries = []
        for name in sorted(os.listdir(os.fsencode(self._root / folder))):
            path = os.path.join(folder, os.fsdecode(name))
            if os.path.islink(self._root / path):
                entries.append(self._entry(path, 2, b"\0" + os.fsencode(os.readlink(self._root / path))))
            elif os.path.isdir(self._root / path):
                entries.append(self._entry(path, 1, [self._directory(path)] if os.listdir(self._root / path) else []))
            elif name == b"zz again":
                entries.append(self._entry(path, 3, b"\0plain"))
            else:
                entries.append(self._entry(path, 0, self._content(path)))
        return CID_PREFIX + sha256(libipld.encode_dag_cbor(["archive-directory", 1, entries])).digest()

    def _content(self, path: str) -> Any:
        data = (self._root / path).read_bytes()
        if len(data) <= 2048:
            return b"\0" + data
        return [CID_PREFIX + sha256(libipld.encode_dag_cbor(["bytes", 0, 2, b"\0" + data])).digest(), len(data)]

    def _entry(self, path: str, kind: int, content: Any) -> list[Any]:
        full = os.fsencode(self._root / path)
        facts = os.lstat(full)
        attributes = []
        if kind in (0, 1):
            attributes = [[b"\0" + name.encode(), b"\0" + os.getxattr(full, name)] for name in os.listxattr(full)]
        name = b"\0" + os.fsencode(os.path.basename(path))
        size = facts.st_size if kind == 0 else 0
        mode = facts.st_mode & 0o7777
        return [name, kind, mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, size, content, attributes]


def test_blocks_are_written_as_they_always_were(store: Store, tmp_path: Path) -> None:
    volume, twin = tmp_path / "volume", tmp_path / "twin"
    fill(twin)
    # Where holes lie is the file system's business.
    (twin / "holes").unlink()
    os.utime(twin, ns=(1, TIMES[""]))
    with store.open() as app:
        app.archives.create(WORKSPACE, owner_id="ann", volume=volume)
        fill(volume)
        (volume / "holes").unlink()
        os.utime(volume, ns=(1, TIMES[""]))
        app.archives.archive(WORKSPACE, format="blocks")
    folder = Path(store.url) / "objects" / "tenants" / "default" / "archives" / WORKSPACE
    (marker,) = folder.rglob("home.meta")
    index = Blocks(twin).index()
    assert json.loads(marker.read_text())["root"] == sha256(index).hexdigest()
    [(body,)] = select(store, "SELECT body FROM block WHERE id = ?", (sha256(index).digest(),))
    assert bytes(body) == index
    assert ODD_NAME in os.listdir(os.fsencode(twin))


def unpacked(codec: int, body: bytes) -> bytes:
    """The bytes of a block. Those that are compressed have a checksum of four bytes behind them."""
    return zstandard.ZstdDecompressor().decompress(bytes(body)[:-4]) if codec else bytes(body)


@pytest.mark.deep("a file of 45 MB, which has lists of chunks")
def test_chunks_of_a_very_long_file_stand_in_lists(store: Store, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    with store.open(pack_threshold_bytes=1 << 30) as app:
        app.archives.create(WORKSPACE, owner_id="ann", volume=volume)
        (volume / "long").write_bytes(random.Random(1).randbytes(45_000_000))
        app.archives.archive(WORKSPACE, format="blocks")
    found = [unpacked(*row) for row in select(store, "SELECT codec, body FROM block")]
    (listed,) = [body for body in found if b"archive-chunks" in body[:20]]
    kind, number, chunks = libipld.decode_dag_cbor(listed)
    assert (kind, number, sum(chunks[1::2])) == ("archive-chunks", 1, 45_000_000)
    assert len(chunks) > 512 and all(link[:4] == CID_PREFIX for link in chunks[::2])
    (directory,) = [body for body in found if b"archive-directory" in body[:24]]
    assert {"lists": [CID_PREFIX + sha256(listed).digest()]} in libipld.decode_dag_cbor(directory)[2][0]
