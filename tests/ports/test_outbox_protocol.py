"""The protocol by which workers take events and settle them, the same on every catalog."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import App
from analemma.catalog.engine import Transaction
from analemma.catalog.outbox_claiming import OutboxClaims
from analemma.catalog.outbox_lanes import ClaimedLane, EventFailure, LaneOutcome, LeaseLost
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.outbox_tending import OutboxRows
from analemma.catalog.statements import load
from tests.outbox_events import AGGREGATE, event, produce
from tests.stores import Store

LEASE_S = 30.0
LATER_US = 31_000_000


class Clock:
    """The database's time, which a test may let pass."""

    def __init__(self, app: App) -> None:
        self._rows = OutboxRows(app.catalog.engine)
        self.passed_us = 0

    def __call__(self) -> int:
        return self._rows.now_us() + self.passed_us


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


@pytest.fixture
def clock(app: App) -> Clock:
    return Clock(app)


@pytest.fixture
def claims(app: App, clock: Clock) -> OutboxClaims:
    return OutboxClaims(app.catalog.engine, lease_s=LEASE_S, clock=clock)


def take(claims: OutboxClaims, *, lanes: int = 100, rows: int = 1000, tenant: Any = None) -> list[ClaimedLane]:
    return claims.claim(lanes=lanes, rows=rows, tenant=tenant)


def settled(*lanes: ClaimedLane) -> list[LaneOutcome]:
    return [LaneOutcome(lane, lane.events[-1].seq) for lane in lanes]


def status_of(app: App, *ids: str) -> list[str]:
    return [app.outbox.get(id).status for id in ids]


def test_rows_come_in_the_order_of_their_commits(app: App, claims: OutboxClaims) -> None:
    first = produce(app, [event("a"), event("b"), event("a")])
    second = produce(app, [event("a")])
    lanes = {lane.key.aggregate_id: lane for lane in take(claims)}
    assert [row.id for row in lanes["a"].events] == [first[0], first[2], second[0]]
    assert [row.seq for row in lanes["a"].events] == [1, 2, 3]
    assert [row.id for row in lanes["b"].events] == [first[1]]


def test_what_is_leased_is_not_claimed_again_until_the_lease_runs_out(
    app: App, claims: OutboxClaims, clock: Clock
) -> None:
    produce(app, [event("a")])
    (before,) = take(claims)
    produce(app, [event("a")])
    assert take(claims) == []
    clock.passed_us = LATER_US
    (after,) = take(claims)
    assert after.fence == before.fence + 1
    assert after.reclaimed and not before.reclaimed


def test_a_renewed_lease_lasts_longer(app: App, claims: OutboxClaims, clock: Clock) -> None:
    produce(app, [event("a")])
    lanes = take(claims)
    clock.passed_us = 20_000_000
    claims.renew(lanes)
    clock.passed_us = LATER_US
    assert take(claims) == []


def test_what_is_finished_is_settled_and_nothing_is_due(app: App, claims: OutboxClaims) -> None:
    ids = produce(app, [event("a"), event("a"), event("b")])
    assert claims.finish(settled(*take(claims))) == (False, 3, [], [], [])
    assert status_of(app, *ids) == ["PROCESSED"] * 3
    assert app.outbox.get(ids[0]).processed_at_us is not None
    assert not claims.anything_due()
    assert take(claims) == []


def test_an_event_that_comes_while_its_lane_is_leased_is_due_afterwards(app: App, claims: OutboxClaims) -> None:
    produce(app, [event("a")])
    lanes = take(claims)
    (late,) = produce(app, [event("a")])
    assert claims.finish(settled(*lanes)).more
    assert [row.id for lane in take(claims) for row in lane.events] == [late]


def test_what_was_not_handled_is_given_back_at_once(app: App, claims: OutboxClaims) -> None:
    ids = produce(app, [event("a"), event("a")])
    (lane,) = take(claims)
    claims.finish([LaneOutcome(lane, lane.done_seq + 1)])
    (again,) = take(claims)
    assert [row.id for row in again.events] == [ids[1]]
    assert not again.reclaimed
    claims.finish([LaneOutcome(again, again.done_seq)])
    (third,) = take(claims)
    assert [row.id for row in third.events] == [ids[1]]


