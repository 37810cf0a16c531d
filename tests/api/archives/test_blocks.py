"""Format 2: archives as blocks, of which a second archive stores only what changed."""

from __future__ import annotations

import hashlib
import os
import random
import stat
from pathlib import Path
from typing import Any

import orjson
import pytest

from analemma import App
from analemma.errors import Corrupt, DataLost, Denied
from tests.api.archives.collections import let_pass
from tests.api.archives.volumes import fill, look, object_keys, workspace_of
from tests.raw_rows import change, select
from tests.stores import Store, local


def grow(root: Path, files: int = 40, size: int = 150_000) -> None:
    chance = random.Random(7)
    for number in range(files):
        folder = root / f"part-{number % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"data-{number}").write_bytes(chance.randbytes(size))


def test_a_round_trip_is_identical(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        before = look(root)
        unit = archives.archive("ws1")
        assert unit.format == 2
        assert not root.exists()
        names = sorted(key.rpartition("/")[2] for key in object_keys(app))
        assert names == ["home.index", "home.meta"]
        archives.restore("ws1")
        assert look(root) == before
        assert os.stat(root / "sparse").st_blocks * 512 < 100_000


def opened_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The files below a directory that were opened from now on, but not directories."""
    opened: set[str] = set()
    opening = os.open

    def note(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        file = opening(path, flags, mode, dir_fd=dir_fd)
        name = os.readlink(f"/proc/self/fd/{file}")
        if name.startswith(f"{root}/") and stat.S_ISREG(os.fstat(file).st_mode):
            opened.add(os.path.relpath(name, root))
        return file

    monkeypatch.setattr(os, "open", note)
    return opened


def test_a_second_archive_stores_what_changed_and_reads_nothing_else(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        first = archives.archive("ws1")
        assert first.size > 5_000_000
        archives.restore("ws1")
        (root / "part-0" / "data-4").write_bytes(b"changed" * 30_000)
        (root / "new").write_bytes(b"new")
        before = look(root)
        with monkeypatch.context() as patched:
            read = opened_files(root, patched)
            second = archives.archive("ws1")
        assert read == {"new", "part-0/data-4"}
        assert second.size < 50_000
        assert second.op_id != first.op_id
        archives.restore("ws1")
        assert look(root) == before
        with monkeypatch.context() as patched:
            read = opened_files(root, patched)
            third = archives.archive("ws1", force=True)
        assert len(read) > 50
        assert third.size < 5000
        archives.restore("ws1")
        assert look(root) == before


def test_a_change_that_keeps_size_and_time_is_seen(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root, 4)
        archives.archive("ws1")
        archives.restore("ws1")
        path = root / "part-1" / "data-1"
        facts = path.stat()
        data = bytearray(path.read_bytes())
        data[1000] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        os.setxattr(root / "docs" / "note.txt", "user.new", b"1")
        before = look(root)
        archives.archive("ws1")
        archives.restore("ws1")
        assert look(root) == before


def test_a_file_that_was_replaced_by_another_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root, 8)
        archives.archive("ws1")
        archives.restore("ws1")
        os.rename(root / "part-0" / "data-0", root / "moved")
        os.rename(root / "part-0" / "data-4", root / "part-0" / "data-0")
        before = look(root)
        archives.archive("ws1")
        archives.restore("ws1")
        assert look(root) == before


@pytest.mark.parametrize("damage", ["gone", "other", "cut"])
def test_without_the_cache_everything_is_read_and_little_is_stored(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        archives.archive("ws1")
        archives.restore("ws1")
        cache = tmp_path / ".analemma-volume" / "cache"
        if damage == "gone":
            cache.unlink()
        elif damage == "cut":
            cache.write_bytes(cache.read_bytes()[:-3])
        else:
            cache.write_bytes(b"ANLMCACHE1 other\n" + cache.read_bytes())
        before = look(root)
        assert archives.archive("ws1").size < 5000
        archives.restore("ws1")
        assert look(root) == before


def test_archives_of_two_workspaces_share_blocks(store: Store, tmp_path: Path) -> None:
    with store.open(archive_format="blocks") as app:
        sizes = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            grow(tmp_path / name)
            app.archives.create(name, owner_id="ann", volume=tmp_path / name)
            sizes.append(app.archives.archive(name).size)
        assert sizes[1] * 50 < sizes[0]


def test_both_formats_stay_readable(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        for format in ("tar", "blocks", "tar", "blocks", "blocks"):
            assert archives.archive("ws1", format=format).format == (1 if format == "tar" else 2)
            archives.restore("ws1")
            assert look(root) == before


def test_long_files_and_full_directories_come_back(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    fill(root)
    (root / "long").write_bytes(random.Random(1).randbytes(3_000_000))
    (root / "full").mkdir()
    for number in range(1500):
        (root / "full" / f"{number}").write_bytes(b"%d" % number * 20)
    with local(tmp_path).open(archive_format="blocks") as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        before = look(root)
        app.archives.archive("ws1")
        app.archives.restore("ws1")
        assert look(root) == before
        (root / "full" / "another").write_text("one more")
        before = look(root)
        assert app.archives.archive("ws1").size < 40_000
        app.archives.restore("ws1")
        assert look(root) == before


def test_the_same_volume_gives_the_same_root(tmp_path: Path) -> None:
    roots = []
    for name in ("one", "two"):
        fill(tmp_path / name / "volume")
        for path in (tmp_path / name / "volume").rglob("*"):
            os.utime(path, ns=(1, 1), follow_symlinks=False)
        os.utime(tmp_path / name / "volume", ns=(1, 1))
        with local(tmp_path / name).open(archive_format="blocks") as app:
            app.archives.create("ws1", owner_id="ann", volume=tmp_path / name / "volume")
            unit = app.archives.archive("ws1")
            assert app.objects is not None
            roots.append(orjson.loads(app.objects.get(unit.key))["root"])
    assert roots[0] == roots[1]


def collect(app: App) -> None:
    for _ in range(3):
        app.gc.run()


def test_the_collector_keeps_the_blocks_of_archives_until_it_claims_them(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks", gc_grace_s=0, gc_brake_drop=1) as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        before = look(root)
        archives.archive("ws1")
        collect(app)
        archives.restore("ws1")
        assert look(root) == before
        (root / "part-0" / "data-0").write_bytes(b"x" * 100_000)
        archives.archive("ws1")
        collect(app)
        # The first archive is nobody's, but whole until it is claimed.
        kept = app.stats().blocks
        archives.gc_run()
        let_pass(store, 8 * 86_400)
        assert archives.gc_run().claimed == 1
        collect(app)
        assert app.stats().blocks < kept
        archives.restore("ws1")
        before = look(root)
        archives.archive("ws1")
        archives.purge("ws1")
        collect(app)
        assert app.stats().blocks == 0


def test_a_collector_that_runs_while_an_archive_is_written_takes_nothing(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks", gc_grace_s=0, gc_brake_drop=1) as app:
        archives, _ = workspace_of(app, root)
        grow(root, 60)
        archives.archive("ws1")
        archives.restore("ws1")
        before = look(root)
        runs: list[int] = []

        def run(progress: object) -> None:
            if len(runs) < 4:
                runs.append(app.gc.run().number)

        archives.archive("ws1", force=True, progress=run)
        assert len(runs) == 4
        collect(app)
        archives.restore("ws1")
        assert look(root) == before


def test_an_archive_that_failed_leaves_no_session(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        (root / "escape").symlink_to("/etc")
        with pytest.raises(ValueError, match="escape"):
            archives.archive("ws1")
        assert app.gc.status().sessions == 0
        (root / "escape").unlink()
        archives.archive("ws1")
        assert app.gc.status().sessions == 0


def test_missing_blocks_are_data_loss(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        archives.archive("ws1")
        assert app.objects is not None
        packs = {info.key: app.objects.get(info.key) for info in app.objects.list("packs")}
        for key in packs:
            app.objects.delete(key)
        with pytest.raises(DataLost) as lost:
            archives.restore("ws1")
        assert lost.value.reason == "CHECKSUM_MISMATCH"
        assert archives.get("ws1").status == "ERROR"
        assert not root.exists()
        with pytest.raises(DataLost):
            archives.recover("ws1")
        for key, data in packs.items():
            app.objects.put(key, data)
        assert archives.recover("ws1").status == "COLD"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_blocks_that_the_store_has_lost_are_stored_anew_from_the_volume(
    cached: bool, force: bool, store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        archives.archive("ws1")
        archives.restore("ws1")
        assert app.objects is not None
        for info in [*app.objects.list("packs")]:
            app.objects.delete(info.key)
        (root / "new").write_text("new")
        before = look(root)
        if not cached:
            with store.open(archive_format="blocks") as other:
                other.archives.archive("ws1", force=force)
        else:
            archives.archive("ws1", force=force)
        archives.restore("ws1")
        assert look(root) == before


def damage_packs(app: App) -> None:
    assert app.objects is not None
    for info in [*app.objects.list("packs")]:
        whole = bytearray(app.objects.get(info.key))
        whole[len(whole) // 2] ^= 1
        app.objects.delete(info.key)
        app.objects.put(info.key, bytes(whole))


@pytest.mark.parametrize("age_s", [0, 86_400])
def test_what_a_restore_has_read_lately_is_not_read_again_if_that_is_wanted(
    age_s: float, store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks", archive_verify_age_s=age_s) as app:
        archives, _ = workspace_of(app, root)
        grow(root)
        archives.archive("ws1")
        archives.restore("ws1")
        before = look(root)
        damage_packs(app)
        archives.archive("ws1")
        # Whoever reads everything again sees the damage, and stores what is in the volume once more.
        if age_s:
            with pytest.raises(DataLost):
                archives.restore("ws1")
        else:
            archives.restore("ws1")
            assert look(root) == before


def test_a_block_that_is_torn_is_stored_anew_by_the_next_archive_that_has_it(store: Store, tmp_path: Path) -> None:
    data = random.Random(3).randbytes(3_000_000)
    with store.open(archive_format="blocks") as app:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "same").write_bytes(data)
            app.archives.create(name, owner_id="ann", volume=tmp_path / name)
        app.archives.archive("one")
        assert app.objects is not None
        for info in list(app.objects.list("packs")):
            whole = app.objects.get(info.key)
            app.objects.delete(info.key)
            app.objects.put(info.key, whole[: len(whole) // 2])
        app.archives.archive("two")
        app.archives.restore("two")
        assert (tmp_path / "two" / "same").read_bytes() == data


def test_without_the_index_of_the_archive_before_everything_is_read(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks") as app:
        archives, _ = workspace_of(app, root)
        grow(root, files=8)
        archives.archive("ws1")
        archives.restore("ws1")
        before = look(root)
        lost = "DELETE FROM block WHERE id IN (SELECT root FROM archive_unit)"
        assert change(local(tmp_path), lost) == 1
        with local(tmp_path).open(archive_format="blocks") as other:
            other.archives.archive("ws1")
        archives.restore("ws1")
        assert look(root) == before


def forge_index(store: Store, app: App, old: bytes, new: bytes) -> None:
    """An archive whose index says something else than it did, with the right names and checksums everywhere."""
    bodies = {row[0]: row[1] for row in select(store, "SELECT id, body FROM block WHERE codec = 0")}
    ((root, key),) = select(store, "SELECT root, archive_key FROM archive_unit, workspace")
    [(directory, body)] = [(name, body) for name, body in bodies.items() if old in body]
    made = {directory: body.replace(old, new)}
    made[root] = bodies[root].replace(directory, hashlib.sha256(made[directory]).digest())
    copy = (
        "INSERT INTO block (tenant, id, size, codec, body, links) SELECT tenant, ?, ?, 0, ?, links FROM block"
        " WHERE id = ?"
    )
    for name, forged in made.items():
        assert change(store, copy, [hashlib.sha256(forged).digest(), len(forged), forged, name]) == 1
    forged_root = hashlib.sha256(made[root]).digest()
    assert app.objects is not None
    index_key = key.replace("home.meta", "home.index")
    index = app.objects.get(index_key)
    forged_index = index.replace(root.hex().encode(), forged_root.hex().encode())
    meta = app.objects.get(key)
    for before, after in ((root, forged_root), (hashlib.sha256(index).digest(), hashlib.sha256(forged_index).digest())):
        assert before.hex().encode() in meta
        meta = meta.replace(before.hex().encode(), after.hex().encode())
        change(store, "UPDATE archive_unit SET sha256 = ? WHERE sha256 = ?", [after.hex(), before.hex()])
    change(store, "UPDATE archive_unit SET root = ?", [forged_root])
    for name, data in ((index_key, forged_index), (key, meta)):
        app.objects.delete(name)
        app.objects.put(name, data)


@pytest.mark.parametrize("name", ["..", "a/", "/a", "\0a"], ids=["up", "below", "absolute", "NUL"])
def test_hostile_indexes_are_refused(name: str, store: Store, tmp_path: Path) -> None:
    volume = tmp_path / "deep" / "volume"
    volume.mkdir(parents=True)
    (volume / "zz").write_text("content")
    with store.open(archive_format="blocks") as app:
        app.archives.create("ws1", owner_id="ann", volume=volume)
        app.archives.archive("ws1")
        forge_index(store, app, b"\0zz", b"\0yy")
        app.archives.restore("ws1", tmp_path / "copy")
        assert os.listdir(tmp_path / "copy") == ["yy"]
        forge_index(store, app, b"\0yy", b"\0" + name.encode())
        with pytest.raises((Denied, DataLost, Corrupt)):
            app.archives.restore("ws1")
        assert not volume.exists()
        assert sorted(os.listdir(tmp_path / "deep")) == [".analemma-volume"]
        assert sorted(os.listdir(tmp_path / "deep" / ".analemma-volume")) == ["lock", "owner"]
