"""What a thread of LangGraph waits for belongs to the version: going back to it, forking it or merging it brings that
back, and what had finished beside it is not done again."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import analemma
from analemma.langgraph import AnalemmaSaver
from tests.stores import Store

OWNER: dict[str, Any] = {"owner_id": "langgraph"}
CONFIG: Any = {"configurable": {"thread_id": "t"}}
OTHER: Any = {"configurable": {"thread_id": "u"}}


def gather(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class State(TypedDict):
    did: Annotated[list[str], operator.add]


class Logged(TypedDict):
    did: Annotated[list[str], DeltaChannel(gather, snapshot_frequency=100)]


class Desk:
    """A graph of two tasks side by side: one asks, the other counts how often it runs."""

    def __init__(self, app: analemma.App, *, questions: int = 1, state: Any = State, inside: bool = False) -> None:
        self.app = app
        self.saver = AnalemmaSaver(app)
        self.runs = 0
        self.failing = False
        self.questions = questions

        def ask(state: Any) -> dict[str, Any]:
            if self.failing:
                self.wait_for_sibling()
                raise RuntimeError("out of paper")
            answers = [interrupt(f"question {number}") for number in range(self.questions)]
            return {"did": [f"asked {' '.join(answers)}"]}

        def count(state: Any) -> dict[str, Any]:
            self.runs += 1
            return {"did": ["counted"]}

        node: Any = ask
        if inside:
            child = StateGraph(state)
            child.add_node("before", lambda state: {"did": []})
            child.add_node("ask", ask)
            child.add_edge(START, "before")
            child.add_edge("before", "ask")
            within = child.compile()
            node = lambda state: {"did": within.invoke({"did": []})["did"]}  # noqa: E731
        graph = StateGraph(state)
        graph.add_node("plan", lambda state: {"did": ["planned"]})
        graph.add_node("ask", node)
        graph.add_node("count", count)
        graph.add_node("close", lambda state: {"did": ["closed"]})
        graph.add_edge(START, "plan")
        graph.add_edge("plan", "ask")
        graph.add_edge("plan", "count")
        graph.add_edge(["ask", "count"], "close")
        self.graph: Any = graph.compile(checkpointer=self.saver)

    def wait_for_sibling(self) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = self.saver.get_tuple(CONFIG)
            if found is not None and found.pending_writes:
                return
            time.sleep(0.002)
        raise AssertionError("the sibling stored nothing")

    def begin(self) -> int:
        """Run until it waits; the version that waits."""
        self.graph.invoke({"did": []}, CONFIG, durability="sync")
        return self.version()

    def version(self) -> int:
        return self.app.kernel.history(workflow_id="t", **OWNER)[0].version

    def answer(self, answer: str, config: Any = CONFIG) -> list[str]:
        done: list[str] = self.graph.invoke(Command(resume=answer), config, durability="sync")["did"]
        return done

    def asked(self, config: Any = CONFIG) -> list[Any]:
        return [each.value for task in self.graph.get_state(config).tasks for each in task.interrupts]

    def back(self, version: int) -> None:
        self.app.kernel.rollback_to_version(workflow_id="t", version=version, **OWNER)

    def sound(self) -> bool:
        for name in [row.workflow_id for row in self.app.kernel.list_workflows(**OWNER).items]:
            for branch in self.app.kernel.branches(workflow_id=name, **OWNER):
                assert self.app.kernel.verify(workflow_id=name, branch=branch.name, **OWNER).problems == []
        return True


@pytest.fixture
def app(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


@pytest.mark.parametrize("inside", [False, True], ids=["task", "graph in a task"])
def test_a_rollback_to_an_interrupt_waits_again_and_runs_no_finished_sibling_again(
    app: analemma.App, inside: bool
) -> None:
    desk = Desk(app, inside=inside)
    waiting = desk.begin()
    before = desk.graph.get_state(CONFIG)
    for answer in ("yes", "no", "perhaps"):
        assert desk.answer(answer) == ["planned", f"asked {answer}", "counted", "closed"]
        desk.back(waiting)
        state = desk.graph.get_state(CONFIG)
        assert desk.asked() == ["question 0"] and state.next == before.next
        assert [(task.id, task.name, task.result) for task in state.tasks] == [
            (task.id, task.name, task.result) for task in before.tasks
        ]
        assert state.config["configurable"]["checkpoint_id"] != before.config["configurable"]["checkpoint_id"]
    assert desk.runs == 1 and desk.sound()
    # What was left behind is as it was.
    ends = [each for each in desk.graph.get_state_history(CONFIG) if each.values.get("did", [])[-1:] == ["closed"]]
    assert [each.values["did"][1] for each in ends] == ["asked perhaps", "asked no", "asked yes"]


def test_a_rollback_to_where_the_thread_stands_keeps_what_is_pending(app: analemma.App) -> None:
    desk = Desk(app)
    desk.back(desk.begin())
    assert desk.asked() == ["question 0"]
    assert desk.answer("yes") == ["planned", "asked yes", "counted", "closed"] and desk.runs == 1


@pytest.mark.parametrize("inside", [False, True], ids=["task", "graph in a task"])
def test_a_rollback_to_a_second_question_keeps_the_first_answer(app: analemma.App, inside: bool) -> None:
    desk = Desk(app, questions=2, inside=inside)
    waiting = desk.begin()
    desk.graph.invoke(Command(resume="one"), CONFIG, durability="sync")
    desk.answer("two")
    desk.back(waiting)
    assert desk.asked() == ["question 1"]
    assert desk.answer("three")[1] == "asked one three"
    assert desk.runs == 1 and desk.sound()


def test_a_rollback_to_a_failed_step_runs_what_failed_and_nothing_else(app: analemma.App) -> None:
    desk = Desk(app, questions=0)
    desk.failing = True
    with pytest.raises(RuntimeError):
        desk.begin()
    failed = desk.version()
    desk.failing = False
    desk.graph.invoke(None, CONFIG, durability="sync")
    desk.back(failed)
    state = desk.graph.get_state(CONFIG)
    assert ["out of paper" in str(task.error) for task in state.tasks if task.name == "ask"] == [True]
    assert desk.graph.invoke(None, CONFIG)["did"][-1] == "closed" and desk.runs == 1


def test_a_rollback_to_before_a_step_that_ended_runs_it_again(app: analemma.App) -> None:
    desk = Desk(app)
    desk.begin()
    desk.back(1)
    assert desk.graph.get_state(CONFIG).next == ("__start__",)
    desk.graph.invoke(None, CONFIG, durability="sync")
    assert desk.runs == 2 and desk.asked() == ["question 0"]


def test_a_rollback_can_itself_be_rolled_back(app: analemma.App) -> None:
    desk = Desk(app)
    waiting = desk.begin()
    desk.answer("yes")
    done = desk.version()
    desk.back(waiting)
    again = desk.version()
    desk.back(done)
    assert desk.graph.get_state(CONFIG).next == () and desk.asked() == []
    desk.back(again)
    assert desk.asked() == ["question 0"]
    assert desk.answer("no")[1] == "asked no" and desk.runs == 1 and desk.sound()


@pytest.mark.parametrize("inside", [False, True], ids=["task", "graph in a task"])
@pytest.mark.parametrize("answered", [False, True], ids=["waiting", "answered"])
def test_a_fork_waits_for_what_its_version_waited_for(app: analemma.App, answered: bool, inside: bool) -> None:
    desk = Desk(app, inside=inside)
    desk.begin()
    manifest = app.kernel.history(workflow_id="t", **OWNER)[0].manifest_id
    if answered:
        desk.answer("yes")
    app.kernel.fork(manifest, workflow_id="u", **OWNER)
    # It is a thread of its own from the beginning.
    desk.saver.delete_thread("t")
    for _ in range(2):
        app.gc.run(grace_s=0, force=True)
    assert desk.asked(OTHER) == ["question 0"]
    assert desk.answer("no", OTHER) == ["planned", "asked no", "counted", "closed"]
    assert desk.runs == 1 and desk.sound()


def test_a_fork_has_the_whole_value_of_a_delta_channel(app: analemma.App) -> None:
    desk = Desk(app, state=Logged)
    desk.begin()
    manifest = app.kernel.history(workflow_id="t", **OWNER)[0].manifest_id
    before = desk.graph.get_state(CONFIG).values
    desk.answer("yes")
    app.kernel.fork(manifest, workflow_id="u", **OWNER)
    desk.saver.delete_thread("t")
    assert desk.graph.get_state(OTHER).values == before
    assert desk.answer("no", OTHER) == ["planned", "asked no", "counted", "closed"]
    assert desk.graph.get_state(OTHER).values["did"] == ["planned", "asked no", "counted", "closed"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_rollback_of_a_delta_channel_takes_in_nothing_of_what_was_left(app: analemma.App, durability: str) -> None:
    desk = Desk(app, state=Logged)
    desk.graph.invoke({"did": []}, CONFIG, durability=durability)
    waiting = desk.version()
    desk.graph.invoke(Command(resume="yes"), CONFIG, durability=durability)
    desk.back(waiting)
    expected = ["planned", "asked no", "counted", "closed"]
    assert desk.graph.invoke(Command(resume="no"), CONFIG, durability=durability)["did"] == expected
    assert desk.graph.get_state(CONFIG).values["did"] == expected and desk.runs == 1


def test_a_merge_keeps_what_is_pending(app: analemma.App) -> None:
    desk = Desk(app)
    desk.begin()
    history = app.kernel.history(workflow_id="t", **OWNER)
    app.kernel.fork(history[0].manifest_id, branch="aside", **OWNER)
    app.kernel.save_state_delta({"/parent": None}, workflow_id="t", branch="aside", **OWNER)
    app.kernel.save_state_delta(
        {"/parent": app.kernel.load_latest_state(workflow_id="t", **OWNER)["parent"]},
        workflow_id="t",
        branch="aside",
        **OWNER,
    )
    merged = app.kernel.merge(source="aside", workflow_id="t", **OWNER)
    assert merged.commit is not None
    assert desk.asked() == ["question 0"]
    assert desk.answer("yes") == ["planned", "asked yes", "counted", "closed"] and desk.runs == 1


def test_a_copy_of_a_thread_that_was_rolled_back_waits_too(app: analemma.App) -> None:
    desk = Desk(app)
    waiting = desk.begin()
    desk.answer("yes")
    desk.back(waiting)
    desk.saver.copy_thread("t", "u")
    desk.saver.prune(["t"])
    assert desk.asked() == desk.asked(OTHER) == ["question 0"]
    assert desk.answer("no", OTHER)[1] == desk.answer("no")[1] == "asked no"
    assert desk.runs == 1
