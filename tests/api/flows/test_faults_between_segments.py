"""What happens to runs between segments: what is injected, decided, run again or refused there, and what is said of
it."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Conflict
from tests.api.flows.runs import PLACE
from tests.api.flows.test_humans_and_moves import be_late
from tests.api.flows.test_runner_faults import one_step
from tests.raw_rows import change, select
from tests.stores import Store


def workflow_status(app: App) -> str:
    return str(app.kernel.get_workflow(**PLACE).status)


def injecting(app: App, flow: Flow, before: str, manifest: str) -> None:
    node = {"id": "extra", "type": "python", "function": "x.extra"}
    app.kernel.inject_dynamic_segment(manifest, node, flow.plan().numbers[before])


def test_a_segment_that_was_committed_stays_so_when_what_comes_next_is_refused(app: App) -> None:
    flow, once = Flow("x", checkpoints="node"), [True]

    @flow.step(reads=["n"], writes=["n"])
    def first(state: Any, ctx: Any) -> None:
        state["n"] += 1
        if once.pop():
            injecting(app, flow, "second", ctx.manifest_id)
        once.append(False)

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        return {"b": 1}

    run = app.flows.run(flow, {"n": 0}, **PLACE)
    assert (run.status, run.state, run.segment_id) == ("FAILED", {"n": 1}, "extra")
    assert run.error is not None and run.error.kind == "not_found"
    assert [(each.segment_id, each.status) for each in run.segments] == [("first", "CONTINUE"), ("extra", "FAILED")]
    app.flows.handlers.add("x.extra", lambda state, ctx: {"extra": 1})
    run = app.flows.resume(run.execution_id)
    assert (run.status, run.state) == ("COMPLETED", {"n": 1, "extra": 1, "b": 1})
    assert [each.segment_id for each in run.segments] == ["first", "extra", "second"]


@pytest.mark.parametrize("lost", [False, True], ids=["damaged", "lost"])
def test_a_run_whose_next_segments_cannot_be_read_keeps_what_was_committed(store: Store, lost: bool) -> None:
    """What was injected meanwhile is damaged, or gone, when the run is to enter it."""
    flow, kept = Flow("x", checkpoints="node"), dict[str, tuple[Any, ...]]()
    with store.open() as app, store.open() as other:

        @flow.step(reads=["n"], writes=["n"])
        def first(state: Any, ctx: Any) -> None:
            state["n"] += 1
            before = other.kernel.get_manifest(ctx.manifest_id).segment_hashes
            injecting(other, flow, "second", ctx.manifest_id)
            hashes = other.kernel.get_manifest(other.kernel.history(**PLACE)[0].manifest_id).segment_hashes
            (block,) = {*hashes.values()} - {*before.values()}
            ((kept[block],),) = [select(store, "SELECT body, codec FROM block WHERE id = ?", [bytes.fromhex(block)])]
            body, codec = (None, None) if lost else (b"no block", 0)
            replace_block(store, block, body, codec)

        @flow.step(writes=["b"])
        def second(state: Any, ctx: Any) -> dict[str, int]:
            return {"b": 1}

        app.flows.handlers.add("x.extra", lambda state, ctx: {"extra": 1})
        run = app.flows.run(flow, {"n": 0}, **PLACE)
        assert run.error is not None and run.error.kind == "corrupt"
        assert (run.status, run.state, run.segment_id) == ("FAILED", {"n": 1}, "second")
        assert [(each.segment_id, each.status) for each in run.segments] == [
            ("first", "CONTINUE"),
            ("second", "FAILED"),
        ]
        ((block, (body, codec)),) = kept.items()
        replace_block(store, block, body, codec)
        run = app.flows.resume(run.execution_id)
        assert (run.status, run.state) == ("COMPLETED", {"n": 1, "extra": 1, "b": 1})
        assert [each.segment_id for each in run.segments] == ["first", "extra", "second"]


def replace_block(store: Store, block: str, body: bytes | None, codec: int | None) -> None:
    """What lies under a block's name from now on; None: the name leads nowhere."""
    name = bytes.fromhex(block)
    if body is None:
        assert change(store, "UPDATE block SET id = ? WHERE id = ?", [name[::-1], name]) == 1
        return
    change(store, "UPDATE block SET id = ? WHERE id = ?", [name, name[::-1]])
    assert change(store, "UPDATE block SET body = ?, codec = ? WHERE id = ?", [body, codec, name]) == 1


