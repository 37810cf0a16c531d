"""The async face: the same verbs, in threads, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import analemma.aio
from analemma.aio import AsyncKernel, Threads, default_threads
from analemma.aio_kernel import stream
from analemma.bag.kernel import BagKernel as Kernel
from analemma.clock import SystemClock
from analemma.errors import HeadMoved, Invalid, NotFound, Unavailable

SAVES = 200


def verbs() -> dict[str, Callable[..., Any]]:
    return {name: verb for name, verb in inspect.getmembers(Kernel, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("name", verbs())
def test_every_verb_of_the_kernel_is_here_with_the_same_signature(name: str) -> None:
    mine, theirs = getattr(AsyncKernel, name), getattr(Kernel, name)
    assert inspect.signature(mine) == inspect.signature(theirs)
    assert mine.__doc__ == theirs.__doc__
    returns = str(inspect.signature(theirs).return_annotation).partition("[")[0]
    assert inspect.isasyncgenfunction(mine) == (returns == "Iterator")
    assert inspect.iscoroutinefunction(mine) == (returns not in ("Iterator", "AbstractContextManager"))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_many_concurrent_saves_all_arrive(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            await asyncio.gather(
                *[
                    app.kernel.save_state_delta({f"field {number}": number}, workflow_id="trip", owner_id="ann")
                    for number in range(SAVES)
                ]
            )
            state = await app.kernel.load_latest_state(workflow_id="trip", owner_id="ann")
            assert state == {f"field {number}": number for number in range(SAVES)}
            history = await app.kernel.history(workflow_id="trip", owner_id="ann", limit=SAVES + 1)
            assert [version.version for version in history] == list(range(SAVES, 0, -1))

    run(work())


def test_a_cancelled_save_happened_or_did_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store", threads=2) as app:
            await app.kernel.save_state_delta({"number": -1}, workflow_id="trip", owner_id="ann")
            for number in range(40):
                save = asyncio.create_task(
                    app.kernel.save_state_delta({"number": number}, workflow_id="trip", owner_id="ann")
                )
                await asyncio.sleep(0.0005 * (number % 8))
                save.cancel()
                await asyncio.wait([save])
        async with analemma.aio.open(tmp_path / "store") as app:
            history = await app.kernel.history(workflow_id="trip", owner_id="ann")
            assert [version.version for version in history] == list(range(len(history), 0, -1))
            states = [await app.kernel.load_state(version.manifest_id) for version in history]
            assert sorted(state["number"] for state in states) == sorted({state["number"] for state in states})
            report = await app.kernel.verify(workflow_id="trip", owner_id="ann")
            assert report.ok

    run(work())


def test_cancelling_abandons_the_wait_and_not_the_work() -> None:
    async def work() -> None:
        begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

        def transaction() -> None:
            begun.set()
            go_on.wait(30)
            done.set()

        threads = Threads(1)
        waiting = asyncio.create_task(threads.run(transaction))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not done.is_set()
        go_on.set()
        await asyncio.to_thread(threads.finish)
        assert done.is_set()

    run(work())


def test_closing_waits_for_what_was_abandoned(tmp_path: Path) -> None:
    async def work() -> None:
        app = await analemma.aio.open(tmp_path / "store")
        saves = [
            asyncio.create_task(app.kernel.save_state_delta({"n": 1}, workflow_id=f"trip {number}", owner_id="ann"))
            for number in range(20)
        ]
        await asyncio.sleep(0.002)
        for save in saves:
            save.cancel()
        await app.close()
        await app.close()
        with pytest.raises(Unavailable):
            await app.kernel.load_latest_state(workflow_id="report", owner_id="ann")
        ended = await asyncio.gather(*saves, return_exceptions=True)
        assert {type(end).__name__ for end in ended} <= {"CancelledError", "Commit"}

    run(work())


def test_the_loop_goes_on_while_verbs_wait(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store", threads=4) as app:
            enough = threading.Event()
            slow = asyncio.gather(*[app._threads.run(lambda: enough.wait(60)) for _ in range(8)])
            # A loop that waits for them never comes to say that it is enough.
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert not slow.done()
            enough.set()
            assert await slow == [True] * 8

    run(work())


def test_exceptions_come_through_unchanged(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            with pytest.raises(NotFound, match="there is no workflow ann/trip"):
                await app.kernel.load_latest_state(workflow_id="trip", owner_id="ann")
            saved = await app.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
            with pytest.raises(HeadMoved) as moved:
                await app.kernel.save_state_delta(
                    {"n": 2}, workflow_id="trip", owner_id="ann", previous_manifest_id=None
                )
            assert moved.value.found.manifest.hex() == saved.manifest_id

    run(work())


def test_a_store_that_cannot_be_opened_raises_and_leaves_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        with pytest.raises(NotFound):
            async with analemma.aio.open(tmp_path / "nowhere", create=False):
                pass
        with pytest.raises(Invalid, match="not open"):
            _ = analemma.aio.open(tmp_path / "store").kernel
        assert not list(tmp_path.iterdir())

    run(work())


def test_tenants_stats_and_info(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            shop = await app.tenant("shop")
            await shop.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
            with pytest.raises(NotFound):
                await app.kernel.load_latest_state(workflow_id="trip", owner_id="ann")
            assert (await app.stats("shop")).manifests == 1
            assert (await app.info())["backend"] == "sqlite"
            assert app.sync.stats().manifests == 1

    run(work())


def test_no_more_threads_than_asked_for_work_at_once() -> None:
    async def work() -> None:
        threads, running, most, lock = Threads(3), 0, 0, threading.Lock()
        together = threading.Barrier(3)

        def step() -> None:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            # Nobody goes on before there are three.
            together.wait(60)
            with lock:
                running -= 1

        await asyncio.gather(*[threads.run(step) for _ in range(12)])
        assert most == 3

    run(work())
    with pytest.raises(Invalid):
        Threads(0)
    assert 1 < default_threads() <= 32


def test_context_variables_are_seen_by_the_verb() -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request")

    async def work() -> None:
        request.set("r-1")
        assert await Threads(1).run(request.get) == "r-1"

    run(work())


class Counting:
    """Stands for a kernel with an iterator of its own."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self.made: list[int] = []
        self.closed = threading.Event()

    def count(self, *, end: int) -> Iterator[int]:
        try:
            for number in range(end):
                self.made.append(number)
                yield number
            if end > 100:
                raise NotFound("no more")
        finally:
            self.closed.set()


