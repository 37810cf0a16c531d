"""What removing checkpoints leaves alone: rollbacks, tags and pins. What others do meanwhile is in tests/two_actors."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, Invalid, NotFound
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.langgraph.graphs import logging, put, thread
from tests.langgraph.test_saver_threads import OWNER, collect, ids, values, verified


def chain(saver: AnalemmaSaver, count: int = 5, *, name: str = "t", namespace: str = "", run: str = "r") -> list[Any]:
    """Checkpoints one after the other, each of a run of its own; their configs."""
    made: list[Any] = []
    for number in range(count):
        after = made[-1] if made else None
        told: Any = {"step": number, "run_id": f"{run}{number}"}
        made.append(put(saver, {"v": f"state {number}"}, after, name=name, namespace=namespace, **told))
    return made


def states(saver: AnalemmaSaver, config: Any = None) -> list[Any]:
    return [each.checkpoint["channel_values"]["v"] for each in saver.list(config or thread())]


def roll_back(app: App, version: int, **where: Any) -> None:
    app.kernel.rollback_to_version(version=version, **{"workflow_id": "t", **OWNER, **where})


def test_pruning_keeps_what_was_rolled_back_to(saver: AnalemmaSaver, app: App) -> None:
    chain(saver)
    chain(saver, namespace="sub")
    roll_back(app, 2)
    roll_back(app, 3, branch="ns:sub")
    saver.prune(["t"])
    assert states(saver) == ["state 1"] and states(saver, thread(namespace="sub")) == ["state 2"]
    collect(app)
    assert values(AnalemmaSaver(app)) == {"v": "state 1"} and verified(app)


def test_a_copy_has_what_was_rolled_back_to(saver: AnalemmaSaver, app: App) -> None:
    chain(saver)
    chain(saver, namespace="sub")
    roll_back(app, 2)
    roll_back(app, 3, branch="ns:sub")
    saver.copy_thread("t", "u")
    assert values(saver, thread("u")) == {"v": "state 1"}
    assert values(saver, thread("u", namespace="sub")) == {"v": "state 2"}
    assert ids(saver, "u") == ids(saver)


def test_lists_begin_with_what_was_rolled_back_to(saver: AnalemmaSaver, app: App) -> None:
    chain(saver, namespace="sub")
    roll_back(app, 2, branch="ns:sub")
    assert states(saver, {"configurable": {"thread_id": "t"}})[0] == "state 1"
    roll_back(app, 3, branch="ns:sub")
    assert [each.checkpoint["channel_values"]["v"] for each in saver.list(None, limit=1)] == ["state 2"]


def test_branches_that_are_no_namespaces_are_not_listed(saver: AnalemmaSaver, app: App) -> None:
    chain(saver, 2)
    app.kernel.fork(app.kernel.history(workflow_id="t", **OWNER)[0].manifest_id, branch="experiment", **OWNER)
    assert len(list(saver.list(None))) == len(list(saver.list({"configurable": {"thread_id": "t"}}))) == 2
    saver.copy_thread("t", "u")
    assert len(list(saver.list({"configurable": {"thread_id": "u"}}))) == 2


def test_runs_deleted_after_a_rollback_of_delta_channels(saver: AnalemmaSaver, app: App) -> None:
    graph = logging(saver)
    for run in ("r1", "r2", "r3"):
        graph.invoke({"turn": 1, "lines": [run]}, {**thread(), "metadata": {"run_id": run}})
    # The newest of the run holds the channel whole.
    middle = [each for each in graph.get_state_history(thread()) if each.metadata["run_id"] == "r2"][1]
    manifest = next(saver.history(middle.config)).manifest_id
    log = app.kernel.history(workflow_id="t", **OWNER)
    roll_back(app, next(each.version for each in log if each.manifest_id == manifest))
    with pytest.raises(Conflict, match="delta channels"):
        saver.delete_for_runs(["r2", "r3"])
    assert graph.get_state(thread()).values == middle.values
    saver.delete_for_runs(["r3"])
    assert graph.get_state(thread()).values == middle.values


def test_what_was_written_for_a_checkpoint_to_come_stays(saver: AnalemmaSaver) -> None:
    chain(saver, 2)
    coming = thread(checkpoint="zz")
    saver.put_writes(coming, [("v", "early")], "task")
    saver.delete_for_runs(["r0", "r1"])
    put(saver, {"v": "late"}, id="zz")
    found = saver.get_tuple(coming)
    assert found is not None and found.pending_writes == [("task", "v", "early")]


def golden_thread(saver: AnalemmaSaver, app: App) -> str:
    """A thread of which a version that is no checkpoint any more is tagged and pinned, and all others but the newest
    have expired; that version."""
    made = chain(saver, 3, run="keep")
    golden = app.kernel.history(workflow_id="t", **OWNER)[1].manifest_id
    app.kernel.tag(golden, "golden", **OWNER)
    app.kernel.pin(golden, **OWNER)
    put(saver, {"v": "state 1, again"}, made[0], id=made[1]["configurable"]["checkpoint_id"], run_id="keep1")
    put(saver, {"v": "bad"}, made[2], run_id="bad")
    app.kernel.set_retention(workflow_id="t", keep_last=1, **OWNER)
    # Stopped between the two: versions are gone, and checkpoints are not.
    with failpoints.call("thread.before_drop", stop), pytest.raises(Stopped):
        app.kernel.expire(workflow_id="t", **OWNER)
    return golden


class Stopped(Exception):
    pass


def stop() -> None:
    raise Stopped


def marks(app: App) -> tuple[list[str], list[str]]:
    where: dict[str, Any] = {"workflow_id": "t", **OWNER}
    return [each.manifest_id for each in app.kernel.tags(**where)], [
        each.manifest_id for each in app.kernel.pins(**where)
    ]


def test_going_back_to_an_expired_version_keeps_the_branch(saver: AnalemmaSaver, app: App) -> None:
    golden = golden_thread(saver, app)
    before = app.kernel.history(workflow_id="t", **OWNER)[0]
    saver.delete_for_runs(["bad"])
    for _ in range(2):
        app.gc.run(grace_s=0, tenant=app.settings.tenant, expire=False, force=True)
    assert marks(app) == ([golden], [golden])
    assert app.kernel.get_retention(workflow_id="t", **OWNER).keep_last == 1
    newest = app.kernel.history(workflow_id="t", **OWNER)[0]
    assert newest.version > before.version
    cold = AnalemmaSaver(app)
    assert states(cold) == ["state 2", "state 1, again", "state 0"]
    assert next(cold.history(thread())).manifest_id == newest.manifest_id
    put(cold, {"v": "on"}, next(cold.history(thread())).config)
    assert values(AnalemmaSaver(app)) == {"v": "on"} and verified(app)


def test_a_copy_whose_source_is_gone_keeps_its_branch(saver: AnalemmaSaver, app: App) -> None:
    big = [f"item {n} " * 30 for n in range(200)]
    put(saver, {"v": big}, run_id="r1")
    saver.copy_thread("t", "u")
    config = put(saver, {"v": "own"}, next(saver.history(thread("u"))).config, run_id="r2")
    app.kernel.tag(next(saver.history(config)).manifest_id, "mark", **OWNER)
    saver.delete_thread("t")
    saver.delete_for_runs(["r2"])
    collect(app)
    cold = AnalemmaSaver(app)
    assert values(cold, thread("u")) == {"v": big}
    assert len(app.kernel.tags(workflow_id="u", **OWNER)) == 1
    put(cold, {"v": [*big, "more"]}, next(cold.history(thread("u"))).config)
    collect(app)
    assert values(AnalemmaSaver(app), thread("u")) == {"v": [*big, "more"]} and verified(app, "u")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_tagged_versions_outlive_all_their_runs(saver: AnalemmaSaver, app: App, place: int) -> None:
    chain(saver, 3)
    marked = app.kernel.history(workflow_id="t", **OWNER)[place]
    (app.kernel.pin if place == 1 else app.kernel.tag)(marked.manifest_id, *[] if place == 1 else ["mark"], **OWNER)
    saver.delete_for_runs(["r0", "r1", "r2"])
    collect(app)
    cold = AnalemmaSaver(app)
    assert ids(cold) == [] and values(cold) is None and list(cold.list(None)) == []
    log = app.kernel.history(workflow_id="t", **OWNER)
    assert [each.version for each in log] == [4, marked.version]
    assert app.kernel.load_latest_state(workflow_id="t", **OWNER) == {}
    roll_back(app, marked.version)
    assert values(cold) == {"v": f"state {marked.version - 1}"}
    put(cold, {"v": "on"})
    assert values(cold) == {"v": "on"} and verified(app)
    saver.delete_thread("t")
    with pytest.raises(NotFound):
        app.kernel.history(workflow_id="t", **OWNER)


@pytest.mark.both_stores("each database has its own way to take a list")
def test_a_run_that_no_catalog_could_name_is_invalid(saver: AnalemmaSaver) -> None:
    chain(saver)
    for runs in (["\ud800"], ["r1", "a\udfffb"]):
        with pytest.raises(Invalid, match="does not fit the database"):
            saver.delete_for_runs(runs)
    assert len(states(saver)) == 5
