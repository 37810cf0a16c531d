"""What archives do with several threads: what is compressed side by side is one tar, and what is read back side by side
must be what was written."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import DataLost
from tests.api.archives.volumes import look, object_keys
from tests.stores import local


def grow(root: Path, size: int = 25_000) -> None:
    chance = random.Random(11)
    for number in range(60):
        folder = root / f"folder-{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file-{number}").write_bytes(chance.randbytes(chance.choice([0, 1, 511, 512, size - 1, size])))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_many_frames_are_one_tar_to_other_programs(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    grow(root, size=1_000_000)
    before = look(root)
    with local(tmp_path).open() as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        app.archives.archive("ws1")
        assert app.objects is not None
        [key] = [key for key in object_keys(app) if key.endswith(".tar.zst")]
        data = app.objects.get(key)
        assert data.count(b"\x28\xb5\x2f\xfd") > 1
    (tmp_path / "home.tar.zst").write_bytes(data)
    (tmp_path / "out").mkdir()
    command = f"zstd -dcq '{tmp_path / 'home.tar.zst'}' | tar -C '{tmp_path / 'out'}' -xpf -"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, timeout=60, stderr=subprocess.DEVNULL)
    found = look(tmp_path / "out")
    assert found == before


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "first byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last byte": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "in the middle": lambda data: data[:100_000] + bytes([data[100_000] ^ 4]) + data[100_001:],
    "two parts swapped": lambda data: data[30_000:60_000] + data[:30_000] + data[60_000:],
    "cut off": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "empty": lambda data: b"",
}


class Damaging:
    """An object store that stores something else than it was given."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.damage: Callable[[bytes], bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put_stream(self, key: str, chunks: Iterable[bytes], **more: Any) -> None:
        data = b"".join(chunks)
        self._inner.put_stream(key, [data if self.damage is None else self.damage(data)], **more)


def test_what_is_read_back_must_be_what_was_written(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    grow(root)
    before = look(root)
    with local(tmp_path).open() as app:
        objects: Any = Damaging(app.objects)
        app.objects = objects
        app.archives.create("ws1", owner_id="ann", volume=root)
        for what, damage in DAMAGE.items():
            objects.damage = damage
            with pytest.raises(DataLost) as lost:
                app.archives.archive("ws1")
            assert lost.value.reason == "CHECKSUM_MISMATCH", what
            assert look(root) == before and app.archives.get("ws1").status == "WARM", what
        objects.damage = None
        app.archives.archive("ws1")
        app.archives.restore("ws1")
        assert look(root) == before


class Full(Damaging):
    """An object store that has no room for more than a little."""

    def put_stream(self, key: str, chunks: Iterable[bytes], **more: Any) -> None:
        held = io.BytesIO()
        for chunk in chunks:
            held.write(chunk)
            if held.tell() > 100_000:
                raise OSError("no space")


def test_a_store_that_fails_in_the_middle_ends_all_threads(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    grow(root, size=300_000)
    before = look(root)
    with local(tmp_path).open() as app:
        objects: Any = Full(app.objects)
        app.objects = objects
        app.archives.create("ws1", owner_id="ann", volume=root)
        threads = len(os.listdir("/proc/self/task"))
        with pytest.raises(OSError, match="no space"):
            app.archives.archive("ws1")
        assert len(os.listdir("/proc/self/task")) <= threads + 1
        assert look(root) == before and app.archives.get("ws1").status == "WARM"
