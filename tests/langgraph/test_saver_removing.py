"""What removing checkpoints leaves alone: rollbacks, tags and pins, and what others store meanwhile. Others act at the
one moment at which it could go wrong: a step of the removal is made to call them."""

from __future__ import annotations

import pkgutil
import threading
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from analemma import App
from analemma.catalog.threads import COPY_BEFORE_COMMIT
from analemma.errors import Conflict, HeadMoved, NotFound
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.langgraph.graphs import logging, put, thread
from tests.langgraph.test_saver_threads import OWNER, collect, ids, values, verified

BLOCKED_S = 0.5
"""How long somebody has to have waited to count as waiting."""


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


def once_before(
    monkeypatch: pytest.MonkeyPatch, target: str, act: Callable[[], object], *, after: bool = False
) -> None:
    """Have somebody act right before, or after, a function is called for the first time."""
    place, _, name = target.rpartition(".")
    waiting = [act]

    def hooked(*arguments: Any, **named: Any) -> Any:
        mine = waiting.pop() if waiting else None
        if mine is not None and not after:
            mine()
        found = original(*arguments, **named)
        if mine is not None and after:
            mine()
        return found

    owner = pkgutil.resolve_name(place)
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, hooked)


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
    assert saver._threads.rows.branches("u") == ["main"]


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


