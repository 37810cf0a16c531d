"""Checkpoints that fail, are damaged or have something in their way: none keeps another waiting, and whoever waits for
one is told."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from analemma import App, BranchKey, DeltaUpdate
from analemma.errors import (
    ConsistencyError,
    Invalid,
    Unavailable,
)
from analemma.state import applying, pending_deltas
from tests.api.state.test_checkpoints import KEY, NAME, app, held, without_thread
from tests.stores import Store

__all__ = ["app"]


def test_a_delta_that_cannot_be_applied_fails_alone_and_says_why(app: App) -> None:
    with held(app, KEY, BranchKey("ann", "other")):
        first = app.kernel.checkpoint_async({"n": 1}, **NAME)
        bad = app.kernel.checkpoint_async({"/no/such/place": 1}, **NAME)
        last = app.kernel.checkpoint_async({"m": 2}, **NAME)
        other = app.kernel.checkpoint_async({"n": 1}, workflow_id="other", owner_id="ann")
    app.checkpoints.drain()
    assert app.kernel.load_state_with_consistency(first) == {"n": 1}
    assert app.kernel.load_state_with_consistency(last) == {"n": 1, "m": 2}
    assert app.kernel.wait_for(other).version == 1
    failed = app.kernel.ticket(bad)
    assert failed.status == "failed" and failed.reason is not None and "nothing at /no" in failed.reason
    with pytest.raises(Invalid) as caught:
        app.kernel.wait_for(bad)
    assert caught.value.pointer == "/no"
    with pytest.raises(ConsistencyError) as lost:
        app.kernel.load_state_with_consistency(bad)
    assert lost.value.reason == "invalid" and lost.value.ticket == str(bad)
    assert [row.version for row in app.kernel.history(**NAME)] == [2, 1]
    with pytest.raises(Invalid):
        app.kernel.checkpoint_async({"/no/such/place": 1}, wait_for_commit=True, **NAME)


def test_a_failed_key_may_be_used_again(app: App) -> None:
    app.kernel.save_state_delta({"n": 0}, **NAME)
    with pytest.raises(Invalid):
        app.kernel.checkpoint_async({"/x/y": 1}, idempotency_key="k", wait_for_commit=True, **NAME)
    app.kernel.save_state_delta({"x": {}}, **NAME)
    assert app.kernel.checkpoint_async({"/x/y": 1}, idempotency_key="k", wait_for_commit=True, **NAME).version == 3


def test_a_damaged_entry_fails_and_the_next_ones_do_not(app: App) -> None:
    without_thread(app)
    packed = pending_deltas.pack_delta(
        DeltaUpdate(()), app.types, metadata=None, execution=None, segment=None, message=None
    )
    bad = app.checkpoints.enter(KEY, replace(packed, digest=bytes(32)))
    good = app.kernel.checkpoint_async({"n": 1}, **NAME)
    assert app.kernel.wait_for(good).version == 1
    assert app.kernel.ticket(bad).status == "failed"
    kept = app.catalog.kept_delta(app.default.id, bad.seq, bad.secret)
    assert kept is not None and kept.body == packed.body


def test_what_is_in_the_way_of_one_branch_is_in_the_way_of_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open(pack_threshold_bytes=10_000, object_retries=1) as app:
        assert app.objects is not None
        without_thread(app)
        large = app.kernel.checkpoint_async({"data": os.urandom(50_000)}, **NAME)
        small = app.kernel.checkpoint_async({"n": 1}, workflow_id="other", owner_id="ann")

        def refuse(*_: Any, **__: Any) -> None:
            raise Unavailable("the object store is away")

        with monkeypatch.context() as away:
            away.setattr(app.objects, "put", refuse)
            with pytest.raises(Unavailable):
                app.checkpoints.drain()
            assert app.kernel.ticket(small).status == "committed"
            assert app.kernel.ticket(large).status == "pending"
            with pytest.raises(Unavailable):
                app.kernel.save_state_delta({"n": 1}, **NAME)
        assert app.kernel.wait_for(large).version == 1


def test_what_is_in_the_way_of_a_later_delta_is_not_in_the_way_of_those_before_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.open(pack_threshold_bytes=10_000, object_retries=1) as app:
        assert app.objects is not None
        without_thread(app)
        first = app.kernel.checkpoint_async({"data": os.urandom(20_000)}, **NAME)
        second = app.kernel.checkpoint_async({"data": os.urandom(60_000)}, **NAME)
        put, stored = app.objects.put, []

        def refuse_large(key: str, data: bytes, **options: Any) -> Any:
            if len(data) > 40_000:
                raise Unavailable("too large")
            stored.append(key)
            return put(key, data, **options)

        with monkeypatch.context() as away:
            away.setattr(app.objects, "put", refuse_large)
            for _ in range(3):
                with pytest.raises(Unavailable):
                    app.kernel.wait_for(second)
            assert app.kernel.ticket(first).version == 1
            # However often the second was tried.
            assert len(stored) == 1
        assert app.kernel.wait_for(second).version == 2


def test_a_transaction_takes_only_what_fits_into_memory(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "MOST_UNPACKED_BYTES", 250_000)
    without_thread(app)
    # Next to nothing when it is compressed.
    tickets = [app.kernel.checkpoint_async({"n": number, "log": "x" * 100_000}, **NAME) for number in range(6)]
    before = app.catalog.engine.statements.copy()
    assert app.checkpoints.drain() == 6
    assert (app.catalog.engine.statements - before)["hold_heads"] == 3
    assert [app.kernel.load_state_with_consistency(ticket)["n"] for ticket in tickets] == list(range(6))
    monkeypatch.setattr(applying, "MOST_UNPACKED_BYTES", 1)
    assert app.kernel.wait_for(app.kernel.checkpoint_async({"log": "y" * 100_000}, **NAME)).version == 7


def test_whoever_waits_has_the_ticket_whatever_is_in_the_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open(pack_threshold_bytes=10_000, object_retries=1) as app:
        assert app.objects is not None

        def refuse(*_: Any, **__: Any) -> None:
            raise Unavailable("the object store is away")

        with monkeypatch.context() as away:
            away.setattr(app.objects, "put", refuse)
            with pytest.raises(Unavailable) as caught:
                app.kernel.checkpoint_async({"data": os.urandom(50_000)}, wait_for_commit=True, **NAME)
            assert app.kernel.ticket(caught.value.ticket).status == "pending"
        # The thread has it now; nobody needs to ask.
        deadline = time.monotonic() + 20
        while app.kernel.ticket(caught.value.ticket).status == "pending" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert app.kernel.ticket(caught.value.ticket).version == 1


def test_waiting_without_end(app: App) -> None:
    without_thread(app)
    ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
    with ThreadPoolExecutor(1) as threads:
        with held(app):
            waiting = threads.submit(app.kernel.wait_for, ticket, timeout=float("inf"))
            with pytest.raises(TimeoutError):
                waiting.result(timeout=0.1)
        assert waiting.result(timeout=20).version == 1
