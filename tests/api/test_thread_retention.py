"""Retention on threads of LangGraph: what it says has expired is freed, and what is left is whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import analemma
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.raw_rows import change
from tests.stores import Store

OWNER: dict[str, Any] = {"owner_id": "langgraph"}
CONFIG: Any = {"configurable": {"thread_id": "t"}}
HOUR_US = 3600 * 1_000_000


def gather(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Page(TypedDict):
    text: str
    asked: bool


class Log(TypedDict):
    lines: Annotated[list[str], DeltaChannel(gather, snapshot_frequency=1000)]


def writing(saver: AnalemmaSaver) -> Any:
    """Replaces one large value at each turn."""

    def ask(state: Page) -> dict[str, Any]:
        return {"text": f"{interrupt('which?')} " * 2000} if state["asked"] else {}

    graph = StateGraph(Page)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    return graph.compile(checkpointer=saver)


def logging(saver: AnalemmaSaver) -> Any:
    graph = StateGraph(Log)
    graph.add_node("write", lambda state: {"lines": [f"line {len(state['lines'])}"]})
    graph.add_edge(START, "write")
    return graph.compile(checkpointer=saver)


def ids(app: analemma.App, config: Any = CONFIG) -> list[str]:
    return [each.config["configurable"]["checkpoint_id"] for each in AnalemmaSaver(app).history(config)]


def collect(app: analemma.App) -> int:
    """How many blocks are left once everything is gone that can go."""
    for _ in range(3):
        app.gc.run(grace_s=0, force=True)
    assert app.kernel.verify(workflow_id="t", **OWNER).problems == []
    return app.stats().blocks


@pytest.fixture
def app(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


def test_what_retention_says_expired_is_freed(app: analemma.App) -> None:
    graph = writing(AnalemmaSaver(app))
    for number in range(10):
        graph.invoke({"text": f"{number} " * 2000, "asked": False}, CONFIG, durability="sync")
    before, stored = collect(app), len(ids(app))
    app.kernel.set_retention(workflow_id="t", keep_last=2, **OWNER)
    assert len(app.kernel.expire(workflow_id="t", dry_run=True, **OWNER).expired) == stored - 2 == len(ids(app)) - 2
    assert len(app.kernel.expire(workflow_id="t", **OWNER).expired) == stored - 2
    assert len(ids(app)) == 2 and collect(app) < before / 3
    assert writing(AnalemmaSaver(app)).get_state(CONFIG).values["text"] == "9 " * 2000


def test_checkpoints_are_kept_for_as_long_as_their_thread_says(app: analemma.App) -> None:
    saver = AnalemmaSaver(app)
    graph = writing(saver)
    other: Any = {"configurable": {"thread_id": "u"}}
    for config in (CONFIG, other):
        for number in range(3):
            graph.invoke({"text": str(number), "asked": False}, config, durability="sync")
    stored = ids(app)
    saver.set_retention("t", ttl_s=3600)
    saver.set_retention(keep_last=3)
    assert app.kernel.expire(workflow_id="t", **OWNER).expired == ()
    newest = app.kernel.history(workflow_id="t", **OWNER)[0].created_at
    in_an_hour = int(newest.timestamp() * 1_000_000) + HOUR_US
    assert len(app.kernel.expire(workflow_id="t", now_us=in_an_hour, **OWNER).expired) == len(stored) - 1
    assert ids(app) == stored[:1]
    app.kernel.expire_all()
    assert len(ids(app, other)) == 3


@pytest.mark.parametrize("by", ["retention", "prune"])
def test_a_thread_of_a_delta_channel_that_is_cut_to_one_checkpoint_has_its_whole_value(
    app: analemma.App, by: str
) -> None:
    saver = AnalemmaSaver(app)
    graph = logging(saver)
    for number in range(12):
        graph.invoke({"lines": [f"in {number}"]}, CONFIG, durability="sync")
    expected = graph.get_state(CONFIG).values["lines"]
    assert len(expected) == 24
    if by == "prune":
        saver.prune(["t"])
    else:
        app.kernel.set_retention(workflow_id="t", keep_last=1, **OWNER)
        app.kernel.expire(workflow_id="t", **OWNER)
    collect(app)
    cold = logging(AnalemmaSaver(app))
    assert cold.get_state(CONFIG).values["lines"] == expected
    assert cold.invoke({"lines": ["on"]}, CONFIG)["lines"] == [*expected, "on", "line 25"]
    assert cold.get_state(CONFIG).values["lines"] == [*expected, "on", "line 25"]


def test_what_a_delta_channel_is_not_made_of_any_more_goes(app: analemma.App) -> None:
    saver = AnalemmaSaver(app)
    graph = logging(saver)
    for number in range(6):
        graph.invoke({"lines": [f"in {number}"]}, CONFIG, durability="sync")
    old = list(graph.get_state_history(CONFIG))[4]
    expected = graph.get_state(CONFIG).values["lines"]
    # From an older checkpoint, LangGraph stores the channel whole.
    graph.invoke({"lines": ["again"]}, old.config, durability="sync")
    now = graph.get_state(CONFIG).values["lines"]
    assert now != expected
    app.kernel.set_retention(workflow_id="t", keep_last=1, **OWNER)
    app.kernel.expire(workflow_id="t", **OWNER)
    collect(app)
    assert len(ids(app)) <= 3 and logging(AnalemmaSaver(app)).get_state(CONFIG).values["lines"] == now


def test_what_a_thread_waits_for_outlives_retention(app: analemma.App) -> None:
    graph = writing(AnalemmaSaver(app))
    graph.invoke({"text": "first", "asked": False}, CONFIG, durability="sync")
    graph.invoke({"text": "second", "asked": True}, CONFIG, durability="sync")
    app.kernel.set_retention(workflow_id="t", keep_last=1, **OWNER)
    app.kernel.expire(workflow_id="t", **OWNER)
    collect(app)
    graph = writing(AnalemmaSaver(app))
    assert len(ids(app)) == 1 and graph.get_state(CONFIG).tasks[0].interrupts[0].value == "which?"
    assert graph.invoke(Command(resume="this"), CONFIG)["text"] == "this " * 2000


class Stopped(Exception):
    pass


def test_what_a_pass_left_that_was_stopped_goes_with_the_next(app: analemma.App) -> None:
    def stop() -> None:
        raise Stopped

    graph = writing(AnalemmaSaver(app))
    for number in range(3):
        graph.invoke({"text": str(number), "asked": False}, CONFIG, durability="sync")
    stored = ids(app)
    app.kernel.set_retention(workflow_id="t", keep_last=1, **OWNER)
    with failpoints.call("thread.before_drop", stop), pytest.raises(Stopped):
        app.kernel.expire(workflow_id="t", **OWNER)
    assert ids(app) == stored and len(app.kernel.history(workflow_id="t", **OWNER)) == 1
    assert app.kernel.expire(workflow_id="t", **OWNER).expired == ()
    assert ids(app) == stored[:1]


def test_checkpoints_of_a_copy_go_with_its_own_rules(app: analemma.App) -> None:
    saver = AnalemmaSaver(app)
    graph = writing(saver)
    for number in range(4):
        graph.invoke({"text": str(number), "asked": False}, CONFIG, durability="sync")
    copy: Any = {"configurable": {"thread_id": "u"}}
    saver.copy_thread("t", "u")
    graph.invoke({"text": "mine", "asked": False}, copy, durability="sync")
    saver.set_retention(keep_last=3)
    app.kernel.expire_all()
    assert len(ids(app)) == len(ids(app, copy)) == 3
    assert graph.get_state(copy).values["text"] == "mine"


def test_of_a_checkpoint_from_before_its_deltas_were_noted_nothing_is_taken_away(
    store: Store, app: analemma.App
) -> None:
    graph = logging(AnalemmaSaver(app))
    for number in range(5):
        graph.invoke({"lines": [f"in {number}"]}, CONFIG, durability="sync")
    stored, expected = ids(app), graph.get_state(CONFIG).values
    change(store, "UPDATE thread_checkpoint SET deltas = NULL")
    app.kernel.set_retention(workflow_id="t", keep_last=1, **OWNER)
    app.kernel.expire(workflow_id="t", **OWNER)
    assert ids(app) == stored and logging(AnalemmaSaver(app)).get_state(CONFIG).values == expected
    AnalemmaSaver(app).prune(["t"])
    assert logging(AnalemmaSaver(app)).get_state(CONFIG).values == expected
