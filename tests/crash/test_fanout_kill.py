"""kill -9 at every failpoint of a fanout, in its first page and in later ones: nobody is left out, nobody is counted
twice, and what is not concerned is not touched."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from analemma import App, FanoutState
from analemma.testing import failpoints
from tests import programs
from tests.core.contracts.bookshop import EXAMPLE
from tests.crash.fanout_worker import document
from tests.crash.points import kills
from tests.crash.test_pipeline_processes import check_everything
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
BOOKS = 12
PAGE = 5
POINTS = [
    ("fanout.asked", 1),
    *((step, page) for step in ("fanout.before_transaction", "fanout.after_blocks") for page in (1, 2, 3)),
    *((step, page) for step in ("fanout.before_commit", "fanout.after_commit") for page in (1, 3)),
    ("outbox.before_settle", 3),
    ("outbox.after_settle", 3),
]
CHOSEN = [
    ("fanout.asked", 1),
    ("fanout.before_transaction", 1),
    ("fanout.before_commit", 3),
    ("fanout.after_commit", 1),
    ("outbox.before_settle", 3),
]
AROUND_COMMIT = [("fanout.before_transaction", 1), ("fanout.after_commit", 1)]


def slice_rows(store: Store) -> dict[str, int]:
    return dict(select(store, "SELECT type, count(*) FROM slice GROUP BY type"))


def prepare(app: App, count: int = BOOKS) -> None:
    app.contracts.load(EXAMPLE)
    shop = app.tenant("shop")
    shop.ingest("AUTHOR", "lem", {"name": "Lem"})
    app.worker(1).drain()
    shop.ingest_many([("BOOK", f"{number:05}", document(number, "lem")) for number in range(count)])
    app.worker(2).drain()


def drain_at_last(store: Store, app: App) -> None:
    """Deliver everything, also what a dead worker held: that is free when its lease is over."""
    deadline = time.monotonic() + 60
    while app.worker(2).drain().delivered or undelivered(store):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def undelivered(store: Store) -> bool:
    # What is to be shipped is another's business.
    sql = "SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PROCESSING', 'FAILED') AND type <> 'ShipRequested'"
    return select(store, sql) != [(0,)]


@pytest.mark.parametrize(("point", "time_of"), kills(POINTS, test=CHOSEN, postgres=AROUND_COMMIT))
def test_a_kill_loses_nobody_and_counts_nobody_twice(store: Store, point: str, time_of: int) -> None:
    with store.open() as app:
        prepare(app)
        before = slice_rows(store)
        app.tenant("shop").ingest("AUTHOR", "lem", {"name": "Stanislaw"})
    done = programs.run(
        [
            sys.executable,
            "-m",
            "tests.crash.fanout_worker",
            store.url,
            store.objects or "",
            "drain",
            str(PAGE),
            "0",
            "1",
        ],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: f"{point}:{time_of}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    # What a dead worker held is free when its lease is over.
    change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")
    with store.open(fanout_page=PAGE, outbox_lease_s=1) as app:
        drain_at_last(store, app)
        check_everything(app)
        result = app.fanouts.get("AUTHOR", "lem", tenant="shop")
        assert (result.status, result.affected, result.passes) == (FanoutState.DONE, BOOKS, 1)
        assert (result.processed, result.skipped, result.failed) == (BOOKS, 0, 0)
        after = slice_rows(store)
        assert {kind: after[kind] - before[kind] for kind in after} == {
            "SUMMARY": 1,
            "PROFILE": 1,
            "ENRICHED": BOOKS,
            "CORE": 0,
            "PRICE": 0,
            "INVENTORY": 0,
        }
        assert app.gc.run(grace_s=0).ok and app.gc.run(grace_s=0).ok
        check_everything(app)
