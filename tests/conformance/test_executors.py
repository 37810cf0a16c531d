"""Every executor passes the same suite: threads, processes, a caller's own, a real Dask cluster, a real Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from analemma.executors.port import CallExecutor
from analemma.executors.resolving import resolve_executor
from analemma.testing.executors import ExecutorSuite


class TestThreads(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        with resolve_executor("threads:3") as executor:
            yield executor


class TestProcesses(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        with resolve_executor("processes:2") as executor:
            yield executor


class TestGivenThreads(ExecutorSuite):
    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        with ThreadPoolExecutor(2) as pool, resolve_executor(pool) as executor:
            yield executor


class TestGivenProcesses(ExecutorSuite):
    survives = False

    @pytest.fixture
    def executor(self) -> Iterator[CallExecutor]:
        pool = ProcessPoolExecutor(2, mp_context=get_context("spawn"))
        with pool, resolve_executor(pool) as executor:
            yield executor


@pytest.fixture(scope="module")
def dask_executor() -> Iterator[CallExecutor]:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'analemma[dask]'")
    with resolve_executor("dask:2") as executor:
        yield executor


class TestDask(ExecutorSuite):
    @pytest.fixture
    def executor(self, dask_executor: CallExecutor) -> CallExecutor:
        return dask_executor

    def test_two_clusters_live_side_by_side(self, executor: CallExecutor) -> None:
        with resolve_executor("dask:1") as other:
            assert list(other.map(abs, [-1])) == list(executor.map(abs, [-1])) == [(-1, 1)]


@pytest.fixture(scope="module")
def ray_executor() -> Iterator[CallExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'analemma[ray]'")
    with resolve_executor("ray:2") as executor:
        yield executor


class TestRay(ExecutorSuite):
    @pytest.fixture
    def executor(self, ray_executor: CallExecutor) -> CallExecutor:
        return ray_executor


def test_a_given_executor_stays_open() -> None:
    with ThreadPoolExecutor(1) as pool:
        with resolve_executor(pool) as executor:
            assert list(executor.map(abs, [-1])) == [(-1, 1)]
        assert pool.submit(os.getpid).result() == os.getpid()