def test_a_late_completion_is_refused_and_changes_nothing(app: App, claims: OutboxClaims, clock: Clock) -> None:
    (id,) = produce(app, [event("a")])
    (late,) = take(claims)
    clock.passed_us = LATER_US
    (now,) = take(claims)
    finished = claims.finish(settled(late))
    assert (finished.delivered, finished.later, [outcome.lane for outcome in finished.lost]) == (0, [], [late])
    failure = EventFailure("DEAD", 1, None, "too late")
    assert [outcome.lane for outcome in claims.finish([LaneOutcome(late, late.done_seq, failure)]).lost] == [late]
    assert app.outbox.get(id).failure_reason is None
    with pytest.raises(LeaseLost):
        app.catalog.engine.write(lambda tx: claims.settle(tx, late, 1))
    assert claims.renew([late], wait_s=1) == []
    assert status_of(app, id) == ["PENDING"]
    assert claims.finish(settled(now)) == (False, 1, [], [], [])
    assert status_of(app, id) == ["PROCESSED"]


def test_one_lost_lane_does_not_keep_the_others_from_being_settled(
    app: App, claims: OutboxClaims, clock: Clock
) -> None:
    ids = produce(app, [event("a"), event("b")])
    a, b = sorted(take(claims), key=lambda lane: lane.key)
    clock.passed_us = LATER_US
    take(claims, lanes=1)
    finished = claims.finish(settled(a, b))
    assert finished.later == [] and len(finished.lost) == finished.delivered == 1
    assert sorted(status_of(app, *ids)) == ["PENDING", "PROCESSED"]


def test_settling_inside_a_transaction_happens_with_it_or_not_at_all(app: App, claims: OutboxClaims) -> None:
    ids = produce(app, [event("a"), event("a")])
    (lane,) = take(claims)

    def undone(tx: Transaction) -> None:
        claims.settle(tx, lane, 1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        app.catalog.engine.write(undone)
    assert status_of(app, *ids) == ["PENDING", "PENDING"]
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 1))
    assert status_of(app, *ids) == ["PROCESSED", "PENDING"]
    assert take(claims) == []  # still leased
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 2))
    assert status_of(app, *ids) == ["PROCESSED", "PROCESSED"]
    assert not claims.anything_due()
    assert claims.position(lane) == 2


def test_a_settled_lane_stays_leased_until_it_is_given_back(app: App, claims: OutboxClaims) -> None:
    """Its handler may not be done with the event."""
    produce(app, [event("a")])
    (lane,) = take(claims)
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 1))
    produce(app, [event("a", id="next")])
    assert take(claims) == []
    assert claims.finish([LaneOutcome(lane, lane.done_seq)]) == (True, 1, [], [], [])
    assert [row.id for lane in take(claims) for row in lane.events] == ["next"]


def test_settling_an_event_again_changes_nothing(app: App, claims: OutboxClaims, clock: Clock) -> None:
    (id,) = produce(app, [event("a")])
    (lane,) = take(claims)
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 1))
    first = app.outbox.get(id)
    clock.passed_us = 1_000_000
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 1))
    assert app.outbox.get(id) == first


def test_an_event_that_is_settled_is_not_begun(app: App, claims: OutboxClaims) -> None:
    (id,) = produce(app, [event("a")])
    (lane,) = take(claims)
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 1))
    with pytest.raises(LeaseLost):
        claims.begin(lane, 1)
    assert status_of(app, id) == ["PROCESSED"]


def test_a_failure_waits_for_its_time_even_when_more_arrives(app: App, claims: OutboxClaims, clock: Clock) -> None:
    first, second = produce(app, [event("a"), event("a")])
    (lane,) = take(claims)
    claims.finish([LaneOutcome(lane, 0, EventFailure("FAILED", 1, 10_000_000, "not now"))])
    entry = app.outbox.get(first)
    assert (entry.status, entry.attempts, entry.failure_reason) == ("FAILED", 1, "not now")
    assert entry.next_attempt_at_us is not None
    produce(app, [event("a")])
    assert take(claims) == []
    assert [each.id for each in app.outbox.failed().entries] == [first]
    clock.passed_us = 11_000_000
    (lane,) = take(claims)
    assert [row.id for row in lane.events][:2] == [first, second]
    assert not lane.reclaimed
    claims.finish(settled(lane))
    assert app.outbox.failed().entries == []
    assert status_of(app, first, second) == ["PROCESSED", "PROCESSED"]


