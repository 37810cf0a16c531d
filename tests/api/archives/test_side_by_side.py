"""What archives do with several threads: frames that are compressed and checked side by side, and files that are
deleted so."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import zstandard

from analemma.archives import frames, tar_format
from analemma.archives.deleting import delete_tree
from analemma.archives.frames import Written
from analemma.archives.jobs import Job
from analemma.archives.tar_format import verify_object, verify_written, write_tar
from analemma.archives.walking import Walk
from analemma.blocks.memory import MemoryStore
from analemma.clock import SystemClock
from analemma.errors import AnalemmaError, DataLost
from tests.api.archives.volumes import look

KEY = "home.tar.zst"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames and parts that a small volume has many of."""
    monkeypatch.setattr(frames, "FRAME_BYTES", 10_000)
    monkeypatch.setattr(frames, "STATE_BYTES", 30_000)
    monkeypatch.setattr(tar_format, "RANGE_BYTES", 7000)


def job() -> Job:
    begun = Job(clock=SystemClock(), timeout_s=60, check=lambda: None)
    begun.begin("reading")
    return begun


def grow(root: Path) -> None:
    chance = random.Random(11)
    for number in range(60):
        folder = root / f"folder-{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file-{number}").write_bytes(chance.randbytes(chance.choice([0, 1, 511, 512, 9999, 10_000, 25_000])))


def written(root: Path, store: MemoryStore) -> Written:
    return write_tar(store, KEY, Walk(str(root)), job(), level=3, outside_links="refuse")


@pytest.mark.usefixtures("small")
@pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed")
def test_many_frames_are_one_tar_to_other_programs(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    grow(root)
    store = MemoryStore()
    found = written(root, store)
    data = store.get(KEY)
    assert data.count(b"\x28\xb5\x2f\xfd") >= found.tar_size // 10_000
    (tmp_path / KEY).write_bytes(data)
    (tmp_path / "out").mkdir()
    command = f"zstd -dcq '{tmp_path / KEY}' | tar -C '{tmp_path / 'out'}' -xpf -"
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True)
    assert look(tmp_path / "out") == look(root)


@pytest.mark.usefixtures("small")
def test_the_checksums_of_the_parts_are_that_of_the_whole(tmp_path: Path) -> None:
    grow(tmp_path / "volume")
    store = MemoryStore()
    found = written(tmp_path / "volume", store)
    data = store.get(KEY)
    assert (found.size, found.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert len(found.states) > 10
    assert [found.states[0][0], found.states[-1][0]] == [0, len(data)]
    for end, state in found.states:
        assert state.hexdigest() == hashlib.sha256(data[:end]).hexdigest()
    verify_written(store, KEY, found, job())
    verify_object(store, KEY, size=found.size, sha256=found.sha256, job=job())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "first byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "last byte": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "in the middle": lambda data: data[:100_000] + bytes([data[100_000] ^ 4]) + data[100_001:],
    "two parts swapped": lambda data: data[30_000:60_000] + data[:30_000] + data[60_000:],
    "cut off": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "empty": lambda data: b"",
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_read_back_must_be_what_was_written(damage: str, tmp_path: Path) -> None:
    grow(tmp_path / "volume")
    store = MemoryStore()
    found = written(tmp_path / "volume", store)
    data = store.get(KEY)
    store.delete(KEY)
    store.put(KEY, DAMAGE[damage](data))
    with pytest.raises(DataLost) as lost:
        verify_written(store, KEY, found, job())
    assert lost.value.facts["reason"] == "CHECKSUM_MISMATCH"


def test_an_archive_that_is_not_there_is_said_to_be(tmp_path: Path) -> None:
    grow(tmp_path / "volume")
    store = MemoryStore()
    found = written(tmp_path / "volume", store)
    store.delete(KEY)
    with pytest.raises(DataLost) as lost:
        verify_written(store, KEY, found, job())
    assert lost.value.facts["reason"] == "ARCHIVE_NOT_FOUND"


@pytest.mark.usefixtures("small")
def test_a_store_that_fails_in_the_middle_ends_all_threads(tmp_path: Path) -> None:
    grow(tmp_path / "volume")

    class Full(MemoryStore):
        def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
            for number, _ in enumerate(chunks):
                if number == 3:
                    raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        written(tmp_path / "volume", Full())


def test_a_tree_is_deleted_with_all_that_is_in_it(tmp_path: Path) -> None:
    root, outside = tmp_path / "tree", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    grow(root)
    deep = root
    for number in range(200):
        deep = deep / f"d{number}"
        deep.mkdir()
        (deep / "file").write_text("x")
    for number in range(300):
        (root / "folder-1" / f"many-{number}").write_text("x")
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    os.link(outside / "kept", root / "other-name")
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    delete_tree(str(root))
    assert not root.exists()
    assert (outside / "kept").read_text() == "kept"
    if before:
        assert len(os.listdir("/proc/self/fd")) <= len(before)


def test_what_may_not_be_written_to_is_deleted_all_the_same(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    grow(root)
    (root / "folder-2").chmod(0o500)
    (root / "folder-3").chmod(0)
    delete_tree(str(root))
    assert not root.exists()


def test_deleting_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    delete_tree(str(tmp_path / "nothing"))


def test_what_cannot_be_deleted_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises((OSError, AnalemmaError)):
        delete_tree(str(tmp_path / "file"))


def test_what_gains_nothing_by_it_is_not_tried_hard() -> None:
    chance = random.Random(5)
    noise = chance.randbytes(1_000_000)
    words = [f"{number * number:x}" for number in range(500)]
    text = " ".join(chance.choices(words, k=300_000)).encode()
    levels = {level: zstandard.ZstdCompressor(level=level, write_checksum=True) for level in (1, 3, 9)}
    usual = frames._Compressor(3)
    assert len(levels[3].compress(text)) < 0.97 * len(levels[1].compress(text))
    assert usual.compress(memoryview(text)) == levels[3].compress(text)
    assert usual.compress(memoryview(noise)) == levels[1].compress(noise)
    # One part in four can be had for less: that is enough.
    mixed = b"".join(
        noise[start : start + 45_000] + text[start : start + 15_000] for start in range(0, 900_000, 60_000)
    )
    assert len(usual.compress(memoryview(mixed))) <= len(levels[1].compress(mixed)) < 0.95 * len(mixed)
    # What is too small to be sampled, and what is asked for in so many words, is done as it was asked for.
    assert usual.compress(memoryview(noise[:50_000])) == levels[3].compress(noise[:50_000])
    assert frames._Compressor(9).compress(memoryview(noise)) == levels[9].compress(noise)
