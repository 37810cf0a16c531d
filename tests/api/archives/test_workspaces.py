"""Workspaces: which verb is allowed when, whose they are, and who may work on one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from analemma.errors import Conflict, Expired, Invalid, NotFound, Unavailable
from analemma.testing import failpoints
from tests.api.archives.collections import unit_states
from tests.api.archives.volumes import look, object_keys
from tests.raw_rows import change, select
from tests.stores import Store, local


def small(app: App, root: Path, name: str = "ws1", *, owner: str = "ann") -> Archives:
    root.mkdir(parents=True, exist_ok=True)
    (root / "file").write_text("content")
    app.archives.create(name, owner_id=owner, volume=root)
    return app.archives


HOSTILE = ["", ".", "..", "a/b", "../x", "/abs", "a b", "ü", "x" * 129, ".hidden", "a\0b", "a\nb", "a\\b", "-x"]


def test_ids_that_could_become_something_else_in_a_key_are_refused(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        verbs: dict[str, Callable[[str], Any]] = {
            "create": lambda name: app.archives.create(name, owner_id="ann", volume=tmp_path / "volume"),
            "get": app.archives.get,
            "archive": app.archives.archive,
            "restore": app.archives.restore,
            "start": app.archives.start,
            "stop": app.archives.stop,
            "delete": app.archives.delete,
            "undelete": app.archives.undelete,
            "purge": app.archives.purge,
            "recover": app.archives.recover,
            "adopt": lambda name: app.archives.adopt(
                "ok", owner_id="ann", volume=tmp_path / "volume", op_id=name + "/"
            ),
        }
        taken: list[tuple[str, str]] = []
        for name in HOSTILE:
            for verb, call in verbs.items():
                try:
                    call(name)
                except Invalid:
                    continue
                except Exception as exc:
                    taken.append((verb, f"{name!r}: {exc!r}"))
                else:
                    taken.append((verb, repr(name)))
        assert taken == []
        assert list(app.archives.list(deleted=True)) == []
        assert not (tmp_path / "volume").exists()


def test_a_workspace_of_another_owner_or_tenant_is_not_found(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        verbs: list[Callable[[Archives], Any]] = [
            lambda archives: archives.get("ws1", owner_id="eve"),
            lambda archives: archives.archive("ws1", owner_id="eve"),
            lambda archives: archives.restore("ws1", owner_id="eve"),
            lambda archives: archives.restore("ws1", tmp_path / "copy", owner_id="eve"),
            lambda archives: archives.start("ws1", owner_id="eve"),
            lambda archives: archives.stop("ws1", owner_id="eve"),
            lambda archives: archives.delete("ws1", owner_id="eve"),
            lambda archives: archives.undelete("ws1", owner_id="eve"),
            lambda archives: archives.purge("ws1", owner_id="eve"),
            lambda archives: archives.recover("ws1", owner_id="eve"),
            lambda archives: archives.unit("ws1", owner_id="eve"),
        ]
        for verb in verbs:
            with pytest.raises(NotFound):
                verb(archives)
            with pytest.raises(NotFound):
                verb(app.tenant("other").archives)
        assert list(archives.list(owner_id="eve")) == []
        with pytest.raises(Invalid):
            list(archives.list(owner_id=""))
        assert [each.id for each in archives.list(owner_id="ann")] == ["ws1"]
        assert archives.get("ws1", owner_id="ann").status == "WARM"


def test_archives_of_tenants_lie_apart(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        for tenant in ("a", "b"):
            (tmp_path / tenant).mkdir()
            app.tenant(tenant).archives.create("ws1", owner_id="ann", volume=tmp_path / tenant)
            app.tenant(tenant).archives.archive("ws1")
        keys = object_keys(app)
        assert {key.split("/")[1] for key in keys} == {"a", "b"}
        app.tenant("a").archives.purge("ws1")
        assert object_keys(app) == [key for key in keys if key.startswith("tenants/b/")]


def test_list_pages_by_id_and_filters(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        names = sorted(f"ws-{number}" for number in range(105))
        app.archives.create(names[0], owner_id="ann", volume=tmp_path / "first")
        columns = "owner, status, operation, fence, lease_until, created_at, updated_at"
        for name in names[1:]:
            copy = f"SELECT tenant, ?, ?, {columns} FROM workspace WHERE id = ?"  # noqa: S608
            values = [name, str(tmp_path / name), names[0]]
            assert change(store, f"INSERT INTO workspace (tenant, id, volume, {columns}) {copy}", values) == 1
        assert [each.id for each in app.archives.list()] == names
        app.archives.delete("ws-7", discard=True)
        assert len(list(app.archives.list())) == 104
        assert len(list(app.archives.list(deleted=True))) == 105
        assert [each.id for each in app.archives.list(status="DELETED", deleted=True)] == ["ws-7"]


def test_a_deleted_workspace_leaves_its_place_to_others(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        archives.delete("ws1")
        with pytest.raises(Conflict, match="there is a workspace ws1"):
            archives.create("ws1", owner_id="ann", volume=tmp_path / "volume")
        assert not (tmp_path / ".analemma-volume").exists()
        assert archives.create("ws2", owner_id="ann", volume=tmp_path / "volume").status == "WARM"


def test_whoever_dies_before_a_deleted_place_is_given_back_keeps_nobody_from_it(store: Store, tmp_path: Path) -> None:
    beside = tmp_path / ".analemma-volume"
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        kept = {path.name: path.read_bytes() for path in beside.iterdir()}
        archives.delete("ws1")
        assert not beside.exists()
        # As if it had died when the row said so already.
        beside.mkdir()
        for name, data in kept.items():
            (beside / name).write_bytes(data)
        assert archives.get("ws1").status == "DELETED" and archives.reconcile() == ()
        assert archives.create("ws2", owner_id="ann", volume=tmp_path / "volume").status == "WARM"
        # It is theirs now, and what was there before comes back nowhere else.
        assert archives.undelete("ws1").status == "COLD"
        with pytest.raises(Conflict, match="belongs to workspace ws2"):
            archives.restore("ws1")
        archives.restore("ws1", tmp_path / "copy")
        assert (tmp_path / "copy" / "file").read_text() == "content"


def test_an_id_or_a_volume_is_used_once(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        with pytest.raises(Conflict, match="there is a workspace ws1"):
            archives.create("ws1", owner_id="ann", volume=tmp_path / "other")
        with pytest.raises(Conflict, match="belongs to workspace ws1"):
            archives.create("ws2", owner_id="ann", volume=tmp_path / "volume")
        with pytest.raises(Conflict, match="belongs to workspace ws1"):
            app.tenant("other").archives.create("ws1", owner_id="ann", volume=tmp_path / "volume")
        with pytest.raises(Conflict, match="lies inside"):
            archives.create("ws2", owner_id="ann", volume=tmp_path / "volume" / "inner")
        (tmp_path / "link").symlink_to("volume")
        with pytest.raises(Conflict, match="belongs to workspace ws1"):
            archives.create("ws2", owner_id="ann", volume=tmp_path / "link")
        assert [each.id for each in archives.list()] == ["ws1"]
        archives.create("ws2", owner_id="ann", volume=tmp_path / "other")
        archives.create("ws3", owner_id="ann", volume=tmp_path / "outer" / "inner")
        for each in (archives, app.tenant("other").archives):
            with pytest.raises(Conflict, match="lies inside"):
                each.create("ws4", owner_id="ann", volume=tmp_path / "outer")
        # What another store's volume lies in is refused when it is read.
        archives.create("ws5", owner_id="ann", volume=tmp_path / "shared")
        (tmp_path / "shared" / ".analemma-inner").mkdir()
        with pytest.raises(Conflict, match="another workspace"):
            archives.archive("ws5")
        with pytest.raises(Conflict, match="another workspace"):
            archives.delete("ws5", discard=True)
        assert archives.get("ws5").status == "WARM"
        assert (tmp_path / "shared" / ".analemma-inner").exists()


def test_a_file_is_no_volume(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with local(tmp_path).open() as app:
        for volume in (tmp_path / "file", "/", "", "a\0b", tmp_path / ".analemma-x"):
            with pytest.raises(Invalid):
                app.archives.create("ws1", owner_id="ann", volume=volume)
        assert list(app.archives.list()) == []


VERBS: dict[str, Callable[[Archives], Any]] = {
    "archive": lambda archives: archives.archive("ws1"),
    "restore": lambda archives: archives.restore("ws1"),
    "start": lambda archives: archives.start("ws1"),
    "stop": lambda archives: archives.stop("ws1"),
    "delete": lambda archives: archives.delete("ws1"),
    "undelete": lambda archives: archives.undelete("ws1"),
}
LEADS_TO: dict[tuple[str, str], str] = {
    ("WARM", "archive"): "COLD",
    ("COLD", "archive"): "COLD",
    ("COLD", "restore"): "WARM",
    ("COLD", "start"): "RUNNING",
    ("WARM", "start"): "RUNNING",
    ("RUNNING", "stop"): "WARM",
    ("WARM", "delete"): "DELETED",
    ("COLD", "delete"): "DELETED",
    ("DELETED", "undelete"): "COLD",
}


@pytest.mark.parametrize("status", ["WARM", "COLD", "RUNNING", "DELETED"])
def test_each_verb_is_allowed_in_its_statuses_only(status: str, store: Store, tmp_path: Path) -> None:
    way = {"WARM": [], "COLD": ["archive"], "RUNNING": ["start"], "DELETED": ["delete"]}[status]
    for verb, call in VERBS.items():
        with store.open(tenant=verb) as app:
            volume = tmp_path / verb
            archives = small(app, volume)
            for step in way:
                VERBS[step](archives)
            before = archives.get("ws1")
            assert before.status == status
            expected = LEADS_TO.get((status, verb))
            if expected is None:
                with pytest.raises(Conflict):
                    call(archives)
                assert archives.get("ws1") == before
            else:
                call(archives)
                after = archives.get("ws1")
                assert (verb, after.status, after.operation) == (verb, expected, "NONE")
            assert (volume / "file").exists() == (archives.get("ws1").status in ("WARM", "RUNNING"))


def test_hooks_run_around_running(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    def note(workspace: Any) -> None:
        seen.append((workspace.status, workspace.operation))

    def fail(workspace: Any) -> None:
        raise RuntimeError("no port is free")

    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        archives.on_start(note)
        archives.on_stop(note)
        archives.start("ws1")
        archives.stop("ws1")
        assert seen == [("WARM", "STARTING"), ("RUNNING", "STOPPING")]
        archives.on_start(fail)
        with pytest.raises(RuntimeError):
            archives.start("ws1")
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("WARM", "NONE")
        assert workspace.error == "RuntimeError: no port is free"


def test_delete_archives_first_and_undelete_brings_it_back(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives = small(app, root)
        before = look(root)
        assert archives.delete("ws1").deleted_at is not None
        assert not root.exists()
        assert not (tmp_path / ".analemma-volume").exists()
        assert list(archives.list()) == []
        archives.undelete("ws1")
        archives.restore("ws1")
        assert look(root) == before


def test_delete_with_discard_keeps_nothing_new(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives = small(app, root)
        archives.delete("ws1", discard=True)
        assert not root.exists()
        assert object_keys(app) == []
        with pytest.raises(Expired):
            archives.undelete("ws1")
        archives = small(app, tmp_path / "second", "ws2")
        archives.archive("ws2")
        archives.restore("ws2")
        (tmp_path / "second" / "file").write_text("never archived")
        archives.delete("ws2", discard=True)
        archives.undelete("ws2")
        archives.restore("ws2")
        assert (tmp_path / "second" / "file").read_text() == "content"


def test_the_collector_takes_nothing_that_a_workspace_has_or_is_making(store: Store, tmp_path: Path) -> None:
    with store.open(gc_object_delay_s=0) as app, store.open(gc_object_delay_s=0) as other:
        archives = small(app, tmp_path / "volume")
        first = archives.archive("ws1").op_id
        archives.restore("ws1")

        def collect() -> None:
            for _ in range(3):
                assert other.archives.gc_run(0).claimed == 0

        collect()
        with failpoints.call("archive.after_meta", collect):
            second = archives.archive("ws1").op_id
        # Replaced, it is the collector's.
        assert [other.archives.gc_run(0).claimed for _ in range(2)] == [0, 1]
        assert unit_states(store, "ws1") == {first: "claimed", second: "kept"}
        archives.restore("ws1")


def test_a_writer_whose_unit_was_claimed_keeps_its_volume(store: Store, tmp_path: Path) -> None:
    """As if the protection had failed: the archive's own state still stops whoever makes it."""
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        claim = lambda: change(store, "UPDATE archive_unit SET state = 'claimed', claimed_at = 1")  # noqa: E731
        with failpoints.call("archive.after_meta", claim), pytest.raises(Conflict, match="collected"):
            archives.archive("ws1")
        assert archives.get("ws1").status == "WARM"
        assert (tmp_path / "volume" / "file").exists()


