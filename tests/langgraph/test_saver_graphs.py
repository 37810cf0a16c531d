"""Real graphs: what they do and remember is the same on our saver as on LangGraph's own in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from analemma import App
from analemma.langgraph import AnalemmaSaver
from tests.langgraph.graphs import agent, history, logging, nested, outcome, question, shown, thread


def converse(saver: BaseCheckpointSaver[str]) -> list[Any]:
    """Tool call, interrupt, resume, a second turn, a fork from an old checkpoint, and an edited past."""
    graph, config = agent(saver), thread()
    told: list[Any] = [outcome(graph.invoke(question(1), config)), shown(graph.get_state(config))]
    told += [graph.invoke(Command(resume=True), config), outcome(graph.invoke(question(2), config))]
    told += [graph.invoke(Command(resume=False), config), history(graph, config)]
    # Back to where the first interrupt was, and another answer.
    asked = [state for state in graph.get_state_history(config) if state.next == ("ask",)][-1]
    told += [outcome(graph.invoke(Command(resume="perhaps"), asked.config)), history(graph, config)]
    edited = graph.update_state(
        asked.config, {"messages": [HumanMessage("Never mind.", id="human-x")]}, as_node="tools"
    )
    told += [shown(graph.get_state(edited)), outcome(graph.invoke(None, edited)), history(graph, config)]
    return told


def test_an_agent_with_tools_interrupts_and_forks(saver: AnalemmaSaver) -> None:
    expected = converse(InMemorySaver())
    found = converse(saver)
    assert len(expected[-1]) > 15
    for one, other in zip(found, expected, strict=True):
        assert one == other
    messages = agent(saver).get_state(thread()).values["messages"]
    assert [type(message) for message in messages[:2]] == [HumanMessage, AIMessage]


def test_a_second_process_goes_on_where_the_first_was_interrupted(app: App) -> None:
    agent(AnalemmaSaver(app)).invoke(question(1), thread())
    # Another saver has nothing cached: as after a restart.
    done = agent(AnalemmaSaver(app)).invoke(Command(resume=True), thread())
    assert done["messages"][-1].content == "It is sunny."


def subgraphs(saver: BaseCheckpointSaver[str]) -> list[Any]:
    graph, config = nested(saver), thread()
    told: list[Any] = [outcome(graph.invoke({"total": 0}, config))]
    inside = graph.get_state(config, subgraphs=True).tasks[0].state
    told += [inside.values, inside.next]
    graph.update_state(inside.config, {"total": 1000})
    told += [graph.invoke(Command(resume="yes"), config), history(graph, config)]
    return told


def test_subgraphs_keep_checkpoints_in_namespaces_of_their_own(saver: AnalemmaSaver, app: App) -> None:
    expected = subgraphs(InMemorySaver())
    assert subgraphs(saver) == expected
    assert expected[3]["total"] == 1211
    branches = {branch.name for branch in app.kernel.branches(workflow_id="t", owner_id="langgraph")}
    assert "main" in branches and any(name.startswith("ns:child:") for name in branches)


def delta(saver: BaseCheckpointSaver[str], turns: int = 7) -> list[Any]:
    graph, config = logging(saver), thread()
    told: list[Any] = [graph.invoke({"turn": turn, "lines": [f"in {turn}"]}, config) for turn in range(turns)]
    old = list(graph.get_state_history(config))[8]
    told += [old.values, graph.invoke({"turn": 100, "lines": ["fork"]}, old.config)]
    told += [state.values for state in graph.get_state_history(config)]
    return told


def test_delta_channels_are_put_together_from_their_writes(saver: AnalemmaSaver) -> None:
    assert delta(saver) == delta(InMemorySaver())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability(saver: AnalemmaSaver, durability: str) -> None:
    def run(saver: BaseCheckpointSaver[str]) -> list[Any]:
        graph = logging(saver)
        told: list[Any] = [
            graph.invoke({"turn": turn, "lines": [f"in {turn}"]}, thread(), durability=durability) for turn in range(5)
        ]
        return [*told, history(graph, thread())]

    assert run(saver) == run(InMemorySaver())


def test_async_graphs(saver: AnalemmaSaver) -> None:
    async def run(saver: BaseCheckpointSaver[str]) -> list[Any]:
        graph, config = agent(saver), thread("async")
        told = [outcome(await graph.ainvoke(question(1), config)), await graph.ainvoke(Command(resume=True), config)]
        states = [shown(state) async for state in graph.aget_state_history(config)]
        deltas = logging(saver)
        told += [await deltas.ainvoke({"turn": n, "lines": [str(n)]}, thread("delta")) for n in range(6)]
        return [*told, states]

    assert asyncio.run(run(saver)) == asyncio.run(run(InMemorySaver()))


def test_many_threads_at_once(saver: AnalemmaSaver) -> None:
    async def run() -> list[Any]:
        graph = agent(saver)
        await asyncio.gather(*(graph.ainvoke(question(1), thread(f"t{n}")) for n in range(10)))
        return await asyncio.gather(*(graph.ainvoke(Command(resume=n % 2 == 0), thread(f"t{n}")) for n in range(10)))

    answers = [state["messages"][-1].content for state in asyncio.run(run())]
    assert answers == ["It is sunny.", "It is not known."] * 5
