"""Local files: what else can be in a directory, or happen to it, besides our own objects."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analemma.errors import Corrupt, Denied, Invalid, NotFound, Unavailable
from analemma.testing.refusals import refuses
from tests.ports.entry_points.objects import LocalStore

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


YEAR_S = 365 * 86_400


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(tmp_path / "objects")
    yield store
    store.close()


@contextlib.contextmanager
def small_disk(path: Path) -> Iterator[None]:
    """A file system of 4 MB, mounted for a while."""
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    mounting = subprocess.run(command, capture_output=True, text=True)
    if mounting.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounting.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


def test_an_object_is_a_plain_file_under_its_own_name(store: LocalStore) -> None:
    store.put("packs/ab/abcd", b"data", metadata={"usage": "temp"})
    assert (store.root / "packs/ab/abcd").read_bytes() == b"data"
    assert files_below(store.root) == ["packs/ab/abcd"]


def test_a_second_process_sees_the_same_objects(store: LocalStore) -> None:
    store.put("k/x", b"data", metadata={"usage": "temp"})
    with_other = LocalStore(store.root)
    assert with_other.get("k/x") == b"data"
    assert with_other.head("k/x") == store.head("k/x")
    with_other.close()


def test_a_symbolic_link_out_of_the_root_is_never_followed(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (store.root / "folder").symlink_to(outside)
    (store.root / "k").mkdir()
    calls: dict[str, Callable[[str], object]] = {
        "get": store.get,
        "put": lambda key: store.put(key, b"evil"),
        "put_if_absent": lambda key: store.put(key, b"evil", if_absent=True),
        "delete": store.delete,
        "head": store.head,
        "stream": lambda key: list(store.open_read(key)),
    }
    for operation, call in calls.items():
        (store.root / "k/file").unlink(missing_ok=True)
        (store.root / "k").mkdir(exist_ok=True)
        (store.root / "k/file").symlink_to(outside / "secret")
        assert refuses(call, "folder/secret", error=Denied), operation
        # Overwriting or deleting a link touches the link itself; everything else refuses it.
        if operation in ("put", "delete"):
            call("k/file")
        else:
            assert refuses(call, "k/file", error=Denied), operation
        assert (outside / "secret").read_bytes() == b"secret", operation
        assert files_below(outside) == ["secret"]


def test_links_pipes_and_foreign_names_are_not_listed(store: LocalStore, tmp_path: Path) -> None:
    store.put("k/x", b"1")
    (store.root / "link").symlink_to(tmp_path)
    (store.root / "k/link").symlink_to("/etc/passwd")
    os.mkfifo(store.root / "k/pipe")
    (store.root / ".hidden").write_bytes(b"x")
    (store.root / "back\\slash").write_bytes(b"x")
    (Path(os.fsdecode(os.fsencode(store.root) + b"/not-utf8-\xff"))).write_bytes(b"x")
    assert [info.key for info in store.list()] == ["k/x"]
    with pytest.raises(NotFound):
        store.get("k/pipe")


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "link")
    store.put("k/x", b"data")
    assert (tmp_path / "real/k/x").read_bytes() == b"data"
    store.close()


def test_leftovers_of_dead_writers_are_not_objects_and_go_when_they_are_old(store: LocalStore) -> None:
    old, fresh = store.root / ".tmp/1-dead", store.root / ".tmp/2-alive"
    old.parent.mkdir()
    for path in (old, fresh):
        path.write_bytes(b"half an obj")
    os.utime(old, (old.stat().st_atime, old.stat().st_mtime - YEAR_S))
    assert list(store.list()) == []
    LocalStore(store.root).close()
    assert not old.exists() and fresh.exists()


def test_a_key_cannot_be_both_an_object_and_a_folder(store: LocalStore) -> None:
    store.put("a/b", b"x")
    for key, there in {"a": "a", "a/b/c": "a/b"}.items():
        with pytest.raises(Unavailable, match="move it away") as caught:
            store.put(key, b"y")
        assert caught.value.path == str(store.root / there)
    store.delete("a")
    assert store.get("a/b") == b"x"
    assert files_below(store.root) == ["a/b"]


def test_deleting_the_last_object_of_a_folder_removes_the_folder(store: LocalStore) -> None:
    store.put("a/b/c/x", b"1")
    store.put("a/y", b"1")
    store.delete("a/b/c/x")
    assert not (store.root / "a/b").exists()
    assert store.get("a/y") == b"1"


def test_puts_survive_a_folder_that_keeps_vanishing(store: LocalStore) -> None:
    stop = threading.Event()

    def keep_deleting() -> None:
        while not stop.is_set():
            store.put("a/b/other", b"x")
            store.delete("a/b/other")

    thread = threading.Thread(target=keep_deleting)
    thread.start()
    try:
        for number in range(60):
            store.put(f"a/b/{number}", b"%d" % number, if_absent=True)
            assert store.get(f"a/b/{number}") == b"%d" % number
            store.delete(f"a/b/{number}")
    finally:
        stop.set()
        thread.join()


def test_an_object_cut_short_on_disk_is_corrupt(store: LocalStore) -> None:
    store.put("k/x", bytes(1000))
    os.truncate(store.root / "k/x", 500)
    with pytest.raises(Corrupt):
        store.get_range("k/x", 400, 200)


def test_damaged_metadata_reads_as_none(store: LocalStore) -> None:
    store.put("k/x", b"x", metadata={"usage": "temp"})
    for value in (b"{not json", b"[]", b"\xff"):
        os.setxattr(store.root / "k/x", "user.analemma", value)
        info = store.head("k/x")
        assert info is not None and info.metadata == {}


def test_a_root_that_cannot_be_made_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    for root in (tmp_path / "file/below", Path("/proc/nothing/here")):
        with pytest.raises((Unavailable, Invalid)) as caught:
            LocalStore(root)
        assert "\n" not in str(caught.value)


@as_root
def test_an_unwritable_directory_is_unavailable_and_still_readable(tmp_path: Path) -> None:
    """Root ignores permissions, so the directory is on a file system mounted read-only."""
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with small_disk(mounted):
        store = LocalStore(mounted / "objects")
        store.put("k/x", b"data")
        subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
        with pytest.raises(Unavailable, match="access"):
            store.put("k/y", b"x")
        with pytest.raises(Unavailable, match="access"):
            store.delete("k/x")
        with pytest.raises(Unavailable, match="access"):
            store.health()
        reader = LocalStore(mounted / "objects")
        assert reader.get("k/x") == b"data"
        reader.close()
        store.close()


@as_root
def test_a_full_disk_is_unavailable_and_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    with small_disk(mounted):
        store = LocalStore(mounted / "objects")
        store.put("k/small", b"fits")
        for attempt in range(3):
            with pytest.raises(Unavailable, match="free some space"):
                store.put("k/large", bytes(8 << 20), if_absent=bool(attempt % 2))
            with pytest.raises(Unavailable, match="free some space"):
                store.put_stream("k/large", (bytes(1 << 20) for _ in range(8)))
        assert store.head("k/large") is None
        assert files_below(store.root) == ["k/small"]
        assert store.get("k/small") == b"fits"
        # What failed gave its space back.
        store.put("k/medium", bytes(2 << 20))
        store.close()