def test_a_dead_event_parks_its_lane_and_no_other(app: App, claims: OutboxClaims, clock: Clock) -> None:
    dead, waiting = produce(app, [event("a"), event("a")])
    (lane,) = take(claims)
    claims.finish([LaneOutcome(lane, 0, EventFailure("DEAD", 1, None, "poison"))])
    produce(app, [event("a"), event("b")])
    clock.passed_us = LATER_US
    assert [lane.key.aggregate_id for lane in take(claims)] == ["b"]
    assert status_of(app, dead, waiting) == ["DEAD", "PENDING"]
    assert [each.id for each in app.outbox.dead_letters().entries] == [dead]


def test_a_failure_of_an_event_that_was_settled_after_all_is_not_written(app: App, claims: OutboxClaims) -> None:
    (id,) = produce(app, [event("a")])
    (lane,) = take(claims)
    app.catalog.engine.write(lambda tx: claims.settle(tx, lane, 1))
    finished = claims.finish([LaneOutcome(lane, 0, EventFailure("DEAD", 1, None, "the answer was lost"))])
    assert (finished.delivered, finished.failed) == (1, [])
    assert status_of(app, id) == ["PROCESSED"]
    assert app.outbox.dead_letters().entries == []
    assert not claims.anything_due()


def test_more_urgent_lanes_come_first(app: App, claims: OutboxClaims) -> None:
    produce(app, [event("later", priority=5)])
    produce(app, [event("usual")])
    produce(app, [event("urgent", priority=-5)])
    order = [take(claims, lanes=1)[0].key.aggregate_id for _ in range(3)]
    assert order == ["urgent", "usual", "later"]


def test_a_lane_is_as_urgent_as_what_it_holds_now(app: App, claims: OutboxClaims) -> None:
    produce(app, [event("a", priority=-5)])
    claims.finish(settled(*take(claims)))
    produce(app, [event("a", priority=5)])
    produce(app, [event("b", priority=0)])
    assert [take(claims, lanes=1)[0].key.aggregate_id for _ in range(2)] == ["b", "a"]


def test_lanes_take_turns(app: App, claims: OutboxClaims, clock: Clock) -> None:
    produce(app, [event("a") for _ in range(3)])
    produce(app, [event("b") for _ in range(3)])
    order = []
    for _ in range(4):
        (lane,) = take(claims, lanes=1, rows=1)
        order.append(lane.key.aggregate_id)
        clock.passed_us += 2000  # SQLite counts milliseconds.
        claims.finish(settled(lane))
    assert sorted(order[:2]) == sorted(order[2:]) == ["a", "b"]


def test_rows_are_shared_out_between_lanes(app: App, claims: OutboxClaims) -> None:
    produce(app, [event("a") for _ in range(10)])
    produce(app, [event("b") for _ in range(10)])
    assert [len(lane.events) for lane in take(claims, rows=6)] == [3, 3]


def test_a_worker_of_one_tenant_takes_nothing_of_another(app: App, claims: OutboxClaims) -> None:
    produce(app, [event("a")], tenant="shop")
    produce(app, [event("a")], tenant="other")
    number = app.catalog.find_tenant("shop")
    assert [lane.key.tenant for lane in take(claims, tenant=number)] == [number]
    assert len(take(claims)) == 1


def test_rows_of_a_producer_that_commits_late_are_delivered(store: Store, app: App, claims: OutboxClaims) -> None:
    """Later producers are done, and their rows delivered, before the first one commits."""
    if store.url.startswith("postgresql"):
        begun, go_on = threading.Event(), threading.Event()

        def stall(tx: Transaction) -> None:
            enqueue(tx, number, [event("slow", id="slow")], now_us=app.catalog.clock.now_us())
            begun.set()
            assert go_on.wait(30)

        number = app.catalog.tenant("default")
        slow = threading.Thread(target=lambda: app.catalog.engine.write(stall))
        slow.start()
        assert begun.wait(30)
        later = produce(app, [event(f"lane {place}") for place in range(20)])
        claims.finish(settled(*take(claims)))
        assert status_of(app, *later) == ["PROCESSED"] * 20
        go_on.set()
        slow.join()
    else:
        # One writes at a time; the latest that a row can be is made by a clock that is behind.
        later = produce(app, [event(f"lane {place}") for place in range(20)])
        claims.finish(settled(*take(claims)))
        number = app.catalog.tenant("default")
        app.catalog.engine.write(lambda tx: enqueue(tx, number, [event("slow", id="slow")], now_us=1))
    assert [row.id for lane in take(claims) for row in lane.events] == ["slow"]


