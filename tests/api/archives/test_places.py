"""Where volumes may be, and what is never deleted with one: mounts, other volumes, the store, and what came later."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from analemma.archives import archiving, mounts, removing
from analemma.archives.deleting import delete_tree
from analemma.archives.volumes import DirectoryVolume, VolumeMissing
from analemma.errors import Conflict, Unavailable
from tests.stores import Store, local

ROOT = Path(__file__).parents[3]


class Died(BaseException):
    pass


def small(app: App, root: Path, name: str = "ws1") -> Archives:
    root.mkdir(parents=True, exist_ok=True)
    (root / "file").write_text("precious")
    app.archives.create(name, owner_id="ann", volume=root)
    return app.archives


def mount_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *points: Path) -> None:
    """As if these were mounted."""
    table = tmp_path / "mountinfo"
    lines = [f"36 35 98:0 /r {str(each).replace(' ', chr(92) + '040')} rw,noatime - ext4 /dev/r rw" for each in points]
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(mounts, "MOUNT_TABLE", str(table))


def test_mount_points_are_found_by_their_unescaped_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "a volume" / "with space"
    mount_at(monkeypatch, tmp_path, odd, tmp_path / "a volume2")
    assert mounts.mounts_in(str(tmp_path / "a volume")) == [str(odd)]
    assert mounts.mounts_in(str(odd)) == [str(odd)]
    assert mounts.mounts_in(str(tmp_path / "a")) == []


def test_without_a_table_mounts_are_met_on_a_walk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mounts, "MOUNT_TABLE", str(tmp_path / "none"))
    assert mounts.mounts_in(str(tmp_path)) == []
    assert mounts.mounts_in(str(tmp_path / "nothing")) == []
    mount = tmp_path / "volume" / "deep" / "mount"
    mount.mkdir(parents=True)
    seen = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: os.fspath(path) == str(mount) or seen(path))
    assert mounts.mounts_in(str(tmp_path / "volume")) == [str(mount)]


VERBS: dict[str, Callable[[Archives], object]] = {
    "archive": lambda archives: archives.archive("ws1"),
    "delete": lambda archives: archives.delete("ws1"),
    "discard": lambda archives: archives.delete("ws1", discard=True),
    "purge": lambda archives: archives.purge("ws1"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_nothing_is_deleted_through_a_mount(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives = small(app, root)
        (root / "mount").mkdir()
        mount_at(monkeypatch, tmp_path, root / "mount")
        with pytest.raises(Conflict, match="mounted at"):
            VERBS[verb](archives)
        assert (root / "file").exists()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation, workspace.archive_key) == ("WARM", "NONE", None)
        with pytest.raises(Conflict, match="mounted at"):
            DirectoryVolume(str(root)).move_aside("op")


def test_what_is_mounted_at_the_last_moment_keeps_the_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives = small(app, root)

        def mount(name: str) -> None:
            if name == archiving.AFTER_ASIDE:
                op_id = archives.get("ws1").op_id
                mount_at(monkeypatch, tmp_path, tmp_path / ".analemma-volume" / f"trash-{op_id}" / "mount")

        monkeypatch.setattr(archiving, "hit", mount)
        with pytest.raises(Conflict, match="mounted at") as refused:
            archives.archive("ws1")
        assert refused.value.facts["kept"] is True
        assert (root / "file").read_text() == "precious"
        assert (archives.get("ws1").status, archives.get("ws1").operation) == ("WARM", "NONE")
        monkeypatch.undo()
        archives.archive("ws1")
        archives.restore("ws1")


def test_before_a_trash_is_deleted_its_mounts_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = DirectoryVolume(str(tmp_path / "volume"))
    (tmp_path / "volume").mkdir()
    with volume.lock():
        volume.claim("me", create=False)
        volume.move_aside("op")
        aside = volume.aside("op")
        assert aside is not None
        for folder in (aside, aside.replace("trash-", "doomed-")):
            mount_at(monkeypatch, tmp_path, Path(folder) / "mount")
            with pytest.raises(Conflict, match="mounted at"):
                volume.delete_aside("op")
        assert os.path.isdir(aside.replace("trash-", "doomed-"))


IN_A_NAMESPACE = """
import os, subprocess, sys
from pathlib import Path
from tests.stores import local
base = Path(sys.argv[1])
outside, volume = base / "outside", base / "data" / "volume"
outside.mkdir(); (outside / "foreign").write_text("not the volume's")
with local(base).open() as app:
    archives = app.archives
    archives.create("ws1", owner_id="ann", volume=volume)
    (volume / "inside").mkdir(); (volume / "file").write_text("1")
    subprocess.run(["mount", "--bind", outside, volume / "inside"], check=True)
    for verb in (lambda: archives.archive("ws1"), lambda: archives.delete("ws1", discard=True)):
        try:
            verb()
            print("deleted")
        except Exception as exc:
            print(type(exc).__name__, "mounted" in str(exc))
    print(sorted(os.listdir(outside)), (volume / "file").exists())
