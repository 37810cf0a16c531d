"""Schedules: one run per tick, however late somebody looks, and as the schedule is by then."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Conflict, Denied, Invalid, NotFound
from tests.raw_rows import change, select
from tests.stores import Store

FLOW = Flow("nightly")
DAY_S = 86_400


@FLOW.step(reads=["tick"], writes=["seen"])
def look(state: Any, ctx: Any) -> dict[str, Any]:
    return {"seen": state.get("tick")}


def pass_time(store: Store, seconds: int = DAY_S) -> None:
    """As if so much time had passed for every schedule of intervals."""
    us = seconds * 1_000_000
    for name, definition in select(store, "SELECT name, definition FROM schedule"):
        known = json.loads(definition)
        known["ticks"]["anchor_us"] -= us
        earlier = "SET definition = ?, next_at = next_at - ?, look_at = look_at - ?, last_at = last_at - ?"
        values = [json.dumps(known), us, us, us, name]
        assert change(store, f"UPDATE schedule {earlier} WHERE name = ?", values) == 1


def tick(app: App) -> int:
    """How many runs a worker begins; it runs them, too."""
    return app.run_worker(1).drain().begun


def ticks(app: App) -> list[str]:
    return sorted((run.idempotency_key or "").removeprefix("schedule/") for run in app.flows.runs(limit=1000))


def iso(moment: dt.datetime | None) -> str:
    assert moment is not None
    return f"{moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat()}Z"


def test_every_tick_begins_one_run_that_knows_its_tick(app: App, store: Store) -> None:
    schedules = app.flows.schedules
    schedules.add("nightly", FLOW, {"n": 1}, owner_id="me", workflow_id="night-{tick}", every_s=DAY_S, tick_into="tick")
    assert tick(app) == 0
    for number in (1, 2):
        # Not to the second: the run of a tick is known by its time.
        pass_time(store, DAY_S + number)
        assert (tick(app), tick(app)) == (1, 0)
        last = iso(schedules.get("nightly").last_at)
        run = app.flows.runs()[0]
        assert len(app.flows.runs()) == number
        assert (run.status, run.state) == ("COMPLETED", {"n": 1, "tick": last, "seen": last})
        assert (run.workflow_id, run.owner_id, run.idempotency_key) == (
            f"night-{last}",
            "me",
            f"schedule/nightly/{last}",
        )
    found = schedules.get("nightly")
    assert found.next_at is not None and found.last_at is not None and (found.next_at - found.last_at).days == 1


@pytest.mark.parametrize(("catch_up", "days"), [("skip", []), ("one", [0]), ("all", [2, 1, 0])])
def test_ticks_that_nobody_saw(catch_up: Any, days: list[int], app: App, store: Store) -> None:
    more: dict[str, Any] = {"catch_up": catch_up, "limit": 3, "grace_s": 0, "workflow_id": "h-{tick}"}
    app.flows.schedules.add("daily", FLOW, owner_id="me", every_s=DAY_S, **more)
    pass_time(store, 9 * DAY_S + 3600)
    assert tick(app) == len(days)
    found = app.flows.schedules.get("daily")
    assert found.next_at is not None
    newest = found.next_at - dt.timedelta(days=1)
    expected = [iso(newest - dt.timedelta(days=day)) for day in days]
    assert ticks(app) == [f"daily/{each}" for each in expected]
    assert {run.workflow_id for run in app.flows.runs()} == {f"h-{each}" for each in expected}


def test_a_worker_tends_schedules_of_all_tenants_and_runs_what_they_begin(store: Store) -> None:
    with store.open(run_poll_s=0.02) as app:
        app.handlers.add_all(FLOW)
        tenants = ("default", "shop")
        for tenant in tenants:
            app.tenant(tenant).flows.schedules.add(f"often-{tenant}", FLOW, owner_id="me", every_s=DAY_S)
        pass_time(store)
        worker = app.run_worker(1)
        thread = threading.Thread(target=worker.run)
        thread.start()
        end = time.monotonic() + 60
        while [run.status for each in tenants for run in app.tenant(each).flows.runs()] != ["COMPLETED"] * 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        worker.stop()
        thread.join()
        assert (worker.worked.begun, worker.worked.runs, worker.worked.failed) == (2, 2, 0)


def test_pausing_and_resuming(app: App, store: Store) -> None:
    schedules = app.flows.schedules
    schedules.add("daily", FLOW, owner_id="me", every_s=DAY_S, catch_up="all")
    assert (schedules.pause("daily").paused, schedules.get("daily").next_at) == (True, None)
    pass_time(store, 5 * DAY_S)
    assert tick(app) == 0
    resumed = schedules.resume("daily")
    assert not resumed.paused and resumed.next_at is not None and resumed.next_at > resumed.updated_at
    assert tick(app) == 0
    pass_time(store)
    # Resuming what is not paused moves nothing.
    schedules.resume("daily")
    assert tick(app) == 1


def test_running_now_is_a_run_besides(app: App) -> None:
    schedules = app.flows.schedules
    schedules.add("daily", FLOW, owner_id="me", every_s=DAY_S, tick_into="tick", queue="slow", priority=2)
    schedules.pause("daily")
    run, again = schedules.run_now("daily"), schedules.run_now("daily")
    assert run.execution_id != again.execution_id
    assert (run.status, run.queue, run.priority, run.workflow_id) == ("PENDING", "slow", 2, "daily")
    assert list(run.state) == ["tick"]
    assert schedules.get("daily").last_at is None


def test_removing_and_replacing(app: App, store: Store) -> None:
    schedules = app.flows.schedules
    schedules.add("daily", FLOW, owner_id="me", cron="0 0 * * *", zone="Europe/Berlin")
    assert (schedules.get("daily").cron, schedules.get("daily").zone) == ("0 0 * * *", "Europe/Berlin")
    with pytest.raises(Conflict):
        schedules.add("daily", FLOW, owner_id="me", cron="5 0 * * *")
    replaced = schedules.add("daily", FLOW, {"n": 2}, owner_id="me", every_s=DAY_S, replace=True)
    assert (replaced.cron, replaced.input, len(schedules.list())) == (None, {"n": 2}, 1)
    pass_time(store)
    assert tick(app) == 1
    schedules.remove("daily")
    assert schedules.list() == []
    for verb in (schedules.remove, schedules.pause, schedules.resume, schedules.get, schedules.run_now):
        with pytest.raises(NotFound):
            verb("daily")
    assert len(app.flows.runs()) == 1


def test_a_documents_own_trigger_says_when_and_is_where_runs_begin(app: App, store: Store) -> None:
    flow = Flow("own")
    flow.trigger("daily", every_s=DAY_S, into="why")
    flow.human("ask", choices=["yes"])
    assert app.flows.schedules.add("own", flow, owner_id="me").every_s == DAY_S
    pass_time(store)
    assert tick(app) == 1
    last = iso(app.flows.schedules.get("own").last_at)
    assert app.flows.runs()[0].state == {"why": {"on": "schedule", "schedule": "own", "tick": last}}


BREAK = "UPDATE schedule SET document = replace(document, 'python', 'cobol') WHERE name = 'bad'"
MEND = "UPDATE schedule SET document = replace(document, 'cobol', 'python')"


def test_a_run_that_cannot_be_begun_is_tried_again_and_says_why(app: App, store: Store) -> None:
    for name in ("bad", "good"):
        app.flows.schedules.add(name, FLOW, owner_id="me", every_s=DAY_S)
    change(store, BREAK)
    pass_time(store)
    assert tick(app) == 1 and [run.workflow_id for run in app.flows.runs()] == ["good"]
    # Not at once.
    assert tick(app) == 0
    change(store, MEND)
    error = app.flows.schedules.get("bad").error
    assert error is not None and error.kind == "invalid"
    pass_time(store, 61)
    assert tick(app) == 1 and app.flows.schedules.get("bad").error is None
    assert {run.workflow_id for run in app.flows.runs()} == {"bad", "good"}


def test_a_tick_that_was_put_off_was_not_missed(app: App, store: Store) -> None:
    app.flows.schedules.add("bad", FLOW, owner_id="me", every_s=DAY_S, catch_up="skip")
    change(store, BREAK)
    pass_time(store)
    for _ in range(3):
        assert tick(app) == 0
        error = select(store, "SELECT error FROM schedule")[0][0]
        assert error is not None
        pass_time(store, 65)
    change(store, MEND)
    assert tick(app) == 1 and len(app.flows.runs()) == 1
    assert app.flows.schedules.get("bad").error is None


def test_a_schedule_that_cannot_even_be_read_keeps_nobody_from_its_ticks(app: App, store: Store) -> None:
    broken = {
        "a-zone": ("Europe/Berlin", "Europe/Nowhere"),
        "b-cron": ("0 0 1 1 *", "0 0 1 1 nonsense"),
        "c-newer": ('"anchor_us"', '"invented_later":1,"anchor_us"'),
    }
    for name in (*broken, "d-good"):
        app.flows.schedules.add(name, FLOW, owner_id="me", cron="0 0 1 1 *", zone="Europe/Berlin")
    for name, (old, new) in broken.items():
        change(store, "UPDATE schedule SET definition = replace(definition, ?, ?) WHERE name = ?", [old, new, name])
    assert change(store, "UPDATE schedule SET next_at = 1, look_at = 1") == 4
    worker = app.run_worker(1)
    worker.drain()
    assert [run.workflow_id for run in app.flows.runs()] == ["d-good"]
    assert [each.error is None for each in app.flows.schedules.list()] == [False, False, False, True]
    # They are not looked at again at once, and can be paused and removed.
    assert worker.drain().failed == 0
    for name in broken:
        assert app.flows.schedules.pause(name).paused
        app.flows.schedules.remove(name)


def test_a_tenant_that_cannot_be_opened_keeps_no_other_from_its_ticks(app: App, store: Store) -> None:
    for tenant in ("a-bad", "b-good"):
        app.tenant(tenant).flows.schedules.add(f"of-{tenant}", FLOW, owner_id="me", every_s=DAY_S)
    pass_time(store)
    # A name that no tenant can have.
    assert change(store, "UPDATE tenant SET name = '' WHERE name = 'a-bad'") == 1
    with store.open() as other:
        other.handlers.add_all(FLOW)
        worked = other.run_worker(1).drain()
    assert (worked.begun, worked.runs, worked.failed) == (1, 1, 1)


def test_replacing_loses_no_tick_that_is_due(app: App, store: Store) -> None:
    schedules = app.flows.schedules
    for name in ("same", "other"):
        schedules.add(name, FLOW, owner_id="me", every_s=DAY_S)
    pass_time(store)
    due = {each.name: each.next_at for each in schedules.list()}
    schedules.add("same", FLOW, {"n": 2}, owner_id="me", every_s=DAY_S, replace=True)
    schedules.add("other", FLOW, {"n": 2}, owner_id="me", cron="0 0 1 1 *", replace=True)
    assert {each.name: each.next_at for each in schedules.list()} == due
    assert tick(app) == 2
    assert ticks(app) == [f"{name}/{iso(due[name])}" for name in ("other", "same")]
    assert {run.state["n"] for run in app.flows.runs()} == {2}
    # Nothing of the old is due: the new one begins with its own.
    replaced = schedules.add("same", FLOW, owner_id="me", every_s=3 * DAY_S, replace=True)
    assert replaced.next_at is not None and (replaced.next_at - replaced.updated_at).days in (2, 3)


@pytest.mark.parametrize("every_s", [2 * DAY_S, 600])
def test_another_interval_adds_nothing_to_a_tick_that_is_due(every_s: int, app: App, store: Store) -> None:
    schedules = app.flows.schedules
    schedules.add("daily", FLOW, owner_id="me", every_s=DAY_S)
    pass_time(store, DAY_S + 3600)
    due = schedules.get("daily").next_at
    replaced = schedules.add("daily", FLOW, owner_id="me", every_s=every_s, replace=True)
    assert replaced.next_at == due
    assert tick(app) == 1
    assert ticks(app) == [f"daily/{iso(due)}"]
    following = schedules.get("daily").next_at
    assert following is not None and following - replaced.updated_at > dt.timedelta(seconds=every_s / 2)


def test_schedules_that_could_begin_nothing_are_refused(memory: App) -> None:
    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"cron": None}, Invalid),
        ({"catch_up": "perhaps"}, Invalid),
        ({"limit": 0}, Invalid),
        ({"grace_s": -1}, Invalid),
        ({"priority": 1}, Invalid),
        ({"tick_into": "__kernel"}, Denied),
        ({"input": {"x": object()}}, Invalid),
        ({"owner_id": ""}, Invalid),
        ({"every_s": 5}, Invalid),
        *(({"cron": cron}, Invalid) for cron in ("* * * *", "* * * * * *", "61 * * * *", "0 0 30 2 *", "nonsense")),
        *(({"zone": zone}, Invalid) for zone in ("localtime", "posixrules", "Mars/Olympus", "../../etc/passwd")),
        *(({"cron": None, "every_s": every}, Invalid) for every in (0.5, float("nan"))),
    ]
    for given, error in cases:
        with pytest.raises(error):
            memory.flows.schedules.add("x", FLOW, **{"owner_id": "me", "cron": "0 0 * * *", **given})
    for name in ("a\nb", "\x1b[2J", "\x7f", "\x9b"):
        with pytest.raises(Invalid):
            memory.flows.schedules.add(name, FLOW, owner_id="me", workflow_id="w", every_s=60)
    assert memory.flows.schedules.list() == []
