"""Ctrl-C and cancelled awaits, wherever they hit: afterwards the store answers as before."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

import analemma
import analemma.aio
from analemma.testing import failpoints
from tests.interrupting import raise_at
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
SMALL: dict[str, Any] = {"postgres_pool_max": 1, "connect_timeout_s": 2.0}
"""One connection: whoever loses it has none left."""

HERE = str(Path(analemma.__file__).parent)
FOLDERS = (f"{HERE}/catalog", str(Path(str(psycopg.__file__)).parent))
"""Where connections, locks and queues are."""


def verb(app: analemma.App, name: str) -> Callable[[], object]:
    kernel, numbers = app.kernel, iter(range(1, 1_000_000))
    first = next(iter(kernel.history(**AT))).manifest_id
    verbs: dict[str, Callable[[], object]] = {
        "save": lambda: kernel.save_state_delta({"n": next(numbers)}, **AT),
        "load": lambda: kernel.load_latest_state(**AT),
        "checkpoint": lambda: kernel.checkpoint_async({"n": next(numbers)}, **AT),
        "tag": lambda: kernel.tag(first, f"t{next(numbers)}", owner_id="ann"),
        "drain": lambda: app.worker().drain(),
        "collect": lambda: app.gc.run(grace_s=0),
    }
    return verbs[name]


@pytest.mark.parametrize(
    ("name", "step"), [("save", 3), ("load", 1), ("checkpoint", 5), ("tag", 7), ("drain", 1), ("collect", 23)]
)
def test_a_store_answers_after_a_verb_was_interrupted_anywhere(store: Store, name: str, step: int) -> None:
    with store.open(**SMALL) as app, store.open() as other:
        app.kernel.save_state_delta({"n": 0}, **AT)
        run = verb(app, name)
        run()
        place = 1
        while raise_at(run, place, FOLDERS):
            assert app.kernel.load_latest_state(**AT)["n"] >= 0
            place += step
        assert place > 9
        run()
        # Locks between processes and sessions are free, too.
        assert other.kernel.save_state_delta({"n": -1}, **AT).version > 1


@pytest.mark.parametrize("point", ["commit.before_transaction", "commit.before_commit", "commit.after_commit"])
def test_another_session_saves_after_a_save_was_interrupted_inside_its_transaction(store: Store, point: str) -> None:
    if point == "commit.before_commit" and store.objects is not None:
        point = "record.before_commit"  # a commit of PostgreSQL is one statement; a tag is a transaction
    with store.open(**SMALL) as app, store.open() as other:
        app.kernel.save_state_delta({"n": 0}, **AT)
        run = verb(app, "tag" if point.startswith("record") else "save")
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt) as caught, failpoints.call(point, interrupt):
                run()
            assert other.kernel.save_state_delta({"n": -1}, **AT).version > 1
            run()
            # A notebook keeps the last traceback, and with it what the frames have.
            assert caught.tb is not None


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Python drops those that hit a finalizer
def test_a_store_answers_after_many_signals_at_random_moments(store: Store) -> None:
    moments = random.Random(1)
    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with store.open(**SMALL) as app:
            app.kernel.save_state_delta({"n": 0}, **AT)
            run = verb(app, "save")
            while interrupted < 60:
                with suppress(KeyboardInterrupt):
                    try:
                        signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.00005, 0.004))
                        run()
                    except KeyboardInterrupt:
                        interrupted += 1
                        raise
                    finally:
                        signal.setitimer(signal.ITIMER_REAL, 0)
            assert app.kernel.load_latest_state(**AT)["n"] >= 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_read_that_was_interrupted_anywhere_keeps_no_forked_child_from_opening_its_own(
    migrated_directory: Path,
) -> None:
    store = Store(str(migrated_directory))
    with store.open() as app:
        app.kernel.save_state_delta({"n": 7}, **AT)
        place = 1
        while raise_at(verb(app, "load"), place, FOLDERS):
            place += 1
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                os._exit(store.open().kernel.load_latest_state(**AT)["n"])
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_store_answers_after_awaits_were_cancelled_anywhere(store: Store) -> None:
    async def run() -> None:
        settings = analemma.Settings(**SMALL)
        async with analemma.aio.open(store.url, objects=store.objects, settings=settings, threads=2) as app:
            kernel = app.kernel
            await kernel.save_state_delta({"n": 0}, **AT)
            for number in range(40):
                tasks = [
                    asyncio.ensure_future(kernel.save_state_delta({"n": number}, **AT)),
                    asyncio.ensure_future(kernel.load_latest_state(**AT)),
                    asyncio.ensure_future(look(kernel)),
                ]
                for _ in range(number % 3):
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(each, asyncio.CancelledError) for each in ended)
            assert (await kernel.load_latest_state(**AT))["n"] >= 0

    async def look(kernel: Any) -> None:
        async with kernel.session(**AT) as state:
            state["seen"] = True

    asyncio.run(run())


def test_the_threads_of_a_worker_of_runs_end_when_it_is_interrupted(migrated_directory: Path) -> None:
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Store(str(migrated_directory)).open() as app:
            worker = app.run_worker()
            for _ in range(2):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                with pytest.raises(KeyboardInterrupt):
                    worker.run()
                threads = [each for each in threading.enumerate() if each.name.startswith("analemma-runs-")]
                assert not any(each.is_alive() for each in threads)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
