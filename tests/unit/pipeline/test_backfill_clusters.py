"""Backfills on processes, on a Dask cluster of two workers and on a local Ray: the same as on threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma.executors.port import Call, CallExecutor, Next
from analemma.executors.resolving import resolve_executor
from analemma.pipeline.backfill_reports import Counts
from analemma.remote import StorePlace, store_place
from tests.stores import Store
from tests.unit.pipeline.backfill_shop import BOOKS, TENANT, book, fill, upgraded
from tests.unit.pipeline.tables import query
from tests.unit.pipeline.test_backfill_verify import damage_body

ENTITIES = 300


@pytest.fixture(scope="module")
def dask() -> Iterator[CallExecutor]:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'analemma[dask]'")
    with resolve_executor("dask:2") as executor:
        yield executor


@pytest.fixture(scope="module")
def ray() -> Iterator[CallExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'analemma[ray]'")
    with resolve_executor("ray:2") as executor:
        yield executor


@pytest.fixture(scope="module")
def processes() -> Iterator[CallExecutor]:
    with resolve_executor("processes:2") as executor:
        yield executor


@pytest.fixture(params=["processes", "dask", "ray"])
def executor(request: pytest.FixtureRequest) -> CallExecutor:
    found: CallExecutor = request.getfixturevalue(request.param)
    return found


class Watched(CallExecutor):
    """Remembers what was sent."""

    def __init__(self, inner: CallExecutor) -> None:
        self.name, self.slots, self.apart = inner.name, inner.slots, inner.apart
        self.inner = inner
        self.sent: list[tuple[Any, ...]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.sent.append(arguments)
        return self.inner.submit(function, *arguments)

    def lost(self, error: BaseException) -> bool:
        return self.inner.lost(error)

    def revive(self) -> None:
        self.inner.revive()

    def abandon(self, future: Any) -> None:
        self.inner.abandon(future)


def test_a_backfill_on_workers_elsewhere_does_what_it_does_here(
    store: Store, executor: CallExecutor, tmp_path: Path
) -> None:
    with store.open() as app:
        fill(app, ENTITIES)
        watched = Watched(executor)
        done = app.backfill(TENANT, executor=watched, page=25)
        assert (done.state, done.total) == ("DONE", ENTITIES + 5)
        assert done.counts == Counts(
            done=ENTITIES + 5, changed=ENTITIES + 5, slices=ENTITIES * 4 + 10, requested=ENTITIES
        )
        assert query(store, "SELECT count(*), max(revision) FROM compile") == [(ENTITIES + 5, 1)]
        # A place and plain data, never what is open here.
        partials = [arguments[0] for arguments in watched.sent]
        assert {type(each.args[0]) for each in partials} == {StorePlace} and len(partials) >= 13
        assert app.backfills.verify(TENANT, executor=executor).ok
        app.contracts.load(upgraded(tmp_path))
        plan = app.backfill({**BOOKS, "stale": True}, dry_run=True, executor=executor)
        again = app.backfill({**BOOKS, "stale": True}, executor=executor)
        assert (again.total, again.counts) == (ENTITIES, plan.changes)
        shop = app.tenant("shop")
        shop.ingest("BOOK", "b00001", book(1, price=5))
        damage_body(store)
        report = app.backfills.verify(TENANT, executor=executor)
        assert (report.uncompiled, report.corrupt) == (1, 1)
        full = app.backfill(BOOKS, kind="full", executor=executor)
        assert full.counts.requested == ENTITIES


def hold(place: StorePlace) -> tuple[int, int]:
    """The process, and how many stores it has opened."""
    from analemma import remote

    remote._OPENED.parts(place, "shop")
    return os.getpid(), len(remote._OPENED._apps)


def test_each_worker_opens_a_store_once(store: Store, executor: CallExecutor) -> None:
    with store.open() as app:
        fill(app, 1)
        place = store_place(app)
    calls = iter([Call(hold, (place,)) for _ in range(8)])
    seen = [each.get() for each in executor.run(lambda: next(calls, Next.OVER))]
    opened: dict[int, set[int]] = {}
    for process, count in seen:
        opened.setdefault(process, set()).add(count)
    assert all(len(counts) == 1 for counts in opened.values()), opened


def test_a_worker_that_dies_in_the_middle_costs_nothing_but_time(store: Store) -> None:
    """Processes whose failpoint kills each after a few pages."""
    with store.open() as app:
        fill(app, 40)
        os.environ["ANALEMMA_FAILPOINT"] = "backfill.after_advance:6"
        try:
            done = app.backfill(BOOKS, executor="processes:1", page=5)
        finally:
            del os.environ["ANALEMMA_FAILPOINT"]
        assert (done.state, done.counts.done, done.counts.changed) == ("DONE", 40, 40)
        assert query(store, "SELECT count(*), max(revision) FROM compile") == [(40, 1)]
