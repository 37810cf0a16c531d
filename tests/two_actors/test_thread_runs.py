"""Two runs on one thread of LangGraph: the one that comes later is told, or goes on elsewhere; no turn disappears
unseen."""

from __future__ import annotations

import operator
import signal
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import analemma
from analemma.errors import HeadMoved
from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.actors import Actor
from tests.langgraph.graphs import put
from tests.stores import Store

CONFIG: Any = {"configurable": {"thread_id": "t"}}
COMMIT = "commit.before_transaction"
WRITES = "thread.before_writes"


def gather(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Chat(TypedDict):
    said: Annotated[list[str], operator.add]


class Log(TypedDict):
    said: Annotated[list[str], DeltaChannel(gather, snapshot_frequency=100)]


def chat(saver: AnalemmaSaver, who: str, state: Any = Chat) -> Any:
    """Answers in two steps, each of which says whose run it is."""
    graph = StateGraph(state)
    graph.add_node("think", lambda state: {"said": [f"{who} thinks"]})
    graph.add_node("answer", lambda state: {"said": [f"{who} answers"]})
    graph.add_edge(START, "think")
    graph.add_edge("think", "answer")
    return graph.compile(checkpointer=saver)


def turn(who: str) -> list[str]:
    return [f"{who} asks", f"{who} thinks", f"{who} answers"]


def say(graph: Any, who: str, config: Any = CONFIG, durability: str = "sync") -> list[str]:
    said: list[str] = graph.invoke({"said": [f"{who} asks"]}, config, durability=durability)["said"]
    return said


def said(app: analemma.App, config: Any = CONFIG) -> list[str]:
    found: list[str] = chat(AnalemmaSaver(app), "nobody").get_state(config).values.get("said", [])
    return found


def asking(saver: AnalemmaSaver, state: Any = Chat) -> Any:
    graph = StateGraph(state)
    graph.add_node("ask", lambda state: {"said": [interrupt("what?")]})
    graph.add_node("close", lambda state: {"said": ["closed"]})
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "close")
    return graph.compile(checkpointer=saver)


def run(url: str, objects: str | None, who: str, on_conflict: Any, durability: str) -> None:
    """One turn of a worker; prints what it was told. One thing at a time, so that whoever stops it holds no lock."""
    with Store(url, objects).open() as app:
        graph = chat(AnalemmaSaver(app, on_conflict=on_conflict), who)
        try:
            print(say(graph, who, {**CONFIG, "max_concurrency": 1}, durability))
        except HeadMoved as exc:
            print(exc)


def answer(url: str, objects: str | None, kind: str, on_conflict: Any) -> None:
    """Answer what a thread waits for; prints what came of it."""
    with Store(url, objects).open() as app:
        graph = asking(AnalemmaSaver(app, on_conflict=on_conflict), globals()[kind])
        try:
            config = {**CONFIG, "max_concurrency": 1}
            print(graph.invoke(Command(resume="late"), config, durability="sync")["said"])
        except HeadMoved as exc:
            print(exc)


@pytest.fixture
def app(store: Store) -> Iterator[analemma.App]:
    with store.open() as app:
        yield app


@pytest.mark.parametrize(
    ("begun", "point", "turn_of", "durability"),
    [
        (False, COMMIT, 1, "sync"),
        (False, COMMIT, 4, "sync"),
        (True, COMMIT, 1, "exit"),
        (True, COMMIT, 2, "async"),
        (True, WRITES, 1, "async"),
    ],
)
def test_a_worker_that_was_stopped_and_thawed_stores_nothing_over_what_another_did(
    store: Store, app: analemma.App, begun: bool, point: str, turn_of: int, durability: str
) -> None:
    before = say(chat(AnalemmaSaver(app), "ann"), "ann") if begun else []
    with Actor(run, store.url, store.objects, "late", "raise", durability, at=point, turn=turn_of) as late:
        late.wait_until_stopped()
        mine = say(chat(AnalemmaSaver(app), "bob"), "bob")
        late.thaw()
        assert late.wait() == 0, late.errors
    assert "has moved on" in late.output
    # What the late one had stored before it was stopped, the other has read.
    assert said(app) == mine and mine[-3:] == turn("bob") and mine[: len(before)] == before
    assert app.kernel.verify(workflow_id="t", owner_id="langgraph").ok


