"""Graphs that tests run on several savers, and what they leave, without what is random in it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt


def thread(name: str = "t", checkpoint: str | None = None, namespace: str = "") -> Any:
    """A config."""
    configurable = {"thread_id": name, "checkpoint_ns": namespace}
    return {"configurable": configurable if checkpoint is None else {**configurable, "checkpoint_id": checkpoint}}


def put(
    saver: BaseCheckpointSaver[str],
    values: dict[str, Any],
    after: Any = None,
    *,
    name: str = "t",
    namespace: str = "",
    changed: Sequence[str] | None = None,
    versions: dict[str, Any] | None = None,
    id: str | None = None,
    **metadata: Any,
) -> Any:
    """A checkpoint with these values, put by hand; the config of what was put."""
    known = versions or {}
    written = values if changed is None else changed
    fresh: Any = {channel: saver.get_next_version(None, None) for channel in written}
    checkpoint: Any = {
        "v": 4,
        "id": id or str(uuid6(clock_seq=1)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": {**known, **fresh},
        "versions_seen": {},
        "updated_channels": list(fresh),
    }
    if versions is not None:
        versions.update(fresh)
    told: Any = {"source": "loop", "step": 1, "parents": {}, **metadata}
    return saver.put(after or thread(name, namespace=namespace), checkpoint, told, fresh)


class AgentState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[str], operator.add]
    approved: bool


def agent(saver: BaseCheckpointSaver[str] | None) -> Any:
    """Calls a tool, asks a human whether to go on, then answers. Messages have ids, so that runs can be compared."""

    def model(state: AgentState) -> dict[str, Any]:
        turn = len(state["messages"])
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage(f"It is {state['messages'][-1].content}.", id=f"ai-{turn}")]}
        call = {"name": "weather", "args": {"city": "Bern"}, "id": f"call-{turn}", "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call], id=f"ai-{turn}")], "notes": [f"asked {turn}"]}

    def ask(state: AgentState) -> dict[str, Any]:
        answer = interrupt({"call": state["messages"][-1].tool_calls[0]["name"]})  # type: ignore[union-attr]
        return {"approved": bool(answer), "notes": [f"answer {answer}"]}

    def tools(state: AgentState) -> dict[str, Any]:
        last: Any = state["messages"][-1]
        text = "sunny" if state["approved"] else "not known"
        call = last.tool_calls[0]["id"]
        return {"messages": [ToolMessage(text, tool_call_id=call, id=f"tool-{call}")]}

    def route(state: AgentState) -> str:
        last: Any = state["messages"][-1]
        return "ask" if last.tool_calls else END

    graph = StateGraph(AgentState)
    graph.add_node("model", model)
    graph.add_node("ask", ask)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["ask", END])
    graph.add_edge("ask", "tools")
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def question(turn: int) -> dict[str, Any]:
    """What a user asks."""
    return {"messages": [HumanMessage("What is the weather?", id=f"human-{turn}")]}


class Count(TypedDict):
    total: Annotated[int, operator.add]
    seen: Annotated[list[str], operator.add]


def nested(saver: BaseCheckpointSaver[str] | None) -> Any:
    """A graph with a graph inside, which is interrupted and keeps checkpoints of its own."""

    def inner(state: Count) -> dict[str, Any]:
        return {"total": 1, "seen": [f"inner {interrupt('go on?')}"]}

    child = StateGraph(Count)
    child.add_node("before", lambda state: {"total": 10, "seen": ["before"]})
    child.add_node("inner", inner)
    child.add_edge(START, "before")
    child.add_edge("before", "inner")
    graph = StateGraph(Count)
    graph.add_node("first", lambda state: {"total": 100, "seen": ["first"]})
    graph.add_node("child", child.compile())
    graph.add_edge(START, "first")
    graph.add_edge("first", "child")
    return graph.compile(checkpointer=saver)


def gather(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


class Log(TypedDict):
    lines: Annotated[list[str], DeltaChannel(gather, snapshot_frequency=4)]
    turn: int


def logging(saver: BaseCheckpointSaver[str] | None) -> Any:
    """A graph whose channel is stored whole only at every fourth update."""

    def write(state: Log) -> dict[str, Any]:
        return {"lines": [f"line {state['turn']}"], "turn": state["turn"] + 1}

    graph = StateGraph(Log)
    graph.add_node("write", write)
    graph.add_edge(START, "write")
    return graph.compile(checkpointer=saver)


def outcome(values: dict[str, Any]) -> dict[str, Any]:
    """What a graph gave back, without the ids of interrupts."""
    asked = {"__interrupt__": [each.value for each in values["__interrupt__"]]} if "__interrupt__" in values else {}
    return {**values, **asked}


def shown(snapshot: Any) -> dict[str, Any]:
    """A state of a graph, without ids and times."""
    return {
        "values": snapshot.values,
        "next": snapshot.next,
        "metadata": {
            name: value for name, value in (snapshot.metadata or {}).items() if name not in ("parents", "thread_id")
        },
        "interrupts": [each.value for task in snapshot.tasks for each in task.interrupts],
        "tasks": [(task.name, task.error, task.result) for task in snapshot.tasks],
    }


def history(graph: Any, config: Any) -> list[dict[str, Any]]:
    """All states of a thread, newest first."""
    return [shown(snapshot) for snapshot in graph.get_state_history(config)]
