"""Runs, segment by segment: what is committed when, what is refused, and how a run goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from analemma import App, Flow, Result
from analemma.errors import Conflict, Denied, Invalid, NotFound
from tests.api.flows.runs import PLACE, place
from tests.stores import Store


def versions(app: App, **more: Any) -> list[tuple[int, int | None]]:
    """Oldest first: each version with the segment that made it."""
    return [(each.version, each.segment_id) for each in reversed(app.kernel.history(**PLACE, **more))]


def counting(**options: Any) -> Flow:
    flow = Flow("counting", checkpoints="node")

    @flow.step(reads=["n"], writes=["n"], **options)
    def first(state: Any, ctx: Any) -> None:
        state["n"] += 1

    @flow.step(reads=["n"], writes=["n"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"n": state["n"] * 10}

    return flow


def test_each_segment_that_changes_something_is_one_version(app: App) -> None:
    run = app.flows.run(counting(), {"n": 1}, **PLACE)
    assert (run.status, run.state, run.error, run.waiting) == ("COMPLETED", {"n": 20}, None, None)
    assert [(each.seq, each.segment_id, each.segment, each.status) for each in run.segments] == [
        (0, "first", 0, "CONTINUE"),
        (1, "second", 1, "COMPLETE"),
    ]
    assert versions(app) == [(1, None), (2, 0), (3, 1)]
    history = app.kernel.history(**PLACE)
    assert {each.execution_id for each in history} == {run.execution_id}
    assert [each.input_manifest_id for each in run.segments] == [history[2].manifest_id, history[1].manifest_id]
    assert [each.output_manifest_id for each in run.segments] == [history[1].manifest_id, history[0].manifest_id]
    assert run.manifest_id == history[0].manifest_id
    assert app.kernel.verify(**PLACE).problems == []
    assert app.kernel.get_workflow(**PLACE).status == "COMPLETED"


def test_steps_that_share_a_segment_see_one_another_and_make_one_version(app: App) -> None:
    flow = Flow("pair")

    @flow.step(writes=["items"])
    def make(state: Any, ctx: Any) -> dict[str, Any]:
        return {"items": [{"text": "x" * 3000, "number": number} for number in range(20)]}

    @flow.step(reads=["items"], writes=["items", "moved"])
    def move(state: Any, ctx: Any) -> None:
        state["moved"] = state["items"].pop(3)
        state["items"][0]["number"] = 99

    run = app.flows.run(flow, **PLACE)
    assert run.status == "COMPLETED"
    assert run.state["moved"]["number"] == 3
    assert [each["number"] for each in run.state["items"]] == [99, 1, 2, *range(4, 20)]
    assert versions(app) == [(1, None), (2, 0)]
    assert app.kernel.verify(**PLACE).problems == []


def test_a_segment_that_changes_nothing_makes_no_version(app: App) -> None:
    flow = Flow("idle", checkpoints="node")
    for name in ("one", "two"):
        flow.step(_named(name), reads=["n"])
    run = app.flows.run(flow, {"n": 1}, **PLACE)
    assert run.status == "COMPLETED"
    assert [each.segment_id for each in run.segments] == ["one", "two"]
    assert versions(app) == [(1, None)]


def _named(name: str) -> Any:
    def step(state: Any, ctx: Any) -> None:
        return None

    step.__name__ = name
    return step


def test_a_node_sees_what_it_declares_and_nothing_else(app: App) -> None:
    seen: list[Any] = []
    flow = Flow("views")

    @flow.step(reads=["a", "/b/c", "missing"], writes=["out"])
    def look(state: Any, ctx: Any) -> None:
        seen.append((sorted(state), dict(state), "secret" in state, state.get("secret"), len(state)))
        with pytest.raises(KeyError):
            state["secret"]

    given = {"a": 1, "b": {"c": 2, "d": 3}, "secret": "x", "credentials": "y"}
    run = app.flows.run(flow, given, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert seen == [(["a", "b"], {"a": 1, "b": {"c": 2, "d": 3}}, False, None, 2)]
    assert run.state == given


def test_what_is_not_a_nodes_to_write_is_refused_and_nothing_is_committed(memory: App) -> None:
    changes: list[tuple[dict[str, Any], str]] = [
        ({"manifest_id": "x"}, "manifest_id"),
        ({"_kernel_x": 1}, "_kernel_x"),
        ({"__x": 1}, "__x"),
        ({"workflow_config": {}}, "workflow_config"),
        ({"credentials": "x"}, "credentials"),
        ({"/loop_counter": 1}, "loop_counter"),
    ]
    for change, named in changes:
        flow, where = Flow("evil"), place()

        @flow.step
        def grab(state: Any, ctx: Any, change: dict[str, Any] = change) -> dict[str, Any]:
            ctx.emit({"type": "Never"})
            return {"harmless": 1, **change}

        run = memory.flows.run(flow, {"n": 1}, **where)
        assert run.error is not None and run.status == "FAILED", named
        assert (run.error.kind, run.error.node, run.error.attempts) == ("denied", "grab", 1)
        assert named in run.error.message
        assert len(memory.kernel.history(**where)) == 1
    assert memory.outbox.status().pending == 0


def test_a_write_that_was_not_declared_is_refused(app: App) -> None:
    flow = Flow("evil")

    @flow.step(reads=["plan"], writes=["/plan/done"])
    def grab(state: Any, ctx: Any) -> None:
        state["plan"]["done"] = True
        state["plan"]["owner"] = "me"

    run = app.flows.run(flow, {"plan": {"done": False}}, **PLACE)
    assert run.error is not None and run.error.kind == "denied" and "/plan/owner" in run.error.message
    assert run.state == {"plan": {"done": False}}


def test_an_input_cannot_have_reserved_fields(memory: App) -> None:
    hostile: list[dict[str, Any]] = [{"manifest_id": 1}, {"__x": 1}, {"_kernel_y": 1}]
    for given in hostile:
        where = place()
        with pytest.raises(Denied):
            memory.flows.run(counting(), given, **where)
        with pytest.raises(NotFound):
            memory.kernel.history(**where)


def test_a_result_of_another_kind_names_the_node(memory: App) -> None:
    for answer in (1, "text", [1], object()):
        flow = Flow("odd")

        @flow.step
        def odd(state: Any, ctx: Any, answer: Any = answer) -> Any:
            return answer

        run = memory.flows.run(flow, **place())
        assert run.error is not None and run.error.kind == "invalid" and "odd" in run.error.message, answer


def test_results_may_delete_and_say_what_they_did(app: App) -> None:
    flow = Flow("tidy")

    @flow.step(reads=["old"], writes=["old", "new"])
    def tidy(state: Any, ctx: Any) -> Result:
        return Result({"new": state["old"]}, deleted=("old",), message="moved old to new")

    run = app.flows.run(flow, {"old": 1}, **PLACE)
    assert run.state == {"new": 1}
    assert app.kernel.history(**PLACE)[0].message == "moved old to new"


def test_steps_may_be_coroutines_also_inside_of_a_running_loop(app: App) -> None:
    flow = Flow("waiting", checkpoints="node")

    @flow.step(writes=["a"], timeout_s=5)
    async def slow(state: Any, ctx: Any) -> dict[str, int]:
        await asyncio.sleep(0.01)
        return {"a": await ctx.once_async("ask", _ask)}

    @flow.step(reads=["a"], writes=["b"])
    async def after(state: Any, ctx: Any) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"b": state["a"] + 1}

    async def _ask(key: str) -> int:
        await asyncio.sleep(0)
        return 41

    async def inside() -> Any:
        return app.flows.run(flow, workflow_id="t-2", owner_id="me")

    assert app.flows.run(flow, **PLACE).state == {"a": 41, "b": 42}
    assert asyncio.run(inside()).state == {"a": 41, "b": 42}


def test_a_node_is_tried_again_with_its_changes_undone(app: App) -> None:
    tries: list[tuple[int, Any]] = []
    flow = Flow("flaky")

    @flow.step(reads=["items"], writes=["items"], retries={"times": 3, "delay_s": 0.001})
    def flaky(state: Any, ctx: Any) -> None:
        tries.append((ctx.attempt, list(state["items"])))
        state["items"].append(ctx.attempt)
        ctx.emit({"type": "Tried"})
        if ctx.attempt < 3:
            raise OSError("no answer")

    run = app.flows.run(flow, {"items": []}, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert run.state == {"items": [3]}
    assert tries == [(1, []), (2, []), (3, [])]
    assert run.segments[0].attempts == 3
    assert app.outbox.status().pending == 1


def test_when_all_tries_fail_the_run_fails_and_can_be_resumed(app: App) -> None:
    broken = [True]
    flow = Flow("flaky", checkpoints="node")

    @flow.step(writes=["before"])
    def before(state: Any, ctx: Any) -> dict[str, int]:
        return {"before": 1}

    @flow.step(writes=["n"], retries={"times": 2, "delay_s": 0.001})
    def flaky(state: Any, ctx: Any) -> dict[str, int]:
        if broken[0]:
            raise OSError("no answer")
        return {"n": 1}

    run = app.flows.run(flow, **PLACE)
    assert run.status == "FAILED" and run.error is not None
    assert (run.error.kind, run.error.type, run.error.message) == ("error", "OSError", "no answer")
    assert (run.error.segment, run.error.node, run.error.attempts) == ("flaky", "flaky", 3)
    assert [each.status for each in run.segments] == ["CONTINUE", "FAILED"]
    assert (run.segment_id, run.state) == ("flaky", {"before": 1})
    assert app.kernel.get_workflow(**PLACE).status == "FAILED"
    broken[0] = False
    run = app.flows.resume(run.execution_id)
    assert (run.status, run.state, run.error) == ("COMPLETED", {"before": 1, "n": 1}, None)
    assert [each.status for each in run.segments] == ["CONTINUE", "COMPLETE"]
    assert run.segments[1].attempts == 4
    assert app.kernel.get_workflow(**PLACE).status == "COMPLETED"


def test_what_would_be_the_same_the_next_time_is_not_tried_again(memory: App) -> None:
    for kind in (Invalid, Denied):
        tries: list[int] = []
        flow = Flow("wrong")

        @flow.step(retries={"times": 5, "delay_s": 0.001})
        def wrong(state: Any, ctx: Any, kind: type[Exception] = kind, tries: list[int] = tries) -> None:
            tries.append(ctx.attempt)
            raise kind("no")

        assert memory.flows.run(flow, **place()).status == "FAILED"
        assert tries == [1]


@pytest.mark.parametrize("wait_async", [False, True], ids=["def", "async def"])
def test_an_attempt_that_takes_too_long_is_a_failure(app: App, wait_async: bool) -> None:
    late: list[Any] = []
    is_over, has_looked = threading.Event(), threading.Event()
    flow = Flow("slow")

    def slow(state: Any, ctx: Any) -> None:
        state["n"] = 1
        is_over.wait(60)
        late.append(ctx.cancelled)
        has_looked.set()

    async def slow_async(state: Any, ctx: Any) -> None:
        state["n"] = 1
        await asyncio.sleep(30)

    flow.step(slow_async if wait_async else slow, id="slow", timeout_s=0.05, writes=["n"])
    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.error.kind, run.error.node) == ("timeout", "slow")
    assert run.state == {}
    if not wait_async:
        is_over.set()
        assert has_looked.wait(60) and late == [True]


def test_a_missing_handler_is_a_clear_error_and_the_run_goes_on_when_it_is_there(app: App, store: Store) -> None:
    document = counting().document()
    run = app.flows.run(document, {"n": 1}, **PLACE)
    assert run.status == "FAILED" and run.error is not None
    assert (run.error.kind, run.error.node) == ("not_found", "first")
    assert "counting.first" in run.error.message
    with store.open() as other:
        other.flows.register(counting())
        resumed = other.flows.resume(run.execution_id)
        assert (resumed.status, resumed.state) == ("COMPLETED", {"n": 20})


def test_functions_are_imported_from_allowed_modules_only(app: App) -> None:
    document = {
        "workflow": "imports",
        "nodes": [{"id": "call", "type": "python", "function": "tests.api.flows.test_running:imported"}],
    }
    run = app.flows.run(document, **PLACE)
    assert run.error is not None and run.error.kind == "denied"
    app.flows.handlers.allow("tests.api")
    assert app.flows.resume(run.execution_id).state == {"imported": True}


def imported(state: Any, ctx: Any) -> dict[str, bool]:
    return {"imported": True}


def test_a_run_goes_on_with_the_document_that_it_began_with(app: App) -> None:
    flow = Flow("versions")

    @flow.step(writes=["first"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"first": 1}

    flow.human("ask", choices=["yes"])

    @flow.step(writes=["second"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"second": 2}

    run = app.flows.run(flow, **PLACE)
    newer = Flow("versions")
    newer.step(first)
    newer.human("ask", choices=["no"])
    # Another document on the same branch, whose version is the newest by now.
    other = app.flows.run(newer, **PLACE)
    assert other.status == "WAITING_HUMAN" and other.document != run.document
    run = app.flows.approve(run.execution_id, "yes", "me")
    assert run.status == "COMPLETED", run.error
    assert run.state["second"] == 2
    assert app.kernel.get_manifest(run.manifest_id).config_hash == run.document
    assert app.flows.approve(other.execution_id, "no", "me").status == "COMPLETED"
    assert app.kernel.verify(**PLACE).problems == []


def test_the_same_key_gives_the_same_run_and_another_request_under_it_is_a_conflict(app: App) -> None:
    one = app.flows.run(counting(), {"n": 1}, **PLACE, idempotency_key="k")
    again = app.flows.run(counting(), {"n": 1}, **PLACE, idempotency_key="k")
    assert again.execution_id == one.execution_id
    assert len(app.flows.runs()) == 1
    for given, where in (({"n": 2}, PLACE), ({"n": 1}, {**PLACE, "workflow_id": "t-2"})):
        with pytest.raises(Conflict):
            app.flows.run(counting(), given, **where, idempotency_key="k")
    with pytest.raises(Conflict):
        app.flows.run(counting(retries=1), {"n": 1}, **PLACE, idempotency_key="k")


def test_a_workflow_that_has_a_state_keeps_it_below_the_input(app: App) -> None:
    app.kernel.save_state_delta({"n": 5, "kept": True}, **PLACE)
    assert app.flows.run(counting(), **PLACE).state == {"n": 60, "kept": True}
    assert app.flows.run(counting(), {"n": 0}, **PLACE).state == {"n": 10, "kept": True}


def test_what_others_save_beside_a_run_stays(app: App) -> None:
    flow = Flow("beside", checkpoints="node")

    @flow.step(reads=["n"], writes=["n"])
    def first(state: Any, ctx: Any) -> None:
        app.kernel.save_state_delta({"theirs": 1}, **PLACE)
        state["n"] += 1

    @flow.step(reads=["n", "theirs"], writes=["sum"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"sum": state["n"] + state["theirs"]}

    run = app.flows.run(flow, {"n": 1}, **PLACE)
    assert (run.status, run.state) == ("COMPLETED", {"n": 2, "theirs": 1, "sum": 3})


def test_a_field_that_both_changed_fails_the_segment_and_nothing_is_lost(app: App) -> None:
    interfering = [True]
    flow = Flow("beside")

    @flow.step(reads=["n"], writes=["n"])
    def first(state: Any, ctx: Any) -> None:
        if interfering[0]:
            app.kernel.save_state_delta({"n": 100}, **PLACE)
        state["n"] += 1

    run = app.flows.run(flow, {"n": 1}, **PLACE)
    assert run.error is not None and run.error.kind == "conflict" and "/n" in run.error.message
    assert app.kernel.load_latest_state(**PLACE) == {"n": 100}
    interfering[0] = False
    assert app.flows.resume(run.execution_id).state == {"n": 101}


def test_limits_of_loops_and_runs_fail_the_run(app: App) -> None:
    def loop(**options: Any) -> Flow:
        flow = Flow("round", limits={"max_iterations": 7})

        @flow.step(reads=["n"], writes=["n"])
        def body(state: Any, ctx: Any) -> None:
            state["n"] += 1

        flow.loop("again", [body], while_=Flow.where("n").at_least(0), **options)
        return flow

    run = app.flows.run(loop(), {"n": 0}, **PLACE)
    assert run.error is not None and run.error.kind == "limit"
    run = app.flows.run(loop(max_iterations=2), {"n": 0}, **PLACE)
    assert run.error is not None and run.error.kind == "limit" and "again" in run.error.message
    assert run.state == {"n": 2}
    assert app.flows.run(loop(max_iterations=2, on_limit="continue"), {"n": 0}, **PLACE).status == "COMPLETED"


def test_a_run_has_a_time_in_which_it_is_to_be_over(app: App) -> None:
    flow = Flow("late", limits={"timeout_s": 0.05}, checkpoints="node")

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        time.sleep(0.1)
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "timeout"
    assert run.state == {"a": 1}


def test_pages_of_runs_are_newest_first(app: App) -> None:
    runs = [
        app.flows.run(counting(), {"n": number}, workflow_id=f"w-{number % 2}", owner_id="me") for number in range(5)
    ]
    ids = [run.execution_id for run in reversed(runs)]
    assert [run.execution_id for run in app.flows.runs()] == ids
    first = app.flows.runs(limit=2)
    rest = app.flows.runs(limit=10, after=first[-1].number)
    assert [run.execution_id for run in (*first, *rest)] == ids
    assert [run.execution_id for run in app.flows.runs(workflow_id="w-1")] == [ids[1], ids[3]]
    assert app.flows.runs(status="FAILED") == []
    hostile: list[dict[str, Any]] = [{"status": "LOST"}, {"limit": 0}, {"limit": 100_000}]
    for wrong in hostile:
        with pytest.raises(Invalid):
            app.flows.runs(**wrong)
    with pytest.raises(NotFound):
        app.flows.get("nobody")


def test_tenants_do_not_see_one_anothers_runs(app: App) -> None:
    run = app.flows.run(counting(), {"n": 1}, **PLACE)
    other = app.tenant("other").flows
    assert other.runs() == []
    for verb in (other.get, other.resume, other.cancel):
        with pytest.raises(NotFound):
            verb(run.execution_id)


def test_facts_of_a_node_are_those_of_its_run(app: App) -> None:
    seen: list[Any] = []
    flow = Flow("facts")

    @flow.step
    def look(state: Any, ctx: Any) -> None:
        seen.append((ctx.execution_id, ctx.workflow_id, ctx.owner_id, ctx.node_id, ctx.segment_id))
        seen.append((ctx.iteration, ctx.iterations, ctx.item_index, ctx.incarnation, ctx.attempt, ctx.mock))
        seen.append((ctx.node.id, ctx.manifest_id, ctx.deadline, ctx.cancelled))
        ctx.logger.info("here")

    run = app.flows.run(flow, **PLACE, mock=True)
    assert seen[0] == (run.execution_id, "t-1", "me", "look", "look")
    assert seen[1] == (0, (), None, 1, 1, True)
    assert seen[2] == ("look", run.born_manifest_id, None, False)