def test_a_worker_that_is_killed_is_no_rival(store: Store, app: analemma.App) -> None:
    with Actor(run, store.url, store.objects, "late", "raise", "sync", at=COMMIT, turn=2, then="kill") as late:
        assert late.wait() == -signal.SIGKILL
    assert chat(AnalemmaSaver(app), "bob").invoke(None, CONFIG)["said"] == ["late asks", "bob thinks", "bob answers"]


def test_the_one_that_comes_later_goes_on_in_a_thread_of_its_own(store: Store, app: analemma.App) -> None:
    before = say(chat(AnalemmaSaver(app), "ann"), "ann")
    with Actor(run, store.url, store.objects, "late", "branch", "sync", at=COMMIT, turn=2) as late:
        late.wait_until_stopped()
        mine = say(chat(AnalemmaSaver(app), "bob"), "bob")
        late.thaw()
        assert late.wait() == 0, late.errors
    assert str([*before, *turn("late")]) in late.output
    assert said(app) == mine
    branched = AnalemmaSaver(app).history(None, filter={"branched_from": "t"})
    found = {each.config["configurable"]["thread_id"] for each in branched}
    assert len(found) == 1 and f"a thread of its own, '{min(found)}'" in late.errors
    own: Any = {"configurable": {"thread_id": min(found)}}
    assert said(app, own) == [*before, *turn("late")]
    assert say(chat(AnalemmaSaver(app), "cem"), "cem", own) == [*before, *turn("late"), *turn("cem")]
    assert app.kernel.verify(workflow_id=min(found), owner_id="langgraph").ok


def test_the_last_one_takes_the_thread_over_when_that_is_asked_for(store: Store, app: analemma.App) -> None:
    with Actor(run, store.url, store.objects, "late", "last", "sync", at=COMMIT, turn=1) as late:
        late.wait_until_stopped()
        say(chat(AnalemmaSaver(app), "bob"), "bob")
        late.thaw()
        assert late.wait() == 0, late.errors
    assert said(app) == turn("late")


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("kind", ["Chat", "Log"], ids=["channel", "delta channel"])
def test_of_two_answers_to_one_question_the_second_is_refused(
    store: Store, app: analemma.App, kind: str, at: int
) -> None:
    graph = asking(AnalemmaSaver(app), globals()[kind])
    graph.invoke({"said": ["asked"]}, CONFIG, durability="sync")
    with Actor(answer, store.url, store.objects, kind, "raise", at=WRITES, turn=at) as late:
        late.wait_until_stopped()
        assert graph.invoke(Command(resume="early"), CONFIG, durability="sync")["said"] == ["asked", "early", "closed"]
        late.thaw()
        assert late.wait() == 0, late.errors
    assert "has moved on" in late.output
    assert graph.get_state(CONFIG).values["said"] == ["asked", "early", "closed"]


@pytest.mark.parametrize("kind", ["Chat", "Log"], ids=["channel", "delta channel"])
def test_a_second_answer_in_a_thread_of_its_own_has_nothing_of_the_first(
    store: Store, app: analemma.App, kind: str
) -> None:
    graph = asking(AnalemmaSaver(app), globals()[kind])
    graph.invoke({"said": ["asked"]}, CONFIG, durability="sync")
    with Actor(answer, store.url, store.objects, kind, "branch", at=WRITES, turn=2) as late:
        late.wait_until_stopped()
        assert graph.invoke(Command(resume="early"), CONFIG, durability="sync")["said"] == ["asked", "early", "closed"]
        late.thaw()
        assert late.wait() == 0, late.errors
    assert str(["asked", "late", "closed"]) in late.output
    assert graph.get_state(CONFIG).values["said"] == ["asked", "early", "closed"]
    found = next(AnalemmaSaver(app).history(None, filter={"branched_from": "t"})).config
    own: Any = {"configurable": {"thread_id": found["configurable"]["thread_id"]}}
    assert graph.get_state(own).values["said"] == ["asked", "late", "closed"]


