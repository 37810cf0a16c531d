"""Where volumes may be, and what is never deleted with one: mounts, other volumes, the store, and what came later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from analemma.errors import Conflict, Unavailable
from analemma.testing import failpoints
from tests.raw_rows import change
from tests.stores import Store, local

ROOT = Path(__file__).parents[3]


class Died(BaseException):
    pass


def small(app: App, root: Path, name: str = "ws1") -> Archives:
    root.mkdir(parents=True, exist_ok=True)
    (root / "file").write_text("precious")
    app.archives.create(name, owner_id="ann", volume=root)
    return app.archives


VERBS: dict[str, Callable[[Archives], object]] = {
    "archive": lambda archives: archives.archive("ws1"),
    "delete": lambda archives: archives.delete("ws1"),
    "discard": lambda archives: archives.delete("ws1", discard=True),
    "purge": lambda archives: archives.purge("ws1"),
}


IN_A_NAMESPACE = """
import os, subprocess, sys
from pathlib import Path
from analemma.testing import failpoints
from tests.stores import local
base = Path(sys.argv[1])
outside, volume = base / "outside", base / "data" / "volume"
outside.mkdir(); (outside / "foreign").write_text("not the volume's")

def mount(place):
    subprocess.run(["mount", "--bind", outside, place], check=True)

with local(base).open() as app:
    archives = app.archives
    archives.create("ws1", owner_id="ann", volume=volume)
    (volume / "in side").mkdir(); (volume / "file").write_text("1")

    def attempt(verb):
        try:
            verb()
            print("deleted")
        except Exception as exc:
            print(type(exc).__name__, "mounted" in str(exc))

    mount(volume / "in side")
    attempt(lambda: archives.archive("ws1"))
    attempt(lambda: archives.delete("ws1"))
    attempt(lambda: archives.delete("ws1", discard=True))
    attempt(lambda: archives.purge("ws1"))
    print(sorted(os.listdir(outside)), (volume / "file").exists(), archives.get("ws1").status)
    subprocess.run(["umount", volume / "in side"], check=True)
    # At the last moment.
    aside = lambda: mount(next((base / "data" / ".analemma-volume").glob("trash-*")) / "in side")
    with failpoints.call("archive.after_aside", aside):
        attempt(lambda: archives.archive("ws1"))
    print(sorted(os.listdir(outside)), (volume / "file").exists(), archives.get("ws1").status)
"""


def test_nothing_is_deleted_through_a_mount(tmp_path: Path) -> None:
    """Also not through one of the same file system, or one that comes when the volume was moved aside."""
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
    kept = "['foreign'] True WARM"
    assert done.stdout.splitlines() == [*["Conflict True"] * 4, kept, "Conflict True", kept], done.stderr


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


def add_row(store: Store, name: str, volume: Path, status: str, operation: str, *, tenant: str = "default") -> None:
    """As if another machine, which sees the same disk elsewhere, had a workspace there."""
    sql = (
        "INSERT INTO workspace (tenant, id, owner, volume, status, operation, fence, lease_until, created_at,"
        " updated_at) SELECT id, ?, 'ann', ?, ?, ?, 1, 0, 0, 0 FROM tenant WHERE name = ?"
    )
    assert change(store, sql, [name, str(volume), status, operation, tenant]) == 1


def test_two_that_are_made_at_once_inside_each_other_are_not_both_made(store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:

        def meanwhile() -> None:
            with pytest.raises(Conflict):
                other.archives.create("inner", owner_id="ann", volume=tmp_path / "outer" / "inner")
            # As if its row had come at the same moment.
            add_row(store, "inner", tmp_path / "outer" / "inner", "PENDING", "INITIALIZING")

        with failpoints.call("workspace.after_begin", meanwhile), pytest.raises(Conflict, match="lies inside"):
            app.archives.create("outer", owner_id="ann", volume=tmp_path / "outer")
        assert [each.id for each in app.archives.list()] == ["inner"]
        assert not (tmp_path / ".analemma-outer").exists()


@pytest.mark.parametrize("verb", ["discard", "purge"])
def test_what_another_workspaces_volume_lies_in_is_not_removed(verb: str, store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "outer")
        app.tenant("other").kernel.list_workflows(owner_id="ann")
        add_row(store, "ws2", tmp_path / "outer" / "inner", "WARM", "NONE", tenant="other")
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


def make_deep(root: Path, levels: int, *, files: bool = True) -> None:
    """Directories inside each other, with a file in each unless told otherwise."""
    root.mkdir()
    here = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        if files:
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


DELETE_WITH_FEW = """
import resource, sys
from pathlib import Path
from tests.stores import local
with local(Path(sys.argv[1])).open() as app:
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
    app.archives.delete("ws1", discard=True)
