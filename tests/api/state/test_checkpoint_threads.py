"""Who applies what is pending: threads that come and go, processes that close, fork and die."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analemma import App, BranchKey
from analemma.errors import Invalid, Unavailable
from analemma.state import checkpointing
from tests.stores import Store, local

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
KEY = BranchKey("ann", "trip")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def appliers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "analemma-checkpoints"]


def wait_until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_a_store_has_no_thread_before_its_first_checkpoint(app: App) -> None:
    app.kernel.save_state_delta({"n": 1}, **NAME)
    assert appliers() == []
    app.kernel.checkpoint_async({"n": 2}, wait_for_commit=True, **NAME)
    assert appliers() == []  # whoever waits does the work
    app.kernel.checkpoint_async({"n": 3}, **NAME)
    assert len(appliers()) == 1
    app.close()
    assert appliers() == []


def test_an_idle_thread_ends_and_the_next_checkpoint_starts_another(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "IDLE_S", 0.05)
    for number in range(2):
        ticket = app.kernel.checkpoint_async({"n": number}, **NAME)
        wait_until(lambda ticket=ticket: app.kernel.ticket(ticket).status == "committed")
        wait_until(lambda: appliers() == [])


def test_closing_applies_what_is_pending(store: Store) -> None:
    with store.open() as app:
        tickets = [app.kernel.checkpoint_async({f"f{number}": number}, **NAME) for number in range(50)]
    with store.open() as app:
        assert app.checkpoints.pending == 0
        assert app.kernel.ticket(tickets[-1]).version == 50


def test_closing_without_time_leaves_it_to_the_next_process(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "GATHER_S", 1.0)
    with store.open(checkpoint_close_s=0) as app:
        tickets = [app.kernel.checkpoint_async({f"f{number}": number}, **NAME) for number in range(3)]
    with store.open() as app:
        left = app.checkpoints.pending
        assert app.checkpoints.drain() == left
        assert app.kernel.ticket(tickets[-1]).version == 3


def test_closing_does_not_wait_for_a_thread_that_is_stuck(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(checkpoint_close_s=0.2) as app:
        settle = app.catalog.settle
        stuck, go_on = threading.Event(), threading.Event()

        def slowly(*arguments: Any) -> Any:
            stuck.set()
            assert go_on.wait(60)
            return settle(*arguments)

        monkeypatch.setattr(app.catalog, "settle", slowly)
        ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
        assert stuck.wait(20)
        thread = app.checkpoints._thread
        assert thread is not None
        started = time.monotonic()
        app.close()
        took = time.monotonic() - started
        go_on.set()
        thread.join(20)
        assert not thread.is_alive() and took < 10
    with store.open() as app:
        assert app.kernel.wait_for(ticket).version == 1


def test_the_thread_takes_up_what_others_left_behind(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(checkpoint_close_s=0) as dead:
        dead.checkpoints._closed = True
        left = dead.kernel.checkpoint_async({"n": 1}, **NAME)
    monkeypatch.setattr(checkpointing, "LEFT_BEHIND_S", 0.0)
    with store.open() as app:
        app.kernel.checkpoint_async({"n": 1}, workflow_id="other", owner_id="ann")
        wait_until(lambda: app.kernel.ticket(left).status == "committed")


def test_the_thread_outlives_a_database_that_is_away(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointing, "PAUSE_S", 0.05)
    settle = app.catalog.settle
    failing = threading.Event()
    failing.set()

    def sometimes(*arguments: Any) -> Any:
        if failing.is_set():
            raise Unavailable("the database is away")
        return settle(*arguments)

    monkeypatch.setattr(app.catalog, "settle", sometimes)
    ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
    wait_until(lambda: app.checkpoints.problem is not None)
    assert app.kernel.ticket(ticket).status == "pending"
    failing.clear()
    wait_until(lambda: app.kernel.ticket(ticket).status == "committed")


def test_threads_that_enter_together_share_transactions(app: App) -> None:
    """The first is held up in its transaction; those that come meanwhile are entered in one, each at its own place."""
    entered, go_on = threading.Event(), threading.Event()
    enter_all = app.catalog.enter_all
    groups: list[int] = []

    def held(tenant: Any, entries: Any) -> Any:
        groups.append(len(entries))
        entered.set()
        assert go_on.wait(60)
        return enter_all(tenant, entries)

    app.catalog.enter_all = held  # type: ignore[method-assign]

    def produce(number: int) -> Any:
        return app.kernel.checkpoint_async({"n": number}, workflow_id=f"trip {number % 3}", owner_id="ann")

    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(produce, 0)
        assert entered.wait(20)
        others = [threads.submit(produce, number) for number in range(1, 9)]
        wait_until(lambda: len(app.checkpoints._entering._queue) == 8)
        go_on.set()
        tickets = [each.result() for each in (first, *others)]
    assert groups == [1, 8]
    assert [app.kernel.load_state_with_consistency(ticket) for ticket in tickets] == [{"n": n} for n in range(9)]


def test_an_entry_that_is_refused_takes_no_other_with_it(app: App) -> None:
    entered, go_on = threading.Event(), threading.Event()
    enter_all = app.catalog.enter_all
    refused = Invalid("not this one")

    def choosy(tenant: Any, entries: Any) -> Any:
        entered.set()
        assert go_on.wait(60)
        if any(entry.key.workflow == "bad" for entry in entries):
            raise refused
        return enter_all(tenant, entries)

    app.catalog.enter_all = choosy  # type: ignore[method-assign]

    def produce(workflow: str) -> Any:
        return app.kernel.checkpoint_async({"n": 1}, workflow_id=workflow, owner_id="ann")

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(produce, "first")
        assert entered.wait(20)
        others = {name: threads.submit(produce, name) for name in ("a", "bad", "b")}
        wait_until(lambda: len(app.checkpoints._entering._queue) == 3)
        go_on.set()
        assert others["bad"].exception() is refused
        for each in (first, others["a"], others["b"]):
            assert app.kernel.wait_for(each.result()).version == 1
    assert app.checkpoints.pending == 0


def test_an_interrupt_leaves_no_branch_claimed(app: App) -> None:
    class Interrupted:
        """Ctrl-C at the moment in which the branch has just been claimed."""

        def __init__(self) -> None:
            self.lock = threading.RLock()
            self.interrupts = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.lock, name)

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt

    app.kernel.save_state_delta({"n": 0}, **NAME)
    lock: Any = Interrupted()
    app.checkpoints._lock = lock
    app.checkpoints._changed = threading.Condition(lock)
    app.checkpoints._closed = True
    ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
    lock.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        app.kernel.wait_for(ticket)
    assert app.kernel.wait_for(ticket, timeout=20).version == 2


def test_producers_savers_and_waiters_on_one_branch(store: Store) -> None:
    """Threads of two apps at once: everything is applied once, and each producer's own order is kept."""
    with store.open() as one, store.open() as two:

        def produce(producer: int) -> list[str]:
            kernel = (one if producer % 2 else two).kernel
            tokens = []
            for number in range(12):
                delta = {f"p{producer}": number, f"p{producer}-{number}": True}
                if producer < 4:
                    tokens.append(str(kernel.checkpoint_async(delta, wait_for_commit=number % 4 == 3, **NAME)))
                else:
                    kernel.save_state_delta(delta, **NAME)
            return tokens

        with ThreadPoolExecutor(6) as threads:
            tokens = list(threads.map(produce, range(6)))
        one.checkpoints.drain()
        kernel = one.kernel
        history = kernel.history(limit=1000, **NAME)
        assert [row.version for row in history] == list(range(72, 0, -1))
        states = [kernel.load_state(row.manifest_id) for row in reversed(history)]
        for producer in range(6):
            seen = [state[f"p{producer}"] for state in states if f"p{producer}" in state]
            assert seen == sorted(seen) and set(seen) == set(range(12))
        for producer in range(4):
            for number, token in enumerate(tokens[producer]):
                state = kernel.load_state_with_consistency(token)
                assert state[f"p{producer}"] == number and f"p{producer}-{number}" in state
        assert kernel.verify(**NAME).problems == []


