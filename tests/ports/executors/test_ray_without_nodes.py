"""A Ray that has nobody to run a call: it is waited for so long, and then told. Which is which, Ray itself says by what
its nodes have; a cluster without nodes cannot be started in a test, so what stands here is what Ray would answer."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from analemma.errors import Unavailable
from analemma.testing.executors import square
from tests.ports.entry_points.executors import RayCalls


class Ray:
    """A connection to a cluster on which no task ends before somebody says so."""

    def __init__(self, *resources: dict[str, float] | Exception) -> None:
        """What it has when it is asked, each time, and from the last time on."""
        self._resources = [{"CPU": 2.0}, *resources]
        self.tasks: list[tuple[Future[Any], Any]] = []

    def cluster_resources(self) -> dict[str, float]:
        found = self._resources.pop(0) if len(self._resources) > 1 else self._resources[0]
        if isinstance(found, Exception):
            raise found
        if found.get("CPU") == 4.0:
            for future, result in self.tasks:
                future.set_result(result())
        return found

    def remote(self, **_: Any) -> Any:
        return lambda function: Task(self, function)

    def cancel(self, reference: Any) -> None:
        reference.future().cancel()


class Task:
    def __init__(self, ray: Ray, function: Any) -> None:
        self._ray, self._function = ray, function

    def remote(self, *arguments: Any) -> Any:
        future: Future[Any] = Future()
        self._ray.tasks.append((future, lambda: self._function(*arguments)))
        return Reference(future)


class Reference:
    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


def squares(ray: Ray, workerless_s: float) -> list[tuple[int, int]]:
    executor = RayCalls(ray, name="ray", owned=False)
    return list(executor.map(square, [3], poll_s=0.001, ask_s=0.001, workerless_s=workerless_s))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, r"ray has had no node with a processor for 0\.01 s"),
        ({"CPU": 0.5}, r"ray has had no node with a processor for 0\.01 s"),
        (ConnectionError("gone"), r"ray has not said what it has \(ConnectionError: gone\) for 0\.01 s"),
    ],
)
def test_a_call_that_no_node_can_run_is_not_waited_for_for_ever(answer: Any, said: str) -> None:
    with pytest.raises(Unavailable, match=said) as caught:
        # There are nodes in the end, long after somebody is to have been told.
        squares(Ray(*[answer] * 200, {"CPU": 4.0}), 0.01)
    assert caught.value.hint and "start others" in caught.value.hint


def test_a_call_that_takes_long_is_waited_for() -> None:
    answers: list[dict[str, float] | Exception] = [{"CPU": 1.0}] * 20
    assert squares(Ray(*answers, {"CPU": 4.0}), 0.01) == [(3, 9)]


def test_nodes_that_are_back_in_time_run_the_call() -> None:
    answers: list[dict[str, float] | Exception] = [{}, ConnectionError("gone")] * 5
    assert squares(Ray(*answers, {"CPU": 4.0}), 60) == [(3, 9)]
