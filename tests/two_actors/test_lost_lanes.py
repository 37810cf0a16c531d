"""Another worker takes a lane of events over, because the lease of the first ran out: the first settles and fails
nothing any more, and nobody else has it meanwhile."""

from __future__ import annotations

import logging
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


def emit(app: analemma.App, count: int) -> None:
    """Events in one lane."""

    def plan(state: Any, ctx: Any) -> None:
        for number in range(count):
            ctx.emit({"type": "Planned", "aggregate_type": "TRIP", "aggregate_id": "1", "payload": {"n": number}})

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
            held.go_on()
        assert handled == [0, 1, 2]