def test_a_forked_child_has_a_thread_of_its_own(store: Store) -> None:
    with store.open() as app:
        ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert app.checkpoints._thread is None and not app.checkpoints._waiting
                mine = app.kernel.checkpoint_async({"child": True}, **NAME)
                wait_until(lambda: app.kernel.ticket(mine).status == "committed")
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        app.kernel.wait_for(ticket)
        assert app.kernel.load_latest_state(**NAME) == {"n": 1, "child": True}
        assert app.kernel.verify(**NAME).problems == []


def test_a_store_in_memory_checkpoints_too() -> None:
    with Store("sqlite:///:memory:").open() as app:
        tickets = [app.kernel.checkpoint_async({"n": number}, **NAME) for number in range(20)]
        app.kernel.save_state_delta({"m": 1}, **NAME)
        assert app.kernel.load_state_with_consistency(tickets[-1]) == {"n": 19}


def test_waiting_stops_when_another_process_has_done_the_work(tmp_path: Any) -> None:
    store = local(tmp_path)
    with store.open() as one, store.open() as two:
        one.checkpoints._closed = True
        with one.checkpoints._claimed([KEY], None):
            ticket = one.kernel.checkpoint_async({"n": 1}, **NAME)
            assert two.kernel.wait_for(str(ticket)).version == 1
            # Nobody here gets to the branch, but the answer is there.
            assert one.kernel.wait_for(ticket, timeout=0).version == 1


def test_a_checkpoint_is_accepted_when_no_thread_can_be_started(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name == "analemma-checkpoints":
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", fail)
    first = app.kernel.checkpoint_async({"a": 1}, **NAME)
    assert isinstance(app.default.checkpoints.problem, RuntimeError) and app.checkpoints.pending == 1
    monkeypatch.undo()
    second = app.kernel.checkpoint_async({"b": 2}, **NAME)
    for ticket in (first, second):
        app.kernel.wait_for(ticket, timeout=60)
    assert app.kernel.load_latest_state(**NAME) == {"a": 1, "b": 2}
