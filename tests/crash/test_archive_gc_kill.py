"""kill -9 after every step of a collection of archives: what is needed can be restored, and what is not goes."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from analemma import App, Archives
from analemma.catalog.workspaces import SqlWorkspaces
from analemma.testing import failpoints
from tests import programs
from tests.api.archives.collections import cold, keys_of, marks, superseded, units
from tests.api.gc.collections import later
from tests.crash.test_archive_kill import ROOT
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
LEASE_S = 300


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


def later_on(app: App, lives: int) -> Archives:
    """When the lease of each collector that died has ended."""
    clock = later(lives * (LEASE_S + 1))
    return Archives(replace(app.archives._parts, catalog=SqlWorkspaces(app.catalog.engine, clock=clock)))


def check_kill(store: Store, tmp_path: Path, number: int, points: list[str]) -> None:
    with store.open() as app:
        _, new = superseded(app, tmp_path, "ws1")
        gone = cold(app, tmp_path, "gone")
        app.archives.delete("gone")
        kept = cold(app, tmp_path, "kept")
        if number == 2:
            app.archives.gc_run(0)
    for point in points:
        die_at(store, point)
        with store.open() as app:
            assert {f"ws1/{new}", f"kept/{kept}"} <= units(app)
            archive = keys_of(app, "gone", gone)
            unit = SqlWorkspaces(app.catalog.engine).unit(app.default.id, "gone", gone)
            # Either all of it is there, or nobody can go back to it.
            assert unit is not None
            assert (len(archive) == 2 and unit.state == "kept") or unit.state == "claimed"
    with store.open() as app:
        for lives in range(1, 4):
            later_on(app, lives).gc_run(0)
        assert units(app) == {f"ws1/{new}", f"kept/{kept}"}
        assert marks(app) == {}
        for name, text in (("ws1", "other"), ("kept", "content")):
            app.archives.restore(name)
            assert (tmp_path / "volumes" / name / "file").read_text() == text


@pytest.mark.parametrize(("number", "point"), CASES)
def test_a_killed_collection_loses_nothing_and_is_finished_by_the_next(
    number: int, point: str, store: Store, tmp_path: Path
) -> None:
    check_kill(store, tmp_path, number, [point])


@pytest.mark.parametrize(("number", "point"), [(1, "archive_gc.after_mark"), (2, "archive_gc.after_markers")])
def test_a_killed_collection_on_s3_is_finished_by_the_next(
    number: int, point: str, s3: S3Server, tmp_path: Path
) -> None:
    check_kill(Store(str(tmp_path / "store"), s3.url()), tmp_path, number, [point])


@pytest.mark.soak
@pytest.mark.parametrize(("number", "point"), CASES)
def test_a_killed_collection_on_s3_is_finished_by_the_next_at_every_point(
    number: int, point: str, s3: S3Server, tmp_path: Path
) -> None:
    check_kill(Store(str(tmp_path / "store"), s3.url()), tmp_path, number, [point])


def test_every_failpoint_is_tried() -> None:
    from tests.declared_failpoints import declared_failpoints

    declared = {name for name in declared_failpoints() if name.startswith("archive_gc.")}
    assert declared == {point for _, point in CASES}
