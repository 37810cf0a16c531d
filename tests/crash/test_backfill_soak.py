"""A backfill of many entities that is killed again and again: 300 in every run, 2,000 in `make deep`, 100,000 in
`make soak`."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.api.pipeline.backfill_shop import TENANT, book, fill
from tests.crash.test_backfill_kill import LEASE_S, start
from tests.depth import count as so_many
from tests.raw_rows import select
from tests.stores import Store


def kill_and_resume(store: Store, count: int, kills: int, least_s: float, most_s: float, executor: str) -> None:
    chance = random.Random(11)
    with store.open(backfill_lease_s=LEASE_S) as app:
        fill(app, 0, authors=50)
        app.tenant("shop").ingest_many(
            (("BOOK", f"b{number:06}", book(number, 50)) for number in range(count - 50)), batch=500
        )
        plan = app.backfills.plan(TENANT, quick=True)
        assert plan.total == count
        made = app.backfills.create(TENANT)
        seen = [0]
        for _ in range(kills):
            worker = start(store, "follow", made.id, executor)
            assert worker.stdout is not None and worker.stderr is not None
            worker.stdout.readline()
            time.sleep(chance.uniform(least_s, most_s))
            worker.kill()
            worker.communicate()
            seen.append(app.backfills.get(made.id).counts.done)
        assert seen == sorted(seen)
        done = app.backfills.get(made.id)
        if not done.over:
            done = app.backfills.resume(made.id, executor=executor, wait_s=30)
        assert (done.state, done.counts.done, done.counts.changed, done.counts.failed) == ("DONE", count, count, 0)
        assert select(store, "SELECT count(*), max(revision) FROM compile") == [(count, 1)]
        assert select(store, "SELECT count(*) FROM slice") == [(done.counts.slices,)]
        assert select(store, "SELECT count(*) FROM outbox WHERE type = 'ShipRequested'") == [(count - 50,)]
        # On the same store, a dry run finds nothing more to do, and all is what it should be.
        again = app.backfill(TENANT, dry_run=True)
        assert again.changes is not None and (again.changes.done, again.changes.changed) == (count, 0)
        assert app.backfills.verify(TENANT, executor=executor).ok


def test_many_entities_are_each_done_once_whatever_dies(store: Store) -> None:
    kill_and_resume(store, so_many(300, deep=2_000), so_many(1, deep=2), 0.1, 0.8, "threads:2")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("executor", ["threads:2", "processes:2"])
def test_a_hundred_thousand_entities_are_each_done_once_whatever_dies(tmp_path: Path, executor: str) -> None:
    kill_and_resume(Store(str(tmp_path / "store")), 100_000, 5, 3.0, 12.0, executor)
