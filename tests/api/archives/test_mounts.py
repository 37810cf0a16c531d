"""What is mounted in a volume, by the kernel's table, or by a walk where there is none. In `test_places` something is
mounted really, which not everybody may do; here the table is the test's own."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from analemma.errors import Conflict, Invalid
from analemma.testing import failpoints
from tests.raw_rows import change
from tests.stores import Store, local

TABLE = "/proc/self/mountinfo"
VERBS: dict[str, Callable[[Archives], object]] = {
    "archive": lambda archives: archives.archive("ws1"),
    "delete": lambda archives: archives.delete("ws1"),
    "discard": lambda archives: archives.delete("ws1", discard=True),
    "purge": lambda archives: archives.purge("ws1"),
}


class Died(BaseException):
    pass


class Mounts:
    """What is mounted, as far as anybody can see."""

    def __init__(self) -> None:
        self.points: list[Path] | None = []
        """What the kernel's table says; None: there is no table."""
        self.met: list[Path] = []
        """What a walk meets."""
        self._open = open
        self._is_mount = os.path.ismount

    def open(self, path: Any, *arguments: Any, **more: Any) -> Any:
        if path != TABLE:
            return self._open(path, *arguments, **more)
        if self.points is None:
            raise FileNotFoundError(2, "No such file or directory", TABLE)
        read, write = os.pipe()
        os.write(write, b"".join(_line(point) for point in self.points))
        os.close(write)
        return self._open(read, *arguments, **more)

    def is_mount(self, path: Any) -> bool:
        return Path(os.fsdecode(path)) in self.met or self._is_mount(path)


def _line(point: Path) -> bytes:
    escaped = os.fsencode(point).replace(b"\\", rb"\134").replace(b" ", rb"\040").replace(b"\n", rb"\012")
    return b"36 35 98:0 /r %b rw,noatime - ext4 /dev/r rw\n" % escaped


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    mounts = Mounts()
    monkeypatch.setattr(builtins, "open", mounts.open)
    monkeypatch.setattr(os.path, "ismount", mounts.is_mount)
    return mounts


def small(app: App, root: Path) -> Archives:
    (root / "deep" / "mount").mkdir(parents=True)
    (root / "file").write_text("precious")
    app.archives.create("ws1", owner_id="ann", volume=root)
    return app.archives


def nothing_is_done(archives: Archives, root: Path, verb: str) -> None:
    with pytest.raises(Conflict, match="mounted at"):
        VERBS[verb](archives)
    assert (root / "file").read_text() == "precious"
    workspace = archives.get("ws1")
    assert (workspace.status, workspace.operation, workspace.archive_key) == ("WARM", "NONE", None)


@pytest.mark.parametrize("name", ["volume", "a volume", "back\\slash", "line\nbreak", "ünïcode"])
def test_a_mount_is_known_by_its_unescaped_name(name: str, mounts: Mounts, tmp_path: Path) -> None:
    root = tmp_path / name
    with local(tmp_path).open() as app:
        archives = small(app, root)
        mounts.points = [root / "deep" / "mount"]
        for verb in VERBS:
            nothing_is_done(archives, root, verb)
        # Names that only begin alike are elsewhere, and so is what lies above.
        mounts.points = [tmp_path, tmp_path / f"{name}2" / "mount", tmp_path / name[:-1]]
        archives.archive("ws1")
        assert archives.restore("ws1").status == "WARM"


def test_without_a_table_mounts_are_met_on_a_walk(mounts: Mounts, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    mounts.points = None
    with local(tmp_path).open() as app:
        archives = small(app, root)
        for point in (root / "deep" / "mount", root / "deep"):
            mounts.met = [point]
            for verb in VERBS:
                nothing_is_done(archives, root, verb)
        mounts.met = []
        archives.archive("ws1")
        archives.restore("ws1")
        archives.delete("ws1", discard=True)
        assert sorted(os.listdir(tmp_path)) == ["store"]


def test_without_a_table_a_mount_point_is_no_place_for_a_volume(mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    mounts.points, mounts.met = None, [tmp_path / "disk"]
    with local(tmp_path).open() as app, pytest.raises(Invalid, match="is a mount point"):
        app.archives.create("ws1", owner_id="ann", volume=tmp_path / "disk")


@pytest.mark.parametrize("verb", ["discard", "purge"])
@pytest.mark.parametrize("folder", ["trash-removed", "doomed-removed"])
def test_what_is_mounted_in_a_volume_that_is_moved_aside_keeps_it(
    verb: str, folder: str, mounts: Mounts, store: Store, tmp_path: Path
) -> None:
    """Guard: what is to be deleted is looked at under the name that it has by then, also by whoever comes after one who
    was killed while he deleted it."""
    beside = tmp_path / ".analemma-volume"

    def die() -> None:
        raise Died

    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        with failpoints.call("remove.after_aside", die), pytest.raises(Died):
            VERBS[verb](archives)
        (beside / "trash-removed").rename(beside / folder)
        mounts.points = [beside / folder / "deep" / "mount"]
        for _ in range(2):
            change(store, "UPDATE workspace SET lease_until = 0")
            (outcome,) = archives.reconcile()
            assert "mounted at" in str(outcome.error)
            assert (beside / folder / "file").read_text() == "precious"
            assert archives.get("ws1").operation == "DELETING"
        mounts.points = []
        change(store, "UPDATE workspace SET lease_until = 0")
        (outcome,) = archives.reconcile()
        assert (outcome.error, beside.exists()) == (None, False)


def test_what_is_mounted_between_the_name_and_the_deletion_keeps_the_volume(
    mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / ".analemma-volume"
    rename: Any = os.rename

    def mount_then(source: Any, target: Any, **more: Any) -> None:
        rename(source, target, **more)
        if "doomed-" in os.fspath(target):
            mounts.points = [Path(target) / "deep" / "mount"]

    with local(tmp_path).open() as app:
        archives = small(app, tmp_path / "volume")
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", mount_then)
            with pytest.raises(Conflict, match="mounted at"):
                archives.delete("ws1", discard=True)
        assert (beside / "doomed-removed" / "file").read_text() == "precious"
        mounts.points = []
        assert archives.recover("ws1").status == "DELETED"
        assert not beside.exists()
