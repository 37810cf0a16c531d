"""What is refused while a run is under way, wherever in it: reserved fields, rings, manifests and blocks that are not
the run's. Nothing of it is committed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from analemma import App, Flow
from analemma.errors import Corrupt, Denied
from tests.api.flows.runs import PLACE, place
from tests.api.flows.test_humans_and_moves import asking, point
from tests.api.flows.test_refused_runs import damage_block
from tests.raw_rows import select
from tests.stores import Store

NOT_THEIRS = ["manifest_id", "_kernel_x", "__x", "workflow_config", "credentials", "loop_counter"]
"""Reserved, of prefixes that are reserved, kept from everybody, and kept from the ring."""


def grabbing(where: str, field: str, *, returned: bool) -> Flow:
    flow = Flow("evil", checkpoints="node")

    def grab(state: Any, ctx: Any) -> dict[str, Any] | None:
        ctx.emit({"type": "Never"})
        if returned:
            return {"harmless": 1, field: "x"}
        state[field] = "x"
        return None

    def fine(state: Any, ctx: Any) -> dict[str, Any]:
        return {"fine": 1}

    if where == "for_each":
        flow.step(grab)
        flow.for_each("group", over="numbers", step=grab, into="answers")
    elif where == "parallel":
        flow.parallel("group", {"good": [fine], "evil": [grab]})
    elif where == "loop":
        flow.loop("group", [grab], times=2)
    else:
        flow.branch("group", [(Flow.where("numbers").exists(), [grab])], default=[fine])
    return flow


@pytest.mark.parametrize("where", ["for_each", "parallel", "loop", "branch"])
def test_what_is_not_a_nodes_to_write_is_refused_inside_of_groups(where: str, memory: App) -> None:
    for field, returned in itertools.product(NOT_THEIRS, (True, False)):
        own = place()
        run = memory.flows.run(grabbing(where, field, returned=returned), {"numbers": [1, 2]}, **own)
        assert run.status == "FAILED" and run.error is not None
        assert (run.error.kind, run.error.node, field in run.error.message) == ("denied", "grab", True)
        assert len(memory.kernel.history(**own)) == 1
        assert run.state == {"numbers": [1, 2]}
    assert memory.outbox.status().pending == 0


def test_a_task_sees_no_more_than_its_ring(memory: App) -> None:
    seen: list[Any] = []
    flow = Flow("curious")

    @flow.step(reads=["item", "numbers"], writes=["answer"])
    def look(state: Any, ctx: Any) -> dict[str, Any]:
        seen.append((sorted(state), state.get("credentials"), state.get("other")))
        return {"answer": 1}

    flow.for_each("each", over="numbers", step=look, result="answer")
    given = {"numbers": [1], "credentials": "secret", "other": "x"}
    assert memory.flows.run(flow, given, **place()).status == "COMPLETED"
    assert seen == [(["item", "numbers"], None, None)]


def test_a_run_whose_manifest_is_another_is_not_gone_on_with(app: App, store: Store) -> None:
    """Somebody has pointed the run's row at a version of another document, or at one without any."""
    plain = app.kernel.save_state_delta({"n": 1}, workflow_id="plain", owner_id="me")
    other = app.flows.run(asking("last"), workflow_id="t-2", owner_id="me")
    for manifest in (plain.manifest_id, other.manifest_id):
        own = place()
        run = app.flows.start(asking("middle"), **own)
        point(store, run.execution_id, manifest)
        with pytest.raises(Denied):
            app.flows.resume(run.execution_id)
        failed = app.flows.get(run.execution_id)
        assert failed.error is not None and (failed.status, failed.error.kind) == ("FAILED", "denied")
        assert (failed.segments, len(app.kernel.history(**own))) == ((), 1)
    assert select(store, "SELECT count(*) FROM effect") == [(0,)]


def test_a_tampered_state_is_found_and_nothing_is_committed(app: App, store: Store) -> None:
    """The bytes of the state that a run stands on are others than their hashes say."""
    run = app.flows.run(asking("middle"), {"n": "x" * 500}, **PLACE)
    root = app.kernel.history(**PLACE)[0].root_hash
    damage_block(store, root)
    with store.open() as other:
        other.flows.register(asking("middle"))
        with pytest.raises(Corrupt):
            other.flows.approve(run.execution_id, "yes", "me")
        waiting = other.flows.get(run.execution_id)
        assert (waiting.status, waiting.manifest_id) == ("WAITING_HUMAN", run.manifest_id)
        assert [each.status for each in waiting.segments] == ["CONTINUE", "PAUSED"]
        assert len(other.kernel.history(**PLACE)) == 2


@pytest.mark.parametrize("field", ["manifest_id", "credentials"])
def test_an_injected_segment_may_do_no_more_than_others(field: str, app: App) -> None:
    flow = asking("middle")
    app.flows.handlers.add("asking.extra", lambda state, ctx: {field: "x"})
    run = app.flows.run(flow, **PLACE)
    node = {"id": "extra", "type": "python", "function": "asking.extra"}
    app.kernel.inject_dynamic_segment(run.manifest_id, node, flow.plan().numbers["two"])
    versions = len(app.kernel.history(**PLACE))
    failed = app.flows.approve(run.execution_id, "yes", "me")
    assert failed.error is not None and (failed.status, failed.error.kind) == ("FAILED", "denied")
    assert field not in failed.state and len(app.kernel.history(**PLACE)) == versions + 1
    # The decision counts; what came behind it does not.
    assert [each.status for each in failed.segments] == ["CONTINUE", "CONTINUE", "FAILED"]
    assert app.run_worker(1).drain().runs == 0