def test_what_a_run_had_written_goes_with_it_to_a_thread_of_its_own(app: analemma.App) -> None:
    late, early = AnalemmaSaver(app, on_conflict="branch"), AnalemmaSaver(app)
    checkpoint = put(late, {"said": []})["configurable"]["checkpoint_id"]
    configs: list[Any] = []
    for saver, task in ((late, "first"), (early, "rival")):
        # As LangGraph begins a run.
        config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "__pregel_runtime": None}}
        saver.get_tuple(config)
        configs.append({"configurable": {**config["configurable"], "checkpoint_id": checkpoint}})
        saver.put_writes(configs[-1], [("said", task)], task)
    late.put_writes(configs[0], [("said", "second")], "second")
    threads = {each.config["configurable"]["thread_id"] for each in late.history(None)}
    found = {name: late.get_tuple({"configurable": {"thread_id": name}}) for name in sorted(threads)}
    tasks = [[task for task, *_ in each.pending_writes or ()] for each in found.values() if each is not None]
    assert tasks == [["first", "rival"], ["first", "second"]]


def test_to_name_a_checkpoint_is_no_conflict(app: analemma.App) -> None:
    saver = AnalemmaSaver(app)
    graph = chat(saver, "ann")
    say(graph, "ann")
    older = list(graph.get_state_history(CONFIG))[1]
    say(graph, "ann")
    replayed = graph.invoke(None, older.config)["said"]
    assert replayed == turn("ann") == graph.get_state(CONFIG).values["said"]
    edited = graph.update_state(older.config, {"said": ["edited"]}, as_node="think")
    assert graph.invoke(None, edited)["said"] == ["ann asks", "ann thinks", "edited", "ann answers"]
    assert say(graph, "ann", older.config)[:2] == ["ann asks", "ann thinks"]
    # Nor is it one to read or edit a thread between two turns, nor by hand.
    assert graph.get_state(CONFIG).config["configurable"].keys() == {"thread_id", "checkpoint_ns", "checkpoint_id"}
    graph.update_state(CONFIG, {"said": ["noted"]})
    assert say(graph, "ann")[-4:] == ["noted", *turn("ann")]


def test_a_run_from_an_older_checkpoint_is_fenced_once_it_has_begun(store: Store, app: analemma.App) -> None:
    graph = chat(AnalemmaSaver(app), "ann")
    say(graph, "ann")
    older = list(graph.get_state_history(CONFIG))[1]
    replay = lambda: graph.invoke(None, older.config, durability="sync")  # noqa: E731
    # The fork that it begins with is stored, and the step that follows is not.
    with failpoints.paused(COMMIT, replay, time=2) as held:
        with store.open() as other:
            mine = say(chat(AnalemmaSaver(other), "bob"), "bob")
        with pytest.raises(HeadMoved):
            held.go_on()
    assert said(app) == mine


def test_a_rollback_is_not_undone_by_a_run_that_was_on_its_way(app: analemma.App) -> None:
    graph = chat(AnalemmaSaver(app), "ann")
    before = say(graph, "ann")
    version = app.kernel.history(workflow_id="t", owner_id="langgraph")[0].version
    say(graph, "ann")
    late = lambda: say(chat(AnalemmaSaver(app), "late"), "late")  # noqa: E731
    with failpoints.paused(COMMIT, late, time=2) as held:
        app.kernel.rollback_to_version(workflow_id="t", owner_id="langgraph", version=version)
        with pytest.raises(HeadMoved):
            held.go_on()
    assert said(app) == before


def test_a_node_can_ask_before_it_does_something_that_must_not_be_done_twice(app: analemma.App) -> None:
    saver = AnalemmaSaver(app)
    sent: list[str] = []
    overtake: list[Any] = [lambda: say(chat(AnalemmaSaver(app), "bob"), "bob")]

    def send(state: Any, config: RunnableConfig) -> dict[str, list[str]]:
        if overtake:
            overtake.pop()()
        saver.check_run(config)
        sent.append("mail")
        return {"said": ["sent"]}

    builder = StateGraph(Chat)
    builder.add_node("send", send)
    builder.add_edge(START, "send")
    graph: Any = builder.compile(checkpointer=saver)
    with pytest.raises(HeadMoved):
        say(graph, "late")
    assert sent == []
    say(graph, "late")
    assert sent == ["mail"]


def test_the_config_of_a_caller_is_left_as_it_is(app: analemma.App) -> None:
    mine: Any = {"configurable": {"thread_id": "t"}}
    say(chat(AnalemmaSaver(app), "ann"), "ann", mine)
    say(chat(AnalemmaSaver(app), "ann"), "ann", mine)
    assert mine == CONFIG
