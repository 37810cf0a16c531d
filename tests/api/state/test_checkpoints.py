"""Checkpoints that do not wait: what a ticket promises, and what a save does about what is pending."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import libipld
import pytest

from analemma import App, DeltaUpdate, Ticket
from analemma.errors import Conflict, HeadMoved, Invalid, Limit, NotFound, Timeout
from analemma.testing import failpoints
from tests.api.state.pending import left_behind, stuck, wait_until
from tests.depth import count
from tests.raw_rows import select
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def test_a_checkpoint_is_acknowledged_before_it_is_a_version(app: App) -> None:
    with stuck() as thread:
        ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
        thread.wait()
        assert (ticket.status, ticket.manifest_id, ticket.version, ticket.reason) == ("pending", None, None, None)
        assert app.kernel.ticket(ticket).status == "pending" and app.checkpoints.pending == 1
        with pytest.raises(NotFound):
            app.kernel.load_latest_state(**NAME)
    commit = app.kernel.wait_for(ticket)
    known = app.kernel.ticket(ticket)
    assert (known.status, known.manifest_id, known.version) == ("committed", commit.manifest_id, 1)
    assert app.kernel.load_latest_state(**NAME) == {"n": 1}
    assert app.checkpoints.pending == 0


def test_the_thread_applies_what_nobody_waits_for(app: App) -> None:
    ticket = app.kernel.checkpoint_async({"n": 1}, context="loop_completed", **NAME)
    wait_until(lambda: app.kernel.ticket(ticket).status == "committed")


def stored_metadata(store: Store, manifest_id: str) -> Any:
    [(body,)] = select(store, "SELECT body FROM block WHERE id = ?", (bytes.fromhex(manifest_id),))
    kind, _, fields = libipld.decode_dag_cbor(bytes(body))
    assert kind == "manifest"
    return fields["metadata"]


def test_values_arrive_exactly_as_they_were(app: App, store: Store) -> None:
    values = {
        "bytes": b"\x01\x55\x12\x20" + bytes(32),
        "zero": -0.0,
        "set": {1, 2},
        "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        "price": Decimal("1.10"),
        "odd": {"": {"": 1}},
        "long": "x" * 700_000,
        "list": [{"n": number, "text": "y" * 300} for number in range(400)],
    }
    metadata = {"by": "me", "tags": {"a", "b"}, "note": "z" * 5000}
    facts: dict[str, Any] = {"execution_id": "run", "segment_id": 3, "message": "first", "metadata": metadata}
    app.kernel.wait_for(app.kernel.checkpoint_async(values, workflow_id="async", owner_id="ann", **facts))
    app.kernel.save_state_delta(values, workflow_id="sync", owner_id="ann", **facts)
    made = []
    for workflow in ("async", "sync"):
        row = app.kernel.history(workflow_id=workflow, owner_id="ann")[0]
        assert (row.execution_id, row.segment_id, row.message) == ("run", 3, "first")
        made.append((row.root_hash, stored_metadata(store, row.manifest_id)))
        assert repr(app.kernel.load_state(row.manifest_id)["zero"]) == "-0.0"
        assert app.kernel.verify(workflow_id=workflow, owner_id="ann").problems == []
    assert made[0] == made[1] and made[0][1] is not None
    assert app.kernel.load_latest_state(workflow_id="async", owner_id="ann") == values


def test_a_delta_of_operations_and_deletions(app: App) -> None:
    app.kernel.save_state_delta({"plan": [1, 2], "old": 1, "gone": {"x": 1}}, **NAME)
    app.kernel.wait_for(app.kernel.checkpoint_async({"/plan/-": 3}, deleted=["old", "/gone/x", "/gone/y"], **NAME))
    assert app.kernel.load_latest_state(**NAME) == {"plan": [1, 2, 3], "gone": {}}


def test_types_need_not_be_known_where_the_delta_is_applied(store: Store) -> None:
    class Plan:
        def __init__(self, days: int) -> None:
            self.days = days

    def register(app: App) -> None:
        app.types.add(Plan, name="plan", encode=lambda plan: plan.days, decode=lambda days: Plan(days))

    with store.open(checkpoint_close_s=0) as app:
        register(app)
        left_behind(app, store, {"plan": Plan(14)}, **NAME)
    with store.open() as other:
        assert other.checkpoints.drain() == 1
    with store.open() as app:
        register(app)
        assert app.kernel.load_latest_state(**NAME)["plan"].days == 14


def test_a_token_names_the_checkpoint_in_another_process(app: App, store: Store) -> None:
    token = str(app.kernel.checkpoint_async({"n": 1}, **NAME))
    with store.open() as other:
        assert other.kernel.load_state_with_consistency(token) == {"n": 1}
        assert other.kernel.ticket(Ticket.parse(token)) == Ticket.parse(token)
        assert other.kernel.wait_for(token).version == 1


def test_foreign_and_forged_tickets_are_not_found(app: App) -> None:
    ticket = app.kernel.checkpoint_async({"n": 1}, **NAME)
    app.kernel.wait_for(ticket)
    forged = Ticket(ticket.seq, bytes(16))
    for kernel, bad in ((app.kernel, forged), (app.tenant("shop").kernel, ticket)):
        for verb in (kernel.ticket, kernel.wait_for, kernel.load_state_with_consistency):
            with pytest.raises(NotFound):
                verb(bad)
            with pytest.raises(NotFound):
                verb(str(bad))


def test_what_is_no_ticket_is_invalid() -> None:
    texts: list[Any] = [
        "",
        "ticket",
        "ticket-0-" + "a" * 32,
        "ticket-1-" + "A" * 32,
        f"ticket-{2**63}-" + "a" * 32,
        None,
        7,
    ]
    for text in texts:
        with pytest.raises(Invalid):
            Ticket.parse(text)


def test_waiting_gives_the_commit_or_gives_up_in_time(app: App) -> None:
    ticket = app.kernel.checkpoint_async({"n": 1}, wait_for_commit=True, **NAME)
    assert (ticket.status, ticket.version) == ("committed", 1)
    with stuck() as thread:
        app.kernel.checkpoint_async({"m": 1}, **NAME)
        thread.wait()
        with pytest.raises(Timeout) as caught:
            app.kernel.checkpoint_async({"n": 2}, wait_for_commit=True, timeout=0.05, **NAME)
        token = caught.value.ticket
        with pytest.raises(Timeout):
            app.kernel.wait_for(token, timeout=0)
        with pytest.raises(Timeout):
            app.kernel.load_state_with_consistency(token, timeout=0.05)
        assert app.kernel.ticket(token).status == "pending"
    assert app.kernel.load_state_with_consistency(token) == {"n": 2, "m": 1}


def test_read_your_write_is_that_very_state_not_a_later_one(app: App) -> None:
    tickets = [app.kernel.checkpoint_async({"n": number, f"f{number}": 1}, **NAME) for number in range(5)]
    app.checkpoints.drain()
    for number, ticket in enumerate(tickets):
        expected = {"n": number} | {f"f{earlier}": 1 for earlier in range(number + 1)}
        assert app.kernel.load_state_with_consistency(ticket) == expected
        assert app.kernel.ticket(ticket).version == number + 1


def test_what_can_be_checked_is_checked_at_once(app: App) -> None:
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    for delta, more in (
        ({"x": float("nan")}, {}),
        ({"x": {1: 2}}, {}),
        ({"x": deep}, {}),
        ({"x": 1}, {"deleted": ["x"]}),
        ({"/x~2": 1}, {}),
        ([1], {}),
        ({"x": 1}, {"segment_id": "one"}),
        ({"x": 1}, {"message": "\ud800"}),
        ({"x": 1}, {"execution_id": ""}),
        ({"x": 1}, {"idempotency_key": ""}),
        ({"x": 1}, {"metadata": {"y": object()}}),
        ({"x": 1}, {"metadata": 5}),
        ({"x": 1}, {"branch": ""}),
        ({"x": 1}, {"context": "sometimes"}),
        ({"x": 1}, {"timeout": -1, "wait_for_commit": True}),
        (DeltaUpdate((("paint", ("x",), 1),)), {}),  # type: ignore[arg-type]
    ):
        with pytest.raises(Invalid):
            app.kernel.checkpoint_async(delta, **NAME | more)  # type: ignore[arg-type]
    with pytest.raises(Invalid) as caught:
        app.kernel.checkpoint_async({"/a/b": {"c": object()}}, **NAME)
    assert caught.value.pointer == "/a/b/c"
    assert app.checkpoints.pending == 0


@pytest.mark.deep("packs a delta of 65 MB")
def test_a_delta_too_large_to_be_pending_is_refused(app: App) -> None:
    with pytest.raises(Limit) as caught:
        app.kernel.checkpoint_async({"x": random.Random(1).randbytes(65 << 20)}, **NAME)
    assert "save_state_delta" in str(caught.value)
    assert app.checkpoints.pending == 0


def test_contexts_that_wait(app: App) -> None:
    contexts: list[Any] = ["autonomous_loop", "before_hitl"]
    for context in contexts:
        place: dict[str, Any] = {"workflow_id": context, "owner_id": "ann"}
        ticket = app.kernel.checkpoint_async({"n": 1}, context=context, **place)
        assert (ticket.status, ticket.version) == ("committed", 1)
        with stuck() as thread:
            app.kernel.checkpoint_async({"m": 1}, **place)
            thread.wait()
            with pytest.raises(Timeout) as caught:
                app.kernel.checkpoint_async({"n": 2}, context=context, timeout=0.01, **place)
        assert app.kernel.load_state_with_consistency(caught.value.ticket) == {"n": 2, "m": 1}


def test_a_context_decides_whatever_else_is_said(app: App) -> None:
    with stuck():
        ticket = app.kernel.checkpoint_async({"n": 1}, context="loop_completed", wait_for_commit=True, **NAME)
    assert ticket.status == "pending"


def test_a_save_comes_after_what_was_accepted_before_it(app: App) -> None:
    with stuck() as thread:
        for number in range(3):
            app.kernel.checkpoint_async({"n": number, "seen": [number]}, **NAME)
        thread.wait()
        save = threading.Thread(target=lambda: app.kernel.save_state_delta({"n": "saved"}, **NAME))
        save.start()
    save.join()
    states = [app.kernel.load_state(row.manifest_id)["n"] for row in app.kernel.history(**NAME)]
    assert states == ["saved", 2, 1, 0]


def test_rollback_and_other_verbs_that_commit_come_after_it_too(app: App, store: Store) -> None:
    app.kernel.save_state_delta({"n": 0}, **NAME)
    left_behind(app, store, {"n": 1}, **NAME)
    assert app.kernel.rollback_to_version(version=1, **NAME).version == 3
    assert app.kernel.load_latest_state(**NAME) == {"n": 0}


def test_a_stated_predecessor_is_compared_after_what_is_pending(app: App, store: Store) -> None:
    first = app.kernel.save_state_delta({"n": 0}, **NAME)
    ticket = left_behind(app, store, {"n": 1}, **NAME)
    with pytest.raises(HeadMoved) as caught:
        app.kernel.save_state_delta({"n": 2}, previous_manifest_id=first.manifest_id, **NAME)
    assert caught.value.found.version == 2
    known = app.kernel.ticket(ticket)
    assert known.manifest_id is not None
    assert app.kernel.save_state_delta({"n": 3}, previous_manifest_id=known.manifest_id, **NAME).version == 3
    left_behind(app, store, {"n": 1}, workflow_id="new", owner_id="ann")
    with pytest.raises(HeadMoved):
        app.kernel.save_state_delta({"n": 2}, previous_manifest_id=None, workflow_id="new", owner_id="ann")


def test_what_is_pending_on_many_branches_is_applied_on_each_in_its_order(app: App) -> None:
    with stuck() as thread:
        app.kernel.checkpoint_async({"first": True}, workflow_id="w0", owner_id="ann")
        thread.wait()
        for number in range(40):
            app.kernel.checkpoint_async({f"f{number}": number}, workflow_id=f"w{number % 4}", owner_id="ann")
        assert app.checkpoints.pending == 41
    app.checkpoints.drain()
    assert app.checkpoints.pending == 0
    for number in range(4):
        place: dict[str, Any] = {"workflow_id": f"w{number}", "owner_id": "ann"}
        history = app.kernel.history(**place)
        assert [row.version for row in history] == list(range(10 + (number == 0), 0, -1))
        keys = [list(app.kernel.load_state(row.manifest_id)) for row in history]
        assert [len(each) for each in keys] == list(range(10 + (number == 0), 0, -1))
        assert app.kernel.verify(**place).problems == []


def test_a_backlog_larger_than_one_transaction(app: App) -> None:
    """Which is 128 versions."""
    with stuck() as thread:
        app.kernel.checkpoint_async({"n": -1}, **NAME)
        thread.wait()
        tickets = [app.kernel.checkpoint_async({"n": number}, **NAME) for number in range(count(test=140, deep=400))]
    assert app.kernel.wait_for(tickets[9]).version == 11
    assert app.kernel.save_state_delta({"n": -2}, **NAME).version == len(tickets) + 2
    states = [app.kernel.load_state_with_consistency(ticket)["n"] for ticket in tickets]
    assert states == list(range(len(tickets)))


def test_large_deltas_are_uploaded_when_they_are_applied(store: Store) -> None:
    with store.open(pack_threshold_bytes=10_000) as app:
        # Always the same bytes: of some, the last chunk is too small to be uploaded.
        data = random.Random(1).randbytes(200_000)
        tickets = [app.kernel.checkpoint_async({"data": data + bytes([number])}, **NAME) for number in range(3)]
        for number, ticket in enumerate(tickets):
            assert app.kernel.load_state_with_consistency(ticket)["data"] == data + bytes([number])
        assert app.stats().uploads == 3
        assert app.kernel.verify(**NAME).problems == []


def test_the_same_key_gives_the_same_commit(app: App) -> None:
    with stuck():
        tickets = [app.kernel.checkpoint_async({"n": 1}, idempotency_key="once", **NAME) for _ in range(3)]
        with pytest.raises(Conflict):
            app.kernel.checkpoint_async({"n": 2}, idempotency_key="once", **NAME)
    tickets.append(app.kernel.checkpoint_async({"n": 1}, idempotency_key="once", **NAME))
    assert {app.kernel.wait_for(ticket).manifest_id for ticket in tickets} == {
        app.kernel.history(**NAME)[0].manifest_id
    }
    assert app.kernel.save_state_delta({"n": 1}, idempotency_key="once", **NAME) == app.kernel.wait_for(tickets[0])
    with pytest.raises(Conflict):
        app.kernel.checkpoint_async({"n": 2}, idempotency_key="once", **NAME)
    assert app.kernel.wait_for(app.kernel.checkpoint_async({"n": 1}, idempotency_key="once", **NAME)).version == 1
    saved = app.kernel.save_state_delta({"n": 5}, idempotency_key="saved", **NAME)
    assert app.kernel.wait_for(app.kernel.checkpoint_async({"n": 5}, idempotency_key="saved", **NAME)) == saved


def test_one_key_on_two_branches_commits_on_one(app: App, store: Store) -> None:
    """Two ask for it, each having seen that nobody did."""
    first = app.kernel.save_state_delta({"n": 0}, **NAME)
    app.kernel.fork(first.manifest_id, owner_id="ann", branch="side")

    def ask() -> Ticket:
        return app.kernel.checkpoint_async({"n": 1}, idempotency_key="once", **NAME)

    with store.open() as other, failpoints.paused("ledger.before_insert", ask) as held:
        theirs = left_behind(other, store, {"m": 1}, branch="side", idempotency_key="once", **NAME)
        mine = held.go_on()
        app.checkpoints.drain()
    known = {app.kernel.ticket(ticket).status: ticket for ticket in (mine, theirs)}
    assert set(known) == {"committed", "failed"}
    with pytest.raises(Conflict):
        app.kernel.wait_for(known["failed"])


def test_tickets_are_forgotten_when_asked(app: App) -> None:
    done = app.kernel.checkpoint_async({"n": 1}, wait_for_commit=True, **NAME)
    bad = app.kernel.checkpoint_async({"/x/y": 1}, **NAME)
    with pytest.raises(Invalid):
        app.kernel.wait_for(bad)
    assert app.checkpoints.forget(3600) == 0
    assert app.kernel.ticket(bad).status == "failed"
    time.sleep(0.002)
    assert app.checkpoints.forget(0) == 2
    for ticket in (done, bad):
        with pytest.raises(NotFound):
            app.kernel.ticket(ticket)
    assert app.kernel.load_latest_state(**NAME) == {"n": 1}
    with pytest.raises(Invalid):
        app.checkpoints.forget(-1)
