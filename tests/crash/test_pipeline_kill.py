"""kill -9 at every failpoint of ingest, compile and fanout: all of it happened or nothing, and doing it again works."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.api.pipeline.tables import row_counts
from tests.core.contracts.bookshop import EXAMPLE
from tests.crash.pipeline_verb_worker import AUTHOR, VERBS
from tests.crash.points import kills
from tests.crash.test_pipeline_processes import check_everything
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
INGEST = ("ingest.before_transaction", "ingest.after_blocks", "ingest.before_commit", "ingest.after_commit")
COMPILE = ("compile.before_transaction", "compile.after_blocks", "compile.before_commit", "compile.after_commit")
CASES = [
    *(("ingest", point) for point in INGEST),
    *(("late", point) for point in INGEST),
    ("delete", "ingest.before_commit"),
    ("delete", "ingest.after_commit"),
    *(("compile", point) for point in COMPILE),
    *(("work", point) for point in COMPILE),
    ("work", "fanout.before_commit"),
    ("work", "fanout.after_commit"),
]
CHOSEN = [
    *(("ingest", point) for point in INGEST if point != "ingest.after_blocks"),
    ("late", "ingest.before_commit"),
    ("delete", "ingest.after_commit"),
    *(("compile", point) for point in COMPILE if point != "compile.after_blocks"),
    ("work", "compile.before_commit"),
    ("work", "compile.after_commit"),
]
AROUND_COMMITS = [
    *(("ingest", "ingest.before_transaction"), ("ingest", "ingest.after_commit")),
    *(("compile", "compile.before_transaction"), ("compile", "compile.after_commit")),
]


def prepare(app: App) -> None:
    app.contracts.load(EXAMPLE)
    shop = app.tenant("shop")
    for isbn in "1", "2":
        shop.ingest("BOOK", isbn, {"isbn": isbn, "title": "Old", "price": 1, "authorId": "lem"})
        shop.compile("BOOK", isbn)
    shop.ingest("AUTHOR", "lem", {"name": "Lem"})
    app.worker(1).drain()
    shop.ingest("BOOK", "2", {"isbn": "2", "title": "Newer", "price": 2, "authorId": "lem", "tags": ["x"]})


@pytest.mark.parametrize(("verb", "point"), kills(CASES, test=CHOSEN, postgres=AROUND_COMMITS))
def test_a_kill_leaves_all_of_it_or_nothing(verb: str, point: str, store: Store) -> None:
    with store.open() as app:
        prepare(app)
        if verb == "work":
            app.tenant("shop").ingest("AUTHOR", "lem", AUTHOR)
    before = row_counts(store)
    done = programs.run(
        [sys.executable, "-m", "tests.crash.pipeline_verb_worker", store.url, store.objects or "", verb],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    postgres = store.url.startswith("postgresql")
    # PostgreSQL does it in one statement, except what is acknowledged with it.
    unreached = postgres and (
        (verb != "work" and point.endswith(("after_blocks", "before_commit")))
        or (verb == "work" and point == "compile.after_blocks")
    )
    assert (done.returncode, done.stdout) == ((0, "acknowledged\n") if unreached else (-signal.SIGKILL, "")), (
        done.stderr
    )
    after = row_counts(store)
    if verb != "work":
        assert (after != before) == (unreached or point.endswith("after_commit"))
    # What a dead worker held is free when its lease is over.
    change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")
    with store.open(outbox_lease_s=1) as app:
        again = VERBS[verb](app)
        if verb in ("ingest", "late", "delete"):
            # Whoever was killed sends it again, and it is there once.
            assert row_counts(store)["raw"] == before["raw"] + 1
            assert again.created == (after == before)  # type: ignore[attr-defined]
        if verb == "compile":
            assert row_counts(store)["compile"] == before["compile"] + 1
        # A lane that the dead worker held is free when its lease is over.
        deadline = time.monotonic() + 20
        while app.worker(1).drain().delivered or _pending(store):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        check_everything(app)
        assert app.gc.run(grace_s=0).ok and app.gc.run(grace_s=0).ok
        check_everything(app)
        if verb == "work":
            enriched = app.tenant("shop").slices("BOOK", "2")["ENRICHED"].data
            assert enriched == {"author": {"name": "Stanislaw"}}


def _pending(store: Store) -> bool:
    return select(store, "SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PROCESSING', 'FAILED')") != [(0,)]
