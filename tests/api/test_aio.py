"""The async face: the same verbs, in threads, without ever blocking the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Coroutine, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

import analemma.aio
from analemma.aio import AsyncApp, Threads, default_threads
from analemma.errors import HeadMoved, Invalid, NotFound, Unavailable
from analemma.testing import failpoints
from tests.api.pipeline.shop import VIEW
from tests.core.contracts.bookshop import EXAMPLE

SAVES = 200


PARTS = (
    *("kernel", "archives", "flows", "flows.queues", "flows.schedules", "payloads"),
    *("contracts", "backfills", "fanouts", "sinks", "deploys"),
)
"""Attributes of an app that have verbs."""
TENANT_VERBS = (
    *("ingest", "ingest_many", "deploy", "delete", "compile", "slices", "ship"),
    *("state_sources", "source_problems", "backfill_sources"),
)


def pairs(app: AsyncApp, shop: Any) -> Iterator[tuple[object, object, str]]:
    """Every verb as it is here and as it is where nobody awaits."""
    theirs = app.sync.tenant("shop")
    yield from ((shop, theirs, name) for name in TENANT_VERBS)
    owners = [(attrgetter(part)(app), attrgetter(part)(app.sync)) for part in PARTS]
    owners += [(shop.view(VIEW), theirs.view(VIEW))]
    owners += [(shop.entity("BOOK", "1"), theirs.entity("BOOK", "1"))]
    for here, there in owners:
        yield from (
            (here, there, name)
            for name, _ in inspect.getmembers(type(there), inspect.isfunction)
            if not name.startswith("_")
        )


def differs(here: object, there: object, name: str) -> bool:
    mine, original = getattr(type(here), name, None), getattr(type(there), name)
    if mine is None or mine.__doc__ != original.__doc__:
        return True
    if inspect.signature(mine).parameters != inspect.signature(original).parameters:
        return True
    returns = str(inspect.signature(original).return_annotation).partition("[")[0]
    if inspect.isasyncgenfunction(mine) != (returns == "Iterator"):
        return True
    return inspect.iscoroutinefunction(mine) == (returns in ("Iterator", "AbstractContextManager"))


def test_every_verb_is_here_with_the_same_parameters_and_the_same_description() -> None:
    async def work() -> None:
        async with analemma.aio.open("sqlite:///:memory:") as app:
            await app.contracts.load(EXAMPLE)
            compared = list(pairs(app, await app.tenant("shop")))
        assert len(compared) > 120
        assert [f"{type(there).__name__}.{name}" for here, there, name in compared if differs(here, there, name)] == []

    run(work())


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


def test_the_loop_goes_on_while_a_verb_waits(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store", threads=2) as app:
            enough = threading.Event()
            with failpoints.call("commit.before_transaction", lambda: enough.wait(60)):
                slow = asyncio.create_task(app.kernel.save_state_delta({"n": 1}, workflow_id="slow", owner_id="ann"))
                # A loop that waits for it never comes to say that it is enough.
                for _ in range(20):
                    await asyncio.sleep(0.005)
                assert not slow.done()
                enough.set()
                assert (await slow).version == 1

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


def test_an_iterator_becomes_an_async_iterator_that_takes_one_step_at_a_time(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            versions: Any = app.kernel.watch(workflow_id="trip", owner_id="ann", since=0, poll_s=0.01)
            for number in (1, 2):
                await app.kernel.save_state_delta({"n": number}, workflow_id="trip", owner_id="ann")
                assert (await anext(versions)).version == number
            await versions.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(versions)

    run(work())


def test_an_error_in_an_iterator_comes_through(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store") as app:
            shop = await app.tenant("shop")
            with pytest.raises(NotFound, match="no contracts are loaded"):
                [item async for item in shop.view("view.book").every()]

    run(work())


def test_a_watcher_sees_commits_and_can_be_sent_home(tmp_path: Path) -> None:
    async def work() -> None:
        async with analemma.aio.open(tmp_path / "store", threads=1) as app:
            seen: list[int] = []
            await app.stats()
            before = threading.active_count()

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
            # Nobody is left who waits for another version.
            while threading.active_count() > before:
                await asyncio.sleep(0.01)

    run(work())