"""


def test_a_bind_mount_of_the_same_file_system_is_seen(tmp_path: Path) -> None:
    space = ["unshare", "-m", "--propagation", "private"]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    try:
        probe = [*space, "mount", "--bind", str(tmp_path / "a"), str(tmp_path / "b")]
        if subprocess.run(probe, capture_output=True, timeout=30).returncode:
            pytest.skip("nothing can be mounted here")
    except FileNotFoundError:
        pytest.skip("there is no unshare")
    command = [*space, sys.executable, "-c", IN_A_NAMESPACE, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["Conflict True", "Conflict True", "['foreign'] True"], done.stderr


def test_a_refused_create_leaves_nothing_in_what_is_anothers(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives = small(app, root)
        with pytest.raises(Conflict, match="lies inside"):
            archives.create("ws2", owner_id="ann", volume=root / "new" / "inner")
        assert os.listdir(root) == ["file"]
        unit = archives.archive("ws1")
        archives.restore("ws1")
        with pytest.raises(Conflict, match="lies inside"):
            archives.restore("ws1", root / "copy")
        assert os.listdir(root) == ["file"] and unit.files == 1


def test_a_volume_that_only_its_bookkeeping_tells_of_is_not_entered(tmp_path: Path) -> None:
    with Store(str(tmp_path / "one")).open() as app, Store(str(tmp_path / "two")).open() as other:
        root = tmp_path / "volume"
        small(app, root)
        with pytest.raises(Conflict, match="lies inside"):
            other.archives.create("ws2", owner_id="ann", volume=root / "inner")
        assert os.listdir(root) == ["file"]


def test_two_that_are_made_at_once_inside_each_other_are_not_both_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analemma.archives import archives as verbs

    with store.open() as app, store.open() as other:
        done: list[bool] = []

        def meanwhile(name: str) -> None:
            if not done:
                done.append(True)
                with pytest.raises(Conflict):
                    other.archives.create("inner", owner_id="ann", volume=tmp_path / "outer" / "inner")
                # As if its row had come at the same moment.
                row = other.archives._new_row("inner", "ann", tmp_path / "outer" / "inner", "PENDING", "INITIALIZING")
                other.archives._parts.catalog.add(other.default.id, row, lease_s=1)

        monkeypatch.setattr(verbs, "hit", meanwhile)
        with pytest.raises(Conflict, match="lies inside"):
            app.archives.create("outer", owner_id="ann", volume=tmp_path / "outer")
        assert [each.id for each in app.archives.list()] == ["inner"]
        assert not (tmp_path / ".analemma-outer").exists()


@pytest.mark.parametrize("verb", ["discard", "purge"])
def test_what_another_workspaces_volume_lies_in_is_not_removed(verb: str, store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "outer")
        # By another machine, which sees the same disk elsewhere.
        row = archives._new_row("ws2", "ann", tmp_path / "outer" / "inner", "WARM", "NONE")
        archives._parts.catalog.add(app.tenant("other").id, row, lease_s=0)
        with pytest.raises(Conflict, match="lies inside"):
            VERBS[verb](archives)
        assert (tmp_path / "outer" / "file").exists()
        assert (archives.get("ws1").status, archives.get("ws1").operation) == ("WARM", "NONE")


def test_the_place_of_an_archived_volume_is_taken_until_its_workspace_is_deleted(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives = small(app, root)
        archives.archive("ws1")
        shutil.rmtree(tmp_path / ".analemma-volume")  # As on another machine.
        for place in (root, root / "inner", tmp_path):
            with pytest.raises(Conflict):
                archives.create("ws2", owner_id="ann", volume=place)
        assert [each.id for each in archives.list()] == ["ws1"]
        assert not root.exists()
        archives.delete("ws1")
        archives.create("ws2", owner_id="ann", volume=root)


def make_deep(root: Path, levels: int) -> None:
    """Directories inside each other, with a file in each."""
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("folder", dir_fd=here)
        below = os.open("folder", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_a_volume_deeper_than_the_stack_can_be_removed(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        for verb in ("delete", "purge"):
            make_deep(tmp_path / verb, 1500)
            app.archives.create(verb, owner_id="ann", volume=tmp_path / verb)
        assert app.archives.delete("delete", discard=True).status == "DELETED"
        app.archives.purge("purge")
        assert sorted(os.listdir(tmp_path)) == ["store"]


def test_deleting_what_is_deep_takes_few_descriptors(tmp_path: Path) -> None:
    make_deep(tmp_path / "volume", 1500)
    delete = (
        "import resource, sys; from analemma.archives.deleting import delete_tree;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)); delete_tree(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", delete, tmp_path / "volume"], check=True, cwd=ROOT, timeout=60)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_sweep_left_of_something_deep_can_be_removed(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    try:
        for number in range(3):
            make_deep(volume / f".analemma-deep-{number}", 1500)
        delete_tree(str(volume))
        assert not volume.exists()
    finally:
        # What is left when this fails is deeper than pytest can remove.
        subprocess.run(["rm", "-rf", volume], check=True, timeout=60)


def test_a_sweep_does_not_meet_the_names_of_one_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "volume"
    real: Any = os.rename
    names: list[set[str]] = []

    def note(source: Any, target: Any, **more: Any) -> None:
        names[-1].add(target)
        real(source, target, **more)

    monkeypatch.setattr(os, "rename", note)
    for _ in range(2):
        names.append(set())
        make_deep(volume, 200)
        delete_tree(str(volume))
        assert not volume.exists()
    assert names[0] and names[1] and not names[0] & names[1]


def test_names_that_only_begin_alike_are_apart(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        for number, name in enumerate(("data", "data2", "dat", "da_a", "da%")):
            small(app, tmp_path / name, f"ws{number}")
        assert len(list(app.archives.list())) == 5


@pytest.mark.parametrize("where", [".", "store", "store/inner", "objects", "objects/inner"])
def test_the_store_is_no_place_for_a_volume(where: str, tmp_path: Path) -> None:
    with Store(str(tmp_path / "store"), f"file://{tmp_path}/objects").open() as app:
        with pytest.raises(Conflict, match="the store at"):
            app.archives.create("ws1", owner_id="ann", volume=tmp_path / where)
        assert list(app.archives.list()) == []


def test_what_lies_beside_a_database_file_is_not_the_store(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/store/catalog.db", str(tmp_path / "objects")).open() as app:
        small(app, tmp_path / "store" / "volume")
        with pytest.raises(Conflict, match="the store at"):
            app.archives.create("ws2", owner_id="ann", volume=tmp_path / "store")


def test_another_directory_at_the_place_is_not_the_volume(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "disk" / "volume"
    with store.open() as app:
        archives = small(app, root)
        archives.archive("ws1")
        archives.restore("ws1")
        (root / "newer").write_text("not archived yet")
        (tmp_path / "disk").rename(tmp_path / "unplugged")
        root.mkdir(parents=True)
        (root / "other").write_text("another's")
        for verb in VERBS.values():
            with pytest.raises(VolumeMissing, match="not here"):
                verb(archives)
            assert (archives.get("ws1").status, archives.get("ws1").operation) == ("WARM", "NONE")
        assert (root / "other").exists()
        (tmp_path / "disk").rename(tmp_path / "replaced")
        (tmp_path / "unplugged").rename(tmp_path / "disk")
        archives.archive("ws1")
        archives.restore("ws1")
        assert (root / "newer").exists()


@pytest.mark.parametrize("point", [removing.AFTER_ASIDE, removing.AFTER_VOLUME, removing.AFTER_OBJECTS])
@pytest.mark.parametrize("verb", ["discard", "purge"])
def test_what_comes_to_the_place_of_a_removed_volume_stays(
    verb: str, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (verb, point) == ("discard", removing.AFTER_OBJECTS):
        return

    def die(name: str) -> None:
        if name == point:
            raise Died

    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives = small(app, root)
        monkeypatch.setattr(removing, "hit", die)
        with pytest.raises(Died):
            VERBS[verb](archives)
        monkeypatch.undo()
        assert not root.exists()
        root.mkdir()
        (root / "new").write_text("another's")
        [outcome] = archives.reconcile()
        assert (outcome.status, outcome.error) == ("DELETED" if verb == "discard" else None, None)
        assert (root / "new").read_text() == "another's"
        assert not (tmp_path / ".analemma-volume").exists()


def test_a_volume_that_may_not_be_moved_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    volume = DirectoryVolume(str(tmp_path / "data" / "volume"))
    os.makedirs(volume.path)
    for each in (tmp_path, tmp_path / "data", tmp_path / "data" / "volume"):
        os.chmod(each, 0o777)
    for readonly in (volume.path, tmp_path / "data"):
        os.chmod(readonly, 0o555)
        os.seteuid(65534)
        try:
            with pytest.raises(Unavailable, match="may not write to"):
                volume.check_removable()
        finally:
            os.seteuid(0)
        os.chmod(readonly, 0o777)
    with local(tmp_path).open() as app:
        archives = small(app, tmp_path / "data" / "volume")
        os.chmod(volume.path, 0o555)
        called: list[str] = []

        def refuse(self: DirectoryVolume) -> None:
            called.append(self.path)
            raise Unavailable("this program may not write to it")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(DirectoryVolume, "check_removable", refuse)
            for verb in ("archive", "delete"):
                with pytest.raises(Unavailable):
                    VERBS[verb](archives)
        assert called == [volume.path] * 2
        assert archives.get("ws1").operation == "NONE"


def test_a_lock_that_is_taken_while_a_volume_is_released_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = DirectoryVolume(str(tmp_path / "volume"))
    real: Any = os.rmdir

    def late(path: Any, *arguments: Any, **more: Any) -> None:
        Path(path, "lock").write_text("")
        real(path, *arguments, **more)

    with volume.lock():
        volume.claim("me", create=True)
        monkeypatch.setattr(os, "rmdir", late)
        volume.release("me")
    assert os.listdir(tmp_path / ".analemma-volume") == ["lock"]


@pytest.mark.parametrize("recorded", ["ws1", "ws2"])
def test_a_lock_that_is_taken_while_a_deleted_workspace_is_forgotten_stays(
    recorded: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open() as app, contextlib.ExitStack() as another:
        for name in ("ws1", "ws2"):
            small(app, root, name).delete(name, discard=True)
        volume = DirectoryVolume(str(root))
        with volume.lock():
            # As if whoever deleted it had died before it was forgotten.
            volume.claim(app.archives._parts.volume_owner(recorded), create=False)
        real = DirectoryVolume.release
        released: list[str] = []

        def release(self: DirectoryVolume, owner: str) -> None:
            real(self, owner)
            released.append(owner)
            if owner == app.archives._parts.volume_owner(recorded):
                another.enter_context(volume.lock())

        monkeypatch.setattr(DirectoryVolume, "release", release)
        with pytest.raises(Conflict, match="somebody works on"):
            app.archives.create("ws3", owner_id="ann", volume=root)
        assert released == [app.archives._parts.volume_owner(recorded)]
        assert (tmp_path / ".analemma-volume" / "lock").exists()
        another.close()
        app.archives.create("ws3", owner_id="ann", volume=root)
