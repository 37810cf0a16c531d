"""Every executor passes the same suite: threads, processes, a caller's own; clusters do so in `test_clusters`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from analemma import Flow
from analemma.errors import Unavailable
from analemma.testing.executors import ExecutorSuite
from tests.api.pipeline.backfill_shop import BOOKS, fill
from tests.group_program import PLACE
from tests.ports.entry_points.executors import CallExecutor, resolve_executor
from tests.ports.work_elsewhere import WorkElsewhere
from tests.stores import Store


class TestThreads(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        with resolve_executor("threads:3") as executor:
            yield executor


@pytest.fixture(scope="module")
def processes() -> Iterator[CallExecutor]:
    with resolve_executor("processes:2") as executor:
        yield executor


class TestProcesses(ExecutorSuite, WorkElsewhere):
    @pytest.fixture
    def executor(self, processes: CallExecutor) -> CallExecutor:
        return processes


@pytest.mark.deep("the same threads, made elsewhere")
class TestGivenThreads(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        with ThreadPoolExecutor(2) as pool, resolve_executor(pool) as executor:
            yield executor


@pytest.mark.deep("the same processes, made elsewhere")
class TestGivenProcesses(ExecutorSuite):
    survives = False

    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
        with pool, resolve_executor(pool) as executor:
            yield executor


def test_a_given_executor_stays_open() -> None:
    with ThreadPoolExecutor(1) as pool:
        with resolve_executor(pool) as executor:
            assert list(executor.map(abs, [-1])) == [(-1, 1)]
        assert pool.submit(os.getpid).result() == os.getpid()


class Nobody(CallExecutor):
    """Takes calls, and has nobody to run them until it has been asked so often."""

    name, slots, apart = "nobody", 1, False

    def __init__(self, until: int | None) -> None:
        self.until = until
        self.waiting: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self.waiting.append((Future(), function, arguments))
        return self.waiting[-1][0]

    def missing(self) -> str | None:
        if self.until is None:
            return "nobody has had a worker"
        self.until -= 1
        if self.until == 0:
            for future, function, arguments in self.waiting:
                future.set_result(function(*arguments))
        return "nobody has had a worker"


def test_calls_that_nobody_is_there_to_run_end_with_an_error_that_says_what_to_do() -> None:
    executor = Nobody(until=None)
    with pytest.raises(Unavailable, match=r"nobody has had a worker for 0\.01 s") as caught:
        list(executor.map(abs, [-1], poll_s=0.001, workerless_s=0.01))
    assert caught.value.hint and "start others" in caught.value.hint
    assert [future.cancelled() for future, *_ in executor.waiting] == [True]


class BreaksFirst(CallExecutor):
    """Finds its pool broken when it is given the first call."""

    name, slots, apart, broken = "breaks first", 1, False, True

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        if self.broken:
            raise RuntimeError("the pool is broken")
        future: Future[Any] = Future()
        future.set_result(function(*arguments))
        return future

    def lost(self, error: BaseException) -> bool:
        return isinstance(error, RuntimeError)

    def revive(self) -> None:
        self.broken = False


def test_a_call_that_finds_its_pool_broken_is_handed_to_the_next() -> None:
    assert sorted(BreaksFirst().map(abs, [-1, -2])) == [(-2, 2), (-1, 1)]


def test_workers_that_come_late_are_waited_for() -> None:
    executor = Nobody(until=3)
    assert list(executor.map(abs, [-1], poll_s=0.001, workerless_s=3600, ask_s=0.001)) == [(-1, 1)]


def test_processes_find_a_file_whose_name_has_to_be_quoted(processes: CallExecutor, tmp_path: Path) -> None:
    with Store(f"sqlite:///{quote(str(tmp_path / '100%41'))}/shop.db").open() as app:
        fill(app, 5)
        assert app.backfill(BOOKS, executor=processes).state == "DONE"


@pytest.mark.deep("it starts several processes, one after the other")
def test_a_worker_that_dies_in_the_middle_of_a_backfill_costs_nothing_but_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes whose failpoint kills each after a few pages."""
    with store.open() as app:
        fill(app, 20)
        monkeypatch.setenv("ANALEMMA_FAILPOINT", "backfill.after_advance:3")
        done = app.backfill(BOOKS, executor="processes:1", page=5)
        monkeypatch.delenv("ANALEMMA_FAILPOINT")
        assert (done.state, done.counts.done, done.counts.changed) == ("DONE", 20, 20)
        assert app.backfills.verify(BOOKS).ok


def test_a_function_that_other_processes_cannot_find_is_refused(store: Store) -> None:
    flow = Flow("local")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        return {"x": 1}

    flow.for_each("each", over="n", step=work)
    with store.open() as app:
        run = app.flows.run(flow, {"n": [1]}, **PLACE, executor="processes:1")
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "invalid")
        assert "cannot be found by other processes" in run.error.message
        assert app.flows.resume(run.execution_id, executor="threads:1").status == "COMPLETED"
