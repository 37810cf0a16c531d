"""Schedules: one run per tick, whoever looks, how often, and how late."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Conflict, Denied, Invalid, NotFound
from analemma.flows.scheduling import Schedules
from analemma.flows.worker import RunWorker
from tests.api.gc.collections import script
from tests.stores import Store

FLOW = Flow("nightly")


@FLOW.step(reads=["tick"], writes=["seen"])
def look(state: Any, ctx: Any) -> dict[str, Any]:
    return {"seen": state.get("tick")}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


class Hand:
    """A clock that is set by hand."""

    def __init__(self, text: str) -> None:
        self.set(text)

    def set(self, text: str) -> None:
        self.us = int(dt.datetime.fromisoformat(text).timestamp()) * 1_000_000

    def __call__(self) -> int:
        return self.us


def schedules(app: App, clock: Hand) -> Schedules:
    return Schedules(app.flows._parts, view=app.flows._view, now=clock)


def ticks(app: App) -> list[str]:
    return sorted((run.idempotency_key or "").removeprefix("schedule/") for run in app.flows.runs(limit=1000))


def test_every_tick_begins_one_run_that_knows_its_tick(store: Store) -> None:
    clock = Hand("2026-03-28T12:00:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        added = mine.add(
            "nightly",
            FLOW,
            {"n": 1},
            owner_id="me",
            workflow_id="night-{tick}",
            cron="30 2 * * *",
            zone="Europe/Berlin",
            tick_into="tick",
        )
        assert added.next_at == dt.datetime(2026, 3, 29, 1, 0, tzinfo=dt.UTC)
        assert mine.tend() == 0
        # The night in which there is no 02:30, and the one after.
        for now in ("2026-03-29T01:00:01+00:00", "2026-03-30T00:30:01+00:00"):
            clock.set(now)
            assert (mine.tend(), mine.tend()) == (1, 0)
        assert ticks(app) == ["nightly/2026-03-29T01:00:00Z", "nightly/2026-03-30T00:30:00Z"]
        mine.pause("nightly")
        app.run_worker(1).drain()
        run = app.flows.runs()[0]
        assert run.state == {"n": 1, "tick": "2026-03-30T00:30:00Z", "seen": "2026-03-30T00:30:00Z"}
        assert (run.workflow_id, run.owner_id) == ("night-2026-03-30T00:30:00Z", "me")
        assert mine.get("nightly").last_at == dt.datetime(2026, 3, 30, 0, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("catch_up", "hours"), [("skip", []), ("one", ["09"]), ("all", ["07", "08", "09"])], ids=["skip", "one", "all"]
)
def test_ticks_that_nobody_saw(catch_up: Any, hours: list[str], store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("hourly", FLOW, owner_id="me", cron="0 * * * *", catch_up=catch_up, limit=3, workflow_id="h-{tick}")
        clock.set("2026-05-01T09:30:00+00:00")
        assert mine.tend() == len(hours)
        assert ticks(app) == [f"hourly/2026-05-01T{hour}:00:00Z" for hour in hours]
        assert {run.workflow_id for run in app.flows.runs()} == {f"h-2026-05-01T{hour}:00:00Z" for hour in hours}
        assert mine.get("hourly").next_at == dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)


def test_workers_that_look_at_once_begin_one_run_per_tick(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app, store.open() as other:
        for name in ("a", "b"):
            schedules(app, clock).add(
                name, FLOW, owner_id="me", cron="0 * * * *", catch_up="all", limit=20, workflow_id=f"{name}-{{tick}}"
            )
        clock.set("2026-05-01T06:30:00+00:00")
        begun: list[int] = []
        threads = [
            threading.Thread(target=lambda each=each: begun.append(schedules(each, clock).tend()))
            for each in (app, other, app, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Who was not first leaves the rest to who was.
        begun.append(schedules(app, clock).tend())
        expected = [f"{name}/2026-05-01T0{hour}:00:00Z" for name in ("a", "b") for hour in range(1, 7)]
        assert ticks(app) == expected and sum(begun) == len(expected)


def test_a_worker_tends_schedules_of_all_tenants_and_runs_what_they_begin(store: Store) -> None:
    with store.open(run_poll_s=0.02) as app:
        app.handlers.add_all(FLOW)
        for tenant in ("default", "shop"):
            app.tenant(tenant).flows.schedules.add("often", FLOW, owner_id="me", every_s=3600)
        script(app, "UPDATE schedule SET next_at = next_at - 3600000000, look_at = look_at - 3600000000")
        worker = app.run_worker(1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        for _ in range(500):
            runs = [run for tenant in ("default", "shop") for run in app.tenant(tenant).flows.runs()]
            if [run.status for run in runs] == ["COMPLETED"] * 2:
                break
            threading.Event().wait(0.02)
        worker.stop()
        thread.join()
        assert [run.status for run in runs] == ["COMPLETED"] * 2
        assert (worker.worked.begun, worker.worked.runs, worker.worked.failed) == (2, 2, 0)


def test_two_workers_that_drain_at_the_same_time_begin_a_tick_once(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app, store.open() as other:
        schedules(app, clock).add("hourly", FLOW, owner_id="me", cron="0 * * * *")
        clock.set("2026-05-01T01:00:00+00:00")
        workers = [
            RunWorker(
                each.catalog.engine,
                lambda name, each=each: each.tenant(name).flows,  # type: ignore[misc]
                holder="x",
                lease_s=30,
                concurrency=1,
                now=clock,
            )
            for each in (app, other)
        ]
        for each in (app, other):
            each.handlers.add_all(FLOW)
        threads = [threading.Thread(target=worker.drain) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ticks(app) == ["hourly/2026-05-01T01:00:00Z"]
        assert sum(worker.worked.begun for worker in workers) == 1


def test_pausing_and_resuming(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("hourly", FLOW, owner_id="me", cron="0 * * * *", catch_up="all")
        assert (mine.pause("hourly").paused, mine.get("hourly").next_at) == (True, None)
        clock.set("2026-05-01T05:30:00+00:00")
        assert mine.tend() == 0
        resumed = mine.resume("hourly")
        assert (resumed.paused, resumed.next_at) == (False, dt.datetime(2026, 5, 1, 6, tzinfo=dt.UTC))
        clock.set("2026-05-01T06:00:00+00:00")
        # Resuming what is not paused moves nothing.
        mine.resume("hourly")
        assert mine.tend() == 1
        assert ticks(app) == ["hourly/2026-05-01T06:00:00Z"]


def test_running_now_is_a_run_besides(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("hourly", FLOW, owner_id="me", cron="0 * * * *", tick_into="tick", queue="slow", priority=2)
        mine.pause("hourly")
        run, again = mine.run_now("hourly"), mine.run_now("hourly")
        assert run.execution_id != again.execution_id
        assert (run.status, run.queue, run.priority, run.workflow_id) == ("PENDING", "slow", 2, "hourly")
        assert run.state == {"tick": "2026-05-01T00:30:00Z"}
        assert mine.get("hourly").last_at is None


def test_removing_and_replacing(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("hourly", FLOW, owner_id="me", cron="0 * * * *")
        with pytest.raises(Conflict):
            mine.add("hourly", FLOW, owner_id="me", cron="5 * * * *")
        replaced = mine.add("hourly", FLOW, {"n": 2}, owner_id="me", cron="5 * * * *", replace=True)
        assert (replaced.cron, replaced.input, len(mine.list())) == ("5 * * * *", {"n": 2}, 1)
        clock.set("2026-05-01T01:05:00+00:00")
        assert mine.tend() == 1
        mine.remove("hourly")
        assert mine.list() == []
        for verb in (mine.remove, mine.pause, mine.resume, mine.get, mine.run_now):
            with pytest.raises(NotFound):
                verb("hourly")
        assert len(app.flows.runs()) == 1


def test_who_read_a_schedule_that_was_replaced_meanwhile_begins_nothing_of_the_old(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("hourly", FLOW, owner_id="me", cron="0 * * * *")
        seen = mine._row("hourly")
        mine.add("hourly", FLOW, {"n": 2}, owner_id="me", cron="0 * * * *", replace=True)
        clock.set("2026-05-01T01:00:00+00:00")
        assert mine.tend_one(seen, clock()) == 0 and app.flows.runs() == []
        assert mine.tend() == 1 and app.flows.runs()[0].state == {"n": 2}


def test_a_documents_own_trigger_says_when_and_is_where_runs_begin(store: Store) -> None:
    flow = Flow("own")
    flow.trigger("nightly", cron="0 3 * * *", zone="Europe/Berlin", into="why")
    flow.human("ask", choices=["yes"])
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        added = mine.add("own", flow, owner_id="me")
        assert (added.cron, added.zone) == ("0 3 * * *", "Europe/Berlin")
        clock.set("2026-05-01T01:00:00+00:00")
        assert mine.tend() == 1
        mine.pause("own")
        app.run_worker(1).drain()
        assert app.flows.runs()[0].state == {
            "why": {"on": "schedule", "schedule": "own", "tick": "2026-05-01T01:00:00Z"}
        }


def test_a_run_that_cannot_be_begun_is_tried_again_and_says_why(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("bad", FLOW, owner_id="me", cron="0 * * * *")
        mine.add("good", FLOW, owner_id="me", cron="0 * * * *")
        whole = mine._row("bad").document
        script(app, "UPDATE schedule SET document = replace(document, 'python', 'cobol') WHERE name = 'bad'")
        clock.set("2026-05-01T01:00:00+00:00")
        assert mine.tend() == 1 and ticks(app) == ["good/2026-05-01T01:00:00Z"]
        assert mine.tend() == 0
        script(app, f"UPDATE schedule SET document = '{whole}' WHERE name = 'bad'")  # noqa: S608
        error = mine.get("bad").error
        assert error is not None and error.kind == "invalid"
        clock.set("2026-05-01T01:01:00+00:00")
        assert mine.tend() == 1 and mine.get("bad").error is None
        assert ticks(app) == ["bad/2026-05-01T01:00:00Z", "good/2026-05-01T01:00:00Z"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Europe/Berlin", "Europe/Nowhere"),
        ("0 * * * *", "0 * * * nonsense"),
        ('"anchor_us"', '"invented_later":1,"anchor_us"'),
    ],
    ids=["zone", "cron", "newer"],
)
def test_a_schedule_that_cannot_even_be_read_keeps_nobody_from_its_ticks(old: str, new: str, store: Store) -> None:
    with store.open() as app:
        for name in ("a-bad", "b-good"):
            app.flows.schedules.add(name, FLOW, owner_id="me", cron="0 * * * *", zone="Europe/Berlin")
        script(app, f"UPDATE schedule SET definition = replace(definition, '{old}', '{new}') WHERE name = 'a-bad'")  # noqa: S608
        script(app, "UPDATE schedule SET next_at = next_at - 3600000000, look_at = 1 WHERE name = 'a-bad'")
        script(app, "UPDATE schedule SET next_at = next_at - 3600000000, look_at = 2 WHERE name = 'b-good'")
        app.flows.register(FLOW)
        worker = app.run_worker(1)
        worker.drain()
        assert [run.workflow_id for run in app.flows.runs()] == ["b-good"]
        bad, good = app.flows.schedules.list()
        assert bad.error is not None and good.error is None
        # It is not looked at again at once, and can be paused and removed.
        assert worker.drain().failed == 0
        assert app.flows.schedules.pause("a-bad").paused
        app.flows.schedules.remove("a-bad")


def test_a_tenant_that_cannot_be_opened_keeps_no_other_from_its_ticks(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        for tenant in ("a-bad", "b-good"):
            schedules_of = Schedules(app.tenant(tenant).flows._parts, view=app.flows._view, now=clock)
            schedules_of.add("hourly", FLOW, owner_id="me", cron="0 * * * *")
        clock.set("2026-05-01T01:00:00+00:00")

        def flows_of(name: str) -> Any:
            if name == "a-bad":
                raise RuntimeError("no such thing")
            return app.tenant(name).flows

        worker = RunWorker(app.catalog.engine, flows_of, holder="x", lease_s=30, concurrency=1, now=clock)
        app.handlers.add_all(FLOW)
        worked = worker.drain()
        assert (worked.begun, worked.runs, worked.failed) == (1, 1, 1)


def test_replacing_loses_no_tick_that_is_due(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        for name, when in (
            ("same", {"cron": "0 * * * *"}),
            ("other", {"cron": "0 * * * *"}),
            ("every", {"every_s": 1800}),
        ):
            mine.add(name, FLOW, owner_id="me", **when)
        clock.set("2026-05-01T01:00:01+00:00")
        mine.add("same", FLOW, {"n": 2}, owner_id="me", cron="0 * * * *", replace=True)
        mine.add("other", FLOW, {"n": 2}, owner_id="me", cron="20 * * * *", replace=True)
        replaced = mine.add("every", FLOW, {"n": 2}, owner_id="me", every_s=1800, replace=True)
        assert replaced.next_at == dt.datetime(2026, 5, 1, 1, tzinfo=dt.UTC)
        assert mine.tend() == 3
        assert ticks(app) == [f"{name}/2026-05-01T01:00:00Z" for name in ("every", "other", "same")]
        assert {run.state["n"] for run in app.flows.runs()} == {2}
        assert [each.next_at and each.next_at.minute for each in mine.list()] == [30, 20, 0]
        # Nothing of the old is due: the new one begins with its own.
        assert mine.add("same", FLOW, owner_id="me", cron="40 * * * *", replace=True).next_at == dt.datetime(
            2026, 5, 1, 1, 40, tzinfo=dt.UTC
        )


def test_a_tick_that_was_put_off_was_not_missed(store: Store) -> None:
    clock = Hand("2026-05-01T00:30:00+00:00")
    with store.open() as app:
        mine = schedules(app, clock)
        mine.add("hourly", FLOW, owner_id="me", cron="0 * * * *", catch_up="skip")
        whole = mine._row("hourly").document
        script(app, "UPDATE schedule SET document = replace(document, 'python', 'cobol')")
        for now in ("2026-05-01T01:00:01+00:00", "2026-05-01T01:01:05+00:00", "2026-05-01T01:02:10+00:00"):
            clock.set(now)
            row = mine._row("hourly")
            assert mine.tend() == 0 and mine._row("hourly").error is not None
            assert mine._row("hourly").next_at_us == row.next_at_us
        script(app, f"UPDATE schedule SET document = '{whole}'")  # noqa: S608
        clock.set("2026-05-01T01:03:15+00:00")
        assert mine.tend() == 1 and ticks(app) == ["hourly/2026-05-01T01:00:00Z"]
        assert mine.get("hourly").error is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, Invalid),
        ({"cron": "nonsense"}, Invalid),
        ({"catch_up": "perhaps"}, Invalid),
        ({"limit": 0}, Invalid),
        ({"grace_s": -1}, Invalid),
        ({"priority": 1}, Invalid),
        ({"tick_into": "__kernel"}, Denied),
        ({"input": {"x": object()}}, Invalid),
        ({"owner_id": ""}, Invalid),
    ],
    ids=["when", "cron", "catch_up", "limit", "grace", "priority", "reserved", "input", "owner"],
)
def test_schedules_that_could_begin_nothing_are_refused(
    given: dict[str, Any], error: type[Exception], store: Store
) -> None:
    with store.open() as app:
        with pytest.raises(error):
            app.flows.schedules.add(
                "x", FLOW, **{"owner_id": "me", **({"cron": "0 0 * * *"} if given else {}), **given}
            )
        assert app.flows.schedules.list() == []
