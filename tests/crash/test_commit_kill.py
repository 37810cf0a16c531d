"""kill -9 at every failpoint of a save: the store opens, verifies, and holds the old state or the new one."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests import programs
from tests.crash.commit_worker import PLACE, large_value
from tests.crash.points import AROUND_COMMIT, COMMIT, FIRST_AND_LAST, kills
from tests.declared_failpoints import declared_failpoints
from tests.raw_rows import is_sqlite
from tests.stores import Store

ROOT = Path(__file__).parents[2]
IN_THE_TRANSACTION = set(COMMIT) - set(AROUND_COMMIT)
UPLOADING = ("upload.before_intent", "upload.after_intent", "upload.after_object")
LARGE = [(point, "large") for point in (*UPLOADING, *COMMIT)]
SMALL = [(point, "small") for point in COMMIT]


def test_every_failpoint_is_tried_somewhere() -> None:
    texts = (path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    tried = {name for text in texts for name in re.findall(r'"([a-z_]+\.[a-z_]+)(?::\d+)?"', text)}
    assert set(declared_failpoints()) - tried == set()


@pytest.mark.parametrize(
    ("point", "size"),
    kills(
        [*LARGE, *SMALL],
        test=[
            *((point, "large") for point in (*UPLOADING, "commit.after_commit")),
            *((each, "small") for each in FIRST_AND_LAST),
        ],
        postgres=[("upload.after_object", "large"), *((point, "small") for point in AROUND_COMMIT)],
    ),
)
def test_a_kill_leaves_the_old_state_or_the_new(point: str, size: str, store: Store) -> None:
    # PostgreSQL commits in one statement, which cannot be stopped half-way from here.
    unreached = not is_sqlite(store) and point in IN_THE_TRANSACTION
    old = {"text": "old", "numbers": list(range(2000))}
    new = {**old, "changed": large_value(2) if size == "large" else {"small": True}}
    with store.open() as app:
        app.kernel.save_state_delta(old, **PLACE)

    done = programs.run(
        [sys.executable, "-m", "tests.crash.commit_worker", store.url, store.objects or "", size],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    if unreached:
        assert (done.returncode, done.stdout) == (0, "acknowledged\n"), done.stderr
    else:
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr

    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    happened = unreached or point == "commit.after_commit"
    with store.open() as app:
        assert app.kernel.load_latest_state(**PLACE) == (new if happened else old)
        assert len(app.kernel.history(**PLACE)) == 1 + happened
        # The store is usable at once, without anyone cleaning up.
        app.kernel.save_state_delta({"after": 1}, **PLACE)
        report = app.kernel.verify(**PLACE)
        assert (report.problems, report.records) == ([], 2 + happened)