"""


def test_deleting_what_is_deep_takes_few_descriptors(tmp_path: Path) -> None:
    make_deep(tmp_path / "volume", 1500)
    with local(tmp_path).open() as app:
        app.archives.create("ws1", owner_id="ann", volume=tmp_path / "volume")
    subprocess.run([sys.executable, "-c", DELETE_WITH_FEW, tmp_path], check=True, cwd=ROOT, timeout=60)
    assert os.listdir(tmp_path) == ["store"]


KILLED_WHILE_DELETING = """
import os, signal, sys, threading
from pathlib import Path
from tests.stores import local
rename, together = os.rename, threading.Barrier(2, timeout=50)

def die_in_the_middle(source, target, **more):
    # What is too deep is moved up: here by two threads at a time, before either goes on.
    if "src_dir_fd" in more:
        together.wait()
        rename(source, target, **more)
        together.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target, **more)

with local(Path(sys.argv[1])).open() as app:
    os.rename = die_in_the_middle
    app.archives.delete("ws1", discard=True)
"""


def test_what_a_killed_deletion_left_of_something_deep_is_deleted_by_the_next(tmp_path: Path) -> None:
    """Guard: whoever moves up what is too deep gives it a name that nobody before him gave."""
    root, beside = tmp_path / "volume", tmp_path / ".analemma-volume"
    root.mkdir()
    for number in range(4):
        make_deep(root / f"branch-{number}", 1200, files=False)
    try:
        with local(tmp_path).open() as app:
            app.archives.create("ws1", owner_id="ann", volume=root)
        died = subprocess.run([sys.executable, "-c", KILLED_WHILE_DELETING, tmp_path], cwd=ROOT, timeout=60)
        assert died.returncode == -signal.SIGKILL
        left = os.listdir(beside / "doomed-removed")
        assert len([name for name in left if name.startswith(".analemma-deep-")]) > 1, left
        with local(tmp_path).open() as app:
            assert app.archives.recover("ws1").status == "DELETED"
        assert os.listdir(tmp_path) == ["store"]
    finally:
        # What is left when this fails is deeper than pytest can remove.
        subprocess.run(["rm", "-rf", beside], check=True, timeout=60)


def test_no_two_deletions_give_the_same_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[set[str]] = []
    rename: Any = os.rename

    def note(source: Any, target: Any, **more: Any) -> None:
        if "src_dir_fd" in more:
            names[-1].add(target)
        rename(source, target, **more)

    with local(tmp_path).open() as app:
        for number in range(2):
            make_deep(tmp_path / "volume", 200)
            app.archives.create(f"ws{number}", owner_id="ann", volume=tmp_path / "volume")
            names.append(set())
            with monkeypatch.context() as patched:
                patched.setattr(os, "rename", note)
                app.archives.delete(f"ws{number}", discard=True)
    assert names[0] and names[1] and not names[0] & names[1]


def test_a_volume_is_deleted_with_all_that_is_in_it_and_nothing_that_it_names(tmp_path: Path) -> None:
    root, outside = tmp_path / "volume", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    for number in range(300):
        folder = root / f"folder-{number % 7}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"file-{number}").write_text("x")
    (root / "link").symlink_to(outside, target_is_directory=True)
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    os.link(outside / "kept", root / "other-name")
    (root / "folder-2").chmod(0o500)
    (root / "folder-3").chmod(0)
    with local(tmp_path).open() as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        before = len(os.listdir("/proc/self/fd"))
        app.archives.delete("ws1", discard=True)
        assert len(os.listdir("/proc/self/fd")) <= before
    assert sorted(os.listdir(tmp_path)) == ["outside", "store"]
    assert (outside / "kept").read_text() == "kept"


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
            with pytest.raises(Unavailable, match="not here"):
                verb(archives)
            assert (archives.get("ws1").status, archives.get("ws1").operation) == ("WARM", "NONE")
        assert (root / "other").exists()
        (tmp_path / "disk").rename(tmp_path / "replaced")
        (tmp_path / "unplugged").rename(tmp_path / "disk")
        archives.archive("ws1")
        archives.restore("ws1")
        assert (root / "newer").exists()


@pytest.mark.parametrize(
    ("verb", "point"),
    [
        ("discard", "remove.after_aside"),
        ("discard", "remove.after_volume"),
        ("purge", "remove.after_aside"),
        ("purge", "remove.after_volume"),
        ("purge", "remove.after_objects"),
    ],
)
def test_what_comes_to_the_place_of_a_removed_volume_stays(verb: str, point: str, tmp_path: Path) -> None:
    def die() -> None:
        raise Died

    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives = small(app, root)
        with failpoints.call(point, die), pytest.raises(Died):
            VERBS[verb](archives)
        assert not root.exists()
        root.mkdir()
        (root / "new").write_text("another's")
        change(local(tmp_path), "UPDATE workspace SET lease_until = 0")
        [outcome] = archives.reconcile()
        assert (outcome.status, outcome.error) == ("DELETED" if verb == "discard" else None, None)
        assert (root / "new").read_text() == "another's"
        assert not (tmp_path / ".analemma-volume").exists()


def test_a_volume_that_may_not_be_moved_is_refused_before_anything_is_begun() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    # Not where tests usually are: others may not come there.
    with tempfile.TemporaryDirectory(dir="/tmp") as made, local(Path(made)).open() as app:
        data = Path(made, "data")
        volume = data / "volume"
        archives = small(app, volume)
        for path in (Path(made), *Path(made).rglob("*")):
            os.chmod(path, 0o777)
        for readonly in (volume, data):
            os.chmod(readonly, 0o555)
            os.seteuid(65534)
            try:
                for verb in ("archive", "delete"):
                    with pytest.raises(Unavailable, match="may not write to"):
                        VERBS[verb](archives)
            finally:
                os.seteuid(0)
            os.chmod(readonly, 0o777)
            assert (archives.get("ws1").status, archives.get("ws1").operation) == ("WARM", "NONE")


def test_a_lock_that_is_taken_while_a_volume_is_released_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = tmp_path / ".analemma-volume"
    real: Any = os.rmdir

    def late(path: Any, *arguments: Any, **more: Any) -> None:
        if os.path.basename(os.fspath(path)) == beside.name:
            (beside / "lock").write_text("")
        real(path, *arguments, **more)

    with local(tmp_path).open() as app:
        archives = small(app, tmp_path / "volume")
        with monkeypatch.context() as patched:
            patched.setattr(os, "rmdir", late)
            archives.delete("ws1", discard=True)
        assert os.listdir(beside) == ["lock"]


def locked(beside: Path) -> int:
    """Hold the lock of a volume as another process does."""
    beside.mkdir(exist_ok=True)
    file = os.open(beside / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def left_by_the_dead(archives: Archives, root: Path, name: str) -> None:
    """Delete a workspace as somebody does who dies before its place is given back."""
    beside = root.parent / f".analemma-{root.name}"
    kept = {path.name: path.read_bytes() for path in beside.iterdir()}
    archives.delete(name, discard=True)
    beside.mkdir()
    for each, data in kept.items():
        (beside / each).write_bytes(data)


@pytest.mark.parametrize("recorded", ["ws1", "ws2"])
def test_a_lock_that_is_taken_while_a_deleted_workspace_is_forgotten_stays(
    recorded: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: of the deleted workspaces that were at a place it is given back for the one whose it still is, and with
    it the lock: whoever has that next is not disturbed."""
    root, beside = tmp_path / "volume", tmp_path / ".analemma-volume"
    rmdir: Any = os.rmdir
    others: list[int] = []

    def be_quick(path: Any, *arguments: Any, **more: Any) -> None:
        rmdir(path, *arguments, **more)
        if os.fspath(path) == str(beside) and not others:
            others.append(locked(beside))

    with store.open() as app:
        archives = app.archives
        # The list of the deleted goes by name, so there is one before or one behind it.
        for name in sorted(("ws1", "ws2"), key=lambda each: each == recorded):
            small(app, root, name)
            if name == recorded:
                left_by_the_dead(archives, root, name)
            else:
                archives.delete(name, discard=True)
        with monkeypatch.context() as patched:
            patched.setattr(os, "rmdir", be_quick)
            with pytest.raises(Conflict, match="somebody works on"):
                archives.create("ws3", owner_id="ann", volume=root)
        (other,) = others
        assert os.path.samestat(os.fstat(other), os.stat(beside / "lock"))
        os.close(other)
        assert archives.create("ws3", owner_id="ann", volume=root).status == "WARM"


def test_the_place_of_a_deleted_workspace_is_not_given_back_while_somebody_works_on_it(
    store: Store, tmp_path: Path
) -> None:
    root, beside = tmp_path / "volume", tmp_path / ".analemma-volume"
    with store.open() as app, contextlib.ExitStack() as another:
        archives = small(app, root)
        left_by_the_dead(archives, root, "ws1")
        another.callback(os.close, locked(beside))
        before = {path.name: path.read_bytes() for path in beside.iterdir()}
        with pytest.raises(Conflict, match="somebody works on"):
            archives.create("ws2", owner_id="ann", volume=root)
        assert {path.name: path.read_bytes() for path in beside.iterdir()} == before
        another.close()
        assert archives.create("ws2", owner_id="ann", volume=root).status == "WARM"
