"""Another worker takes a lane of events over, because the lease of the first ran out: the first settles and fails
nothing any more, and nobody else has it meanwhile."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Invalid
from analemma.testing import failpoints
from tests.actors import Actor
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
CONTRACTS = Path(__file__).parents[2] / "examples/bookshop/contracts.yaml"
LONG: dict[str, Any] = {"outbox_lease_s": 3600}
"""A lease that its worker need not renew while the test ends it."""
BOOK: dict[str, Any] = {"isbn": "1", "title": "Solaris", "price": 1200}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.outbox")


def emit(app: analemma.App, count: int, *, lane: str = "1") -> None:
    """Events in one lane."""

    def plan(state: Any, ctx: Any) -> None:
        for number in range(count):
            ctx.emit({"type": "Planned", "aggregate_type": "TRIP", "aggregate_id": lane, "payload": {"n": number}})

    flow = analemma.Flow("trip")
    flow.step(plan)
    assert app.flows.run(flow, {}, **PLACE).status == "COMPLETED"


def end_leases(store: Store) -> None:
    assert change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until IS NOT NULL") == 1


def statuses(store: Store) -> list[tuple[Any, ...]]:
    return select(store, "SELECT status, attempts FROM outbox WHERE type = 'Planned' ORDER BY seq")


@pytest.mark.parametrize("ends", ["well", "badly"])
def test_an_event_is_settled_by_whoever_has_its_lane(store: Store, ends: str) -> None:
    """Guard: what became of a lane is written under its fence."""
    handled: list[str] = []
    with store.open(**LONG) as app, store.open() as other, store.open() as third, ExitStack() as stack:
        emit(app, 1)

        def worker(name: str, opener: analemma.App) -> Any:
            return opener.worker(1, handlers={"Planned": lambda event, settle: handled.append(name)})

        def handle(event: Any, settle: Any) -> None:
            handled.append("first")
            end_leases(store)
            drain = worker("second", other).drain
            taken.append(stack.enter_context(failpoints.paused("outbox.after_claim", drain)))
            if ends == "badly":
                raise Invalid("never")

        taken: list[Any] = []
        app.worker(1, handlers={"Planned": handle}).drain()
        assert statuses(store) == [("PENDING", 0)]
        assert select(store, "SELECT done_seq, lease_until > 0 FROM lane") == [(0, True)]
        worker("third", third).drain()
        assert handled == ["first"]
        [held] = taken
        held.go_on()
        assert handled == ["first", "second"]
        assert [status for status, _ in statuses(store)] == ["PROCESSED"]


def compile_all(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        app.worker(1).drain()


def test_an_effect_that_settles_its_event_needs_the_lane(store: Store) -> None:
    """Guard: an event is settled, in the transaction of its effect, under the fence of its lane."""
    with store.open(**LONG) as app:
        app.contracts.load(CONTRACTS)
        app.default.ingest("BOOK", "1", BOOK)
        with failpoints.paused("compile.before_transaction", lambda: app.worker(1).drain()) as held:
            end_leases(store)
            # It claims the lane, and is stopped.
            with Actor(compile_all, store.url, store.objects, at="outbox.after_claim") as other:
                other.wait_until_stopped()
                held.go_on()
                assert select(store, "SELECT count(*) FROM compile") == [(0,)]
                other.thaw()
                assert other.wait() == 0, other.errors
        assert select(store, "SELECT count(*) FROM compile") == [(1,)]


def test_a_lane_is_one_workers_at_a_time(store: Store) -> None:
    """Guard: a lane that is leased is not claimed."""
    handled: list[int] = []
    with store.open() as app, store.open() as other:
        emit(app, 3)

        def drain(opener: analemma.App) -> None:
            opener.worker(1, handlers={"Planned": lambda event, settle: handled.append(event.payload["n"])}).drain()

        with failpoints.paused("outbox.after_claim", lambda: drain(app)) as held:
            drain(other)
            assert handled == []
            # Whoever finds something to do looks at all lanes.
            emit(other, 1, lane="2")
            drain(other)
            assert handled == [0]
            held.go_on()
        assert handled == [0, 0, 1, 2]


def claim(url: str, objects: str | None) -> None:
    with Store(url, objects).open(**LONG) as app:
        app.worker(1, handlers={"Planned": lambda event, settle: None}).drain()


@pytest.mark.parametrize("known", [True, False], ids=["known", "found out"])
def test_no_event_is_tried_by_whoever_lost_a_lane_in_which_a_worker_died(store: Store, known: bool) -> None:
    """Guard: that a worker died in a lane, and that an event of it is being tried, for which it is to blame if the next
    one dies too, is written under the fence of the lane."""
    handled: list[int] = []
    with store.open(**LONG) as app:
        emit(app, 2)
        with Actor(claim, store.url, store.objects, at="outbox.before_acknowledge", then="kill") as dead:
            dead.wait()
        if known:
            assert change(store, "UPDATE lane SET suspect = (1 = 1), lease_until = NULL WHERE lease_until > 0") == 1
        else:
            end_leases(store)
        worker = app.worker(1, handlers={"Planned": lambda event, settle: handled.append(event.payload["n"])})
        with failpoints.paused("outbox.after_claim", worker.drain) as held:
            end_leases(store)
            with Actor(claim, store.url, store.objects, at="outbox.after_claim") as other:
                other.wait_until_stopped()
                held.go_on()
                assert handled == []
                other.thaw()
                assert other.wait() == 0, other.errors
        assert [status for status, _ in statuses(store)] == ["PROCESSED", "PROCESSED"]


def test_a_lease_is_not_renewed_by_whoever_lost_the_lane(store: Store) -> None:
    """Guard: a lease is made longer under the fence of the lane; another's would be made shorter by that."""
    # It renews its leases a few times a second, while somebody else has the lane for ever.
    with store.open(outbox_lease_s=1.0) as app:
        emit(app, 1)
        taken = "UPDATE lane SET fence = fence + 1, lease_until = ? WHERE lease_until IS NOT NULL"
        leases: list[Any] = []

        def handle(event: Any, settle: Any) -> None:
            assert change(store, taken, (1 << 60,)) == 1
            # However long this takes, nothing happens to the lease.
            time.sleep(1.0)
            leases.extend(select(store, "SELECT lease_until FROM lane WHERE lease_until IS NOT NULL"))

        app.worker(1, handlers={"Planned": handle}).drain()
        assert leases == [(1 << 60,)]