def test_purge_removes_everything_of_one_workspace_and_nothing_else(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        small(app, tmp_path / "other", "ws10")
        archives.archive("ws10")
        archives.archive("ws1")
        archives.restore("ws1")
        archives.archive("ws1")
        assert app.objects is not None
        foreign = ["tenants/default/archives/ws1/notes.txt", "tenants/default/archives/ws1/abc/other.bin"]
        for key in foreign:
            app.objects.put(key, b"not ours")
        others = [key for key in object_keys(app) if "/ws10/" in key]
        archives.purge("ws1")
        assert sorted(object_keys(app)) == sorted(others + foreign)
        with pytest.raises(NotFound):
            archives.get("ws1")
        assert set(unit_states(store, "ws1").values()) == {"claimed"}
        archives.restore("ws10")
        archives.purge("ws10")
        assert not (tmp_path / "other").exists()
        small(app, tmp_path / "volume")


def test_files_that_appeared_at_the_place_of_a_cold_volume_are_nobodys_to_remove(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives = small(app, root)
        archives.archive("ws1")
        root.mkdir()
        (root / "mine").write_text("not the workspace's")
        with pytest.raises(Conflict, match="already"):
            archives.restore("ws1")
        assert archives.get("ws1").status == "COLD"
        archives.delete("ws1")
        archives.purge("ws1")
        assert (root / "mine").read_text() == "not the workspace's"


def test_one_operation_at_a_time(store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:
        archives = small(app, tmp_path / "volume")
        refused: list[Exception] = []

        def meanwhile(progress: object) -> None:
            for verb in VERBS.values():
                try:
                    verb(other.archives)
                except Conflict as exc:
                    refused.append(exc)

        archives.archive("ws1", progress=meanwhile)
        assert len(refused) >= len(VERBS) and len(refused) % len(VERBS) == 0
        assert archives.get("ws1").status == "COLD"


def test_of_many_who_begin_at_once_one_succeeds(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        archives.start("ws1")
        outcomes: list[str] = []
        barrier = threading.Barrier(4)

        def stop() -> None:
            barrier.wait()
            try:
                archives.stop("ws1")
                outcomes.append("stopped")
            except Conflict:
                outcomes.append("refused")

        threads = [threading.Thread(target=stop) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == ["refused", "refused", "refused", "stopped"]
        assert archives.get("ws1").status == "WARM"


def test_a_worker_whose_operation_was_taken_over_writes_nothing_more(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives = small(app, tmp_path / "volume")
        taken: list[bool] = []

        def take(progress: object) -> None:
            if not taken:
                taken.append(True)
                change(store, "UPDATE workspace SET fence = fence + 1")

        with pytest.raises(Conflict):
            archives.archive("ws1", progress=take)
        workspace = archives.get("ws1")
        # It is for whoever took it over to end.
        assert (workspace.status, workspace.operation, workspace.archive_key) == ("WARM", "ARCHIVING", None)
        assert (tmp_path / "volume" / "file").exists()


def test_a_live_worker_that_was_silent_is_not_overtaken(store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:
        archives = small(app, tmp_path / "volume")
        refused: list[str] = []

        def overtake(progress: object) -> None:
            change(store, "UPDATE workspace SET lease_until = 0")
            try:
                other.archives.recover("ws1")
            except Conflict as exc:
                refused.append(str(exc))

        archives.archive("ws1", progress=overtake)
        assert refused and all("somebody works on the volume" in each for each in refused)
        assert archives.get("ws1").status == "COLD"


def test_heartbeats_keep_the_lease(store: Store, tmp_path: Path) -> None:
    with store.open(archive_lease_s=0.3) as app:
        archives = small(app, tmp_path / "volume")
        seen: set[int] = set()

        def wait(workspace: Any) -> None:
            end = time.monotonic() + 30
            while len(seen) < 4 and time.monotonic() < end:
                ((until,),) = select(store, "SELECT lease_until FROM workspace")
                seen.add(until)
                time.sleep(0.02)

        archives.on_start(wait)
        assert archives.start("ws1").status == "RUNNING"
        assert len(seen) == 4


def test_where_the_volume_is_not_nothing_is_begun(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "disk" / "volume"
    with store.open() as app:
        archives = small(app, root)
        (tmp_path / "disk").rename(tmp_path / "unplugged")
        before = archives.get("ws1")
        verbs: list[Callable[[], Any]] = [
            lambda: archives.archive("ws1"),
            lambda: archives.delete("ws1"),
        ]
        for verb in verbs:
            with pytest.raises(Unavailable, match="not here"):
                verb()
        assert archives.get("ws1") == before
        assert not (tmp_path / "disk").exists()
        (tmp_path / "unplugged").rename(tmp_path / "disk")
        archives.archive("ws1")
        # What is cold needs no volume: it can be deleted and purged from anywhere.
        (tmp_path / "disk").rename(tmp_path / "unplugged")
        archives.delete("ws1")
        archives.undelete("ws1")
        archives.purge("ws1")
        assert object_keys(app) == []