@pytest.mark.parametrize(
    "step",
    [
        "langgraph.walking.Walker._check_lines",
        "catalog.threads.ThreadRows.drop_branch",
        "state.removing.remove_branches",
    ],
)
def test_what_another_run_stores_meanwhile_stays(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    last = chain(saver, 2, run="old")[-1]
    other = AnalemmaSaver(app)
    once_before(
        monkeypatch,
        f"analemma.{step}",
        lambda: put(other, {"v": "precious"}, last, run_id="new"),
        after=step.endswith("_check_lines"),
    )
    saver.delete_for_runs(["old0", "old1"])
    assert states(saver) == ["precious"] and values(saver) == {"v": "precious"}
    collect(app)
    assert values(AnalemmaSaver(app)) == {"v": "precious"} and verified(app)


def test_what_is_stored_into_a_copy_meanwhile_stays(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(saver, 2)
    saver.copy_thread("t", "u")
    last = next(saver.history(thread("u"))).config
    other = AnalemmaSaver(app)
    once_before(
        monkeypatch,
        "analemma.langgraph.threads.Threads.drop",
        lambda: put(other, {"v": "precious"}, last, run_id="new"),
    )
    monkeypatch.setattr(saver._threads.rows, "of_runs", lambda runs: list(saver._walker.rows("u", "main", None, None)))
    saver.delete_for_runs(["r0", "r1"])
    assert states(saver, thread("u")) == ["precious"] and verified(app, "u")
    assert states(saver) == ["state 1", "state 0"]


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
    before = app.default.head(saver._threads.key("t", "main"))
    saver.delete_for_runs(["bad"])
    for _ in range(2):
        app.gc.run(grace_s=0, tenant=app.settings.tenant, expire=False, force=True)
    assert marks(app) == ([golden], [golden])
    after = app.default.head(saver._threads.key("t", "main"))
    assert before is not None and after is not None and after.journal_seq > before.journal_seq
    assert app.kernel.get_retention(workflow_id="t", **OWNER).keep_last == 1
    newest = app.kernel.history(workflow_id="t", **OWNER)[0]
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


def test_what_is_tagged_at_the_last_moment_stays(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(saver, 2)
    version = app.kernel.history(workflow_id="t", **OWNER)[1].manifest_id
    once_before(
        monkeypatch, "analemma.state.removing.remove_branches", lambda: app.kernel.tag(version, "mark", **OWNER)
    )
    saver.delete_for_runs(["r0", "r1"])
    assert marks(app)[0] == [version] and ids(saver) == [] and verified(app)


@pytest.mark.parametrize("step", ["_all_versions", "drop"])
def test_a_run_that_goes_on_while_it_is_deleted(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    other = AnalemmaSaver(app)
    last: dict[str, Any] = {}
    for name in ("t", "u"):
        first = put(saver, {"v": 0}, name=name, run_id="keep")
        second = put(saver, {"v": 1}, first, run_id="bad")
        last[name] = put(saver, {"v": 2}, second, run_id="keep")
    once_before(
        monkeypatch,
        f"analemma.langgraph.threads.Threads.{step}",
        lambda: put(other, {"v": 3}, last["t"], run_id="bad"),
    )
    saver.delete_for_runs(["bad"])
    assert states(saver, thread("t")) == [3, 2, 0] and states(saver, thread("u")) == [2, 0]
    newest = app.kernel.history(workflow_id="t", **OWNER)[0]
    assert next(saver.history(thread())).manifest_id == newest.manifest_id, "its version stays with it"
    assert verified(app, "t") and verified(app, "u")
    saver.delete_for_runs(["bad"])
    assert states(saver, thread("t")) == [2, 0]


@pytest.mark.parametrize("step", ["_all_versions", "_expire_batch", "_move_head", "drop"])
def test_a_thread_that_is_deleted_while_its_runs_are(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    chain(saver, 3)
    other = AnalemmaSaver(app)
    once_before(monkeypatch, f"analemma.langgraph.threads.Threads.{step}", lambda: other.delete_thread("t"))
    saver.delete_for_runs(["r1", "r2"] if step == "_move_head" else ["r0", "r1"])
    assert ids(saver) == []
    with pytest.raises(NotFound):
        app.kernel.history(workflow_id="t", **OWNER)


def test_the_checkpoint_to_go_back_to_is_stored_anew(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = chain(saver, 3)
    other = AnalemmaSaver(app)

    def again() -> None:
        # The head comes back to the run that goes, and what was to follow it is another version.
        put(other, {"v": "again"}, first, id=second["configurable"]["checkpoint_id"], run_id="r1")

    once_before(monkeypatch, "analemma.langgraph.threads.Threads._commit_again", again)
    saver.delete_for_runs(["r2"])
    assert states(saver) == ["again", "state 0"] and verified(app)


def test_a_kept_checkpoint_is_replaced_at_the_last_moment(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(saver, 3)
    rows = saver._threads.rows
    kept = rows.of_branch("t", "main", limit=3)[1]
    once_before(monkeypatch, "analemma.langgraph.threads.Threads._commit_again", lambda: rows.drop([kept]))
    saver.delete_for_runs(["r2"])
    assert states(saver) == ["state 0"] and verified(app)


def test_a_put_into_a_copy_that_is_deleted(saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    last = chain(saver, 1)[-1]["configurable"]["checkpoint_id"]
    saver.copy_thread("t", "u")
    other = AnalemmaSaver(app)
    once_before(
        monkeypatch,
        "analemma.state.removing.remove_branches",
        lambda: put(other, {"v": "new"}, thread("u", last)),
    )
    saver.delete_thread("u")
    assert_gone(saver, app, "u")


@pytest.mark.parametrize("target", ["state.removing.remove_branches", "catalog.threads.ThreadRows.drop_thread"])
def test_a_namespace_that_begins_while_its_thread_is_deleted(
    saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    chain(saver, 1)
    other = AnalemmaSaver(app)
    once_before(monkeypatch, f"analemma.{target}", lambda: put(other, {"v": "sub"}, namespace="sub"))
    saver.delete_thread("t")
    assert_gone(saver, app, "t")


def assert_gone(saver: AnalemmaSaver, app: App, name: str) -> None:
    """Rows and versions: one without the other would come back, or could not be read."""
    assert not saver._threads.rows.exists(name) and ids(saver, name) == []
    with pytest.raises(NotFound):
        app.kernel.branches(workflow_id=name, **OWNER)


def in_between(monkeypatch: pytest.MonkeyPatch, modules: list[str], point: str, act: Callable[[], object]) -> list[Any]:
    """Have somebody act, on another thread, while a transaction is at a failpoint; what came of it, once joined."""
    outcome: list[Any] = []
    begun = threading.Event()

    def run() -> None:
        try:
            outcome.append(act())
        except Exception as exc:
            outcome.append(exc)

    other = threading.Thread(target=run)

    def hit(here: str) -> None:
        if here == point and not begun.is_set():
            begun.set()
            other.start()
            other.join(BLOCKED_S)

    for module in modules:
        monkeypatch.setattr(f"{module}.hit", hit)
    outcome.append(other)
    return outcome


def test_two_copies_into_one_thread(saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    chain(saver, 3, name="a")
    chain(saver, 2, name="b")
    second = AnalemmaSaver(app)
    outcome = in_between(
        monkeypatch, ["analemma.catalog.threads"], COPY_BEFORE_COMMIT, lambda: second.copy_thread("b", "u")
    )
    saver.copy_thread("a", "u")
    outcome.pop(0).join()
    assert len(outcome) == 1 and isinstance(outcome[0], Conflict) and "exists already" in str(outcome[0])
    assert ids(saver, "u") == ids(saver, "a")


def test_a_copy_into_a_thread_that_begins(saver: AnalemmaSaver, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    same = chain(saver, 2, name="a")[-1]["configurable"]["checkpoint_id"]
    second = AnalemmaSaver(app)
    outcome = in_between(
        monkeypatch,
        ["analemma.catalog.commit_steps", "analemma.catalog.postgres_catalog"],
        "commit.before_commit",
        lambda: second.copy_thread("a", "u"),
    )
    put(saver, {"v": "own"}, name="u", id=same)
    outcome.pop(0).join()
    assert len(outcome) == 1 and isinstance(outcome[0], Conflict) and "exists already" in str(outcome[0])
    assert states(saver, thread("u")) == ["own"]


class Counting(JsonPlusSerializer):
    """Counts what is read."""

    loaded = 0

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.loaded += 1
        return super().loads_typed(data)


@pytest.mark.parametrize("counters", [{}, {"lines": [1, 1]}], ids=["plain", "delta"])
def test_what_deleting_runs_costs(app: App, counters: dict[str, Any]) -> None:
    """Each checkpoint's metadata once, and no state unless there are delta channels: then only of those that come right
    after what goes, one here, whose id is compared with its row."""
    serde = Counting()
    saver = AnalemmaSaver(app, serde=serde)
    config = None
    for number in range(60):
        told: Any = {"run_id": f"r{number // 10}", "counters_since_delta_snapshot": counters}
        config = put(saver, {"v": number, "lines": ["whole"]}, config, **told)
    saver = AnalemmaSaver(app, serde=serde)
    serde.loaded = 0
    before = app.catalog.engine.statements.copy()
    saver.delete_for_runs(["r3"])
    ran = app.catalog.engine.statements - before
    assert (
        serde.loaded <= 60 + bool(counters) and "ancestors" not in ran and ran["read_blocks"] <= (5 if counters else 0)
    )
    assert len(ids(saver)) == 50


def test_it_gives_up_on_a_thread_that_never_rests(saver: AnalemmaSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    chain(saver, 2)
    tries: list[Any] = []

    def moved(plan: Any) -> None:
        tries.append(plan)
        raise HeadMoved("elsewhere")

    monkeypatch.setattr(saver._threads, "drop", moved)
    with pytest.raises(Conflict, match="too fast"):
        saver.prune(["t"])
    assert len(tries) > 100 and len(ids(saver)) == 2
