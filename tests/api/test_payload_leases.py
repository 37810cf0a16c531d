"""Leases of executions that never said `release`: when they end, and what keeps them."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

import analemma
from analemma.errors import Denied, Invalid
from analemma.testing import failpoints
from tests.programs import run as run_program
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
DAY_US = 86_400 * 1_000_000
LARGE = "x" * 20_000


def dehydrate(app: analemma.App, execution: str = "one", text: str = LARGE, **place: Any) -> dict[str, Any]:
    names = PLACE | place
    return app.payloads.dehydrate({"plan": text + execution}, execution_id=execution, return_delta=False, **names)


def age(store: Store, days: float) -> None:
    assert change(store, "UPDATE payload SET renewed_at = renewed_at - ?", [round(days * DAY_US)]) >= 1


def ended(app: analemma.App) -> int:
    """How many leases a pass ends."""
    report = app.gc.run(grace_s=0)
    assert report.ok, report.problems
    return sum(each.leases for each in report.tenants)


def live(app: analemma.App, **whose: Any) -> list[str]:
    return sorted(lease.execution for lease in app.payloads.leases(**whose))


def test_leases_that_nobody_released_end_when_they_were_not_used_for_thirty_days(store: Store) -> None:
    with store.open() as app:
        payloads = [dehydrate(app, f"run-{number}") for number in range(5)]
        age(store, 29)
        assert ended(app) == 0 and len(live(app)) == 5
        age(store, 2)
        young = dehydrate(app, "young")
        assert ended(app) == 5 and live(app) == ["young"]
        for payload in payloads:
            with pytest.raises(Denied, match="released"):
                app.payloads.hydrate(payload)
        assert app.payloads.hydrate(young)["plan"] == LARGE + "young"


def test_what_only_ended_leases_led_to_is_collected(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"kept": True}, **PLACE)
        before = select(store, "SELECT count(*) FROM block")
        dehydrate(app)
        age(store, 31)
        for _ in range(3):
            app.gc.run(grace_s=0)
        assert select(store, "SELECT count(*) FROM block") == before


def test_the_settings_decide_how_long_unused_leases_stay(store: Store) -> None:
    with store.open(payload_lease_s=60) as app:
        dehydrate(app)
        assert ended(app) == 0
        age(store, 61 / 86_400)
        assert ended(app) == 1


def test_a_pass_that_expires_nothing_ends_no_leases(store: Store) -> None:
    with store.open() as app:
        dehydrate(app)
        age(store, 31)
        app.gc.run(grace_s=0, expire=False)
        assert live(app) == ["one"]


@pytest.mark.parametrize("use", ["hydrate", "pass on", "make another", "read a field"])
def test_leases_that_are_used_stay(store: Store, use: str) -> None:
    with store.open() as app:
        payload = dehydrate(app)
        age(store, 29)
        state = app.payloads.hydrate(payload) if use == "pass on" else None
        if use == "hydrate":
            app.payloads.hydrate(payload)
        elif use == "pass on":
            age(store, 20)
            assert state is not None
            app.payloads.dehydrate(state, execution_id="one", return_delta=False, **PLACE)
        elif use == "read a field":
            app.payloads.load_fields_selective(payload["plan"], [], **PLACE)
        else:
            dehydrate(app, text="another" * 10_000)
        age(store, 29)
        assert ended(app) == 0
        assert app.payloads.hydrate(payload)["plan"] == LARGE + "one"


def test_a_payload_passed_on_to_another_execution_outlives_the_first(store: Store) -> None:
    with store.open() as app:
        first = app.payloads.hydrate(dehydrate(app))
        age(store, 31)
        second = app.payloads.dehydrate(first, execution_id="two", return_delta=False, **PLACE)
        app.payloads.release(execution_id="one", **PLACE)
        for _ in range(3):
            app.gc.run(grace_s=0)
        assert app.payloads.hydrate(second)["plan"] == LARGE + "one"


def test_an_execution_whose_leases_ended_may_go_on_with_new_ones(store: Store) -> None:
    with store.open() as app:
        dehydrate(app)
        age(store, 31)
        assert ended(app) == 1
        again = dehydrate(app)
        assert ended(app) == 0 and app.payloads.hydrate(again)["plan"] == LARGE + "one"


def keep(state: Any, ctx: Any) -> dict[str, Any]:
    app = APPS[0]
    place = {"owner_id": "ann", "workflow_id": state["place"], "execution_id": state["execution"] or ctx.execution_id}
    return {"payload": app.payloads.dehydrate({"plan": LARGE}, return_delta=False, **place)}


def fail(state: Any, ctx: Any) -> None:
    if not state["mended"]:
        raise ValueError("not yet")


APPS: list[analemma.App] = []


def flow(*, approval: bool = False) -> analemma.Flow:
    built = analemma.Flow("keeping")
    built.step(keep, reads=["place", "execution"], writes=["payload"])
    if approval:
        built.human("decide", choices=["yes"])
    built.step(fail, reads=["mended"])
    return built


@pytest.fixture
def app(store: Store) -> Any:
    with store.open() as opened:
        APPS[:] = [opened]
        yield opened
        APPS.clear()


def begin(
    app: analemma.App, *, approval: bool = False, mended: bool = True, place: str = "trip", execution: str = ""
) -> analemma.Run:
    given = {"place": place, "execution": execution, "mended": mended}
    return app.flows.run(flow(approval=approval), given, **PLACE)


def payload_of(app: analemma.App) -> dict[str, Any]:
    payload: dict[str, Any] = app.kernel.load_latest_state(**PLACE)["payload"]
    return payload


@pytest.mark.parametrize("place", ["trip", "elsewhere"])
def test_the_leases_of_a_run_end_with_it(app: analemma.App, place: str) -> None:
    run = begin(app, place=place)
    assert run.status == "COMPLETED" and live(app) == [run.execution_id]
    assert ended(app) == 1 and live(app) == []


def test_the_leases_of_a_run_that_was_cancelled_end(app: analemma.App) -> None:
    run = begin(app, approval=True)
    app.flows.cancel(run.execution_id)
    assert ended(app) == 1


@pytest.mark.parametrize(("place", "execution"), [("trip", ""), ("elsewhere", ""), ("trip", "own"), ("other", "own")])
def test_the_leases_of_a_run_that_goes_on_never_end(
    app: analemma.App, store: Store, place: str, execution: str
) -> None:
    run = begin(app, approval=True, place=place, execution=execution)
    assert run.status == "WAITING_HUMAN"
    change(store, "UPDATE run SET created_at = created_at - ?", [DAY_US])
    age(store, 100)
    change(store, "UPDATE run SET created_at = created_at - ?", [100 * DAY_US])
    assert ended(app) == 0
    payload = payload_of(app)
    assert app.payloads.hydrate(payload, owner_id="ann", workflow_id=place)["plan"] == LARGE


def test_the_leases_of_a_run_that_failed_stay_for_whoever_resumes_it(app: analemma.App, store: Store) -> None:
    run = begin(app, mended=False)
    assert run.status == "FAILED"
    age(store, 100)
    assert change(store, "UPDATE run SET ended_at = ended_at - ?", [100 * DAY_US]) == 1
    assert ended(app) == 0 and live(app) == [run.execution_id]
    assert app.flows.forget(99 * 86_400) == 1
    assert ended(app) == 1


def test_what_a_run_that_failed_lately_may_need_stays(app: analemma.App, store: Store) -> None:
    run = begin(app, mended=False, execution="own")
    assert run.status == "FAILED" and live(app) == ["own"]
    age(store, 31)
    assert ended(app) == 0
    assert change(store, "UPDATE run SET ended_at = ended_at - ?", [31 * DAY_US]) == 1
    assert ended(app) == 1


@pytest.mark.parametrize("place", ["trip", "elsewhere"])
def test_the_leases_of_a_subflow_stay_while_the_run_that_waits_for_it_goes_on(app: analemma.App, place: str) -> None:
    inner = analemma.Flow("inner")

    @inner.step(writes=["payload"])
    def child(state: Any, ctx: Any) -> dict[str, Any]:
        names = {"owner_id": "ann", "workflow_id": place, "execution_id": ctx.execution_id}
        return {"payload": app.payloads.dehydrate({"plan": LARGE}, return_delta=False, **names)}

    app.flows.register(inner)
    outer = analemma.Flow("outer")
    outer.subflow("call", inner, outputs={"payload": "payload"})
    outer.human("decide", choices=["yes"])
    run = app.flows.run(outer, {}, **PLACE)
    assert run.status == "WAITING_HUMAN" and len(live(app)) == 1
    assert ended(app) == 0
    assert app.payloads.hydrate(payload_of(app), owner_id="ann", workflow_id=place)["plan"] == LARGE
    app.flows.cancel(run.execution_id)
    assert ended(app) == 1


def test_the_result_of_a_task_of_a_run_that_goes_on_keeps_its_leases(app: analemma.App, store: Store) -> None:
    seen: list[int] = []
    built = analemma.Flow("many")

    @built.step(reads=["item"], writes=["payload"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        if state["item"] == "b":
            # By now the first task is done, and its result waits to be put into the state.
            age(store, 100)
            seen.append(ended(app))
        return {"payload": dehydrate(app, f"task {state['item']}")}

    built.for_each("each", over="items", step=work, result="payload", into="payloads", max_parallel=1)
    run = app.flows.run(built, {"items": ["a", "b"]}, **PLACE)
    assert (run.status, seen) == ("COMPLETED", [0])
    for payload, item in zip(run.state["payloads"], "ab", strict=True):
        assert app.payloads.hydrate(payload)["plan"] == f"{LARGE}task {item}"


def test_a_pointer_in_a_delta_that_is_not_applied_yet_keeps_its_lease(store: Store) -> None:
    with store.open() as app, store.open() as other:
        payload = dehydrate(app)

        def waits() -> None:
            age(store, 31)
            assert ended(other) == 0

        with failpoints.call("apply.before_transaction", waits):
            app.kernel.wait_for(app.kernel.checkpoint_async({"payload": payload}, **PLACE))
        assert app.payloads.hydrate(app.kernel.load_latest_state(**PLACE)["payload"])["plan"] == LARGE + "one"


def command(store: Store, *arguments: str) -> tuple[int, str]:
    variables = {**os.environ, "ANALEMMA_URL": store.url}
    if store.objects is not None:
        variables["ANALEMMA_OBJECTS"] = store.objects
    done = run_program([sys.executable, "-m", "analemma", *arguments], env=variables, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode() + done.stderr.decode()


def test_leases_can_be_listed(store: Store) -> None:
    with store.open() as app:
        dehydrate(app, "one")
        dehydrate(app, "two", workflow_id="other")
        dehydrate(app, "three", owner_id="bob")
        assert live(app) == ["one", "three", "two"]
        assert live(app, owner_id="ann") == ["one", "two"]
        assert live(app, owner_id="ann", workflow_id="trip") == ["one"]
        with pytest.raises(Invalid):
            app.payloads.leases(workflow_id="trip")


def test_commands_list_and_release_leases(store: Store) -> None:
    with store.open() as app:
        payload = dehydrate(app, "one")
        dehydrate(app, "two")
    code, out = command(store, "payloads", "leases", "--json")
    listed = json.loads(out)["leases"]
    assert code == 0 and [each["execution_id"] for each in listed] == ["one", "two"]
    assert listed[0]["owner_id"] == "ann" and listed[0]["field"] == "plan" and listed[0]["size"] > 20_000
    code, out = command(store, "payloads", "leases", "-o", "ann", "-w", "trip", "--execution", "two")
    assert code == 0 and "two" in out and "one" not in out
    code, out = command(store, "payloads", "release", "one", "-o", "ann", "-w", "trip", "--json")
    assert code == 0 and json.loads(out) == {"released": 1}
    assert command(store, "payloads", "release", "two", "-o", "ann", "-w", "trip")[0] == 0
    with store.open() as app:
        assert app.payloads.leases() == []
        with pytest.raises(Denied, match="released"):
            app.payloads.hydrate(payload)