def counted(counting: Counting, end: int) -> Any:
    iterate: Any = stream(Counting.count)  # type: ignore[arg-type]
    kernel: Any = counting
    return iterate(AsyncKernel(kernel, Threads(1)), end=end)


def test_an_iterator_becomes_an_async_iterator_that_takes_one_step_at_a_time() -> None:
    async def work() -> None:
        counting = Counting()
        items = counted(counting, 3)
        assert await anext(items) == 0
        assert counting.made == [0]
        assert [item async for item in items] == [1, 2]
        assert counting.closed.is_set()

    run(work())


def test_leaving_an_async_iterator_closes_the_iterator() -> None:
    async def work() -> None:
        counting = Counting()
        items = counted(counting, 50)
        async for item in items:
            if item == 1:
                break
        await items.aclose()
        assert await asyncio.to_thread(counting.closed.wait, 10)
        assert counting.made == [0, 1]

    run(work())


def test_an_error_in_an_iterator_comes_through() -> None:
    async def work() -> None:
        with pytest.raises(NotFound, match="no more"):
            [item async for item in counted(Counting(), 101)]

    run(work())


def test_a_watcher_sees_commits_and_can_be_sent_home(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store", threads=1) as app:
            seen: list[int] = []

            async def listen() -> None:
                async for version in app.kernel.watch(workflow_id="trip", owner_id="ann", since=0, poll_s=0.01):
                    seen.append(version.version)

            listeners = [asyncio.create_task(listen()) for _ in range(3)]
            for number in range(3):
                await app.kernel.save_state_delta({"n": number}, workflow_id="trip", owner_id="ann")
            while len(seen) < 9:
                await asyncio.sleep(0.01)
            assert sorted(seen) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
            for listener in listeners:
                listener.cancel()
            await asyncio.wait(listeners)
            while any(thread.name == "analemma-watch" for thread in threading.enumerate()):
                await asyncio.sleep(0.01)

    run(work())
