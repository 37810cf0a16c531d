"""kill -9 after every step of a collection of archives: what is needed can be restored, and what is not goes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.crash.points import kills
from tests.crash.test_archive_kill import ROOT
from tests.raw_rows import change, select
from tests.s3_server import CannotStart, S3Server, run_directory, shared_s3
from tests.stores import Store

FIRST_PASS = [
    "archive_gc.after_lease",
    "archive_gc.after_list",
    "archive_gc.after_look",
    "archive_gc.after_mark",
]
LATER_PASS = [
    "archive_gc.after_list",
    "archive_gc.before_claim",
    "archive_gc.after_claim",
    "archive_gc.after_markers",
    "archive_gc.after_objects",
    "archive_gc.after_forget",
]
CASES = [(1, point) for point in FIRST_PASS] + [(2, point) for point in LATER_PASS]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects go when their archives do, also those that are not in a store's own directory."""
    monkeypatch.setenv("ANALEMMA_GC_OBJECT_DELAY_S", "0")


def die_at(store: Store, point: str) -> None:
    done = programs.run(
        [sys.executable, "-m", "tests.crash.archive_worker", store.url, store.objects or "", "collect", "", "tar"],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def superseded(app: App, folder: Path, name: str) -> str:
    """A COLD workspace that was archived twice; the operation of the archive that it has."""
    cold(app, folder, name)
    app.archives.restore(name)
    (folder / "volumes" / name / "file").write_text("other")
    return app.archives.archive(name).op_id


def cold(app: App, folder: Path, name: str) -> str:
    """A COLD workspace with one file; the operation of its archive."""
    volume = folder / "volumes" / name
    volume.mkdir(parents=True)
    (volume / "file").write_text("content")
    app.archives.create(name, owner_id="ann", volume=volume)
    return app.archives.archive(name).op_id


def units(app: App) -> set[str]:
    """What lies in the object store, as `workspace/operation`."""
    return {"/".join(key.split("/")[3:5]) for key in keys(app)}


def keys(app: App) -> list[str]:
    assert app.objects is not None
    return [info.key for info in app.objects.list("tenants/default/archives")]


def check_kill(store: Store, tmp_path: Path, number: int, point: str) -> None:
    with store.open() as app:
        new = superseded(app, tmp_path, "ws1")
        gone = cold(app, tmp_path, "gone")
        app.archives.delete("gone")
        kept = cold(app, tmp_path, "kept")
        if number == 2:
            app.archives.gc_run(0)
    die_at(store, point)
    with store.open() as app:
        assert {f"ws1/{new}", f"kept/{kept}"} <= units(app)
        ((state,),) = select(store, "SELECT state FROM archive_unit WHERE op_id = ?", [gone])
        # Either all of it is there, or nobody can go back to it.
        assert (len([key for key in keys(app) if gone in key]) == 2 and state == "kept") or state == "claimed"
        for _ in range(3):
            # When the lease of the collector that died has ended.
            change(store, "UPDATE archive_gc SET lease_until = 0")
            app.archives.gc_run(0)
        assert units(app) == {f"ws1/{new}", f"kept/{kept}"}
        assert select(store, "SELECT unit FROM archive_mark") == []
        for name, text in (("ws1", "other"), ("kept", "content")):
            app.archives.restore(name)
            assert (tmp_path / "volumes" / name / "file").read_text() == text


# Between the listing and the marks nothing is written, nor behind the last step.
CHOSEN = [
    *((1, "archive_gc.after_lease"), (1, "archive_gc.after_mark"), (2, "archive_gc.before_claim")),
    *((2, "archive_gc.after_claim"), (2, "archive_gc.after_markers"), (2, "archive_gc.after_objects")),
]
AROUND_CLAIM = [(2, "archive_gc.before_claim"), (2, "archive_gc.after_claim")]


@pytest.mark.parametrize(("number", "point"), kills(CASES, test=CHOSEN, postgres=AROUND_CLAIM))
def test_a_killed_collection_loses_nothing_and_is_finished_by_the_next(
    number: int, point: str, store: Store, tmp_path: Path
) -> None:
    check_kill(store, tmp_path, number, point)


@pytest.mark.deep("the steps are those of a directory's objects")
@pytest.mark.parametrize(("number", "point"), [(1, "archive_gc.after_mark"), (2, "archive_gc.after_markers")])
def test_a_killed_collection_on_s3_is_finished_by_the_next(
    number: int, point: str, s3: S3Server, tmp_path: Path
) -> None:
    check_kill(Store(str(tmp_path / "store"), s3.url()), tmp_path, number, point)


@pytest.mark.soak
@pytest.mark.parametrize(("number", "point"), CASES)
def test_a_killed_collection_on_s3_is_finished_by_the_next_at_every_point(
    number: int, point: str, s3: S3Server, tmp_path: Path
) -> None:
    check_kill(Store(str(tmp_path / "store"), s3.url()), tmp_path, number, point)
