"""Real clusters: a Dask of two workers, a local Ray. `test_clusters` runs each class in a process of its own, so that
each cluster is started once, however many processes share the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from analemma.errors import Unavailable
from analemma.testing.executors import ExecutorSuite, die, square
from tests.ports.entry_points.executors import Call, CallExecutor, Next, resolve_executor
from tests.ports.work_elsewhere import WorkElsewhere


@pytest.fixture(scope="module")
def dask() -> Iterator[CallExecutor]:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'analemma[dask]'")
    with resolve_executor("dask:2") as executor:
        yield executor


class TestDask(ExecutorSuite, WorkElsewhere):
    @pytest.fixture
    def executor(self, dask: CallExecutor) -> CallExecutor:
        return dask

    def test_a_second_cluster_beside_it_gets_back_workers_that_dask_gave_up(self, executor: CallExecutor) -> None:
        """Dask gives a worker up that is not back in fifteen seconds; here, at once."""
        config = pytest.importorskip("dask.config")
        calls = iter([Call(die, (1,)), Call(die, (2,))])
        with config.set({"distributed.deploy.lost-worker-timeout": "1ms"}), resolve_executor("dask:1") as other:
            outcomes = list(other.run(lambda: next(calls, Next.OVER), attempts=2))
            assert [type(each.error) for each in outcomes] == [Unavailable, Unavailable]
            assert list(other.map(abs, [-1])) == list(executor.map(abs, [-1])) == [(-1, 1)]

    def test_a_call_that_nobody_is_there_to_run_is_not_waited_for_for_ever(self) -> None:
        distributed = pytest.importorskip("distributed")
        with (
            distributed.LocalCluster(
                n_workers=1, processes=False, dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False}
            ) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
            resolve_executor(client) as executor,
        ):
            assert list(executor.map(square, [2])) == [(2, 4)]
            cluster.scale(0)
            with pytest.raises(Unavailable, match=r"has had no worker for 0\.5 s") as caught:
                list(executor.map(square, [3], workerless_s=0.5))
            assert caught.value.hint and "start others" in caught.value.hint
            cluster.scale(1)
            assert list(executor.map(square, [4])) == [(4, 16)]


@pytest.fixture(scope="module")
def ray() -> Iterator[CallExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'analemma[ray]'")
    with resolve_executor("ray:2") as executor:
        yield executor


class TestRay(ExecutorSuite, WorkElsewhere):
    @pytest.fixture
    def executor(self, ray: CallExecutor) -> CallExecutor:
        return ray
