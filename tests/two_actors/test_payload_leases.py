"""One ends leases while another uses them: what was given out stays good, or its user is told that it is not."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

import analemma
from analemma.errors import Denied
from analemma.testing import failpoints
from tests.actors import Actor
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, is_sqlite
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
DAY_US = 86_400 * 1_000_000
LARGE = "x" * 20_000


def dehydrate(app: analemma.App, execution: str = "one") -> dict[str, Any]:
    return app.payloads.dehydrate({"plan": LARGE}, execution_id=execution, return_delta=False, **PLACE)


def age(store: Store, days: float = 31) -> None:
    assert change(store, "UPDATE payload SET renewed_at = renewed_at - ?", [round(days * DAY_US)]) >= 1


def pass_on(app: analemma.App, state: Any, execution: str = "one") -> dict[str, Any]:
    return app.payloads.dehydrate(state, execution_id=execution, return_delta=False, **PLACE)


def ended(app: analemma.App) -> int:
    report = app.gc.run(grace_s=0)
    assert report.ok, report.problems
    return sum(each.leases for each in report.tenants)


def wait_until_blocked(store: Store, thread: threading.Thread) -> None:
    """On PostgreSQL, where it can be seen; the only writer of SQLite keeps everybody else out in any case."""
    if not is_sqlite(store):
        wait_for_waiting(store.url, thread)


def test_a_state_whose_leases_are_released_before_it_is_read_is_denied_and_not_damaged(store: Store) -> None:
    with store.open(cache_bytes=0) as app, store.open() as other:
        state = app.payloads.hydrate(dehydrate(other))
        other.payloads.release(execution_id="one", **PLACE)
        for _ in range(3):
            other.gc.run(grace_s=0)
        with pytest.raises(Denied, match="released"):
            state["plan"]


def test_releasing_beside_a_payload_that_passes_its_pointers_on_waits_for_it(store: Store) -> None:
    with store.open() as app, store.open() as other:
        state = app.payloads.hydrate(dehydrate(app))
        with (
            failpoints.paused("payload.before_commit", lambda: pass_on(app, state, "two")) as held,
            beside(lambda: other.payloads.release(execution_id="one", **PLACE)) as releasing,
        ):
            wait_until_blocked(store, releasing)
            passed = held.go_on()
        for _ in range(3):
            other.gc.run(grace_s=0)
        assert other.payloads.hydrate(passed)["plan"] == LARGE


def test_leases_that_are_renewed_just_before_they_would_end_stay(store: Store) -> None:
    with store.open() as app, store.open() as other:
        payload = dehydrate(app)
        age(store)
        # Found to be over, and then hydrated before they are ended.
        with failpoints.call("payload.before_hold", lambda: app.payloads.hydrate(payload)):
            assert ended(other) == 0
        assert app.payloads.hydrate(payload)["plan"] == LARGE


def test_leases_that_are_passed_on_just_before_they_would_end_stay(store: Store) -> None:
    with store.open() as app, store.open() as other:
        state = app.payloads.hydrate(dehydrate(app))
        age(store)
        passed: list[dict[str, Any]] = []
        with failpoints.call("payload.before_hold", lambda: passed.append(pass_on(app, state))):
            assert ended(other) == 0
        assert other.payloads.hydrate(passed[0])["plan"] == LARGE


def test_an_execution_that_gets_another_lease_just_before_its_own_would_end_keeps_all(store: Store) -> None:
    with store.open() as app, store.open() as other:
        payload = dehydrate(app)
        age(store)
        with failpoints.call("payload.before_hold", lambda: dehydrate(app)):
            assert ended(other) == 0
        assert app.payloads.hydrate(payload)["plan"] == LARGE


@pytest.mark.parametrize("use", ["hydrate", "dehydrate"])
def test_whoever_ends_leases_waits_for_those_who_are_about_to_use_them(store: Store, use: str) -> None:
    with store.open() as app, store.open() as other:
        payload = dehydrate(app)
        age(store)
        counted: list[int] = []
        if use == "hydrate":
            held_at, call = "payload.before_renewal", lambda: app.payloads.hydrate(payload)
        else:
            held_at, call = "payload.before_commit", lambda: app.payloads.hydrate(dehydrate(app))
        with failpoints.paused(held_at, call) as held, beside(lambda: counted.append(ended(other))) as ending:
            wait_until_blocked(store, ending)
            held.go_on()
        assert counted == [0] and app.payloads.hydrate(payload)["plan"] == LARGE


def test_whoever_passes_pointers_on_while_their_leases_end_is_denied_and_gets_no_dead_ones(store: Store) -> None:
    with store.open() as app, store.open() as other:
        state = app.payloads.hydrate(dehydrate(app))
        age(store)
        refused: list[str] = []

        def pass_late() -> None:
            try:
                pass_on(app, state)
            except Denied as exc:
                refused.append(str(exc))

        with (
            failpoints.paused("payload.before_end", lambda: ended(other)) as held,
            beside(pass_late) as passing,
        ):
            wait_until_blocked(store, passing)
            assert held.go_on() == 1
        assert len(refused) == 1 and "released" in refused[0]


def test_two_who_pass_the_same_unused_pointers_on_do_not_wait_for_each_other_for_ever(store: Store) -> None:
    with store.open() as app, store.open() as other:
        payload = dehydrate(app)
        states = [each.payloads.hydrate(payload) for each in (app, other)]
        age(store, 20)
        made: list[dict[str, Any]] = []
        both = threading.Barrier(2)

        def go(number: int) -> None:
            both.wait()
            made.append(pass_on((app, other)[number], states[number], f"run {number}"))

        with beside(lambda: go(0)), beside(lambda: go(1)):
            pass
        assert [app.payloads.hydrate(each)["plan"] for each in made] == [LARGE, LARGE]


def collect_elsewhere(url: str, objects: str | None) -> None:
    with Store(url, objects).open(gc_lease_s=1) as app:
        app.gc.run(grace_s=0)


def hydrate_elsewhere(url: str, objects: str | None, payload: dict[str, Any]) -> None:
    with Store(url, objects).open() as app:
        app.payloads.hydrate(payload)


@pytest.mark.parametrize("point", ["payload.before_hold", "payload.before_end"])
def test_a_collector_that_is_killed_has_ended_all_leases_of_an_execution_or_none(store: Store, point: str) -> None:
    with store.open() as app:
        payload = dehydrate(app)
        age(store)
        with Actor(collect_elsewhere, store.url, store.objects, at=point, then="kill") as actor:
            assert actor.wait() == -signal.SIGKILL
        assert [lease.execution for lease in app.payloads.leases()] == ["one"]
        change(store, "UPDATE gc SET lease_until = 0")
        assert ended(app) == 1
        with pytest.raises(Denied, match="released"):
            app.payloads.hydrate(payload)


def test_a_reader_that_is_killed_before_it_has_renewed_leaves_them_as_they_were(store: Store) -> None:
    with store.open() as app:
        payload = dehydrate(app)
        age(store, 29)
        arguments = (store.url, store.objects, payload)
        with Actor(hydrate_elsewhere, *arguments, at="payload.before_renewal", then="kill") as actor:
            assert actor.wait() == -signal.SIGKILL
        age(store, 2)
        assert ended(app) == 1


def test_a_run_that_is_begun_again_before_its_leases_end_keeps_them(store: Store) -> None:
    flow = analemma.Flow("keeping")
    with store.open() as app, store.open() as other:

        @flow.step(reads=["n"], writes=["payload"])
        def keep(state: Any, ctx: Any) -> dict[str, Any]:
            return {"payload": dehydrate(app, ctx.execution_id)}

        flow.human("decide", choices=["yes"])
        run = app.flows.run(flow, {"n": 1}, **PLACE)
        run = app.flows.approve(run.execution_id, choice="yes", actor="ann")
        assert run.status == "COMPLETED"
        with failpoints.call("payload.before_hold", lambda: app.flows.rerun(run.execution_id, from_segment=0)):
            assert ended(other) == 0
        assert app.flows.get(run.execution_id).status == "WAITING_HUMAN"
        assert len(app.payloads.leases()) == 2
