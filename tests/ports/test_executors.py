"""Every executor passes the same suite: threads, processes, a caller's own; clusters do so in `test_clusters`."""

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


def test_a_given_executor_stays_open() -> None:
    with ThreadPoolExecutor(1) as pool:
        with resolve_executor(pool) as executor:
            assert list(executor.map(abs, [-1])) == [(-1, 1)]
        assert pool.submit(os.getpid).result() == os.getpid()
