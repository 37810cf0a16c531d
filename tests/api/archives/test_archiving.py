"""A workspace goes into object storage and comes back the same."""

from __future__ import annotations

import gzip
import hashlib
import io
import mmap
import os
import random
import subprocess
import tarfile
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import zstandard

from analemma.errors import Conflict, DataLost, Denied, Invalid, Limit, Timeout
from analemma.testing import failpoints
from tests.api.archives.volumes import add_special_files, fill, look, object_keys, workspace_of
from tests.stores import Store


def test_a_round_trip_is_identical(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, made = workspace_of(app, root)
        assert (made.status, made.operation) == ("WARM", "NONE")
        before = look(root)
        unit = archives.archive("ws1")
        assert not root.exists()
        assert archives.get("ws1").status == "COLD"
        assert unit.files == sum(1 for facts in before.values() if facts[0] & 0o170000 == 0o100000) - 1
        assert sorted(key.rpartition("/")[2] for key in object_keys(app))[-1] == "home.meta"
        assert archives.restore("ws1").status == "WARM"
        assert look(root) == before
        assert os.stat(root / "sparse").st_blocks * 512 < 100_000
        assert sorted(os.listdir(tmp_path / ".analemma-volume")) == ["lock", "owner"]


def test_every_archive_has_its_own_op_id_and_holds_what_was_edited(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        first = archives.archive("ws1")
        archives.restore("ws1")
        (root / "zero").write_text("edited")
        second = archives.archive("ws1")
        assert first.op_id != second.op_id
        assert archives.get("ws1").archive_key == second.key
        archives.restore("ws1")
        assert (root / "zero").read_text() == "edited"


def test_archiving_a_cold_workspace_gives_the_archive_it_has(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        assert archives.archive("ws1") == archives.archive("ws1")


def test_what_cannot_be_archived_is_left_out_with_a_note(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        listening = add_special_files(tmp_path / "volume")
        before = look(tmp_path / "volume")
        unit = archives.archive("ws1")
        listening.close()
        assert app.objects is not None
        meta = app.objects.get(unit.key).decode()
        assert "pipe: a pipe is not archived" in meta
        assert "socket: a socket is not archived" in meta
        archives.restore("ws1")
        assert look(tmp_path / "volume") == before


def test_other_programs_read_the_tar(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        before = look(tmp_path / "volume")
        archives.archive("ws1")
        assert app.objects is not None
        [key] = [key for key in object_keys(app) if key.endswith(".tar.zst")]
        data = zstandard.ZstdDecompressor().stream_reader(app.objects.get(key)).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as members:
        assert len(set(members.getnames())) == len(before)
    (tmp_path / "gnu").mkdir()
    command = ["tar", "-x", "-p", "--xattrs", "--sparse", "-C", str(tmp_path / "gnu")]
    done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=60)
    # It does not know the keyword by which POSIX says that names are bytes, and takes them for bytes anyway.
    assert {line[:30] for line in done.stderr.splitlines()} <= {
        b"tar: Ignoring unknown extended",
        b"tar: random.bin: implausibly o",
    }
    found = look(tmp_path / "gnu")
    # GNU tar ignores times before 1970.
    for odd in ("b'random.bin'",):
        before.pop(odd), found.pop(odd)
    assert found == before


@pytest.mark.parametrize("marker", ["home.meta", "home.tar.gz.meta"])
@pytest.mark.parametrize("checked", [True, False])
def test_an_archive_of_another_program_is_adopted(store: Store, tmp_path: Path, marker: str, checked: bool) -> None:
    fill(tmp_path / "original")
    # Without what only newer formats can say.
    command = ["tar", "--format=gnu", "-C", str(tmp_path / "original"), "-cf", "-", "docs", "random.bin", "link"]
    data = gzip.compress(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    with store.open() as app:
        assert app.objects is not None
        folder = "tenants/default/archives/ws9/aaa"
        app.objects.put(f"{folder}/home.tar.gz", data)
        with pytest.raises(DataLost) as lost:
            app.archives.adopt("ws9", owner_id="ann", volume=tmp_path / "new", op_id="aaa")
        assert lost.value.reason == "META_NOT_FOUND"
        meta = f'{{"size": {len(data)}, "checksum": "sha256:{"0" * 64}"}}' if checked else "{}"
        app.objects.put(f"{folder}/{marker}", meta.encode())
        if checked:
            with pytest.raises(DataLost) as lost:
                app.archives.adopt("ws9", owner_id="ann", volume=tmp_path / "new", op_id="aaa")
            assert lost.value.reason == "CHECKSUM_MISMATCH"
            app.objects.put(f"{folder}/{marker}", hashlib.sha256(data).hexdigest().encode())
        assert app.archives.adopt("ws9", owner_id="ann", volume=tmp_path / "new", op_id="aaa").status == "COLD"
        app.archives.restore("ws9")
        assert (tmp_path / "new" / "random.bin").read_bytes() == (tmp_path / "original" / "random.bin").read_bytes()
        assert os.readlink(tmp_path / "new" / "link") == "docs/note.txt"


def test_a_volume_that_changes_while_it_is_read_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, root)
        edits = 0

        def edit(progress: Any) -> None:
            nonlocal edits
            if progress.phase == "verifying" and not progress.bytes:
                edits += 1
                (root / "zero").write_text(f"edit {edits}")

        with pytest.raises(Conflict, match="changed while it was read"):
            archives.archive("ws1", progress=edit)
        assert edits == 3
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation, workspace.archive_key) == ("WARM", "NONE", None)
        assert "changed" in (workspace.error or "")
        assert (root / "zero").read_text() == "edit 3"


@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_one_change_while_it_is_read_costs_another_attempt(format: str, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open(archive_format=format) as app:
        archives, _ = workspace_of(app, root)
        for number in range(300):
            (root / f"small-{number}").write_text("so many that progress is told")
        edits = 0

        def edit(progress: Any) -> None:
            nonlocal edits
            if progress.files > 200 and not edits:
                edits += 1
                (root / "all-hole").write_text("edited once")

        archives.archive("ws1", progress=edit)
        assert edits == 1
        archives.restore("ws1")
        assert (root / "all-hole").read_text() == "edited once"


def test_what_is_written_at_the_last_moment_is_not_removed(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, root)
        write = lambda: (root / "late").write_text("after everything was read")  # noqa: E731
        with failpoints.call("archive.after_commit", write), pytest.raises(Conflict, match="changed after it was read"):
            archives.archive("ws1")
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("WARM", "NONE")
        assert (root / "late").read_text() == "after everything was read"
        archives.archive("ws1")
        archives.restore("ws1")
        assert (root / "late").exists()


def test_too_slow_is_a_timeout_that_changes_nothing(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        with pytest.raises(Timeout):
            archives.archive("ws1", timeout_s=0.01, progress=lambda progress: time.sleep(0.02))
        assert archives.get("ws1").status == "WARM"
        assert look(root) == before
        assert [key for key in object_keys(app) if key.endswith(".meta")] == []


@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_a_restore_that_is_too_slow_is_a_timeout_too(format: str, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    (root / "large").write_bytes(random.Random(1).randbytes(18 << 20))
    with Store(str(tmp_path / "store")).open(archive_format=format) as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        app.archives.archive("ws1")
        with pytest.raises(Timeout):
            app.archives.restore("ws1", timeout_s=0.01, progress=lambda progress: time.sleep(0.02))
        assert app.archives.get("ws1").status == "COLD" and not root.exists()


def test_links_that_leave_the_volume_are_refused_before_anything_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, root)
        for target in ("/etc/passwd", "../outside", "docs/../../outside", "docs/up/../.."):
            (root / "escape").symlink_to(target)
            with pytest.raises(Invalid, match="escape"):
                archives.archive("ws1")
            (root / "escape").unlink()
        assert archives.get("ws1").status == "WARM"
        assert (root / "zero").exists()


def test_links_that_leave_the_volume_can_be_kept(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open(archive_outside_links="keep") as app:
        archives, _ = workspace_of(app, root)
        (root / "python").symlink_to("/usr/bin/python3")
        before = look(root)
        archives.archive("ws1")
        archives.restore("ws1")
        assert look(root) == before
        archives.archive("ws1")
    with Store(str(tmp_path / "store")).open() as app:
        with pytest.raises(Denied, match="python"):
            app.archives.restore("ws1")
        assert app.archives.get("ws1").status == "COLD"
        assert not root.exists()


def test_more_than_the_limits_is_not_restored(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")
    for limit in ({"archive_limit_bytes": 1000}, {"archive_limit_files": 3}):
        with Store(str(tmp_path / "store")).open(**limit) as app:
            with pytest.raises(Limit):
                app.archives.restore("ws1")
            assert app.archives.get("ws1").status == "COLD"
            assert not root.exists()


def test_a_copy_leaves_the_workspace_as_it_is(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        archives.restore("ws1", into=tmp_path / "copies" / "one")
        assert look(tmp_path / "copies" / "one") == before
        assert archives.get("ws1").status == "COLD"
        assert os.listdir(tmp_path / "copies") == ["one"]
        with pytest.raises(Conflict, match="already"):
            archives.restore("ws1", into=tmp_path / "copies" / "one")
        with pytest.raises(Conflict, match="belongs to workspace ws1"):
            archives.restore("ws1", into=root)


def test_progress_is_told(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        told: list[Any] = []
        archives.archive("ws1", progress=told.append)
        assert told[0].phase == "reading"
        assert told[0].total_bytes is not None and told[0].total_bytes > 4_000_000
        assert "verifying" in {each.phase for each in told}


def test_without_an_object_store_nothing_is_begun(migrated_url: str, tmp_path: Path) -> None:
    with Store(migrated_url).open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        with pytest.raises(Invalid, match="object store"):
            archives.archive("ws1")
        assert archives.get("ws1").status == "WARM"
        archives.delete("ws1", discard=True)
        assert not (tmp_path / "volume").exists()


def test_an_archive_of_another_program_that_gives_no_checksum_is_read_to_its_end(store: Store, tmp_path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as members:
        info = tarfile.TarInfo("file")
        info.size = 100_000
        members.addfile(info, io.BytesIO(os.urandom(info.size)))
    with store.open() as app:
        assert app.objects is not None
        folder = "tenants/default/archives/ws9/aaa"
        app.objects.put(f"{folder}/home.meta", b"{}")
        app.objects.put(f"{folder}/home.tar.gz", raw.getvalue()[:50_000])
        with pytest.raises(DataLost):
            app.archives.adopt("ws9", owner_id="ann", volume=tmp_path / "new", op_id="aaa")
        app.objects.put(f"{folder}/home.tar.gz", raw.getvalue())
        assert app.archives.adopt("ws9", owner_id="ann", volume=tmp_path / "new", op_id="aaa").status == "COLD"


@pytest.mark.parametrize("format", ["tar", "blocks"])
@pytest.mark.parametrize(
    "limits", [{"archive_limit_files": 5}, {"archive_limit_bytes": 10_000}], ids=["files", "bytes"]
)
def test_what_could_not_be_restored_is_not_archived(format: str, limits: dict[str, int], tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open(archive_format=format, **limits) as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        with pytest.raises(Limit):
            archives.archive("ws1")
        assert look(root) == before
        assert archives.get("ws1").status == "WARM"


def test_one_attribute_that_cannot_be_read_does_not_drop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(file: int, name: str) -> bytes:
        if name == "user.secret":
            raise PermissionError(13, "Permission denied")
        return name.encode()

    root = tmp_path / "volume"
    with Store(str(tmp_path / "store")).open() as app:
        root.mkdir()
        (root / "file").write_text("")
        app.archives.create("ws1", owner_id="ann", volume=root)
        with monkeypatch.context() as patched:
            patched.setattr(os, "listxattr", lambda file: ["user.a", "user.secret", "user.z", "trusted.other"])
            patched.setattr(os, "getxattr", read)
            unit = app.archives.archive("ws1")
        assert app.objects is not None
        meta = app.objects.get(unit.key).decode()
        assert "file: the attribute user.secret cannot be read: Permission denied" in meta
        [key] = [key for key in object_keys(app) if key.endswith(".tar.zst")]
        data = zstandard.ZstdDecompressor().stream_reader(app.objects.get(key)).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as members:
        [file] = [member for member in members if member.name == "file"]
        kept = {name: value for name, value in file.pax_headers.items() if name.startswith("SCHILY.xattr")}
    assert kept == {"SCHILY.xattr.user.a": "user.a", "SCHILY.xattr.user.z": "user.z"}


@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_what_is_written_through_memory_while_it_is_read_is_seen(format: str, tmp_path: Path) -> None:
    # Tests lie in memory, where such writes leave no trace; the object store of a developer does not.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as disk, Store(str(tmp_path / "store")).open() as app:
        if not traces_memory(Path(disk)):
            pytest.skip("this file system does not tell of writes through memory")
        root = Path(disk) / "volume"
        root.mkdir()
        (root / "data").write_bytes(b"A" * 8192)
        app.archives.create("ws1", owner_id="ann", volume=root)
        with (root / "data").open("r+b") as file, mmap.mmap(file.fileno(), 8192) as pages:
            pages[0:3] = b"ONE"  # The page is dirty from now on, and writable without anybody being asked.
            time.sleep(0.05)
            writes = 0

            def write() -> None:
                nonlocal writes
                writes += 1
                pages[0:3] = b"%03d" % writes
                failpoints.arm("archive.after_data", write)  # The next time, too.

            with (
                failpoints.call("archive.after_data", write),
                pytest.raises(Conflict, match="changed while it was read"),
            ):
                app.archives.archive("ws1", format=format)  # type: ignore[arg-type]
        assert writes == 3
        assert (root / "data").read_bytes()[:3] == b"003"


def traces_memory(folder: Path) -> bool:
    with (folder / "probe").open("w+b") as file:
        file.write(bytes(8192))
        file.flush()
        with mmap.mmap(file.fileno(), 8192) as pages:
            pages[0:1] = b"1"
            time.sleep(0.05)
            before = os.fstat(file.fileno()).st_mtime_ns
            os.fsync(file.fileno())
            pages[0:1] = b"2"
            return os.fstat(file.fileno()).st_mtime_ns != before


def touch(path: Path, year: int) -> None:
    """Give it a time in that year, with nanoseconds."""
    seconds = (datetime(year, 5, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    at_ns = int(seconds) * 10**9 + 123_456_789
    os.utime(path, ns=(1, at_ns), follow_symlinks=False)
    if path.lstat().st_mtime_ns != at_ns:
        pytest.skip(f"this file system knows no year {year}")


def with_times(root: Path) -> list[Path]:
    """A volume with names of every kind, none of which is looked at as another is."""
    (root / "folder").mkdir(parents=True)
    (root / "file").write_text("one")
    (root / "folder" / "large").write_bytes(random.Random(1).randbytes(5000))
    (root / "linked").write_text("two")
    os.link(root / "linked", root / "other-name")
    (root / "link").symlink_to("file")
    return [root / "file", root / "folder" / "large", root / "linked", root / "link", root / "folder", root]


@pytest.mark.parametrize(
    ("format", "years"), [("tar", [1500, 2300, 9000]), ("blocks", [1680, 2300, 2550])], ids=["tar", "blocks"]
)
def test_times_come_back_that_are_centuries_away(format: Any, years: list[int], store: Store, tmp_path: Path) -> None:
    """Within nanoseconds of 63 bits and beyond: times in them end in the year 2262."""
    root = tmp_path / "volume"
    with store.open(archive_format=format) as app:
        archives = app.archives
        archives.create("ws1", owner_id="ann", volume=root)
        paths = with_times(root)
        for year in years:
            for path in paths:
                touch(path, year)
            before = look(root)
            for _ in range(2):
                archives.archive("ws1")
                archives.restore("ws1")
                assert look(root) == before
            # What is written since, and looks as it was restored, is read.
            (root / "file").write_text(str(year)[:3])
            touch(root / "file", year)
            archives.archive("ws1")
            archives.restore("ws1")
            assert (root / "file").read_text() == str(year)[:3]


def test_a_time_that_no_block_holds_is_refused_before_anything_is_uploaded(store: Store, tmp_path: Path) -> None:
    """Guard: of what is far away in time the writer of blocks is told by the look that comes before it writes."""
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        archives = app.archives
        archives.create("ws1", owner_id="ann", volume=root)
        paths = with_times(root)
        # So much that blocks are uploaded before the last name is met.
        (root / "before").write_bytes(random.Random(2).randbytes(20 << 20))
        for path in paths:
            at_ns = path.lstat().st_mtime_ns
            touch(path, 2600)
            with pytest.raises(Limit, match="cannot hold") as refused:
                archives.archive("ws1")
            assert refused.value.facts["path"] == ("" if path == root else str(path.relative_to(root)))
            assert (path.name if path != root else "the volume") in str(refused.value)
            assert [key for key in object_keys(app, "") if not key.startswith("owner")] == []
            assert (archives.get("ws1").status, archives.get("ws1").operation) == ("WARM", "NONE")
            os.utime(path, ns=(1, at_ns), follow_symlinks=False)
        touch(root / "file", 2600)
        before = look(root)
        archives.archive("ws1", format="tar")
        archives.restore("ws1")
        assert look(root) == before
