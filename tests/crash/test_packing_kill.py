"""kill -9 at every failpoint of moving blocks: everything stays readable, and only intents are left behind. And readers
and packers in processes of their own, all at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.crash.conversations import NAME, SMALL, converse, places, states
from tests.crash.packing_worker import WORKS
from tests.crash.points import kills
from tests.depth import count
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
UPLOADING = ["upload.before_intent", "upload.after_intent", "upload.after_object"]
PACKING = ["pack.after_check", "pack.before_commit", "pack.after_commit"]
CASES = [
    *[("pack", point) for point in (*UPLOADING, *PACKING)],
    *[("repack", point) for point in PACKING],
    # In the middle of a run, when some packs are done.
    ("pack", "upload.after_object:2"),
    ("pack", "pack.after_commit:2"),
]
CHOSEN = [
    *[("pack", point) for point in (*UPLOADING[1:], "pack.before_commit", "pack.after_commit:2")],
    *[("repack", point) for point in ("pack.after_check", "pack.after_commit")],
]
AROUND_COMMITS = [("pack", "pack.before_commit"), ("pack", "pack.after_commit:2")]


def work(store: Store, what: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.packing_worker", store.url, store.objects or "", what]
    return programs.Program(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def prepare(app: App, what: str) -> None:
    converse(app, versions=25)
    if what == "pack":
        return
    app.packing.pack(older_than_s=0)
    if what == "repack":
        # Something dead in most packs: what the versions had that are gone.
        app.kernel.set_retention(**NAME, keep_last=12)
        assert app.gc.run(grace_s=0).ok and app.gc.run(grace_s=0).deleted > 0


@pytest.mark.parametrize(("what", "point"), kills(CASES, test=CHOSEN, postgres=AROUND_COMMITS))
def test_a_kill_leaves_everything_readable(what: str, point: str, store: Store) -> None:
    with store.open(**SMALL) as app:
        prepare(app, what)
        before, expected = places(store), states(app)
    killed = work(store, what, env={**os.environ, failpoints.VARIABLE: point})
    out, err = killed.communicate(timeout=60)
    assert (killed.returncode, out) == (-signal.SIGKILL, ""), err
    with store.open(**SMALL) as app:
        check_uploads(store, app)
        after = places(store)
        assert set(after) == set(before)
        happened = point.startswith("pack.after_commit") or point.endswith(":2")
        assert (after != before) == happened
        assert states(app) == expected
        assert app.kernel.verify(**NAME).problems == []
        # Whoever was killed tries again, and ends.
        WORKS[what](app)
        check_uploads(store, app)
        assert {in_row for in_row, _, _ in places(store).values()} == {False}
        assert states(app) == expected
        assert app.kernel.verify(**NAME).problems == []


def check_uploads(store: Store, app: App) -> None:
    """Blocks lie only in what is `ready`, and there is no object without a row."""
    assert app.objects is not None
    rows = select(store, "SELECT id, state, object_key FROM upload")
    states = {upload: state for upload, state, _ in rows}
    assert set(states.values()) <= {"ready", "temp"}
    named = {upload for _, upload, _ in places(store).values()} - {None}
    assert {states[upload] for upload in named} <= {"ready"}
    stored = {info.key for info in app.objects.list("packs")}
    assert {key for _, state, key in rows if state == "ready"} <= stored <= {key for _, _, key in rows}


def test_readers_in_other_processes_notice_nothing(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=count(8, deep=15))
        expected = states(app)
        readers = [work(store, "read", stdin=subprocess.PIPE) for _ in range(2)]
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "reading\n", reader.communicate()[1]
        for _ in range(count(1, deep=3)):
            app.packing.pack(older_than_s=0)
            # The packs of the round before are empty by now: they go, as the collector would have it.
            remove_empty_packs(store, app)
            app.packing.repack(waste=0)
        for reader in readers:
            out, err = reader.communicate("enough\n", timeout=60)
            rounds, same = out.splitlines()[0].split()
            assert int(rounds) >= 3 and same == "True", err
            assert reader.returncode == 0
        assert states(app) == expected


def remove_empty_packs(store: Store, app: App) -> None:
    assert app.objects is not None
    empty = "FROM upload WHERE NOT EXISTS (SELECT 1 FROM block WHERE block.upload = upload.id)"
    for (key,) in select(store, f"SELECT object_key {empty}"):
        app.objects.delete(key)
    change(store, f"DELETE {empty}")


def test_packers_in_many_processes_get_along(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=25)
        expected, blocks = states(app), set(places(store))
        packers = [work(store, "pack") for _ in range(count(2, deep=3))]
        for packer in packers:
            out, err = packer.communicate(timeout=90)
            assert (packer.returncode, out) == (0, "acknowledged\n"), err
        check_uploads(store, app)
        app.packing.pack(older_than_s=0)
        rows = places(store)
        assert set(rows) == blocks and {in_row for in_row, _, _ in rows.values()} == {False}
        assert states(app) == expected
        assert app.kernel.verify(**NAME).problems == []
