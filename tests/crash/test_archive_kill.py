"""kill -9 after every step of every verb on workspaces: a live workspace has an intact volume or a verified archive,
and the reconciler completes what was begun."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from analemma.testing import failpoints
from tests import programs
from tests.api.archives.volumes import fill, look, object_keys
from tests.crash.archive_worker import LEASE_S
from tests.crash.points import kills
from tests.depth import count
from tests.s3_server import CannotStart, S3Server, run_directory, shared_s3
from tests.stores import Store

ROOT = Path(__file__).parents[2]
BEGIN, FINISH = "workspace.after_begin", "workspace.before_finish"
ARCHIVE = [
    "archive.after_data",
    "archive.after_verify",
    "archive.after_meta",
    "archive.after_commit",
    "archive.after_aside",
    "archive.after_remove",
]
RESTORE = ["restore.after_extract", "restore.after_mark", "restore.after_swap"]
POINTS: dict[str, list[str]] = {
    "create": [BEGIN, FINISH],
    "archive": [BEGIN, *ARCHIVE, FINISH],
    "restore": [BEGIN, *RESTORE, FINISH],
    "delete": [BEGIN, *ARCHIVE, FINISH],
    "discard": [BEGIN, "remove.after_aside", "remove.after_volume", FINISH],
    "purge": [BEGIN, "remove.after_aside", "remove.after_volume", "remove.after_markers", "remove.after_objects"],
    "start": [BEGIN, FINISH],
    "stop": [BEGIN, FINISH],
}
BEFORE: dict[str, list[str]] = {
    "restore": ["archive"],
    "purge": ["archive", "restore"],
    "stop": ["start"],
}
ENDS_AS: dict[str, str | None] = {
    "create": "WARM",
    "archive": "COLD",
    "restore": "WARM",
    "delete": "DELETED",
    "discard": "DELETED",
    "purge": None,
    "start": "RUNNING",
    "stop": "WARM",
}
CASES = [(verb, point) for verb, points in POINTS.items() for point in points]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


def prepare(store: Store, verb: str, volume: Path, format: str) -> dict[str, Any]:
    """What was in the volume before."""
    fill(volume)
    before = look(volume)
    with store.open(archive_format=format) as app:
        if verb != "create":
            app.archives.create("ws1", owner_id="ann", volume=volume)
        for step in BEFORE.get(verb, []):
            getattr(app.archives, step)("ws1")
    return before


def run_worker(store: Store, verb: str, volume: Path, format: str, point: str) -> subprocess.CompletedProcess[str]:
    return programs.run(
        [sys.executable, "-m", "tests.crash.archive_worker", store.url, store.objects or "", verb, str(volume), format],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )


def check_invariant(app: App, volume: Path, before: dict[str, Any], scratch: Path) -> None:
    """A live workspace has an intact volume or a verified archive."""
    row = app.archives.get("ws1")
    if volume.exists():
        assert look(volume) == before
    elif row.status != "DELETED":
        app.archives.restore("ws1", into=scratch)
        assert look(scratch) == before


def check_end(archives: Archives, verb: str, volume: Path, before: dict[str, Any]) -> None:
    if ENDS_AS[verb] is None:
        with pytest.raises(KeyError):
            archives.get("ws1")
        assert not volume.exists()
        return
    workspace = archives.get("ws1")
    assert (workspace.status, workspace.operation, workspace.error) == (ENDS_AS[verb], "NONE", None)
    assert volume.exists() == (workspace.status in ("WARM", "RUNNING"))
    if verb == "delete":
        archives.undelete("ws1")
    if verb in ("archive", "delete"):
        archives.restore("ws1")
    if verb != "discard":
        assert look(volume) == before
        beside = set(os.listdir(volume.parent / f".analemma-{volume.name}"))
        assert beside - {"cache"} == {"lock", "owner"}


def check_kill(store: Store, verb: str, point: str, tmp_path: Path, format: str = "tar") -> None:
    volume = tmp_path / "volumes" / "home"
    before = prepare(store, verb, volume, format)
    done = run_worker(store, verb, volume, format, point)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with store.open(archive_lease_s=LEASE_S, archive_format=format) as app:
        if verb not in ("discard", "purge"):
            check_invariant(app, volume, before, tmp_path / "scratch")
        [outcome] = app.archives.reconcile()
        assert (outcome.workspace, outcome.status, outcome.error) == ("ws1", ENDS_AS[verb], None)
        assert app.archives.reconcile() == ()
        check_end(app.archives, verb, volume, before)
        if verb == "purge":
            assert object_keys(app) == []


# Verbs share their steps: where a volume goes, they are those of an archive or of a purge.
CHOSEN = [
    ("create", BEGIN),
    *(("archive", point) for point in (BEGIN, *ARCHIVE, FINISH) if point != "archive.after_verify"),
    *((verb, point) for verb in ("restore", "purge") for point in POINTS[verb]),
    ("delete", "archive.after_commit"),
    ("delete", FINISH),
    ("discard", "remove.after_aside"),
    ("discard", FINISH),
    ("start", FINISH),
]
AROUND_COMMITS = [("archive", "archive.after_meta"), ("archive", "archive.after_commit")]


@pytest.mark.parametrize(("verb", "point"), kills(CASES, test=CHOSEN, postgres=AROUND_COMMITS))
def test_a_killed_operation_is_completed(verb: str, point: str, store: Store, tmp_path: Path) -> None:
    check_kill(store, verb, point, tmp_path)


BLOCK_CASES = [
    ("archive", "archive.after_data"),
    ("archive", "archive.after_meta"),
    ("archive", "archive.after_commit"),
    ("restore", "restore.after_mark"),
    ("delete", "archive.after_aside"),
]


@pytest.mark.parametrize(("verb", "point"), kills(BLOCK_CASES, test=BLOCK_CASES[2:3]))
def test_a_killed_operation_in_blocks_is_completed(verb: str, point: str, store: Store, tmp_path: Path) -> None:
    check_kill(store, verb, point, tmp_path, "blocks")
    with store.open() as app:
        if point == "archive.after_commit":
            assert app.gc.status().sessions == 0


S3_CASES = [
    ("archive", "archive.after_data"),
    ("archive", "archive.after_meta"),
    ("archive", "archive.after_aside"),
    ("restore", "restore.after_extract"),
    ("purge", "remove.after_markers"),
]


@pytest.mark.deep("the steps are those of a directory's objects")
@pytest.mark.parametrize(("verb", "point"), S3_CASES)
def test_a_killed_operation_on_s3_is_completed(verb: str, point: str, s3: S3Server, tmp_path: Path) -> None:
    check_kill(Store(str(tmp_path / "store"), s3.url()), verb, point, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("verb", "point"), CASES)
def test_a_killed_operation_on_s3_is_completed_at_every_point(
    verb: str, point: str, s3: S3Server, tmp_path: Path
) -> None:
    check_kill(Store(str(tmp_path / "store"), s3.url()), verb, point, tmp_path)


def test_a_reconciler_that_is_killed_too_is_followed_by_another(store: Store, tmp_path: Path) -> None:
    volume = tmp_path / "volumes" / "home"
    before = prepare(store, "archive", volume, "tar")
    for number, point in enumerate([BEGIN, *ARCHIVE, FINISH]):
        done = run_worker(store, "recover" if number else "archive", volume, "tar", point)
        assert done.returncode == -signal.SIGKILL, (point, done.stderr)
        with store.open() as app:
            check_invariant(app, volume, before, tmp_path / f"scratch-{number}")
    with store.open() as app:
        assert app.archives.recover("ws1").status == "COLD"
        check_end(app.archives, "archive", volume, before)


@pytest.mark.parametrize("seed", range(count(1, deep=3)))
def test_a_kill_at_any_moment_loses_nothing(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    volume = tmp_path / "volumes" / "home"
    store = Store(str(tmp_path / "store"))
    fill(volume)
    for number in range(count(100, deep=400)):
        (volume / f"file-{number}").write_bytes(chance.randbytes(20_000))
    before = look(volume)
    with store.open() as app:
        app.archives.create("ws1", owner_id="ann", volume=volume)
    for turn in range(count(2, deep=4)):
        verb = "restore" if turn % 2 else "archive"
        command = [sys.executable, "-m", "tests.crash.archive_worker", store.url, "", verb, str(volume)]
        process = programs.Program(command, cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(chance.uniform(0, 0.25))
            process.kill()
            process.wait()
        with store.open() as app:
            check_invariant(app, volume, before, tmp_path / f"scratch-{turn}")
            app.archives.reconcile()
            workspace = app.archives.get("ws1")
            assert (workspace.operation, workspace.error) == ("NONE", None)
            wanted = "WARM" if turn % 2 else "COLD"
            if workspace.status != wanted:  # It was killed before it began.
                getattr(app.archives, verb)("ws1")
    assert look(volume) == before
