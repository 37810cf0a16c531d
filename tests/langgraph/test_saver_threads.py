"""Threads are workflows: rolled back, verified, copied, pruned and removed as such, and collected afterwards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from analemma import App
from analemma.errors import Conflict, Invalid, NotFound
from analemma.langgraph import AnalemmaSaver
from tests.langgraph.graphs import agent, logging, nested, put, question, thread
from tests.raw_rows import select
from tests.stores import Store

OWNER: dict[str, Any] = {"owner_id": "langgraph"}
LONG = "|".join(f"node {n}:00000000-0000-0000-0000-{n:012}" for n in range(20))


def values(saver: AnalemmaSaver, config: Any = None) -> Any:
    found = saver.get_tuple(config or thread())
    return None if found is None else found.checkpoint["channel_values"]


def ids(saver: AnalemmaSaver, name: str = "t") -> list[str]:
    return [
        each.config["configurable"]["checkpoint_id"] for each in saver.history({"configurable": {"thread_id": name}})
    ]


@pytest.mark.parametrize("wrong", [{"owner": ""}, {"tenant": "no tenant"}], ids=["owner", "tenant"])
def test_a_saver_that_cannot_be_leaves_no_store_open(wrong: dict[str, Any], tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Invalid):
        AnalemmaSaver(tmp_path / "store", **wrong)
    assert len(os.listdir("/proc/self/fd")) == before


def collect(app: App) -> int:
    """Everything that nothing leads to goes: doomed in one pass, deleted in the next. How many blocks there are."""
    for _ in range(2):
        app.gc.run(grace_s=0, tenant=app.settings.tenant, force=True)
    return app.stats(app.settings.tenant).blocks


def verified(app: App, name: str = "t") -> bool:
    for branch in app.kernel.branches(workflow_id=name, **OWNER):
        assert app.kernel.verify(workflow_id=name, branch=branch.name, **OWNER).problems == []
    return True


def test_the_log_shows_steps_and_runs(saver: AnalemmaSaver, app: App) -> None:
    config = put(saver, {"a": 1}, source="input", step=-1, run_id="r1")
    put(saver, {"a": 2}, config, source="loop", step=0, run_id="r1")
    log = app.kernel.history(workflow_id="t", **OWNER)
    assert [(each.version, each.message, each.segment_id, each.execution_id) for each in log] == [
        (2, "loop", 0, "r1"),
        (1, "input", -1, "r1"),
    ]
    paths = {change["path"].split("/")[1] for change in app.kernel.diff(log[1].manifest_id, log[0].manifest_id)}
    assert paths == {"checkpoint", "metadata", "parent", "channels"}
    assert [each.manifest_id for each in saver.history(thread())] == [each.manifest_id for each in log]
    assert verified(app)


def test_after_a_rollback_the_graph_goes_on_from_there(saver: AnalemmaSaver, app: App) -> None:
    graph, config = agent(saver), thread()
    graph.invoke(question(1), config)
    graph.invoke(Command(resume=True), config)
    before = graph.get_state(config)
    graph.invoke(question(2), config)
    version = next(
        each.version
        for each in app.kernel.history(workflow_id="t", **OWNER)
        if each.manifest_id == next(saver.history(before.config)).manifest_id
    )
    app.kernel.rollback_to_version(workflow_id="t", version=version, **OWNER)
    state = graph.get_state(config)
    assert state.values == before.values and state.next == ()
    assert state.metadata["source"] == "fork"
    assert ids(saver)[0] == state.config["configurable"]["checkpoint_id"]
    assert graph.get_state(config).config == state.config, "asked again, it is the same checkpoint"
    answer = graph.invoke(question(3), config)
    assert [message.id for message in answer["messages"][:5]] == [
        *[message.id for message in before.values["messages"]],
        "human-3",
    ]
    assert verified(app)


def test_a_rollback_to_an_interrupt_asks_again(saver: AnalemmaSaver, app: App) -> None:
    graph, config = agent(saver), thread()
    graph.invoke(question(1), config)
    version = app.kernel.history(workflow_id="t", **OWNER)[0].version
    graph.invoke(Command(resume=False), config)
    app.kernel.rollback_to_version(workflow_id="t", version=version, **OWNER)
    assert graph.get_state(config).next == ("ask",)
    asked = graph.invoke(None, config)
    assert asked["__interrupt__"][0].value == {"call": "weather"}
    assert graph.invoke(Command(resume=True), config)["messages"][-1].content == "It is sunny."


def test_a_rollback_of_delta_channels(saver: AnalemmaSaver, app: App) -> None:
    graph, config = logging(saver), thread()
    for turn in range(7):
        graph.invoke({"turn": turn, "lines": [f"in {turn}"]}, config)
    middle = list(graph.get_state_history(config))[6]
    manifest = next(saver.history(middle.config)).manifest_id
    version = next(
        each.version for each in app.kernel.history(workflow_id="t", **OWNER) if each.manifest_id == manifest
    )
    app.kernel.rollback_to_version(workflow_id="t", version=version, **OWNER)
    assert graph.get_state(config).values == middle.values
    graph.invoke({"turn": 50, "lines": ["after"]}, config)
    assert graph.get_state(config).values["lines"] == [*middle.values["lines"], "after", "line 50"]


def test_a_rollback_of_ids_that_are_no_times(saver: AnalemmaSaver, app: App) -> None:
    config = put(saver, {"a": 1}, id="zzz-1")
    put(saver, {"a": 2}, config, id="zzz-2")
    app.kernel.rollback_to_version(workflow_id="t", version=1, **OWNER)
    assert values(saver) == {"a": 1} and len(ids(saver)) == 3


def test_a_head_that_is_no_checkpoint_is_left_alone(saver: AnalemmaSaver, app: App) -> None:
    config = put(saver, {"a": 1})
    app.kernel.save_state_delta({"mine": 1}, workflow_id="t", **OWNER)
    assert values(saver) == {"a": 1}
    put(saver, {"a": 2}, config)
    assert values(saver) == {"a": 2} and verified(app)


def test_a_deleted_thread_is_gone_and_its_blocks_with_it(saver: AnalemmaSaver, app: App) -> None:
    put(saver, {"a": "kept" * 5000}, name="other")
    kept = collect(app)
    agent(saver).invoke(question(1), thread())
    nested(saver).invoke({"total": 0}, thread())
    saver.put_writes(thread(checkpoint="never stored", namespace="x"), [("a", 1)], "task")
    app.kernel.tag(app.kernel.history(workflow_id="t", **OWNER)[0].manifest_id, "mark", **OWNER)
    assert collect(app) > kept
    saver.delete_thread("t")
    assert values(saver) is None and ids(saver) == []
    with pytest.raises(NotFound):
        app.kernel.history(workflow_id="t", **OWNER)
    assert collect(app) == kept
    assert values(saver, thread("other")) == {"a": "kept" * 5000}
    # The name is free again.
    put(saver, {"a": 2})
    assert values(saver) == {"a": 2}
    (only,) = app.kernel.history(workflow_id="t", **OWNER)
    assert only.version > 1 and only.parent_id is None, "its versions go on counting"
    assert verified(app)


def test_the_collector_accepts_that_the_last_thread_was_deleted(saver: AnalemmaSaver, app: App) -> None:
    put(saver, {"a": 1})
    saver.delete_thread("t")
    for _ in range(2):
        report = app.gc.run(grace_s=0, tenant=app.settings.tenant)
        assert not report.kinds
    assert app.stats(app.settings.tenant).blocks == 0


def test_a_thread_is_deleted_as_a_workflow_and_comes_back(saver: AnalemmaSaver, app: App) -> None:
    nested(saver).invoke({"total": 0}, thread())
    before, namespaces = ids(saver), sorted(each.name for each in app.kernel.branches(workflow_id="t", **OWNER))
    app.kernel.delete(workflow_id="t", **OWNER)
    used = AnalemmaSaver(app)
    assert ids(used) == [] and used.get_tuple(thread()) is None and list(used.list(None)) == []
    assert sorted(each.branch for each in app.kernel.undelete(workflow_id="t", **OWNER)) == namespaces
    used = AnalemmaSaver(app)
    assert ids(used) == before and verified(app)
    assert nested(used).get_state(thread()).values == nested(saver).get_state(thread()).values
    app.kernel.delete(workflow_id="t", **OWNER)
    put(used, {"a": 1})
    assert values(used) == {"a": 1} and len(ids(used)) == 1


def test_a_removal_leaves_a_tombstone(store: Store) -> None:
    """Whoever holds a receipt can tell what became of it."""
    with store.open() as app:
        saver = AnalemmaSaver(app)
        put(saver, {"a": 1})
        manifest = app.kernel.history(workflow_id="t", **OWNER)[0].manifest_id
        for _ in range(2):
            saver.delete_thread("t")
            ((owner, workflow, body),) = select(store, "SELECT owner, workflow, body FROM journal")
            assert (owner, workflow) == ("langgraph", "t") and bytes.fromhex(manifest) in bytes(body)


def test_a_copy_is_the_whole_thread_and_writes_no_block(saver: AnalemmaSaver, app: App) -> None:
    nested(saver).invoke({"total": 0}, thread())
    before = app.stats(app.settings.tenant)
    saver.copy_thread("t", "u")
    after = app.stats(app.settings.tenant)
    assert (after.blocks, after.stored_bytes) == (before.blocks, before.stored_bytes)
    assert ids(saver, "u") == ids(saver)
    assert nested(saver).get_state(thread("u")).values == nested(saver).get_state(thread()).values
    with pytest.raises(Conflict):
        saver.copy_thread("t", "u")


@pytest.mark.parametrize("cold", [False, True])
def test_a_copy_lives_on_without_its_source(saver: AnalemmaSaver, app: App, cold: bool) -> None:
    big = [f"item {n} " * 30 for n in range(200)]
    put(saver, {"a": big, "n": 1}, step=1)
    saver.copy_thread("t", "u")
    saver.delete_thread("t")
    collect(app)
    used = AnalemmaSaver(app) if cold else saver
    assert values(used, thread("u")) == {"a": big, "n": 1}
    config = next(used.history(thread("u"))).config
    put(used, {"a": [*big, "more"], "n": 2}, config, name="u")
    collect(app)
    fresh = AnalemmaSaver(app)
    assert values(fresh, thread("u")) == {"a": [*big, "more"], "n": 2}
    assert values(fresh, config) == {"a": big, "n": 1}
    assert verified(app, "u")


def test_a_copy_continues_as_a_fork_of_its_source(saver: AnalemmaSaver, app: App) -> None:
    graph = agent(saver)
    graph.invoke(question(1), thread())
    saver.copy_thread("t", "u")
    assert graph.invoke(Command(resume=True), thread("u"))["messages"][-1].content == "It is sunny."
    assert graph.invoke(Command(resume=False), thread())["messages"][-1].content == "It is not known."
    assert verified(app) and verified(app, "u")
    first = app.kernel.history(workflow_id="u", forks=False, **OWNER)[-1]
    assert first.parent_id in {each.manifest_id for each in app.kernel.history(workflow_id="t", **OWNER)}


def logged(saver: BaseCheckpointSaver[str], turns: int) -> Any:
    graph = logging(saver)
    for turn in range(turns):
        graph.invoke({"turn": turn, "lines": [f"in {turn}"]}, thread())
    return graph


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8])
def test_pruning_keeps_what_delta_channels_are_made_of(saver: AnalemmaSaver, app: App, turns: int) -> None:
    graph, expected = logged(saver, turns), logged(InMemorySaver(), turns).get_state(thread()).values
    before = len(ids(saver))
    saver.prune(["t"])
    assert len(ids(saver)) <= min(before, 12)
    assert graph.get_state(thread()).values == expected
    collect(app)
    cold = logging(AnalemmaSaver(app))
    assert cold.get_state(thread()).values == expected
    cold.invoke({"turn": 99, "lines": ["on"]}, thread())
    assert cold.get_state(thread()).values["lines"] == [*expected["lines"], "on", "line 99"]
    assert verified(app)


def test_a_copy_of_delta_channels(saver: AnalemmaSaver) -> None:
    expected = logged(saver, 6).get_state(thread()).values
    saver.copy_thread("t", "u")
    saver.delete_thread("t")
    assert logging(saver).get_state(thread("u")).values == expected


def test_pruning_lets_versions_go(saver: AnalemmaSaver, app: App) -> None:
    config = None
    for n in range(6):
        config = put(saver, {"a": str(n) * 5000}, config, step=n)
        config = put(saver, {"b": str(n) * 5000}, thread(namespace=LONG), namespace=LONG, step=n) and config
    pinned = app.kernel.history(workflow_id="t", **OWNER)[3]
    app.kernel.pin(pinned.manifest_id, **OWNER)
    blocks = collect(app)
    saver.prune(["t", "nobody"])
    assert len(ids(saver)) == 2
    assert values(saver) == {"a": "5" * 5000} and values(saver, thread(namespace=LONG)) == {"b": "5" * 5000}
    assert [each.version for each in app.kernel.history(workflow_id="t", **OWNER)] == [6, pinned.version]
    assert collect(app) < blocks / 2
    assert verified(app)
    saver.prune(["t"], strategy="delete")
    assert ids(saver) == []
    with pytest.raises(Invalid):
        saver.prune(["t"], strategy="some")


def test_pruning_when_the_newest_id_is_not_the_head(saver: AnalemmaSaver, app: App) -> None:
    put(saver, {"a": "newest"}, id="9")
    put(saver, {"a": "late"}, id="1")
    saver.prune(["t"])
    assert ids(saver) == ["9"] and values(saver) == {"a": "newest"}
    newest = app.kernel.history(workflow_id="t", **OWNER)[0]
    assert newest.manifest_id == next(saver.history(thread())).manifest_id
    collect(app)
    assert values(AnalemmaSaver(app)) == {"a": "newest"} and verified(app)


def test_deleting_the_newest_run_goes_back_to_the_one_before(saver: AnalemmaSaver, app: App) -> None:
    first = put(saver, {"a": "first"}, run_id="r1")
    second = put(saver, {"a": "second, secret" * 500}, first, run_id="r2")
    put(saver, {"a": "third, secret" * 500}, second, run_id="r2")
    saver.put_writes(second, [("a", "secret")], "task")
    saver.delete_for_runs(["r2", "nobody"])
    assert ids(saver) == [first["configurable"]["checkpoint_id"]]
    assert values(saver) == {"a": "first"} and saver.get_tuple(second) is None
    collect(app)
    assert len(app.kernel.history(workflow_id="t", **OWNER)) == 2
    assert "secret" not in str(app.kernel.load_latest_state(workflow_id="t", **OWNER))
    assert values(AnalemmaSaver(app)) == {"a": "first"} and verified(app)
    put(saver, {"a": "on"}, first, run_id="r3")
    saver.delete_for_runs(["r1", "r3"])
    assert ids(saver) == []
    with pytest.raises(NotFound):
        app.kernel.history(workflow_id="t", **OWNER)


def test_a_deleted_run_of_a_copy_whose_source_is_gone(saver: AnalemmaSaver, app: App) -> None:
    put(saver, {"a": 1}, run_id="r1")
    saver.copy_thread("t", "u")
    config = next(saver.history(thread("u"))).config
    put(saver, {"a": 2}, config, run_id="r2")
    saver.delete_thread("t")
    saver.delete_for_runs(["r2"])
    collect(app)
    assert values(AnalemmaSaver(app), thread("u")) == {"a": 1}


def test_runs_that_delta_channels_are_made_of_are_not_deleted(saver: AnalemmaSaver) -> None:
    graph = logging(saver)
    for run in ("r1", "r2", "r3"):
        graph.invoke({"turn": 1, "lines": [run]}, {**thread(), "metadata": {"run_id": run}})
    expected = graph.get_state(thread()).values
    with pytest.raises(Conflict, match="delta channels"):
        saver.delete_for_runs(["r1"])
    assert graph.get_state(thread()).values == expected
    saver.delete_for_runs(["r3"])
    assert graph.get_state(thread()).values["lines"] == expected["lines"][:4]


def test_retention_takes_checkpoints_with_their_versions(saver: AnalemmaSaver, app: App) -> None:
    config = None
    for n in range(5):
        config = put(saver, {"a": [f"{n} " * 20] * 200}, config, step=n)
    app.kernel.set_retention(workflow_id="t", keep_last=2, **OWNER)
    plan = app.gc.plan(app.settings.tenant, 0)
    assert plan.describe()
    app.kernel.expire(workflow_id="t", **OWNER)
    collect(app)
    cold = AnalemmaSaver(app)
    assert [each.checkpoint["channel_values"]["a"][0][0] for each in cold.list(thread())] == list("43")
    oldest = list(cold.history(thread()))[-1].config
    put(cold, {"a": ["fork"] * 2000}, oldest)
    collect(app)
    assert values(AnalemmaSaver(app)) == {"a": ["fork"] * 2000} and verified(app)


def test_names_of_any_kind(saver: AnalemmaSaver, app: App) -> None:
    for namespace in (LONG, LONG + "x", "main", "ns:main", "ü|ß", "a/b~c"):
        put(saver, {"in": namespace}, name="th/read ~ü", namespace=namespace)
    for namespace in (LONG, LONG + "x", "main", "ns:main", "ü|ß", "a/b~c"):
        assert values(saver, thread("th/read ~ü", namespace=namespace)) == {"in": namespace}
    assert values(saver, thread("th/read ~ü")) is None
    shown = {
        each.config["configurable"]["checkpoint_ns"]
        for each in saver.list({"configurable": {"thread_id": "th/read ~ü"}})
    }
    assert shown == {LONG, LONG + "x", "main", "ns:main", "ü|ß", "a/b~c"}


def test_ids_that_cannot_be_stored_are_refused(saver: AnalemmaSaver) -> None:
    for bad in ("", "x" * 600, "nul\0"):
        with pytest.raises(Invalid):
            put(saver, {}, name=bad)
        if bad:
            with pytest.raises(Invalid):
                put(saver, {}, id=bad)
            with pytest.raises(Invalid):
                saver.put_writes(thread(checkpoint="x"), [("a", 1)], bad)


def test_configs_without_what_they_need_are_refused(saver: AnalemmaSaver) -> None:
    with pytest.raises(Invalid, match="no thread"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(Invalid, match="no checkpoint"):
        saver.put_writes(thread(), [("a", 1)], "task")


def test_owners_and_tenants_do_not_see_each_other(app: App) -> None:
    first, second = AnalemmaSaver(app, owner="a"), AnalemmaSaver(app, owner="b")
    third = AnalemmaSaver(app, owner="a", tenant=f"{app.settings.tenant}-x")
    for number, each in enumerate((first, second, third)):
        put(each, {"n": number}, run_id="r")
    first.delete_for_runs(["r"])
    assert [values(each) for each in (first, second, third)] == [None, {"n": 1}, {"n": 2}]
    assert len(list(second.list(None))) == len(list(third.list(None))) == 1
