"""Real clusters, each started once: a Dask of two workers, a local Ray, processes. Executors pass their suite on them,
and backfills and groups of runs come to the same as on threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import Flow
from analemma.executors.port import Call, CallExecutor, Next
from analemma.executors.resolving import resolve_executor
from analemma.pipeline.backfill_reports import Counts
from analemma.remote import StorePlace, store_place
from analemma.testing.executors import ExecutorSuite
from tests.api.pipeline.backfill_shop import BOOKS, TENANT, book, fill, upgraded
from tests.api.pipeline.tables import query
from tests.api.pipeline.test_backfill_verify import damage_body
from tests.group_program import PLACE, failing, killing, merged, squares
from tests.stores import Store

ENTITIES = 300
ITEMS = 1000


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


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


class TestDask(ExecutorSuite):
    @pytest.fixture
    def executor(self, dask: CallExecutor) -> CallExecutor:
        return dask

    def test_two_clusters_live_side_by_side(self, executor: CallExecutor) -> None:
        with resolve_executor("dask:1") as other:
            assert list(other.map(abs, [-1])) == list(executor.map(abs, [-1])) == [(-1, 1)]


class TestRay(ExecutorSuite):
    @pytest.fixture
    def executor(self, ray: CallExecutor) -> CallExecutor:
        return ray


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


def test_workers_elsewhere_come_to_the_same_as_threads(store: Store, executor: CallExecutor) -> None:
    given = {"numbers": [{"n": number} for number in range(ITEMS)], "factor": 3}
    with store.open() as app:
        for flow, its_input in ((squares, given), (merged, {"text": "one two three four"})):
            roots = set()
            for number, where in enumerate(("threads:2", executor)):
                place: dict[str, Any] = {"workflow_id": f"{flow.name}-{number}", "owner_id": "me"}
                run = app.flows.run(flow, its_input, **place, executor=where)
                assert run.status == "COMPLETED", run.error
                roots.add(app.kernel.history(**place)[0].root_hash)
            assert len(roots) == 1
        assert app.outbox.status().pending == 2


def test_what_fails_elsewhere_fails_the_run_with_its_own_error(store: Store, executor: CallExecutor) -> None:
    with store.open() as app:
        run = app.flows.run(failing, {"numbers": [1, 0, 2]}, **PLACE, executor=executor)
        assert run.error is not None
        assert (run.status, run.error.type, run.error.node) == ("FAILED", "ZeroDivisionError", "divide")
        # Tasks ran in other processes.
        app.flows.rerun(run.execution_id, from_segment="each", executor=executor)
        good = app.flows.run(failing, {"numbers": [1, 2]}, workflow_id="t-2", owner_id="me", executor=executor)
        assert all(answer["answer"][1] != os.getpid() for answer in good.state["each"])


def test_a_worker_that_dies_in_a_task_is_replaced_and_the_state_is_the_same(
    store: Store, executor: CallExecutor, tmp_path: Path
) -> None:
    with store.open() as app:
        given = {"numbers": list(range(40)), "once": str(tmp_path / "died")}
        run = app.flows.run(killing, given, **PLACE, executor=executor)
        assert run.status == "COMPLETED", run.error
        assert run.state["each"] == list(range(1, 41))
        assert (tmp_path / "died").exists()


def test_a_function_that_other_processes_cannot_find_is_refused(store: Store, processes: CallExecutor) -> None:
    flow = Flow("local")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        return {"x": 1}

    flow.for_each("each", over="n", step=work)
    with store.open() as app:
        run = app.flows.run(flow, {"n": [1]}, **PLACE, executor=processes)
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "invalid")
        assert "cannot be found by other processes" in run.error.message
        assert app.flows.resume(run.execution_id, executor="threads:1").status == "COMPLETED"