def test_a_producer_whose_clock_is_ahead_is_heard_at_once(app: App, claims: OutboxClaims) -> None:
    number = app.catalog.tenant("default")
    ahead = app.catalog.clock.now_us() + 3_600_000_000
    app.catalog.engine.write(lambda tx: enqueue(tx, number, [event("a")], now_us=ahead))
    assert len(take(claims)) == 1


def test_a_lane_that_is_being_written_to_holds_up_no_other(store: Store, app: App, claims: OutboxClaims) -> None:
    if not store.url.startswith("postgresql"):
        pytest.skip("one writes at a time")
    produce(app, [event("a"), event("b")])
    lanes = take(claims)
    number = app.catalog.tenant("default")
    with app.catalog.engine.transaction(write=True) as tx:
        enqueue(tx, number, [event("a")], now_us=app.catalog.clock.now_us())
        assert [lane.key.aggregate_id for lane in claims.renew(lanes)] == ["a"]
        assert [lane.key.aggregate_id for lane in claims.renew(lanes, wait_s=0.05)] == ["a"]
        _, delivered, _, later, lost = claims.finish(settled(*lanes), wait_s=0.05)
        assert [outcome.lane.key.aggregate_id for outcome in later] == ["a"]
        assert (delivered, lost) == (1, [])
        assert take(claims) == []
    assert claims.finish(later) == (True, 1, [], [], [])
    assert [lane.key.aggregate_id for lane in take(claims)] == ["a"]


@contextmanager
def always_written(app: App, lane: str) -> Iterator[None]:
    """Two producers who take turns, so that the lane is never without one that writes to it."""
    number = app.catalog.tenant("default")
    stop = threading.Event()
    begun = threading.Semaphore(0)

    def hold(tx: Transaction) -> None:
        enqueue(tx, number, [event(lane)], now_us=app.catalog.clock.now_us())
        begun.release()
        time.sleep(0.03)

    def work() -> None:
        while not stop.is_set():
            app.catalog.engine.write(hold)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=30)
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_who_waits_in_line_gets_a_turn_at_a_lane_that_is_always_written_to(
    store: Store, app: App, claims: OutboxClaims, clock: Clock
) -> None:
    if not store.url.startswith("postgresql"):
        pytest.skip("one writes at a time")
    with always_written(app, "hot"):
        (lane,) = claims.claim_in_line(lanes=10, rows=10, wait_s=10)
        assert lane.events and not lane.reclaimed
        clock.passed_us = 20_000_000
        assert claims.renew([lane], wait_s=10) == []
        finished = claims.finish(settled(lane), wait_s=10)
        assert (finished.delivered, finished.later, finished.lost) == (len(lane.events), [], [])


def test_a_lane_whose_worker_may_be_in_line_is_not_waited_for(
    store: Store, app: App, claims: OutboxClaims, clock: Clock
) -> None:
    if not store.url.startswith("postgresql"):
        pytest.skip("one writes at a time")
    produce(app, [event("a")])
    take(claims)
    clock.passed_us = LATER_US
    assert claims.claim_in_line(lanes=10, rows=10, wait_s=1) == []
    clock.passed_us = 2 * LATER_US
    assert [lane.reclaimed for lane in claims.claim_in_line(lanes=10, rows=10, wait_s=1)] == [True]


def test_a_calm_claim_takes_nothing_that_a_dead_worker_left(app: App, claims: OutboxClaims, clock: Clock) -> None:
    produce(app, [event("a"), event("b")])
    take(claims)
    clock.passed_us = LATER_US
    (suspect,) = take(claims, lanes=1)
    claims.blame(suspect, attempts=1)
    claims.finish([LaneOutcome(suspect, suspect.done_seq)])
    produce(app, [event("c")])
    calm = claims.claim(lanes=10, rows=10, calm=True)
    assert [lane.key.aggregate_id for lane in calm] == ["c"]
    assert sorted(lane.key.aggregate_id for lane in take(claims)) == ["a", "b"]


