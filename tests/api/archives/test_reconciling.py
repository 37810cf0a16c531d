"""What others left half done: finished uploads are reused, damaged ones are not, nothing is removed on suspicion."""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from analemma import App
from analemma.errors import Conflict, DataLost, Unavailable
from analemma.testing import failpoints
from tests.api.archives.volumes import look, object_keys, workspace_of
from tests.raw_rows import change
from tests.stores import Store, local


class Died(BaseException):
    pass


def die() -> None:
    raise Died


def lose_the_disk() -> None:
    raise OSError("the disk is gone")


def interrupt(
    store: Store,
    operation: str,
    *,
    intent: str | None = None,
    status: str | None = None,
    op_id: str | None = None,
    workspace: str = "ws1",
) -> None:
    """As if a worker had begun this and died."""
    sql = (
        "UPDATE workspace SET operation = ?, intent = ?, status = coalesce(?, status), op_id = coalesce(?, op_id),"
        " fence = fence + 1, lease_until = 0 WHERE id = ?"
    )
    assert change(store, sql, [operation, intent, status, op_id, workspace]) == 1


def begin_unit(store: Store, op_id: str) -> None:
    """As if that operation had begun an archive."""
    sql = (
        "INSERT INTO archive_unit (tenant, workspace, op_id, state, created_at)"
        " SELECT tenant, id, ?, 'writing', 1 FROM workspace"
    )
    assert change(store, sql, [op_id]) == 1


def finish_otherwise(
    store: Store, app: App, damage: Callable[[bytes], bytes] = lambda data: data
) -> Callable[[], None]:
    """What finishes another attempt of the operation that is under way, as a worker would that was taken for dead. What
    it says of the volume comes from an attempt that nothing came of."""
    with failpoints.call("archive.after_meta", die), pytest.raises(Died):
        app.archives.archive("ws1")
    assert app.objects is not None
    [key] = [key for key in object_keys(app) if key.endswith(".meta")]
    told = orjson.loads(app.objects.get(key))
    for each in object_keys(app):
        app.objects.delete(each)
    change(store, "UPDATE workspace SET operation = 'NONE', op_id = NULL, lease_until = 0, holder = NULL")

    def finish() -> None:
        assert app.objects is not None
        [key] = [key for key in object_keys(app) if key.endswith(".tar.zst")]
        folder, name = key.rsplit("/", 1)
        other = "home-00000000000000ff.tar.zst"
        assert name != other
        data = app.objects.get(key)
        app.objects.put(f"{folder}/{other}", damage(data))
        facts = {"op_id": folder.rsplit("/", 1)[1], "data": other, "size": len(data)}
        meta = {**told, **facts, "sha256": hashlib.sha256(data).hexdigest()}
        app.objects.put(f"{folder}/home.meta", orjson.dumps(meta))

    return finish


