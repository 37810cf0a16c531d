"""What a worker does with events that fail: retries, dead letters, and effects that are made once or not at all."""

from __future__ import annotations

import contextlib
from asyncio import CancelledError
from typing import Any

import pytest

from analemma import App, Event, Settle
from analemma.errors import Denied, Invalid, Unavailable
from analemma.testing.events import settling
from tests.api.outbox.outbox_workers import nothing, worker
from tests.outbox_events import event, produce


def test_a_failure_that_may_pass_is_tried_again_and_its_aggregate_waits(app: App) -> None:
    ids = produce(app, [event("a", n=1), event("a", n=2)])
    tries: list[tuple[int, int]] = []

    def handle(event: Event, settle: Settle) -> None:
        tries.append((event.payload["n"], event.attempts))
        if event.payload["n"] == 1 and event.attempts < 2:
            raise Unavailable("not now")

    counts = worker(app, handle).drain()
    assert tries == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert (counts.delivered, counts.failed) == (2, 2)
    assert [app.outbox.get(id).status for id in ids] == ["PROCESSED", "PROCESSED"]


def test_after_the_last_attempt_an_event_is_dead(app: App) -> None:
    produce(app, [event("a", id="dead"), event("a", id="behind"), event("b", id="other")])

    tries: list[str] = []

    def handle(event: Event, settle: Settle) -> None:
        tries.append(event.id)
        if len(tries) > 20:
            raise KeyboardInterrupt("it is tried for ever")
        if event.aggregate_id == "a":
            raise OSError("broken\0pipe")

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (1, 2, 1)
    entry = app.outbox.get("dead")
    assert (entry.status, entry.attempts, entry.next_attempt_at_us) == ("DEAD", 3, None)
    assert entry.failure_reason == "OSError: broken\\0pipe"
    assert app.outbox.get("behind").status == "PENDING"
    assert app.outbox.get("other").status == "PROCESSED"


def test_what_trying_again_does_not_mend_is_dead_at_once(app: App) -> None:
    errors = {"a": Invalid("no such field"), "b": Denied("not yours"), "c": AssertionError("invariant")}
    produce(app, [event(lane, id=lane) for lane in errors])

    def handle(event: Event, settle: Settle) -> None:
        raise errors[event.aggregate_id]

    counts = worker(app, handle).drain()
    assert (counts.failed, counts.dead) == (0, 3)
    for lane, error in errors.items():
        entry = app.outbox.get(lane)
        assert (entry.status, entry.attempts) == ("DEAD", 1)
        assert str(error) in (entry.failure_reason or "")


def test_an_unknown_type_and_a_payload_that_is_no_object_are_dead(app: App) -> None:
    produce(app, [event("a", id="unknown", type="Unheard")])
    broken = event("b", id="broken")
    object.__setattr__(broken, "payload", b"[1]")
    garbled = event("c", id="garbled")
    object.__setattr__(garbled, "payload", b"{")
    produce(app, [broken, garbled])
    assert worker(app, nothing).drain().dead == 3
    reasons = [app.outbox.get(id).failure_reason or "" for id in ("unknown", "broken", "garbled")]
    assert "Unheard" in reasons[0] and "not a JSON object" in reasons[1] and "not JSON" in reasons[2]


def test_a_settled_event_and_its_effect_are_one_transaction(app: App) -> None:
    produce(app, [event("a", id="cause")])
    tries = []

    def handle(handled: Event, settle: Settle) -> None:
        tries.append(handled.attempts)

        def move(tx: Any) -> None:
            settle(tx)
            if len(tries) == 1:
                raise OSError("after everything was written")

        settling(app, move)

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed) == (1, 1)
    assert tries == [0, 1]
    assert app.outbox.get("cause").status == "PROCESSED"


def test_an_error_after_the_effect_was_committed_does_not_repeat_it(app: App) -> None:
    produce(app, [event("a"), event("a")])
    handled = []

    def handle(event: Event, settle: Settle) -> None:
        settling(app, settle)
        handled.append(event.seq)
        raise OSError("too late to matter")

    worker(app, handle).drain()
    assert handled == [1, 2]
    assert app.outbox.status().processed == 2


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


@pytest.mark.parametrize(
    "error", [SystemExit(3), CancelledError(), Speechless()], ids=lambda error: type(error).__name__
)
def test_whatever_a_handler_raises_is_a_failure(app: App, error: BaseException) -> None:
    produce(app, [event("a", id="broken"), event("b", id="well")])

    def handle(event: Event, settle: Settle) -> None:
        if event.id == "broken":
            raise error

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (1, 2, 1)
    assert (app.outbox.get("broken").failure_reason or "").startswith(type(error).__name__)


@pytest.mark.parametrize("place", ["last", "not the last"])
def test_a_handler_that_returns_although_its_transaction_was_undone_has_failed(app: App, place: str) -> None:
    events = ["one"] if place == "last" else ["one", "two"]
    produce(app, [event("a", id=id) for id in events])
    seen: list[str] = []

    def handle(handled: Event, settle: Settle) -> None:
        seen.append(handled.id)

        def move(tx: Any) -> None:
            settle(tx)
            if len(seen) == 1:
                raise OSError("undone")

        with contextlib.suppress(OSError):
            settling(app, move)

    counts = worker(app, handle, concurrency=1).drain()
    assert seen == ["one", *events]
    assert (counts.delivered, counts.failed) == (len(events), 1)
    assert [app.outbox.get(id).status for id in events] == ["PROCESSED"] * len(events)
    assert "not committed" in (app.outbox.get("one").failure_reason or "")


def test_an_error_after_the_effect_was_committed_is_counted_as_delivered(app: App) -> None:
    produce(app, [event("a"), event("a"), event("b")])

    def handle(event: Event, settle: Settle) -> None:
        settling(app, settle)
        raise OSError("too late to matter")

    counts = worker(app, handle).drain()
    assert (counts.delivered, counts.failed, counts.dead) == (3, 0, 0)