def asking(**options: Any) -> Flow:
    flow = Flow("asks", checkpoints="node")
    flow.human("ok", choices=["yes"], **options)

    @flow.step(writes=["a"])
    def after(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    return flow


@pytest.mark.parametrize("late", [False, True], ids=["decided", "late"])
def test_nothing_is_injected_before_a_human_who_is_being_asked(store: Store, late: bool) -> None:
    flow = asking(timeout_s=3600, default="yes")
    with store.open() as app:
        app.flows.handlers.add("x.extra", lambda state, ctx: {"extra": 1})
        run = app.flows.run(flow, **PLACE)
        with pytest.raises(Conflict, match="stands at ok"):
            injecting(app, flow, "ok", run.manifest_id)
        if late:
            be_late(store)
            assert app.run_worker(1).drain().failed == 0
            run = app.flows.get(run.execution_id)
        else:
            run = app.flows.approve(run.execution_id, "yes", "ann")
        assert (run.status, "extra" in run.state, run.state["a"]) == ("COMPLETED", False, 1)


def test_a_decision_that_cannot_be_made_fails_its_run_and_no_other(store: Store) -> None:
    def good(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow, other = asking(timeout_s=3600, default="yes"), one_step(good, "good")
    with store.open() as app:
        bad = app.flows.run(flow, **PLACE)
        # Where no manifest has a segment.
        change(store, """UPDATE run SET position = replace(position, '"ok"', '"gone"')""")
        be_late(store)
        fine = app.flows.start(other, workflow_id="t-2", owner_id="me")
        app.flows.register(other)
        assert app.run_worker(1).drain().failed == 0
        found = app.flows.get(bad.execution_id)
        assert found.status == "FAILED" and found.error is not None and found.error.kind == "denied"
        assert app.flows.get(fine.execution_id).status == "COMPLETED"
        assert workflow_status(app) == "FAILED"


def test_a_rerun_has_its_time_anew_and_so_has_a_fork_and_a_resumed_run(app: App, store: Store) -> None:
    flow, late = Flow("x", limits={"timeout_s": 3600}, checkpoints="node"), [False]

    @flow.step(writes=["a"])
    def step(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    @flow.step(writes=["b"])
    def last(state: Any, ctx: Any) -> dict[str, int]:
        if late[0]:
            raise OSError("not now")
        return {"b": 1}

    def be_over() -> None:
        """As if all of its time had passed."""
        change(store, "UPDATE run SET deadline = 1")

    run = app.flows.run(flow, **PLACE)
    be_over()
    assert app.flows.rerun(run.execution_id, from_segment=0).status == "COMPLETED"
    be_over()
    late[0] = True
    forked = app.flows.rerun(run.execution_id, from_segment=0, fork=True)
    assert forked.error is not None and (forked.status, forked.error.node) == ("FAILED", "last")
    be_over()
    late[0] = False
    assert app.flows.resume(forked.execution_id).status == "COMPLETED"
    late[0] = True
    failed = app.flows.rerun(run.execution_id, from_segment=0)
    assert failed.status == "FAILED"
    be_over()
    late[0] = False
    app.flows.resume(failed.execution_id, wait=False)
    app.run_worker(1).drain()
    assert app.flows.get(failed.execution_id).status == "COMPLETED"


def test_what_a_failed_run_stands_on_does_not_expire(app: App) -> None:
    flow, failing = Flow("x", checkpoints="node"), [True]

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    @flow.step(writes=["b"])
    def second(state: Any, ctx: Any) -> dict[str, int]:
        if failing[0]:
            raise ValueError("not now")
        return {"b": 1}

    run = app.flows.run(flow, **PLACE)
    for number in range(2):
        app.kernel.save_state_delta({"z": number}, **PLACE)
    app.kernel.set_retention(**PLACE, keep_last=1)
    plan = app.kernel.expire(**PLACE)
    assert {each.version.manifest_id: each.reasons for each in plan.kept}[run.manifest_id] == ("resumable",)
    assert len(plan.expired) == 2
    failing[0] = False
    assert app.flows.resume(run.execution_id).status == "COMPLETED"
    app.kernel.save_state_delta({"z": 9}, **PLACE)
    assert run.manifest_id in {each.manifest_id for each in app.kernel.expire(**PLACE).expired}


def test_what_a_run_that_goes_on_has_made_does_not_expire(app: App) -> None:
    flow = Flow("x", checkpoints="node")

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow.human("ok", choices=["yes"])
    run = app.flows.run(flow, **PLACE)
    app.kernel.save_state_delta({"z": 1}, **PLACE)
    app.kernel.set_retention(**PLACE, keep_last=1)
    kept = {each.version.manifest_id: each.reasons for each in app.kernel.expire(**PLACE).kept}
    assert kept[run.manifest_id] == ("running",)
    app.flows.cancel(run.execution_id)
    assert run.manifest_id in {each.manifest_id for each in app.kernel.expire(**PLACE).expired}


def test_a_decision_is_left_to_a_worker_before_what_this_program_does_not_have(app: App) -> None:
    flow = Flow("x", checkpoints="node")
    flow.human("ok", choices=["yes"])

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, int]:
        return {"a": 1}

    flow.branch("which", [(Flow.where("q").equals(1), [first])], default=[])
    run = app.flows.run(flow.workflow(), {"q": 1}, **PLACE)
    run = app.flows.approve(run.execution_id, "yes", "ann")
    assert (run.status, run.segment_id, run.holder, run.error) == ("RUNNING", "first", None, None)
    app.flows.register(flow)
    assert app.run_worker(1).drain().runs == 1
    assert app.flows.get(run.execution_id).status == "COMPLETED"


def test_the_workflow_says_what_became_of_its_run(store: Store) -> None:
    flow = asking(timeout_s=3600)
    with store.open() as app:
        run = app.flows.run(flow, **PLACE)
        assert workflow_status(app) == "RUNNING"
        be_late(store)
        app.run_worker(1).drain()
        run = app.flows.get(run.execution_id)
        assert (run.status, workflow_status(app)) == ("FAILED", "FAILED")
        assert [(each.segment_id, each.status) for each in run.segments] == [("ok", "FAILED")]
        assert run.segments[0].error is not None and run.segments[0].error.kind == "timeout"
        assert app.flows.resume(run.execution_id).status == "WAITING_HUMAN"
        assert workflow_status(app) == "RUNNING"
        assert app.flows.cancel(run.execution_id).status == "CANCELLED"
        assert workflow_status(app) == "IDLE"


def test_another_trigger_is_another_request(app: App) -> None:
    nodes = [
        {"id": "one", "type": "trigger", "on": "manual"},
        {"id": "two", "type": "trigger", "on": "manual"},
        {"id": "ok", "type": "human", "choices": ["yes"]},
    ]
    edges = [{"from": "one", "to": "ok"}, {"from": "two", "to": "ok"}]
    document = {"workflow": "w", "nodes": nodes, "edges": edges}
    first = app.flows.run(document, idempotency_key="k", trigger={"node": "one"}, **PLACE)
    again = app.flows.run(document, idempotency_key="k", trigger={"node": "one"}, **PLACE)
    assert first.execution_id == again.execution_id
    with pytest.raises(Conflict, match="used for another run"):
        app.flows.run(document, idempotency_key="k", trigger={"node": "two"}, **PLACE)