def test_of_two_attempts_one_marker_counts_and_names_its_own_data(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        with failpoints.call("archive.after_verify", finish_otherwise(store, app)):
            unit = archives.archive("ws1")
        assert app.objects is not None
        assert orjson.loads(app.objects.get(unit.key))["data"] == "home-00000000000000ff.tar.zst"
        # The data of the attempt that lost may go at any time.
        for key in object_keys(app):
            if key.endswith(".tar.zst") and "00000000000000ff" not in key:
                app.objects.delete(key)
        archives.restore("ws1")
        assert look(root) == before


def test_a_damaged_attempt_of_another_worker_is_not_adopted(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        finish = finish_otherwise(store, app, lambda data: data[:-1])
        with failpoints.call("archive.after_verify", finish), pytest.raises(Conflict, match="damaged"):
            archives.archive("ws1")
        assert (root / "zero").exists()
        assert archives.get("ws1").status == "WARM"
        archives.archive("ws1")
        archives.restore("ws1")


def test_a_finished_upload_of_a_volume_that_has_changed_since_is_not_used(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        with failpoints.call("archive.after_meta", die), pytest.raises(Died):
            archives.archive("ws1")
        [meta] = [key for key in object_keys(app) if key.endswith(".meta")]
        op_id = meta.split("/")[-2]
        interrupt(store, "ARCHIVING", op_id=op_id)
        (root / "zero").write_text("written since")
        [outcome] = archives.reconcile()
        assert outcome.status == "WARM" and outcome.error is not None and "changed" in outcome.error
        assert (root / "zero").read_text() == "written since"
        assert archives.get("ws1").archive_key is None


@pytest.mark.parametrize("in_its_place", [False, True])
def test_what_waits_for_a_volume_that_is_not_here_goes_on_when_it_is_back(
    in_its_place: bool, store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "disk" / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")
        archives.restore("ws1")
        (root / "zero").write_text("newer than the archive")
        before = look(root)
        begin_unit(store, "a" * 32)
        interrupt(store, "ARCHIVING", op_id="a" * 32)
        (tmp_path / "disk").rename(tmp_path / "unplugged")
        if in_its_place:
            root.mkdir(parents=True)
        [outcome] = archives.reconcile()
        assert outcome.status == "WARM" and "not here" in (outcome.error or "")
        with pytest.raises(Unavailable, match="not here"):
            archives.recover("ws1")
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("WARM", "ARCHIVING")
        if in_its_place:
            shutil.rmtree(tmp_path / "disk")
        (tmp_path / "unplugged").rename(tmp_path / "disk")
        assert archives.recover("ws1").status == "COLD"
        archives.restore("ws1")
        assert look(root) == before


def test_a_volume_is_given_up_only_by_whoever_says_so(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        archives.restore("ws1")
        shutil.rmtree(root)
        interrupt(store, "STARTING", intent="hook")
        assert [each.status for each in archives.reconcile()] == ["ERROR"]
        with pytest.raises(Unavailable, match="not here"):
            archives.recover("ws1")
        assert archives.get("ws1").status == "ERROR"
        assert archives.recover("ws1", give_up_volume=True).status == "COLD"
        archives.restore("ws1")
        assert look(root) == before


def test_an_empty_volume_that_is_there_is_not_exchanged_for_an_archive(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")
        archives.restore("ws1")
        for each in sorted(root.iterdir()):
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        interrupt(store, "STARTING", intent="hook")
        archives.reconcile()
        assert archives.recover("ws1").status == "WARM"


def test_a_workspace_with_neither_volume_nor_archive_says_so(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        shutil.rmtree(root)
        interrupt(store, "ARCHIVING", op_id="a" * 32)
        archives.reconcile()
        with pytest.raises(DataLost, match="neither a volume nor an archive"):
            archives.recover("ws1", give_up_volume=True)
        assert archives.get("ws1").status == "ERROR"
        archives.delete("ws1", discard=True)


def test_an_interrupted_start_is_finished_with_its_hook_or_not_at_all(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    started: list[Any] = []
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        interrupt(store, "STARTING")
        archives.reconcile()
        assert archives.get("ws1").status == "RUNNING"
        archives.stop("ws1")
        interrupt(store, "STARTING", intent="hook")
        [outcome] = archives.reconcile()
        assert outcome.status == "ERROR" and "hook" in (outcome.error or "")
        assert archives.recover("ws1").status == "WARM"
        interrupt(store, "STARTING", intent="hook")
        archives.on_start(started.append)
        archives.reconcile()
        assert archives.get("ws1").status == "RUNNING" and len(started) == 1


def test_what_is_being_restored_is_not_archived_already(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        kept = archives.archive("ws1")
        assert archives.archive("ws1") == kept
        interrupt(store, "RESTORING")
        with pytest.raises(Conflict, match="RESTORING"):
            archives.archive("ws1")
        assert archives.recover("ws1").status == "WARM"


def test_a_hook_that_fails_keeps_no_other_workspace_from_being_finished(store: Store, tmp_path: Path) -> None:
    def fail(workspace: Any) -> None:
        if workspace.id == "ws1":
            raise ZeroDivisionError("its own")

    with store.open() as app:
        for name in ("ws1", "ws2"):
            app.archives.create(name, owner_id="ann", volume=tmp_path / name)
            interrupt(store, "STARTING", intent="hook", workspace=name)
        app.archives.on_start(fail)
        failed, finished = app.archives.reconcile()
        assert (failed.status, failed.error) == ("WARM", "ZeroDivisionError: its own")
        assert (finished.status, finished.error) == ("RUNNING", None)


def test_an_interrupted_recovery_can_be_repeated(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        interrupt(store, "RESTORING", status="ERROR")
        [outcome] = archives.reconcile()
        assert outcome.status == "ERROR"
        assert archives.recover("ws1").status == "WARM"


def test_an_interrupted_create_whose_volume_is_anothers_by_now_is_an_error(tmp_path: Path) -> None:
    store = local(tmp_path)
    with store.open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        owner = tmp_path / ".analemma-volume" / "owner"
        owner.write_text("somebody else")
        interrupt(store, "INITIALIZING", status="PENDING")
        [outcome] = archives.reconcile()
        assert outcome.status == "ERROR" and "belongs to somebody else" in (outcome.error or "")
        with pytest.raises(Conflict):
            archives.delete("ws1", discard=True)
        assert (tmp_path / "volume" / "zero").exists()


def test_operations_that_are_under_way_are_left_alone(store: Store, tmp_path: Path) -> None:
    with store.open() as app, store.open() as other:
        archives, _ = workspace_of(app, tmp_path / "volume")
        found: list[object] = []
        archives.archive("ws1", progress=lambda progress: found.extend(other.archives.reconcile()))
        assert found == []
        assert archives.get("ws1").status == "COLD"


def test_a_failure_after_the_commit_is_for_the_next_worker(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        with failpoints.call("archive.after_aside", lose_the_disk), pytest.raises(OSError, match="the disk is gone"):
            archives.archive("ws1")
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("WARM", "ARCHIVING")
        with pytest.raises(Conflict, match="interrupted"):
            archives.restore("ws1")
        # Its lease was given back: nobody has to wait.
        assert archives.recover("ws1").status == "COLD"
        archives.restore("ws1")
        assert look(root) == before


def test_a_marker_that_is_lost_after_the_commit_keeps_the_volume(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        with failpoints.call("archive.after_aside", lose_the_disk), pytest.raises(OSError, match="the disk is gone"):
            archives.archive("ws1")
        assert app.objects is not None and not root.exists()
        [meta] = [key for key in object_keys(app) if key.endswith(".meta")]
        app.objects.delete(meta)
        [outcome] = archives.reconcile()
        assert outcome.status == "WARM" and "marker" in (outcome.error or "")
        assert look(root) == before
        archives.archive("ws1")
        archives.restore("ws1")
        assert look(root) == before


@pytest.mark.parametrize("format", ["tar", "blocks"])
@pytest.mark.parametrize("point", ["archive.after_commit", "archive.after_aside"])
def test_an_archive_that_is_lost_after_the_commit_keeps_the_volume(
    point: str, format: str, store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format=format) as app:
        archives, _ = workspace_of(app, root)
        (root / "more").write_bytes(random.Random(1).randbytes(2_000_000))
        before = look(root)
        with failpoints.call(point, lose_the_disk), pytest.raises(OSError, match="the disk is gone"):
            archives.archive("ws1")
        assert app.objects is not None
        for key in object_keys(app) + [info.key for info in app.objects.list("packs")]:
            if key.endswith(".tar.zst") or key.startswith("packs/"):
                app.objects.delete(key)
        [outcome] = archives.reconcile()
        assert outcome.status == "WARM" and outcome.error is not None
        assert look(root) == before


def test_a_recovery_that_was_overtaken_stops_on_its_way(store: Store, tmp_path: Path) -> None:
    with store.open(archive_lease_s=0.15) as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        begin_unit(store, "a" * 32)
        interrupt(store, "ARCHIVING", op_id="a" * 32)
        phases: list[str] = []

        def take(progress: Any) -> None:
            phases.append(progress.phase)
            change(store, "UPDATE workspace SET fence = fence + 1")
            time.sleep(1.5)  # Thirty times as long as a heartbeat takes to notice.

        with pytest.raises(Conflict):
            archives.recover("ws1", progress=take)
        # Not only where it would have written.
        assert phases == ["reading"]
