"""Who applies what is pending: threads that come and go, processes that close, fork and die."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from analemma import App, Ticket
from analemma.errors import Unavailable
from analemma.testing import failpoints
from tests.api.state.pending import LONGEST_S, left_behind, stuck, wait_until
from tests.raw_rows import change
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def test_a_store_has_no_thread_before_its_first_checkpoint(app: App) -> None:
    app.kernel.save_state_delta({"n": 1}, **NAME)
    others = set(threading.enumerate())
    app.kernel.checkpoint_async({"n": 2}, wait_for_commit=True, **NAME)
    assert set(threading.enumerate()) - others == set()  # whoever waits does the work
    app.kernel.checkpoint_async({"n": 3}, **NAME)
    assert len(set(threading.enumerate()) - others) == 1
    app.close()
    assert set(threading.enumerate()) - others == set()


@pytest.mark.deep("waits until a thread has been idle for two seconds, twice")
def test_an_idle_thread_ends_and_the_next_checkpoint_starts_another(app: App) -> None:
    app.kernel.save_state_delta({"n": 1}, **NAME)
    others = set(threading.enumerate())
    for number in range(2):
        ticket = app.kernel.checkpoint_async({"n": number}, **NAME)
        assert len(set(threading.enumerate()) - others) == 1
        app.kernel.wait_for(ticket)
        wait_until(lambda: set(threading.enumerate()) <= others)


def test_closing_applies_what_is_pending(store: Store) -> None:
    with store.open() as app:
        tickets = [app.kernel.checkpoint_async({f"f{number}": number}, **NAME) for number in range(50)]
    with store.open() as app:
        assert app.checkpoints.pending == 0
        assert app.kernel.ticket(tickets[-1]).version == 50


def test_closing_does_not_wait_for_a_thread_that_is_stuck_and_leaves_the_rest_to_the_next_process(store: Store) -> None:
    others = set(threading.enumerate())
    with stuck() as thread:
        app = store.open(checkpoint_close_s=0.01)
        tickets = [app.kernel.checkpoint_async({f"f{number}": number}, **NAME) for number in range(3)]
        thread.wait()
        # The test would not come past this: nobody lets the thread go on before.
        app.close()
        with store.open() as other:
            assert other.checkpoints.drain() == 3
            assert other.kernel.wait_for(tickets[0]).version == 1
            assert other.kernel.ticket(tickets[-1]).version == 3
    wait_until(lambda: set(threading.enumerate()) <= others)
    with store.open() as app:
        assert app.kernel.history(**NAME)[0].version == 3


def test_the_thread_takes_up_what_others_left_behind(store: Store) -> None:
    with store.open() as app:
        left = left_behind(app, store, {"n": 1}, **NAME)
        assert change(store, "UPDATE pending SET created_at = created_at - 60000000") == 1
        app.kernel.checkpoint_async({"n": 1}, workflow_id="other", owner_id="ann")
        wait_until(lambda: app.kernel.ticket(left).status == "committed")


def test_the_thread_outlives_whatever_goes_wrong(app: App) -> None:
    def is_problem(problem: Exception) -> bool:
        return app.checkpoints.problem is problem

    def is_committed(ticket: Ticket) -> bool:
        return app.kernel.ticket(ticket).status == "committed"

    problems: list[Exception] = [Unavailable("the database is away"), RuntimeError("nobody thought of that")]
    for problem in problems:

        def fail(problem: Exception = problem) -> None:
            raise problem

        with failpoints.call("apply.before_transaction", fail):
            ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
            wait_until(partial(is_problem, problem))
        wait_until(partial(is_committed, ticket))


def test_threads_that_enter_together_each_have_their_own_place(app: App) -> None:
    """The first is held up before its transaction; those that come meanwhile are entered behind it."""

    def produce(number: int) -> Ticket:
        return app.kernel.checkpoint_async({"n": number}, workflow_id=f"trip {number % 3}", owner_id="ann")

    with ThreadPoolExecutor(8) as threads, failpoints.paused("ledger.before_insert", lambda: produce(0)) as first:
        others = [threads.submit(produce, number) for number in range(1, 9)]
        tickets = [first.go_on(), *[each.result(LONGEST_S) for each in others]]
    assert [app.kernel.load_state_with_consistency(ticket) for ticket in tickets] == [{"n": n} for n in range(9)]
    assert app.checkpoints.pending == 0


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


def test_a_forked_child_checkpoints_with_a_store_and_a_thread_of_its_own(store: Store) -> None:
    with store.open() as app:
        ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with pytest.raises(Unavailable, match="forked"):
                    app.kernel.checkpoint_async({"child": True}, **NAME)
                own = store.open().kernel
                mine = own.checkpoint_async({"child": True}, **NAME)
                wait_until(lambda: own.ticket(mine).status == "committed")
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


def test_waiting_stops_when_another_process_has_done_the_work(store: Store) -> None:
    with store.open() as one, store.open() as two, stuck() as thread:
        ticket = one.kernel.checkpoint_async({"n": 1}, **NAME)
        thread.wait()
        assert two.kernel.wait_for(str(ticket)).version == 1
        # Nobody here gets to the branch, but the answer is there.
        assert one.kernel.wait_for(ticket, timeout=0).version == 1


def test_a_checkpoint_is_accepted_when_no_thread_can_be_started(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.kernel.save_state_delta({}, **NAME)

    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", fail)
        first = app.kernel.checkpoint_async({"a": 1}, **NAME)
        assert isinstance(app.checkpoints.problem, RuntimeError) and app.checkpoints.pending == 1
    second = app.kernel.checkpoint_async({"b": 2}, **NAME)
    for ticket in (first, second):
        app.kernel.wait_for(ticket, timeout=60)
    assert app.kernel.load_latest_state(**NAME) == {"a": 1, "b": 2}


@pytest.mark.parametrize("point", ["ledger.before_insert", "ledger.after_insert", "apply.before_transaction"])
def test_a_signals_handler_checkpoints_and_saves_on_top_of_a_checkpoint_that_waits(app: App, point: str) -> None:
    """On the same thread: whatever that one holds, the handler must not wait for it."""
    app.kernel.save_state_delta({}, **NAME)

    def handle() -> None:
        app.kernel.checkpoint_async({"handled": True}, wait_for_commit=True, **NAME)
        app.kernel.save_state_delta({"saved": True}, **NAME)

    with failpoints.call(point, handle):
        app.kernel.checkpoint_async({"n": 1}, wait_for_commit=True, **NAME)
    assert app.kernel.load_latest_state(**NAME) == {"handled": True, "saved": True, "n": 1}
    assert app.kernel.history(**NAME)[0].version == 4 and app.checkpoints.pending == 0
