"""What others left half done: finished uploads are reused, damaged ones are not, nothing is removed on suspicion."""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from analemma import App
from analemma.archives import archiving
from analemma.archives.jobs import Progress
from analemma.archives.parts import Workspace
from analemma.catalog.engine import Transaction
from analemma.catalog.workspaces import LostOperation, Operation, SqlWorkspaces, Status, WorkspaceRow
from analemma.errors import Conflict, DataLost, Unavailable
from tests.api.archives.volumes import look, object_keys, workspace_of
from tests.stores import Store, local


def rows(app: App) -> SqlWorkspaces:
    return SqlWorkspaces(app.catalog.engine)


def interrupt(
    app: App,
    operation: Operation,
    *,
    intent: str | None = None,
    status: Status | None = None,
    op_id: str | None = None,
    workspace: str = "ws1",
) -> None:
    """As if a worker had begun this and died."""
    rows(app).change(
        app.default.id,
        workspace,
        lambda _, row, now: replace(
            row,
            operation=operation,
            intent=intent,
            status=status or row.status,
            op_id=op_id or row.op_id,
            fence=row.fence + 1,
            lease_until_us=0,
        ),
    )


def begin_unit(app: App, op_id: str) -> None:
    def move(tx: Transaction, row: WorkspaceRow, now: int) -> WorkspaceRow:
        rows(app).begin_unit(tx, app.default.id, row, op_id, now)
        return row

    rows(app).change(app.default.id, "ws1", move)


def at(monkeypatch: pytest.MonkeyPatch, point: str, action: Callable[[], object]) -> None:
    """Do this when the archiver passes a failpoint for the first time."""
    done: list[bool] = []

    def act(name: str) -> None:
        if name == point and not done:
            done.append(True)
            action()

    monkeypatch.setattr(archiving, "hit", act)


def other_attempt(app: App, change: Callable[[bytes], bytes] = lambda data: data) -> str:
    """Finish another attempt of the operation that is under way, as a worker would that was taken for dead."""
    assert app.objects is not None
    [key] = [key for key in object_keys(app) if key.endswith(".tar.zst")]
    folder, name = key.rsplit("/", 1)
    other = "home-00000000000000ff.tar.zst"
    data = app.objects.get(key)
    app.objects.put(f"{folder}/{other}", change(data))
    row = rows(app).get(app.default.id, "ws1")
    assert row is not None
    meta = {
        "format": 1,
        "workspace": "ws1",
        "op_id": row.op_id,
        "data": other,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "fingerprint": app.archives._parts.volumes.open(row.volume).fingerprint(),
        "notes": [],
        "counts": _counts(row.volume),
    }
    app.objects.put(f"{folder}/home.meta", orjson.dumps(meta))
    assert name != other
    return other


def _counts(volume: str) -> dict[str, int]:
    from analemma.archives.walking import Walk

    walk = Walk(volume)
    for _ in walk:
        pass
    return walk.totals.counts()