def test_a_worker_of_one_tenant_does_not_pass_what_is_due_of_others(store: Store, app: App) -> None:
    """Both what is asked and the index that is there for it."""
    produce(app, [event(f"lane {place}", priority=-1) for place in range(3000)], tenant="busy")
    produce(app, [event("a")], tenant="quiet")
    quiet = app.catalog.find_tenant("quiet")
    if store.url.startswith("postgresql"):
        with closing(connect(store)) as connection:
            read = "SELECT pg_stat_force_next_flush(), pg_stat_get_tuples_fetched('lane'::regclass)"
            with app.catalog.engine.connection() as (raw, _):  # type: ignore[attr-defined]
                raw.execute("SELECT pg_stat_force_next_flush()")
            before = connection.execute(read).fetchone()[1]
            connection.commit()
            assert len(OutboxClaims(app.catalog.engine, lease_s=30).claim(lanes=9, rows=9, tenant=quiet)) == 1
            with app.catalog.engine.connection() as (raw, _):  # type: ignore[attr-defined]
                raw.execute("SELECT pg_stat_force_next_flush()")
            assert connection.execute(read).fetchone()[1] - before < 100
    else:
        statements = load("sqlite")
        with closing(connect(store)) as connection:
            for name in ("claimable_lanes_of", "any_lane_due_of"):
                given = [1] * len(statements[name].positions)
                plan = connection.execute(f"EXPLAIN QUERY PLAN {statements[name].sql}", given).fetchall()
                assert [row[3] for row in plan] == ["SEARCH lane USING INDEX lane_due_of (tenant=? AND channel=?)"]


def test_lanes_are_claimed_by_one_of_many(app: App) -> None:
    produce(app, [event(f"lane {place}") for place in range(300)])
    claimed: list[str] = []

    def work() -> None:
        mine = OutboxClaims(app.catalog.engine, lease_s=LEASE_S)
        while lanes := mine.claim(lanes=7, rows=7):
            claimed.extend(lane.key.aggregate_id for lane in lanes)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One may find others' rows locked and leave early; whatever was taken was taken once.
    claimed += [
        lane.key.aggregate_id for lane in OutboxClaims(app.catalog.engine, lease_s=1).claim(lanes=999, rows=999)
    ]
    assert sorted(claimed) == sorted(f"lane {place}" for place in range(300))


def test_blame_counts_attempts_and_makes_the_lane_suspect(app: App, claims: OutboxClaims, clock: Clock) -> None:
    ids = produce(app, [event("a"), event("a")])
    take(claims)
    clock.passed_us = LATER_US
    (lane,) = take(claims)
    assert lane.reclaimed and not lane.suspect
    assert len(lane.events) == 1  # One at a time, where a worker died.
    claims.blame(lane, attempts=1)
    assert app.outbox.get(ids[0]).attempts == 1
    claims.begin(lane, 1)
    assert status_of(app, *ids) == ["PROCESSING", "PENDING"]
    clock.passed_us = 2 * LATER_US
    (again,) = take(claims)
    assert again.suspect and again.events[0].status == "PROCESSING"
    with pytest.raises(LeaseLost):
        claims.begin(lane, 1)
    with pytest.raises(LeaseLost):
        claims.blame(lane, attempts=2)
    claims.finish(settled(again))
    (third,) = take(claims)
    assert not third.suspect and third.events[0].id == ids[1]


def test_debeziums_columns_have_their_meanings(store: Store, app: App) -> None:
    """What its outbox event router reads: id, aggregatetype, aggregateid, type, payload."""
    produce(app, [event("shop:BOOK#shop#978", id="one", type="RawDataIngested", tenantId="shop")])
    query = "SELECT id, aggregatetype, aggregateid, type, payload FROM outbox"
    with closing(connect(store)) as connection:
        ((*names, payload),) = connection.execute(query).fetchall()
    assert names == ["one", AGGREGATE, "shop:BOOK#shop#978", "RawDataIngested"]
    assert json.loads(payload) == {"tenantId": "shop"}


def connect(store: Store) -> Any:
    """As somebody else's program would."""
    if store.url.startswith("postgresql"):
        return psycopg.connect(store.url)
    return sqlite3.connect(Path(store.url) / "catalog.db")
