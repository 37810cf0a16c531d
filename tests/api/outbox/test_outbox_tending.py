"""Looking at the outbox, and deciding what becomes of what failed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from analemma import App, Event, Settle
from analemma.errors import Conflict, Invalid, NotFound, Unavailable
from analemma.testing import failpoints
from tests.outbox_events import KIND, event, produce
from tests.raw_rows import change
from tests.stores import Store


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(outbox_backoff_base_s=3600, outbox_backoff_max_s=3600) as app:
        yield app


def deliver(app: App, *broken: str, passing: bool = False) -> Any:
    """Drain; events with these ids fail, for good or for now."""

    def handle(event: Event, settle: Settle) -> None:
        if event.id in broken:
            raise Unavailable("not now") if passing else Invalid("broken")

    return app.worker(2, handlers={KIND: handle}).drain()


def test_status_counts_by_what_is_under_way(app: App) -> None:
    status = app.outbox.status()
    assert (status.health, status.lanes, status.oldest_s, status.pending) == ("ok", 0, None, 0)
    produce(app, [event("a", id="dead"), event("a"), event("b", id="failed"), event("b"), event("c"), event("d")])
    deliver(app, "dead")  # and b, c, d are delivered
    produce(app, [event("b", id="failed 2"), event("b")])
    deliver(app, "failed 2", passing=True)
    produce(app, [event("e"), event("e"), event("f")])
    with failpoints.paused("outbox.after_claim", lambda: deliver(app)):
        status = app.outbox.status()
    assert status.processing >= 1 and status.pending + status.processing == 5
    assert (status.processed, status.failed, status.dead) == (4, 1, 1)
    assert (status.lanes, status.parked, status.stale, status.discarded) == (4, 1, 0, 0)
    assert status.oldest_s is not None
    assert app.outbox.status(count_processed=False).processed is None


def test_status_of_a_tenant_is_its_own(app: App) -> None:
    produce(app, [event("a")], tenant="shop")
    produce(app, [event("a"), event("b")], tenant="other")
    assert app.outbox.status("shop").pending == 1
    assert app.outbox.status().pending == 3
    with pytest.raises(NotFound):
        app.outbox.status("nobody")


def test_health_has_limits(store: Store) -> None:
    with store.open(outbox_warn_pending=1, outbox_warn_dead=0, outbox_warn_stale=0, outbox_warn_oldest_s=0) as app:
        produce(app, [event("dead", id="dead")])
        deliver(app, "dead")
        produce(app, [event("a"), event("b"), event("c")])
        change(store, "UPDATE lane SET fence = fence + 1, lease_until = 1 WHERE aggregateid = 'a'")
        status = app.outbox.status()
        assert status.health == "warning"
        said = " ".join(status.problems)
        assert "3 events are pending" in said and "1 event is dead" in said and "1 lanes have a lease" in said
        assert "the oldest waits" in said


def test_dead_letters_come_in_pages_and_can_be_chosen(app: App) -> None:
    ids = [f"dead {number}" for number in range(7)]
    produce(app, [event(f"lane {number}", id=id) for number, id in enumerate(ids)])
    deliver(app, *ids)
    found, cursor = [], None
    while True:
        page = app.outbox.dead_letters(limit=3, cursor=cursor)
        found += [entry.id for entry in page.entries]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == ids
    assert [entry.id for entry in app.outbox.dead_letters(aggregate_id="lane 4").entries] == ["dead 4"]
    assert app.outbox.dead_letters(type="Other").entries == []
    assert len(app.outbox.dead_letters(type=KIND, tenant="default").entries) == 7
    made = [["default", "a", "b"], [1, 2, "b"], [1, "a", None], [True, "a", "b"], [2**70, "a", "b"], [1, "a", "\0"], 7]
    cursors = ["x", *(base64.urlsafe_b64encode(json.dumps(each).encode()).decode() for each in made)]
    for wrong in [{"limit": 0}, *({"cursor": cursor} for cursor in cursors)]:
        with pytest.raises(Invalid):
            app.outbox.dead_letters(**wrong)  # type: ignore[arg-type]


def test_an_id_that_several_tenants_have_does_not_say_which_event(app: App) -> None:
    for tenant in ("shop", "other"):
        produce(app, [event("a", id="same")], tenant=tenant)
    deliver(app, "same")
    for verb in (app.outbox.get, app.outbox.replay, app.outbox.discard):
        with pytest.raises(Conflict, match="2 tenants"):
            verb("same")
    assert app.outbox.get("same", tenant="shop").tenant == "shop"
    assert app.outbox.discard("same", tenant="shop") == 1
    assert app.outbox.get("same", tenant="other").processed_at_us is None


def test_events_are_named_or_described_but_not_both(app: App) -> None:
    produce(app, [event("a", id="dead")])
    deliver(app, "dead")
    for wrong in ({"type": "Other"}, {"aggregate_type": "OTHER"}, {"aggregate_id": "b"}):
        for verb in (app.outbox.replay, app.outbox.discard):
            with pytest.raises(Invalid):
                verb("dead", **wrong)
    assert app.outbox.get("dead").processed_at_us is None


def test_a_replayed_dead_letter_is_delivered_in_its_place(app: App) -> None:
    produce(app, [event("a", id="dead", key="k"), event("a", id="behind")])
    deliver(app, "dead")
    done = app.outbox.replay("dead")
    assert (done.revived, done.copied, done.skipped) == (1, 0, 0)
    entry = app.outbox.get("dead")
    assert (entry.status, entry.attempts, entry.failure_reason) == ("PENDING", 0, None)
    order: list[str] = []
    app.worker(1, handlers={KIND: lambda event, settle: order.append(event.id)}).drain()
    assert order == ["dead", "behind"]


def test_replay_by_filter_revives_every_dead_letter_that_matches(app: App) -> None:
    produce(app, [event("a", id="one"), event("b", id="two"), event("c", id="three")])
    produce(app, [event("a", id="four")], tenant="shop")
    deliver(app, "one", "two", "three", "four")
    assert app.outbox.replay(tenant="shop").revived == 1
    assert app.outbox.replay(aggregate_id="b").revived == 1
    assert app.outbox.replay().revived == 2
    assert deliver(app).delivered == 4


def test_an_event_that_waits_for_its_next_try_can_be_tried_at_once(app: App) -> None:
    produce(app, [event("a", id="failed")])
    deliver(app, "failed", passing=True)
    assert app.outbox.status().failed == 1
    assert deliver(app).delivered == 0
    assert app.outbox.replay("failed").revived == 1
    assert deliver(app).delivered == 1


def test_a_delivered_event_comes_again_as_a_new_one_under_a_key_of_its_own(app: App) -> None:
    produce(app, [event("a", id="done", key="k"), event("a")])
    deliver(app)
    assert app.outbox.replay(["done"]).copied == 1
    seen: list[Event] = []
    app.worker(1, handlers={KIND: lambda event, settle: seen.append(event)}).drain()
    (again,) = seen
    assert again.id != "done" and again.id.startswith("done-")
    assert again.idempotency_key is not None and again.idempotency_key.startswith("k#")
    assert (again.payload, again.seq, again.aggregate_id) == ({"key": "k"}, 3, "a")
    assert app.outbox.get("done").status == "PROCESSED"


def test_what_is_under_way_anyway_is_not_replayed(app: App) -> None:
    produce(app, [event("a", id="waiting"), event("a", id="behind")])
    assert app.outbox.replay(["waiting", "behind"]).skipped == 2
    assert deliver(app).delivered == 2
    with pytest.raises(NotFound):
        app.outbox.replay("unheard of")


def test_a_discarded_dead_letter_stays_and_its_lane_goes_on(app: App) -> None:
    produce(app, [event("a", id="dead"), event("a", id="behind"), event("b", id="alone")])
    deliver(app, "dead", "alone")
    assert app.outbox.discard("dead", reason="sent by hand") == 1
    assert app.outbox.discard("alone") == 1
    entry = app.outbox.get("dead")
    assert (entry.status, entry.discarded) == ("DEAD", True)
    assert entry.failure_reason == "invalid: broken; discarded: sent by hand"
    assert app.outbox.dead_letters().entries == []
    assert deliver(app).delivered == 1
    status = app.outbox.status()
    assert (status.dead, status.discarded, status.lanes) == (0, 2, 0)
    with pytest.raises(Conflict):
        app.outbox.discard("dead")
    # Given up, but not forgotten.
    assert app.outbox.replay("dead").copied == 1
    assert deliver(app).delivered == 1


def test_only_what_stopped_its_lane_can_be_discarded(app: App) -> None:
    produce(app, [event("a", id="waiting")])
    with pytest.raises(Conflict):
        app.outbox.discard("waiting")
    assert app.outbox.discard() == 0
    assert deliver(app).delivered == 1


def test_housekeeping_deletes_what_was_settled_and_nothing_else(app: App) -> None:
    produce(app, [event("a", id="dead"), event("a", id="behind"), event("b", id="discarded"), event("c", id="done")])
    deliver(app, "dead", "discarded")
    app.outbox.discard("discarded")
    assert app.outbox.housekeep() == 0
    assert app.outbox.housekeep(processed_after_s=0) == 1
    with pytest.raises(NotFound):
        app.outbox.get("done")
    assert app.outbox.get("discarded").discarded
    assert app.outbox.housekeep(dead_after_s=0) == 1
    assert app.outbox.get("dead").status == "DEAD"
    app.outbox.replay()
    assert deliver(app).delivered == 2
    # Places go on where they were: nobody sees two events at one place.
    produce(app, [event("c", id="next")])
    assert app.outbox.get("next").seq == 2


def test_housekeeping_goes_on_until_all_is_gone_or_it_is_asked_to_stop(app: App) -> None:
    produce(app, [event(f"lane {number % 10}") for number in range(1500)])
    deliver(app)
    asked: list[int] = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 1

    assert app.outbox.housekeep(processed_after_s=0, stop=stop) == 1000
    assert app.outbox.housekeep(processed_after_s=0) == 500
    assert app.outbox.status().processed == 0


def test_housekeeping_by_no_age_at_all_is_refused(app: App) -> None:
    for age in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(Invalid):
            app.outbox.housekeep(processed_after_s=age)
        with pytest.raises(Invalid):
            app.outbox.housekeep(dead_after_s=age)
