"""Restoring: what is damaged or hostile is refused, and half of a restore is never seen."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from analemma.app import App
from analemma.archives import restoring
from analemma.archives.entries import Entry, Totals
from analemma.archives.jobs import Progress
from analemma.archives.metas import TAR_ZST, Meta, encode_meta
from analemma.archives.tar_reading import TarReader
from analemma.archives.tar_writing import end_of_archive, entry_header
from analemma.catalog.workspaces import LostOperation
from analemma.errors import AnalemmaError, Conflict, DataLost, Denied, Limit, Unavailable
from tests.stores import Store, local
from tests.unit.archives.volumes import look, object_keys, workspace_of

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


HOSTILE: dict[str, bytes] = {
    "absolute": tar_of(member("/etc/evil", data=b"x")),
    "dotdot": tar_of(member("../evil", data=b"x")),
    "dotdot inside": tar_of(member("a/../../evil", data=b"x")),
    "dotdot directory": tar_of(member("..", tarfile.DIRTYPE)),
    "empty name in the middle": tar_of(member("a//b", data=b"x")),
    "absolute symlink": tar_of(member("link", tarfile.SYMTYPE, target="/etc")),
    "symlink up": tar_of(member("link", tarfile.SYMTYPE, target="../..")),
    "symlink up behind a name": tar_of(
        member("d", tarfile.SYMTYPE, target="."), member("e", tarfile.SYMTYPE, target="d/d/../../..")
    ),
    "through a symlink": tar_of(
        member("in", tarfile.DIRTYPE),
        member("link", tarfile.SYMTYPE, target="in"),
        member("link/evil", data=b"x"),
    ),
    "hardlink up": tar_of(member("link", tarfile.LNKTYPE, target="../../etc/passwd")),
    "absolute hardlink": tar_of(member("link", tarfile.LNKTYPE, target="/etc/passwd")),
    "hardlink to a symlink": tar_of(member("s", tarfile.SYMTYPE, target="f"), member("h", tarfile.LNKTYPE, target="s")),
    "hardlink through a symlink": tar_of(
        member("in", tarfile.DIRTYPE),
        member("in/f", data=b"x"),
        member("s", tarfile.SYMTYPE, target="in"),
        member("h", tarfile.LNKTYPE, target="s/f"),
    ),
    "hardlink to nothing": tar_of(member("h", tarfile.LNKTYPE, target="nothing")),
    "hardlink to a directory": tar_of(member("d", tarfile.DIRTYPE), member("h", tarfile.LNKTYPE, target="d")),
    "character device": tar_of(member("null", tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "block device": tar_of(member("disk", tarfile.BLKTYPE, devmajor=8, devminor=0)),
    "pipe": tar_of(member("pipe", tarfile.FIFOTYPE)),
    "unknown type": tar_of(member("odd", b"Z")),
    "twice": tar_of(member("f", data=b"first"), member("f", data=b"second")),
    "file over directory": tar_of(member("d", tarfile.DIRTYPE), member("d", data=b"x")),
    "file in a file": tar_of(member("f", data=b"x"), member("f/g", data=b"y")),
    "volume is a file": tar_of(member(".", data=b"x")),
    "name with NUL": tar_of(member("a", pax_headers={"path": "a\0b"}, data=b"x")),
}


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


def outside(tmp_path: Path) -> set[str]:
    return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if "store" not in path.parts}


@pytest.mark.parametrize("what", HOSTILE)
@pytest.mark.parametrize("format", [0, TAR_ZST])
def test_hostile_archives_are_refused(what: str, format: int, tmp_path: Path) -> None:
    volume = tmp_path / "deep" / "er" / "volume"
    volume.parent.mkdir(parents=True)
    with local(tmp_path).open() as app:
        plant(app, HOSTILE[what], format=format, counts={"files": 9, "directories": 9, "links": 9, "bytes": 99})
        app.archives.adopt("evil", owner_id="ann", volume=volume, op_id="op1")
        before = outside(tmp_path)
        with pytest.raises((Denied, DataLost)):
            app.archives.restore("evil")
        assert outside(tmp_path) - before <= {
            "deep/er/.analemma-volume",
            "deep/er/.analemma-volume/lock",
            "deep/er/.analemma-volume/owner",
        }
        workspace = app.archives.get("evil")
        assert workspace.operation == "NONE"
        assert workspace.status in ("COLD", "ERROR")


def test_what_is_not_hostile_is_restored(tmp_path: Path) -> None:
    data = tar_of(
        member("./a/b/c", data=b"in directories that are not named"),
        member("a/link", tarfile.SYMTYPE, target="b/c"),
        member("again", tarfile.LNKTYPE, target="./a/b/c"),
    )
    with local(tmp_path).open() as app:
        plant(app, data)
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        app.archives.restore("evil")
        assert (tmp_path / "volume" / "a" / "link").read_bytes() == b"in directories that are not named"
        assert os.path.samefile(tmp_path / "volume" / "again", tmp_path / "volume" / "a" / "b" / "c")


@pytest.mark.parametrize(
    ("data", "counts"),
    [
        (tar_of(member("bomb", data=bytes(5_000_000))), {"files": 1, "bytes": 100}),
        (tar_of(*[member(f"{number}") for number in range(50)]), {"files": 3}),
        (
            entry_header(Entry(b"hole", "file", 0o644, 0, 0, 0, size=2**62, extents=())) + bytes(1024),
            {"files": 1, "bytes": 10**9},
        ),
    ],
    ids=["more bytes", "more files", "a hole of exabytes"],
)
def test_more_than_was_announced_is_refused(data: bytes, counts: dict[str, int], tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        plant(app, data, format=TAR_ZST, counts=counts)
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        with pytest.raises(Limit):
            app.archives.restore("evil")
        assert not (tmp_path / "volume").exists()


def test_a_bomb_of_zeros_takes_no_more_than_the_limit(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open(archive_limit_bytes=1_000_000) as app:
        plant(app, tar_of(member("bomb", data=bytes(60_000_000))))
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        with pytest.raises(Limit):
            app.archives.restore("evil")


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


def test_a_tar_that_was_cut_off_with_a_valid_checksum_is_found_out(tmp_path: Path) -> None:
    data = whole((FILE, b"abc"))
    cut: dict[str, bytes] = {
        "no end": data[: -1024 - 1024] + bytes(1024),
        "in a header": data[:700],
        "in a file": data[: 512 + 512 + 512 + 100],
        "one block of the end": data[:-512],
        "nothing": b"",
    }
    for number, (what, short) in enumerate(cut.items()):
        with local(tmp_path / str(number)).open() as app:
            plant(app, short, format=TAR_ZST, counts=COUNTS)
            app.archives.adopt("evil", owner_id="ann", volume=tmp_path / str(number) / "volume", op_id="op1")
            with pytest.raises(DataLost) as lost:
                app.archives.restore("evil")
            assert lost.value.reason == "CHECKSUM_MISMATCH", what
            assert app.archives.get("evil").status == "ERROR"
            assert not (tmp_path / str(number) / "volume").exists()


def test_counts_that_do_not_fit_are_found_out(tmp_path: Path) -> None:
    other = Totals(files=7)
    data = whole((FILE, b"abc"))
    wrong_end = data[: data.index(b"analemma end") // 512 * 512 - 512] + end_of_archive(
        other, Entry(b"", "directory", 0o755, 0, 0, 0)
    )
    for number, (planted, counts) in enumerate([(wrong_end, COUNTS), (data, COUNTS | {"files": 2})]):
        with local(tmp_path / str(number)).open() as app:
            plant(app, planted, format=TAR_ZST, counts=counts)
            app.archives.adopt("evil", owner_id="ann", volume=tmp_path / str(number) / "volume", op_id="op1")
            with pytest.raises(DataLost):
                app.archives.restore("evil")


def damage_data(app: App, change: Callable[[bytes], bytes | None]) -> None:
    assert app.objects is not None
    [key] = [key for key in object_keys(app) if key.endswith(".tar.zst")]
    changed = change(app.objects.get(key))
    app.objects.delete(key)
    if changed is not None:
        app.objects.put(key, changed)


def damage_meta(app: App, change: Callable[[bytes], bytes | None]) -> None:
    assert app.objects is not None
    [key] = [key for key in object_keys(app) if key.endswith(".meta")]
    changed = change(app.objects.get(key))
    app.objects.delete(key)
    if changed is not None:
        app.objects.put(key, changed)


LOSSES: dict[str, tuple[Callable[..., None], Callable[[bytes], bytes | None], str]] = {
    "data gone": (damage_data, lambda data: None, "ARCHIVE_NOT_FOUND"),
    "data cut": (damage_data, lambda data: data[:-1], "CHECKSUM_MISMATCH"),
    "data longer": (damage_data, lambda data: data + b"\0", "CHECKSUM_MISMATCH"),
    "data empty": (damage_data, lambda data: b"", "CHECKSUM_MISMATCH"),
    "bit flipped": (damage_data, lambda data: data[:99] + bytes([data[99] ^ 1]) + data[100:], "CHECKSUM_MISMATCH"),
    "meta gone": (damage_meta, lambda data: None, "META_NOT_FOUND"),
    "meta empty": (damage_meta, lambda data: b"", "CHECKSUM_MISMATCH"),
    "meta of another size": (damage_meta, lambda data: data.replace(b'"size": ', b'"size": 1'), "CHECKSUM_MISMATCH"),
    "meta of another workspace": (damage_meta, lambda data: data.replace(b'"ws1"', b'"ws2"'), "CHECKSUM_MISMATCH"),
    "meta that names another object": (
        damage_meta,
        lambda data: data.replace(b'"data": "home-', b'"data": "../home-'),
        "CHECKSUM_MISMATCH",
    ),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_damaged_archive_is_an_error_and_never_a_volume(what: str, store: Store, tmp_path: Path) -> None:
    damage, change, reason = LOSSES[what]
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        unit = archives.archive("ws1")
        assert app.objects is not None
        kept = {key: app.objects.get(key) for key in object_keys(app)}
        damage(app, change)
        with pytest.raises(DataLost) as lost:
            archives.restore("ws1")
        assert lost.value.reason == reason
        assert not root.exists()
        assert not (tmp_path / ".analemma-volume" / "staging").exists()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("ERROR", "NONE")
        assert workspace.archive_key == unit.key
        with pytest.raises(DataLost):
            archives.recover("ws1")
        # Whoever brings the objects back from a second copy recovers the workspace.
        for key, data in kept.items():
            app.objects.put(key, data)
        assert archives.recover("ws1").status == "COLD"
        archives.restore("ws1")
        assert (root / "zero").exists()


def test_an_error_is_left_by_bringing_the_volume_back(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")
        damage_data(app, lambda data: None)
        with pytest.raises(DataLost):
            archives.restore("ws1")
        root.mkdir()
        (root / "from a backup").write_text("whole")
        assert archives.recover("ws1").status == "WARM"
        archives.archive("ws1")
        archives.restore("ws1")
        assert (root / "from a backup").exists()


def test_half_a_restore_is_never_seen(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        for number in range(300):
            (root / f"small-{number}").write_text("so many that progress is told")
        before = look(root)
        archives.archive("ws1")

        def fail(progress: Progress) -> None:
            assert not root.exists()
            if progress.phase == "writing" and progress.files:
                raise Unavailable("the network is down")

        with pytest.raises(Unavailable):
            archives.restore("ws1", progress=fail)
        assert not root.exists()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.error) == ("COLD", "Unavailable: the network is down")
        archives.restore("ws1")
        assert look(root) == before
        assert archives.get("ws1").error is None


def test_files_that_appear_meanwhile_are_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")

        def appear(name: str) -> None:
            if name == restoring.AFTER_MARK:
                root.mkdir()
                (root / "mine").write_text("first")

        monkeypatch.setattr(restoring, "hit", appear)
        with pytest.raises(Conflict):
            archives.restore("ws1")
        monkeypatch.undo()
        assert (root / "mine").read_text() == "first"
        assert archives.get("ws1").operation == "RESTORING"
        (root / "mine").unlink()
        assert archives.recover("ws1").status == "WARM"
        assert (root / "zero").exists()


def test_the_reader_takes_what_tarfile_writes_in_any_format() -> None:
    long_name = "directory/" * 20 + "file"
    for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        name = long_name if format != tarfile.USTAR_FORMAT else long_name[-150:]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode, info.uid = 700, 1_700_000_000, 0o640, 1000
            tar.addfile(info, io.BytesIO(b"x" * 700))
            link = tarfile.TarInfo("l")
            link.type, link.linkname = tarfile.SYMTYPE, "t" * (50 if format == tarfile.USTAR_FORMAT else 200)
            tar.addfile(link)
        buffer.seek(0)
        reader = TarReader(buffer.read)
        found = [(each.entry, b"".join(reader.data())) for each in reader]
        assert [entry.path for entry, _ in found] == [name.encode(), b"l"]
        assert found[0][1] == b"x" * 700
        assert (found[0][0].mode, found[0][0].uid, found[0][0].mtime_ns) == (0o640, 1000, 1_700_000_000 * 10**9)
        assert found[1][0].target == link.linkname.encode()
        assert reader.end is None


@pytest.mark.parametrize("seed", range(6))
def test_damaged_tars_raise_our_errors_only(seed: int) -> None:
    import random

    chance = random.Random(seed)
    data = whole(
        (FILE, b"abc"),
        (Entry(b"n" * 120, "file", 0o644, 2**31, 0, 5, size=9, xattrs=(("user.a", b"\xff"),)), b"123456789"),
        (Entry(b"link", "symlink", 0o777, 0, 0, 1, target=b"f"), b""),
    )
    for _ in range(150):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        source = io.BytesIO(bytes(broken[: chance.randint(1, len(broken))]))
        reader = TarReader(source.read)
        try:
            for _ in reader:
                for _ in reader.data():
                    pass
        except AnalemmaError:
            pass


def test_sizes_and_times_that_headers_cannot_hold_are_kept() -> None:
    entry = Entry(b"huge", "file", 0o600, 3_000_000, 2**31, 2**40 * 10**6 + 7, size=2**40)
    header = entry_header(entry)
    with tarfile.open(fileobj=io.BytesIO(header + bytes(1024)), mode="r|") as tar:
        info = tar.next()
    assert info is not None
    assert (info.size, info.uid, info.gid) == (2**40, 3_000_000, 2**31)
    member = next(iter(TarReader(io.BytesIO(header).read)))
    assert member.entry == entry


def test_a_header_that_takes_less_than_nothing_is_refused() -> None:
    head = bytearray(entry_header(FILE)[:512])
    head[124:136] = b"\xff" + (-512).to_bytes(11, "big", signed=True)
    head[156:157] = b"x"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    with pytest.raises(DataLost, match="negative"):
        list(TarReader(io.BytesIO(bytes(head) + bytes(2048)).read))


class Died(BaseException):
    pass


def die_at(monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    def die(name: str) -> None:
        if name == point:
            raise Died

    monkeypatch.setattr(restoring, "hit", die)


@pytest.mark.parametrize("empty_directory", [False, True])
def test_a_refused_restore_leaves_anothers_staging_alone(
    empty_directory: bool, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root, "first")
        archives.delete("first")
        root.mkdir()
        (root / "file").write_text("the second's")
        archives.create("second", owner_id="ann", volume=root)
        archives.archive("second")
        if empty_directory:
            root.mkdir()
        die_at(monkeypatch, restoring.AFTER_MARK)
        with pytest.raises(Died):
            archives.restore("second")
        monkeypatch.undo()
        archives.undelete("first")
        with pytest.raises(Conflict, match="belongs to"):
            archives.restore("first")
        # Also where only the place tells whose it is, as for another store.
        monkeypatch.setattr(restoring, "check_apart", lambda *_: None)
        with pytest.raises(Conflict, match="belongs to"):
            archives.restore("first")
        monkeypatch.undo()
        assert len(list((tmp_path / ".analemma-volume").glob("staging-*"))) == 1
        assert archives.recover("second").status == "WARM"
        assert os.listdir(root) == ["file"]


def test_a_directory_that_is_not_what_was_restored_is_not_taken_for_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        die_at(monkeypatch, restoring.AFTER_MARK)
        with pytest.raises(Died):
            archives.restore("ws1")
        monkeypatch.undo()
        [staging] = (tmp_path / ".analemma-volume").glob("staging-*")
        staging.rename(tmp_path / "taken away")
        root.mkdir()
        assert archives.recover("ws1").status == "WARM"
        assert look(root) == before


def test_a_staging_that_is_not_the_one_of_the_mark_is_not_swapped_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        die_at(monkeypatch, restoring.AFTER_MARK)
        with pytest.raises(Died):
            archives.restore("ws1")
        monkeypatch.undo()
        [staging] = (tmp_path / ".analemma-volume").glob("staging-*")
        staging.rename(tmp_path / "taken away")
        staging.mkdir()
        (staging / "half").write_text("of another attempt")
        assert archives.recover("ws1").status == "WARM"
        assert look(root) == before


def test_whoever_lost_the_operation_swaps_nothing_in(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")

        def take_over(name: str) -> None:
            if name == restoring.AFTER_MARK:
                rows = archives._parts.catalog
                rows.change(app.default.id, "ws1", lambda _, row, now: replace(row, fence=row.fence + 1))

        monkeypatch.setattr(restoring, "hit", take_over)
        with pytest.raises(LostOperation):
            archives.restore("ws1")
        assert not root.exists()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("COLD", "RESTORING")
