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
from analemma.blocks.packs import pack_key, read_footer
from analemma.canon.nodes import block_links
from analemma.testing import failpoints
from tests import programs
from tests.api.gc.packing_stores import OWNER, SMALL, assert_whole, block_rows, converse, query, states
from tests.crash.packing_worker import WORKS
from tests.stores import Store

ROOT = Path(__file__).parents[2]
UPLOADING = ["upload.before_intent", "upload.after_intent", "upload.after_object"]
PACKING = ["pack.after_check", "pack.before_commit", "pack.after_commit"]
UNPACKING = ["unpack.before_commit", "unpack.after_commit"]
CASES = [
    *[("pack", point) for point in (*UPLOADING, *PACKING)],
    *[("repack", point) for point in PACKING],
    # In the middle of a run, when some packs are done.
    ("pack", "upload.after_object:2"),
    ("pack", "pack.after_commit:2"),
    *[("unpack", point) for point in UNPACKING],
    ("unpack", "unpack.after_commit:2"),
]


def test_every_failpoint_of_packing_is_tried_here() -> None:
    declared = {name for name in failpoints.names() if name.startswith(("pack.", "unpack."))}
    assert declared == {*PACKING, *UNPACKING}


def work(store: Store, what: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.packing_worker", store.url, store.objects or "", what]
    return programs.Program(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def prepare(app: App, store: Store, what: str) -> None:
    converse(app, versions=25)
    if what == "pack":
        return
    app.kernel.save_state_delta({"drop": ["drop " * 900] * 3}, workflow_id="gone", owner_id=OWNER)
    app.packing.pack(older_than_s=0)
    if what == "repack":
        # Something dead in most packs, as if the collector had been there.
        rows = block_rows(store)
        app.kernel.expire(workflow_id="report", owner_id=OWNER)
        keep = reachable(app)
        for block in set(rows) - keep:
            query(store, "DELETE FROM block WHERE id = ?", block)


def reachable(app: App) -> set[bytes]:
    """The blocks of the workflow that is still looked at."""
    versions = app.kernel.history(workflow_id="report", owner_id=OWNER, limit=1000)
    waiting = [bytes.fromhex(version.manifest_id) for version in versions]
    found: set[bytes] = set()
    while waiting:
        block: Any = waiting.pop()
        if block not in found:
            found.add(block)
            waiting += block_links(app.default.blocks.fetch([block])[block])
    return found


@pytest.mark.parametrize(("what", "point"), CASES, ids=[f"{what} {point}" for what, point in CASES])
def test_a_kill_leaves_everything_readable(what: str, point: str, store: Store) -> None:
    with store.open(**SMALL) as app:
        if what == "repack":
            app.kernel.set_retention(owner_id=OWNER, keep_last=12)
        prepare(app, store, what)
        before, expected = block_rows(store), states(app)
    killed = work(store, what, env={**os.environ, failpoints.VARIABLE: point})
    out, err = killed.communicate(timeout=60)
    assert (killed.returncode, out) == (-signal.SIGKILL, ""), err
    with store.open(**SMALL) as app:
        check_uploads(store, app)
        after = block_rows(store)
        assert set(after) == set(before)
        happened = point.startswith(("pack.after_commit", "unpack.after_commit")) or point.endswith(":2")
        assert (after != before) == happened
        assert states(app) == expected
        assert_whole(app)
        # Whoever was killed tries again, and ends.
        WORKS[what](app)
        check_uploads(store, app)
        lie_in_packs = {row[2] is None for row in block_rows(store).values()}
        assert lie_in_packs == {what != "unpack"}
        assert states(app) == expected
        assert_whole(app)


def check_uploads(store: Store, app: App) -> None:
    """Blocks lie only in what is `ready`, and there is no object without a row."""
    assert app.objects is not None
    uploads: dict[bytes, str] = dict(query(store, "SELECT id, state FROM upload"))
    assert set(uploads.values()) <= {"ready", "temp"}
    named = {row[3] for row in block_rows(store).values()} - {None}
    assert {uploads[upload] for upload in named} <= {"ready"}
    for info in app.objects.list("packs"):
        assert bytes.fromhex(info.key.rpartition("/")[2]) in uploads
    for upload, state in uploads.items():
        if state == "ready":
            assert read_footer(app.objects, pack_key(upload))


def test_readers_in_other_processes_notice_nothing(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=15)
        expected = states(app)
        readers = [work(store, "read", stdin=subprocess.PIPE) for _ in range(2)]
        for reader in readers:
            assert reader.stdout is not None and reader.stdout.readline() == "reading\n", reader.communicate()[1]
        for _ in range(3):
            app.packing.pack(older_than_s=0)
            # The packs of the round before are empty by now: they go, as the collector would have it.
            remove_empty_packs(store, app)
            app.packing.repack(waste=0)
            app.packing.unpack()
        for reader in readers:
            out, err = reader.communicate("enough\n", timeout=60)
            rounds, same = out.splitlines()[0].split()
            assert int(rounds) >= 3 and same == "True", err
            assert reader.returncode == 0
        assert states(app) == expected


def remove_empty_packs(store: Store, app: App) -> None:
    assert app.objects is not None
    empty = "SELECT id FROM upload WHERE NOT EXISTS (SELECT 1 FROM block WHERE block.upload = upload.id)"
    for (upload,) in query(store, empty):
        query(store, "DELETE FROM upload WHERE id = ?", upload)
        app.objects.delete(pack_key(upload))


def test_packers_in_many_processes_get_along(store: Store) -> None:
    with store.open(**SMALL) as app:
        converse(app, versions=25)
        expected, blocks = states(app), set(block_rows(store))
        packers = [work(store, "pack") for _ in range(3)]
        for packer in packers:
            out, err = packer.communicate(timeout=90)
            assert (packer.returncode, out) == (0, "acknowledged\n"), err
        check_uploads(store, app)
        app.packing.pack(older_than_s=0)
        rows = block_rows(store)
        assert set(rows) == blocks and {row[2] is None for row in rows.values()} == {True}
        assert states(app) == expected
        assert_whole(app)