def test_of_two_attempts_one_marker_counts_and_names_its_own_data(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        at(monkeypatch, archiving.AFTER_VERIFY, lambda: other_attempt(app))
        unit = archives.archive("ws1")
        assert app.objects is not None
        assert orjson.loads(app.objects.get(unit.key))["data"] == "home-00000000000000ff.tar.zst"
        # The data of the attempt that lost may go at any time.
        for key in object_keys(app):
            if key.endswith(".tar.zst") and "00000000000000ff" not in key:
                app.objects.delete(key)
        archives.restore("ws1")
        assert look(root) == before


def test_a_damaged_attempt_of_another_worker_is_not_adopted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        at(monkeypatch, archiving.AFTER_VERIFY, lambda: other_attempt(app, lambda data: data[:-1]))
        with pytest.raises(Conflict, match="damaged"):
            archives.archive("ws1")
        assert (root / "zero").exists()
        assert archives.get("ws1").status == "WARM"
        monkeypatch.undo()
        archives.archive("ws1")
        archives.restore("ws1")


def test_a_finished_upload_of_a_volume_that_has_changed_since_is_not_used(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        at(monkeypatch, archiving.AFTER_META, die)
        with pytest.raises(Died):
            archives.archive("ws1")
        monkeypatch.undo()
        [meta] = [key for key in object_keys(app) if key.endswith(".meta")]
        op_id = meta.split("/")[-2]
        interrupt(app, "ARCHIVING", op_id=op_id)
        (root / "zero").write_text("written since")
        [outcome] = archives.reconcile()
        assert outcome.status == "WARM" and outcome.error is not None and "changed" in outcome.error
        assert (root / "zero").read_text() == "written since"
        assert archives.get("ws1").archive_key is None


def test_an_upload_whose_op_id_belongs_to_an_earlier_operation_is_never_reused(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        first = archives.archive("ws1")
        archives.restore("ws1")
        (root / "zero").write_text("edited")
        second = archives.archive("ws1")
        assert second.op_id != first.op_id
        assert second.sha256 != first.sha256


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
        begin_unit(app, "a" * 32)
        interrupt(app, "ARCHIVING", op_id="a" * 32)
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
        interrupt(app, "STARTING", intent="hook")
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
        interrupt(app, "STARTING", intent="hook")
        archives.reconcile()
        assert archives.recover("ws1").status == "WARM"


def test_a_workspace_with_neither_volume_nor_archive_says_so(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        shutil.rmtree(root)
        interrupt(app, "ARCHIVING", op_id="a" * 32)
        archives.reconcile()
        with pytest.raises(DataLost, match="neither a volume nor an archive"):
            archives.recover("ws1", give_up_volume=True)
        assert archives.get("ws1").status == "ERROR"
        archives.delete("ws1", discard=True)


def test_an_interrupted_start_is_finished_with_its_hook_or_not_at_all(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    started: list[Workspace] = []
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        interrupt(app, "STARTING")
        archives.reconcile()
        assert archives.get("ws1").status == "RUNNING"
        archives.stop("ws1")
        interrupt(app, "STARTING", intent="hook")
        [outcome] = archives.reconcile()
        assert outcome.status == "ERROR" and "hook" in (outcome.error or "")
        assert archives.recover("ws1").status == "WARM"
        interrupt(app, "STARTING", intent="hook")
        archives.on_start(started.append)
        archives.reconcile()
        assert archives.get("ws1").status == "RUNNING" and len(started) == 1


def test_what_is_being_restored_is_not_archived_already(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        kept = archives.archive("ws1")
        assert archives.archive("ws1") == kept
        interrupt(app, "RESTORING")
        with pytest.raises(Conflict, match="RESTORING"):
            archives.archive("ws1")
        assert archives.recover("ws1").status == "WARM"


def test_a_hook_that_fails_keeps_no_other_workspace_from_being_finished(store: Store, tmp_path: Path) -> None:
    def fail(workspace: Workspace) -> None:
        if workspace.id == "ws1":
            raise ZeroDivisionError("its own")

    with store.open() as app:
        for name in ("ws1", "ws2"):
            app.archives.create(name, owner_id="ann", volume=tmp_path / name)
            interrupt(app, "STARTING", intent="hook", workspace=name)
        app.archives.on_start(fail)
        failed, finished = app.archives.reconcile()
        assert (failed.status, failed.error) == ("WARM", "ZeroDivisionError: its own")
        assert (finished.status, finished.error) == ("RUNNING", None)


def test_an_interrupted_recovery_can_be_repeated(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        interrupt(app, "RESTORING", status="ERROR")
        [outcome] = archives.reconcile()
        assert outcome.status == "ERROR"
        assert archives.recover("ws1").status == "WARM"


def test_an_interrupted_create_whose_volume_is_anothers_by_now_is_an_error(tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        archives, _ = workspace_of(app, tmp_path / "volume")
        owner = tmp_path / ".analemma-volume" / "owner"
        owner.write_text("somebody else")
        interrupt(app, "INITIALIZING", status="PENDING")
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


def test_a_failure_after_the_commit_is_for_the_next_worker(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        at(monkeypatch, archiving.AFTER_ASIDE, fail)
        with pytest.raises(OSError, match="the disk is gone"):
            archives.archive("ws1")
        monkeypatch.undo()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("WARM", "ARCHIVING")
        with pytest.raises(Conflict, match="interrupted"):
            archives.restore("ws1")
        # Its lease was given back: nobody has to wait.
        assert archives.recover("ws1").status == "COLD"
        archives.restore("ws1")
        assert look(root) == before


def test_a_marker_that_is_lost_after_the_commit_keeps_the_volume(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        at(monkeypatch, archiving.AFTER_ASIDE, fail)
        with pytest.raises(OSError, match="the disk is gone"):
            archives.archive("ws1")
        monkeypatch.undo()
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
@pytest.mark.parametrize("point", [archiving.AFTER_COMMIT, archiving.AFTER_ASIDE])
def test_an_archive_that_is_lost_after_the_commit_keeps_the_volume(
    point: str, format: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    root = tmp_path / "volume"
    with store.open(archive_format=format) as app:
        archives, _ = workspace_of(app, root)
        (root / "more").write_bytes(random.Random(1).randbytes(2_000_000))
        before = look(root)
        at(monkeypatch, point, fail)
        with pytest.raises(OSError, match="the disk is gone"):
            archives.archive("ws1")
        monkeypatch.undo()
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
        begin_unit(app, "a" * 32)
        interrupt(app, "ARCHIVING", op_id="a" * 32)
        phases: list[str] = []

        def take(progress: Progress) -> None:
            phases.append(progress.phase)
            rows(app).change(app.default.id, "ws1", lambda _, row, now: replace(row, fence=row.fence + 1))
            time.sleep(0.3)

        with pytest.raises(LostOperation):
            archives.recover("ws1", progress=take)
        # Not only where it would have written.
        assert phases == ["reading"]
