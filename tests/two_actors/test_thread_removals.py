"""Somebody stores, tags or deletes while checkpoints of a thread are removed: what came meanwhile stays whole, or goes
with all that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from analemma import App
from analemma.errors import Conflict, NotFound
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.langgraph.graphs import put, thread
from tests.postgres_locks import beside, held_behind_a_row_of, wait_for_waiting
from tests.raw_rows import is_sqlite, select
from tests.stores import Store

OWNER: dict[str, Any] = {"owner_id": "langgraph"}


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(sqlite_synchronous="NORMAL") as app:
        yield app


@pytest.fixture
def saver(app: App) -> AnalemmaSaver:
    return AnalemmaSaver(app)


@pytest.fixture
def other(store: Store) -> Iterator[AnalemmaSaver]:
    """The second actor: a saver on a store of its own."""
    with store.open(sqlite_synchronous="NORMAL") as app:
        yield AnalemmaSaver(app)


def chain(saver: AnalemmaSaver, count: int, *, name: str = "t") -> list[Any]:
    """Checkpoints one after the other, each of a run of its own; their configs."""
    made: list[Any] = []
    for number in range(count):
        told: Any = {"step": number, "run_id": f"r{number}"}
        made.append(put(saver, {"v": f"state {number}"}, made[-1] if made else None, name=name, **told))
    return made


def states(app: App, name: str = "t") -> list[Any]:
    """What a saver reads that has seen nothing."""
    return [each.checkpoint["channel_values"]["v"] for each in AnalemmaSaver(app).list(thread(name))]


def verified(app: App, name: str = "t") -> bool:
    for branch in app.kernel.branches(workflow_id=name, **OWNER):
        assert app.kernel.verify(workflow_id=name, branch=branch.name, **OWNER).problems == []
    return True


def collect(app: App) -> None:
    for _ in range(2):
        app.gc.run(grace_s=0, force=True)


def copied(saver: AnalemmaSaver, source: str, target: str) -> str:
    """What comes of copying a thread."""
    try:
        saver.copy_thread(source, target)
    except Conflict as exc:
        return str(exc)
    return "copied"


def assert_gone(store: Store, app: App, name: str) -> None:
    """Rows and versions: one without the other would come back, or could not be read."""
    assert states(app, name) == []
    for rows in ("SELECT count(*) FROM thread_checkpoint", "SELECT count(*) FROM thread_write"):
        assert select(store, f"{rows} WHERE thread = ?", [name]) == [(0,)]
    with pytest.raises(NotFound):
        app.kernel.branches(workflow_id=name, **OWNER)


def test_what_another_run_stores_while_all_are_deleted_stays(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver
) -> None:
    last = chain(saver, 2)[-1]
    with failpoints.call("remove.before_transaction", lambda: put(other, {"v": "precious"}, last, run_id="new")):
        saver.delete_for_runs(["r0", "r1"])
    assert states(app) == ["precious"]
    collect(app)
    assert states(app) == ["precious"] and verified(app)


def test_what_is_stored_into_a_copy_whose_runs_are_deleted_stays(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver
) -> None:
    chain(saver, 2)
    saver.copy_thread("t", "u")
    last = next(saver.history(thread("u"))).config
    # The copy has rows and no version of its own yet: only rows are dropped.
    with failpoints.call("thread.before_drop", lambda: put(other, {"v": "precious"}, last, run_id="new")):
        saver.delete_for_runs(["r0", "r1"])
    assert states(app, "u") == ["precious"] and verified(app, "u")
    assert states(app) == []


def test_what_is_tagged_at_the_last_moment_stays(app: App, saver: AnalemmaSaver, store: Store) -> None:
    chain(saver, 2)
    version = app.kernel.history(workflow_id="t", **OWNER)[1].manifest_id
    with (
        store.open() as second,
        failpoints.call("remove.before_transaction", lambda: second.kernel.tag(version, "mark", **OWNER)),
    ):
        saver.delete_for_runs(["r0", "r1"])
    assert [each.manifest_id for each in app.kernel.tags(workflow_id="t", **OWNER)] == [version]
    assert states(app) == [] and verified(app)


@pytest.mark.parametrize("point", ["record.before_transaction", "thread.before_drop"])
def test_a_run_that_goes_on_while_it_is_deleted_keeps_what_it_stores(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver, point: str
) -> None:
    last: dict[str, Any] = {}
    for name in ("t", "u"):
        first = put(saver, {"v": 0}, name=name, run_id="keep")
        second = put(saver, {"v": 1}, first, run_id="bad")
        last[name] = put(saver, {"v": 2}, second, run_id="keep")
    with failpoints.call(point, lambda: put(other, {"v": 3}, last["t"], run_id="bad")):
        saver.delete_for_runs(["bad"])
    assert states(app) == [3, 2, 0] and states(app, "u") == [2, 0]
    newest = app.kernel.history(workflow_id="t", **OWNER)[0]
    assert next(saver.history(thread())).manifest_id == newest.manifest_id, "its version stays with it"
    assert verified(app) and verified(app, "u")
    saver.delete_for_runs(["bad"])
    assert states(app) == [2, 0]


def test_a_run_that_stores_more_before_the_head_moves_back_from_it_keeps_that(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver
) -> None:
    first = put(saver, {"v": 0}, run_id="keep")
    last = put(saver, {"v": 1}, first, run_id="bad")
    with failpoints.call("commit.before_transaction", lambda: put(other, {"v": 2}, last, run_id="bad")):
        saver.delete_for_runs(["bad"])
    assert states(app) == [2, 0]
    newest = app.kernel.history(workflow_id="t", **OWNER)[0]
    assert next(saver.history(thread())).manifest_id == newest.manifest_id and verified(app)


@pytest.mark.parametrize(
    ("point", "runs"),
    [
        ("record.before_transaction", ["r0", "r1"]),
        ("commit.before_transaction", ["r1", "r2"]),
        ("thread.before_drop", ["r0", "r1"]),
    ],
    ids=["before versions expire", "before the head moves back", "before rows go"],
)
def test_a_thread_that_is_deleted_while_its_runs_are_is_gone(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver, store: Store, point: str, runs: list[str]
) -> None:
    chain(saver, 3)
    with failpoints.call(point, lambda: other.delete_thread("t")):
        saver.delete_for_runs(runs)
    assert_gone(store, app, "t")


def test_a_checkpoint_to_go_back_to_that_is_stored_anew_is_what_the_thread_goes_back_to(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver
) -> None:
    first, second, _ = chain(saver, 3)
    again = second["configurable"]["checkpoint_id"]
    with failpoints.call(
        "commit.before_transaction",
        # The head comes back to the run that goes, and what was to follow it is another version.
        lambda: put(other, {"v": "again"}, first, id=again, run_id="r1"),
    ):
        saver.delete_for_runs(["r2"])
    assert states(app) == ["again", "state 0"] and verified(app)


def test_a_checkpoint_to_go_back_to_that_is_deleted_is_not_gone_back_to(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver
) -> None:
    chain(saver, 3)
    with failpoints.call("commit.before_transaction", lambda: other.delete_for_runs(["r1"])):
        saver.delete_for_runs(["r2"])
    assert states(app) == ["state 0"] and verified(app)


def test_what_is_put_into_a_copy_that_is_deleted_goes_with_it(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver, store: Store
) -> None:
    last = chain(saver, 1)[-1]["configurable"]["checkpoint_id"]
    saver.copy_thread("t", "u")
    with failpoints.call("remove.before_transaction", lambda: put(other, {"v": "new"}, thread("u", last))):
        saver.delete_thread("u")
    assert_gone(store, app, "u")


def test_a_namespace_that_begins_while_its_thread_is_deleted_goes_with_it(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver, store: Store
) -> None:
    chain(saver, 1)
    with failpoints.call("remove.before_transaction", lambda: put(other, {"v": "sub"}, namespace="sub")):
        saver.delete_thread("t")
    assert_gone(store, app, "t")


def test_of_two_copies_into_one_thread_the_second_is_refused(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver, store: Store
) -> None:
    chain(saver, 3, name="a")
    chain(saver, 2, name="b")
    outcome: list[str] = []
    with (
        failpoints.paused("thread.copy_before_commit", lambda: saver.copy_thread("a", "u")) as first,
        beside(lambda: outcome.append(copied(other, "b", "u"))) as second,
    ):
        if not is_sqlite(store):
            wait_for_waiting(store.url, second)
        first.go_on()
    assert len(outcome) == 1 and "exists already" in outcome[0]
    assert states(app, "u") == states(app, "a")


def test_a_copy_into_a_thread_that_just_begins_is_refused(
    app: App, saver: AnalemmaSaver, other: AnalemmaSaver, store: Store
) -> None:
    same = chain(saver, 2, name="a")[-1]["configurable"]["checkpoint_id"]
    outcome: list[str] = []

    def begin() -> None:
        put(saver, {"v": "own"}, name="u", id=same)

    def copy() -> None:
        outcome.append(copied(other, "a", "u"))

    if is_sqlite(store):
        with failpoints.paused("commit.before_commit", begin) as first, beside(copy):
            first.go_on()
    else:
        with held_behind_a_row_of(store.url, "thread_checkpoint") as go_on, beside(begin) as beginning:
            wait_for_waiting(store.url, beginning)
            assert beginning.is_alive()
            with beside(copy) as copying:
                wait_for_waiting(store.url, beginning, copying)
                go_on()
    assert len(outcome) == 1 and "exists already" in outcome[0]
    assert states(app, "u") == ["own"]
