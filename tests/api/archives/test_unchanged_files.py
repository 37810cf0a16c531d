"""Files that are not read again because they look as the last restore left them: every way in which that could be
wrong, also where the settings trust what the restore has read."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from analemma import App, Archives, BlockId
from analemma.archives import block_writing, change_cache, walking
from analemma.archives.block_reading import walk_index
from analemma.archives.index_blocks import chunk_block, read_chunks
from analemma.archives.walking import FileVersion, Found, Walk, file_version, fingerprint_of
from analemma.canon.nodes import Block
from analemma.catalog.workspaces import SqlWorkspaces
from analemma.clock import SystemClock
from analemma.state.block_store import BlockStore
from tests.api.archives.volumes import add_special_files, fill, look
from tests.internals import delete_doomed_blocks, doom_blocks
from tests.stores import Store, local

DAY_S = 86_400


def grow(root: Path, files: int = 12, size: int = 150_000) -> None:
    chance = random.Random(7)
    for number in range(files):
        folder = root / f"part-{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"data-{number}").write_bytes(chance.randbytes(size))


def restored(app: App, root: Path) -> Archives:
    """A workspace that came back from an archive."""
    grow(root)
    app.archives.create("ws1", owner_id="ann", volume=root)
    app.archives.archive("ws1")
    app.archives.restore("ws1")
    return app.archives


def check_round_trip(archives: Archives, root: Path) -> None:
    before = look(root)
    archives.archive("ws1")
    archives.restore("ws1")
    assert look(root) == before


def give_its_time_back(root: Path) -> None:
    path = root / "part-1" / "data-1"
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def replace_by_another(root: Path) -> None:
    path = root / "part-1" / "data-1"
    facts = path.stat()
    (root / "other").write_bytes(random.Random(8).randbytes(facts.st_size))
    os.utime(root / "other", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    os.replace(root / "other", path)


def swap_two(root: Path) -> None:
    one, two = root / "part-0" / "data-0", root / "part-0" / "data-4"
    os.utime(two, ns=(1, one.stat().st_mtime_ns))
    os.rename(one, root / "aside")
    os.rename(two, one)
    os.rename(root / "aside", two)


@pytest.mark.parametrize("change", [give_its_time_back, replace_by_another, swap_two])
def test_a_file_that_only_looks_unchanged_is_read(change: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks", archive_verify_age_s=DAY_S) as app:
        archives = restored(app, root)
        change(root)
        check_round_trip(archives, root)


def chunks_of(app: App) -> list[BlockId]:
    row = SqlWorkspaces(app.catalog.engine).get(app.default.id, "ws1")
    assert row is not None and row.archive_op is not None
    unit = SqlWorkspaces(app.catalog.engine).unit(app.default.id, "ws1", row.archive_op)
    assert unit is not None and unit.facts is not None and unit.facts.root is not None
    index = walk_index(app.archives._parts.blocks.read_uncached, unit.facts.root)
    return [
        chunk.id
        for _, wires in index
        for wire in wires
        if wire[1] == 0 and type(wire[7]) is list
        for chunk in read_chunks(wire[7])
    ]


def collect_some(app: App) -> None:
    doom_blocks(app, 1, chunks_of(app)[3:5])
    delete_doomed_blocks(app)


def lose_an_object(app: App) -> None:
    assert app.objects is not None
    for info in [*app.objects.list("packs")]:
        app.objects.delete(info.key)


def tear_an_object(app: App) -> None:
    assert app.objects is not None
    for info in [*app.objects.list("packs")]:
        whole = app.objects.get(info.key)
        app.objects.delete(info.key)
        app.objects.put(info.key, whole[: len(whole) // 2])


@pytest.mark.parametrize("lose", [collect_some, lose_an_object, tear_an_object])
def test_what_is_shared_is_there_or_stored_anew(lose: Callable[[App], None], store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks", archive_verify_age_s=DAY_S) as app:
        archives = restored(app, root)
        lose(app)
        check_round_trip(archives, root)


@pytest.mark.parametrize("off_s", [-2 * 3600, 2 * DAY_S])
def test_by_a_clock_that_was_set_everything_is_read(off_s: int, tmp_path: Path) -> None:
    class Wrong(SystemClock):
        def now_us(self) -> int:
            return super().now_us() + off_s * 1_000_000

    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks", archive_verify_age_s=DAY_S) as app:
        archives = restored(app, root)
        assert app.objects is not None
        for info in [*app.objects.list("packs")]:
            whole = bytearray(app.objects.get(info.key))
            whole[len(whole) // 2] ^= 1
            app.objects.delete(info.key)
            app.objects.put(info.key, bytes(whole))
        before = look(root)
        Archives(replace(archives._parts, clock=Wrong())).archive("ws1")
        archives.restore("ws1")
        assert look(root) == before


def test_where_times_are_whole_seconds_everything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def coarse(facts: os.stat_result) -> FileVersion:
        exact = file_version(facts)
        return exact._replace(ctime_ns=exact.ctime_ns // 10**9 * 10**9)

    # The edit is within the second of the restore, or so it looks.
    moment: dict[int, int] = {}

    def same(facts: os.stat_result) -> FileVersion:
        version = coarse(facts)
        return version._replace(ctime_ns=moment.setdefault(version.inode, version.ctime_ns))

    monkeypatch.setattr(change_cache, "file_version", same)
    monkeypatch.setattr(walking, "file_version", same)
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks") as app:
        archives = restored(app, root)
        give_its_time_back(root)
        check_round_trip(archives, root)


def test_a_block_that_is_spoilt_on_its_way_is_found_when_it_is_read_back(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt: list[BlockId] = []

    def spoil(data: bytes) -> Block:
        block = chunk_block(data)
        if len(data) > 1000 and not spoilt:
            spoilt.append(block.id)
            return block._replace(data=block.data[:500] + bytes([block.data[500] ^ 1]) + block.data[501:])
        return block

    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        grow(root)
        app.archives.create("ws1", owner_id="ann", volume=root)
        monkeypatch.setattr(block_writing, "chunk_block", spoil)
        check_round_trip(app.archives, root)
        assert spoilt and app.archives._parts.blocks.read_uncached(spoilt)


def test_a_quick_look_has_the_fingerprint_of_a_long_one(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    fill(root)
    grow(root, size=10)
    listening = add_special_files(root)
    try:
        walk, quick = Walk(str(root)), Walk(str(root), only_look=True)
        for _ in walk:
            pass
        quick.skim()
        assert quick.fingerprint() == walk.fingerprint() == fingerprint_of(str(root))
        assert quick.totals.counts() == walk.totals.counts()
        assert quick.totals.skipped == walk.totals.skipped
        os.chmod(root / "part-1" / "data-1", 0o600)
        assert fingerprint_of(str(root)) != walk.fingerprint()
    finally:
        listening.close()


def test_directories_are_asked_for_together_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "volume"
    for outer in range(12):
        for inner in range(8):
            folder = root / f"outer-{outer}" / f"inner-{inner}"
            folder.mkdir(parents=True)
            (folder / "file").write_text(f"{outer} {inner}")
    asked: list[Sequence[BlockId]] = []
    reading = BlockStore._read

    def note(blocks: BlockStore, ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
        asked.append(ids)
        return reading(blocks, ids)

    read: list[bytes] = []
    opening = Found.read

    def note_file(found: Found) -> object:
        read.append(found.entry.path)
        return opening(found)

    with local(tmp_path).open(archive_format="blocks", cache_bytes=0) as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        app.archives.archive("ws1")
        app.archives.restore("ws1")
        before = look(root)
        monkeypatch.setattr(BlockStore, "_read", note)
        monkeypatch.setattr(Found, "read", note_file)
        app.archives.archive("ws1")
        assert read == []
        # 109 directories, each once when the archive before is read and once when the new one is read back.
        assert sum(map(len, asked)) <= 2 * (109 + 2)
        assert len(asked) <= 40
        monkeypatch.undo()
        app.archives.restore("ws1")
        assert look(root) == before
