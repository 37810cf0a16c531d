"""Runs that wait, are decided, cancelled, taken over and run again."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Conflict, Denied, Invalid, NotFound
from tests.api.flows.runs import PLACE, end_leases, take
from tests.raw_rows import change, select
from tests.stores import Store


def asking(where: str, **options: Any) -> Flow:
    """Three steps around one human, who is first, in the middle, or last."""
    flow = Flow("asking")

    def one(state: Any, ctx: Any) -> dict[str, int]:
        return {"one": 1}

    def two(state: Any, ctx: Any) -> dict[str, int]:
        return {"two": 2}

    if where != "first":
        flow.step(one)
    flow.human("approve", choices=["yes", "no"], **options)
    if where != "last":
        flow.step(two)
    return flow


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_human_pauses_a_run_across_restarts_wherever_it_stands(where: str, store: Store) -> None:
    with store.open() as app:
        run = app.flows.run(asking(where), {"n": 1}, **PLACE)
        assert run.status == "WAITING_HUMAN"
        assert run.segments[-1].status == "PAUSED"
        assert run.waiting is not None
        assert (run.waiting.node, run.waiting.choices, run.waiting.until) == ("approve", ("yes", "no"), None)
        assert run.holder is None
    with store.open() as app:
        app.flows.register(asking(where))
        assert app.flows.resume(run.execution_id).status == "WAITING_HUMAN"
        done = app.flows.approve(run.execution_id, "yes", "eve", {"note": "fine"})
        assert (done.status, done.waiting, done.segment_id) == ("COMPLETED", None, None)
        wanted: dict[str, Any] = {"n": 1, "approve": {"choice": "yes", "actor": "eve", "payload": {"note": "fine"}}}
        wanted |= {} if where == "first" else {"one": 1}
        wanted |= {} if where == "last" else {"two": 2}
        assert done.state == wanted
        expected = ["CONTINUE"] * (1 if where == "last" else len(done.segments) - 1) + ["COMPLETE"]
        assert [each.status for each in done.segments] == expected
        with pytest.raises(Conflict):
            app.flows.approve(run.execution_id, "no", "eve")
        assert app.kernel.verify(**PLACE).problems == []


def test_a_decision_is_among_the_choices(app: App) -> None:
    run = app.flows.run(asking("first"), **PLACE)
    for choice, actor in (("maybe", "me"), ("", "me"), (None, "me"), ("yes", ""), ("yes", 5)):
        with pytest.raises(Invalid):
            app.flows.approve(run.execution_id, choice, actor)  # type: ignore[arg-type]
    with pytest.raises(Invalid):
        app.flows.approve(run.execution_id, "yes", "me", payload=object())
    assert app.flows.get(run.execution_id).status == "WAITING_HUMAN"


def test_of_two_decisions_at_once_one_counts(app: App, store: Store) -> None:
    run = app.flows.run(asking("last"), **PLACE)
    barrier = threading.Barrier(2)
    outcomes: list[str] = []

    def decide(choice: str) -> None:
        with store.open() as other:
            barrier.wait()
            try:
                other.flows.approve(run.execution_id, choice, choice)
                outcomes.append(choice)
            except Conflict:
                outcomes.append("conflict")

    threads = [threading.Thread(target=decide, args=(choice,)) for choice in ("yes", "no")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = next(each for each in outcomes if each != "conflict")
    assert sorted(outcomes) == sorted(["conflict", winner])
    done = app.flows.get(run.execution_id)
    assert done.state["approve"] == {"choice": winner, "actor": winner}


def test_a_program_without_the_functions_only_decides(app: App, store: Store) -> None:
    run = app.flows.run(asking("middle"), **PLACE)
    with store.open() as bare:
        decided = bare.flows.approve(run.execution_id, "yes", "me")
        assert (decided.status, decided.segment_id, decided.holder) == ("RUNNING", "two", None)
    assert work(app) == 1
    assert app.flows.get(run.execution_id).status == "COMPLETED"


def work(app: App) -> int:
    """How many runs a worker goes on with."""
    return app.run_worker(1).drain().runs


def test_a_run_that_is_started_is_left_to_a_worker(app: App) -> None:
    flow = asking("last")
    run = app.flows.start(flow, **PLACE, idempotency_key="k")
    assert run.status == "PENDING"
    assert app.flows.start(flow, **PLACE, idempotency_key="k").execution_id == run.execution_id
    later = app.flows.start(flow, workflow_id="t-2", owner_id="me", delay_s=3600)
    assert work(app) == 1
    assert app.flows.get(run.execution_id).status == "WAITING_HUMAN"
    assert app.flows.get(later.execution_id).status == "PENDING"
    with pytest.raises(Invalid):
        app.flows.run(flow, **PLACE, executor=object(), wait=False)


def be_late(store: Store) -> None:
    """As if the time to decide were over."""
    assert change(store, "UPDATE run SET due_at = 1 WHERE status = 'WAITING_HUMAN'") == 1


def test_when_nobody_decides_in_time_the_default_does(app: App, store: Store) -> None:
    run = app.flows.run(asking("middle", timeout_s=3600, default="no"), **PLACE)
    assert run.waiting is not None and run.waiting.until is not None
    assert work(app) == 0
    be_late(store)
    assert work(app) == 1
    assert app.flows.get(run.execution_id).state["approve"] == {"choice": "no", "actor": None}
    with pytest.raises(Conflict):
        app.flows.approve(run.execution_id, "yes", "me")


def test_without_a_default_the_run_fails_and_can_be_asked_again(app: App, store: Store) -> None:
    run = app.flows.run(asking("middle", timeout_s=3600), **PLACE)
    be_late(store)
    work(app)
    failed = app.flows.get(run.execution_id)
    assert failed.error is not None and (failed.status, failed.error.kind) == ("FAILED", "timeout")
    assert app.flows.resume(run.execution_id).status == "WAITING_HUMAN"


def test_a_prompt_is_filled_in_from_what_the_step_may_see(app: App) -> None:
    run = app.flows.run(asking("first", prompt="Ship {{item}}?"), {"item": "book"}, **PLACE)
    assert run.waiting is not None and run.waiting.prompt == "Ship book?"


def test_a_cancelled_run_commits_nothing_more(app: App) -> None:
    seen: list[Any] = []
    flow = Flow("stop", checkpoints="node")

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        app.flows.cancel(ctx.execution_id)
        try:
            ctx.once("charge", lambda key: seen.append(key))
        except Conflict as exc:
            seen.append(type(exc).__name__)
        return {"b": 1}

    run = app.flows.run(flow, **PLACE)
    assert (run.status, run.state) == ("CANCELLED", {"a": 1})
    assert seen == ["FencedOut"]
    assert app.flows.cancel(run.execution_id).status == "CANCELLED"
    assert app.flows.resume(run.execution_id).status == "CANCELLED"
    assert work(app) == 0


@pytest.mark.parametrize("status", ["PENDING", "WAITING_HUMAN"])
def test_a_run_that_nobody_is_at_is_cancelled_at_once(app: App, status: str) -> None:
    begin = app.flows.start if status == "PENDING" else app.flows.run
    run = begin(asking("first"), **PLACE)
    assert run.status == status
    cancelled = app.flows.cancel(run.execution_id)
    assert cancelled.status == "CANCELLED" and cancelled.ended_at is not None
    with pytest.raises(Conflict):
        app.flows.approve(run.execution_id, "yes", "me")
    done = app.flows.run(asking("last"), workflow_id="t-2", owner_id="me")
    done = app.flows.approve(done.execution_id, "yes", "me")
    with pytest.raises(Conflict):
        app.flows.cancel(done.execution_id)


def test_a_long_step_hears_that_it_is_cancelled(app: App) -> None:
    flow = Flow("long")

    @flow.step
    def long(state: Any, ctx: Any) -> None:
        app.flows.cancel(ctx.execution_id)
        for _ in range(3000):
            ctx.check_cancelled()
            time.sleep(0.02)

    assert app.flows.run(flow, **PLACE).status == "CANCELLED"


def test_a_worker_that_was_fenced_out_commits_nothing(app: App, store: Store) -> None:
    """It is in the middle of a segment when another takes its run over and finishes it."""
    events: list[str] = []

    def flow_of(who: str, other: App | None) -> Flow:
        flow = Flow("contested", checkpoints="node")

        @flow.step(writes=["by"])
        def first(state: Any, ctx: Any) -> dict[str, str]:
            if other is not None:
                taken = other.flows.resume(ctx.execution_id, take_over=True)
                events.append(taken.status)
            if not ctx.cancelled:
                ctx.emit({"type": "Done"})
            return {"by": who}

        @flow.step(reads=["by"], writes=["again"])
        def second(state: Any, ctx: Any) -> dict[str, str]:
            return {"again": f"{state['by']} {who}"}

        return flow

    with store.open() as other:
        other.flows.register(flow_of("other", None))
        run = app.flows.run(flow_of("mine", other), **PLACE)
        assert events == ["COMPLETED"]
        assert (run.status, run.state) == ("COMPLETED", {"by": "other", "again": "other other"})
        assert len(run.segments) == 2
        assert app.outbox.status().pending == 1
        assert len(app.kernel.history(**PLACE)) == 3


def test_a_run_that_somebody_works_on_is_not_resumed_by_accident(app: App, store: Store) -> None:
    said: list[Any] = []
    flow = Flow("busy")

    @flow.step
    def busy(state: Any, ctx: Any) -> None:
        with store.open() as other, pytest.raises(Conflict) as caught:
            other.flows.resume(ctx.execution_id)
        said.append(caught.value.holder)
        assert work(app) == 0

    run = app.flows.run(flow, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert said and said[0].count(":") >= 2


def test_a_lease_that_ran_out_is_taken_over_and_renewed_ones_are_not(store: Store) -> None:
    def until() -> int:
        return int(select(store, "SELECT due_at FROM run")[0][0])

    with store.open(run_lease_s=1.5) as app, store.open() as other:
        flow = Flow("slow")

        @flow.step(writes=["n"])
        def slow(state: Any, ctx: Any) -> dict[str, int]:
            first, end = until(), time.monotonic() + 60
            while until() == first:
                assert time.monotonic() < end
                time.sleep(0.01)
            assert work(other) == 0
            return {"n": 1}

        run = app.flows.run(flow, **PLACE)
        assert (run.status, run.error) == ("COMPLETED", None)
        flow = asking("last")
        pending = app.flows.start(flow, workflow_id="t-2", owner_id="me")
        other.flows.register(flow)
        assert (take(app, store), work(other)) == ("t-2", 0)
        end_leases(store)
        assert work(other) == 1
        assert app.flows.get(pending.execution_id).status == "WAITING_HUMAN"


def test_a_rerun_in_place_rolls_back_and_goes_on_in_another_incarnation(app: App) -> None:
    factor = [10]
    calls: list[str] = []
    flow = Flow("again", checkpoints="node")

    @flow.step(reads=["n"], writes=["n"])
    def first(state: Any, ctx: Any) -> None:
        state["n"] += 1

    @flow.step(reads=["n"], writes=["n", "paid"])
    def second(state: Any, ctx: Any) -> dict[str, Any]:
        def pay(key: str) -> int:
            calls.append(key)
            return int(ctx.incarnation)

        return {"n": state["n"] * factor[0], "paid": ctx.once("pay", pay)}

    run = app.flows.run(flow, {"n": 1}, **PLACE)
    assert run.state == {"n": 20, "paid": 1}
    factor[0] = 100
    again = app.flows.rerun(run.execution_id, from_segment="second")
    assert (again.execution_id, again.incarnation) == (run.execution_id, 2)
    assert again.state == {"n": 200, "paid": 2}
    assert [(each.segment_id, each.seq, each.incarnation) for each in again.segments] == [
        ("first", 0, 2),
        ("second", 1, 2),
    ]
    assert len(set(calls)) == 2
    by_number = app.flows.rerun(run.execution_id, from_segment=1)
    assert (by_number.incarnation, by_number.state["paid"]) == (3, 3)
    by_version = app.flows.rerun(run.execution_id, from_version=1)
    assert (by_version.incarnation, by_version.state) == (4, {"n": 200, "paid": 4})
    history = app.kernel.history(**PLACE)
    assert [each.version for each in history] == list(range(len(history), 0, -1))
    assert app.kernel.verify(**PLACE).problems == []
    for wrong in ({}, {"from_segment": 0, "from_version": 1}, {"from_segment": 1.5}):
        with pytest.raises(Invalid):
            app.flows.rerun(run.execution_id, **wrong)
    for unknown in ({"from_segment": "nope"}, {"from_segment": 9}, {"from_version": 99}):
        with pytest.raises(NotFound):
            app.flows.rerun(run.execution_id, **unknown)


def test_a_rerun_on_a_fork_leaves_the_run_as_it_is(app: App) -> None:
    flow = asking("middle")
    run = app.flows.run(flow, {"n": 1}, **PLACE)
    run = app.flows.approve(run.execution_id, "yes", "me")
    fork = app.flows.rerun(run.execution_id, from_segment="approve", fork="other")
    assert (fork.status, fork.branch, fork.incarnation) == ("WAITING_HUMAN", "other", 1)
    assert fork.execution_id != run.execution_id
    fork = app.flows.approve(fork.execution_id, "no", "me")
    assert fork.state["approve"]["choice"] == "no"
    assert app.flows.get(run.execution_id).state["approve"]["choice"] == "yes"
    assert app.kernel.load_latest_state(**PLACE)["approve"]["choice"] == "yes"
    named = app.flows.rerun(run.execution_id, from_version=1, fork=True)
    assert named.branch.startswith("rerun-")
    with pytest.raises(Conflict):
        app.flows.rerun(run.execution_id, from_segment="approve", fork="other")
    assert app.kernel.verify(**PLACE, branch="other").problems == []


def test_a_rerun_while_somebody_is_at_it_is_a_conflict(app: App) -> None:
    run = app.flows.start(asking("first"), **PLACE)
    with pytest.raises(Conflict):
        app.flows.rerun(run.execution_id, from_segment=0)


def test_a_loop_is_run_again_from_its_last_time(app: App) -> None:
    flow = Flow("loops")

    @flow.step(reads=["seen"], writes=["seen"])
    def body(state: Any, ctx: Any) -> None:
        state["seen"].append(ctx.iteration)

    flow.loop("three", [body], times=3)
    run = app.flows.run(flow, {"seen": []}, **PLACE)
    assert run.state == {"seen": [1, 2, 3]}
    again = app.flows.rerun(run.execution_id, from_segment="body")
    assert again.state == {"seen": [1, 2, 3]}
    assert [each.segment_id for each in again.segments] == [each.segment_id for each in run.segments]


def test_a_forged_configuration_is_refused_before_anything_runs(app: App) -> None:
    calls: list[int] = []
    flow = Flow("forged")

    @flow.step(reads=["n"], writes=["n"])
    def step(state: Any, ctx: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no")

    run = app.flows.run(flow, {"n": 1}, **PLACE)
    config = dict(flow.plan().segments[0].config)
    before = len(app.kernel.history(**PLACE))
    for forged in (
        {**config, "ring": "ring_0"},
        {**config, "nodes": [{**config["nodes"][0], "writes": ["n", "credentials"]}]},
        {**config, "next": ["elsewhere"]},
        {},
    ):
        with pytest.raises(Denied):
            app.flows.resume(run.execution_id, segment_config=forged)
    assert (len(calls), len(app.kernel.history(**PLACE))) == (1, before)
    assert app.flows.get(run.execution_id).status == "FAILED"
    assert app.flows.resume(run.execution_id, segment_config=config).status == "COMPLETED"


def test_a_whole_document_is_taken_with_a_warning_if_it_is_the_runs(app: App) -> None:
    flow = asking("first")
    run = app.flows.run(flow, **PLACE)
    other = asking("first", timeout_s=5).document()
    with pytest.warns(DeprecationWarning, match="needs none"), pytest.raises(Denied):
        app.flows.resume(run.execution_id, workflow_config=other)
    with pytest.warns(DeprecationWarning, match="needs none"):
        assert app.flows.resume(run.execution_id, workflow_config=flow.document()).status == "WAITING_HUMAN"


def test_a_run_whose_manifest_is_another_is_refused(app: App, store: Store) -> None:
    """Somebody has pointed the run's row at a version of another document, or at one without any."""
    flow = asking("first")
    run = app.flows.run(flow, **PLACE)
    plain = app.kernel.save_state_delta({"n": 1}, workflow_id="plain", owner_id="me")
    other = app.flows.run(asking("last"), workflow_id="t-2", owner_id="me")
    for manifest in (plain.manifest_id, other.manifest_id):
        point(store, run.execution_id, manifest)
        with pytest.raises(Denied):
            app.flows.approve(run.execution_id, "yes", "me")
    assert len(app.kernel.history(**PLACE)) == 1


def point(store: Store, execution: str, manifest: str) -> None:
    """Point a run's row at another version."""
    sql = "UPDATE run SET head = ? WHERE execution = ?"
    assert change(store, sql, [bytes.fromhex(manifest), execution]) == 1


def test_an_injected_segment_runs_before_the_one_at_its_place(app: App) -> None:
    flow = asking("middle")
    app.flows.handlers.add("asking.extra", lambda state, ctx: {"extra": 1})
    run = app.flows.run(flow, **PLACE)
    node = {"id": "extra", "type": "python", "function": "asking.extra"}
    app.kernel.inject_dynamic_segment(run.manifest_id, node, flow.plan().numbers["two"])
    done = app.flows.approve(run.execution_id, "yes", "me")
    assert done.status == "COMPLETED", done.error
    assert [each.segment_id for each in done.segments] == ["one", "approve", "extra", "two"]
    assert done.state["extra"] == 1
