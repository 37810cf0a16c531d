"""Restoring: what is damaged is an error and never a volume, and half of a restore is never seen."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, DataLost, Unavailable
from analemma.testing import failpoints
from tests.api.archives.volumes import look, object_keys, workspace_of
from tests.raw_rows import change
from tests.stores import Store, local


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

        def fail(progress: Any) -> None:
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


def test_files_that_appear_meanwhile_are_not_overwritten(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")

        def appear() -> None:
            root.mkdir()
            (root / "mine").write_text("first")

        with failpoints.call("restore.after_mark", appear), pytest.raises(Conflict):
            archives.restore("ws1")
        assert (root / "mine").read_text() == "first"
        assert archives.get("ws1").operation == "RESTORING"
        (root / "mine").unlink()
        assert archives.recover("ws1").status == "WARM"
        assert (root / "zero").exists()


class Died(BaseException):
    pass


def die() -> None:
    raise Died


def die_half_restored(app: App, name: str) -> None:
    """The row says that all of it is extracted, and nobody puts it in its place."""
    with failpoints.call("restore.after_mark", die), pytest.raises(Died):
        app.archives.restore(name)


@pytest.mark.parametrize("empty_directory", [False, True])
def test_a_refused_restore_leaves_anothers_staging_alone(empty_directory: bool, store: Store, tmp_path: Path) -> None:
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
        die_half_restored(app, "second")
        archives.undelete("first")
        with pytest.raises(Conflict, match="belongs to"):
            archives.restore("first")
        assert len(list((tmp_path / ".analemma-volume").glob("staging-*"))) == 1
        assert archives.recover("second").status == "WARM"
        assert os.listdir(root) == ["file"]


def test_a_directory_that_is_not_what_was_restored_is_not_taken_for_it(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        die_half_restored(app, "ws1")
        [staging] = (tmp_path / ".analemma-volume").glob("staging-*")
        staging.rename(tmp_path / "taken away")
        root.mkdir()
        assert archives.recover("ws1").status == "WARM"
        assert look(root) == before


def test_a_staging_that_is_not_the_one_of_the_mark_is_not_swapped_in(tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open() as app:
        archives, _ = workspace_of(app, root)
        before = look(root)
        archives.archive("ws1")
        die_half_restored(app, "ws1")
        [staging] = (tmp_path / ".analemma-volume").glob("staging-*")
        staging.rename(tmp_path / "taken away")
        staging.mkdir()
        (staging / "half").write_text("of another attempt")
        assert archives.recover("ws1").status == "WARM"
        assert look(root) == before


def test_whoever_lost_the_operation_swaps_nothing_in(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open() as app:
        archives, _ = workspace_of(app, root)
        archives.archive("ws1")

        take_over = lambda: change(store, "UPDATE workspace SET fence = fence + 1")  # noqa: E731
        with failpoints.call("restore.after_mark", take_over), pytest.raises(Conflict):
            archives.restore("ws1")
        assert not root.exists()
        workspace = archives.get("ws1")
        assert (workspace.status, workspace.operation) == ("COLD", "RESTORING")
