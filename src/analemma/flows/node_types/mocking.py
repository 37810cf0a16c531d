"""Answers that stand in for those of models and hosts: given by the caller, recorded by an earlier run, or the stubs of
the document.

An answer is found by its place: the node; with `#` the iterations of the loops around it; with brackets the item."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

from analemma.errors import Invalid, NotFound
from analemma.flows.context import NodeContext
from analemma.flows.nodes import HttpRequestNode, LlmChatNode

ANSWER: Final = "answer"
"""The effect under which a node's answer is recorded."""
RECORDED: Final = "recorded"
ANSWERS: Final = "answers"
_PARTS: Final = 6


def place_of(node: str, iterations: Iterable[int], item: int | None) -> str:
    """How an answer is named.

    >>> place_of("ask", (), None), place_of("ask", (2, 1), 7)
    ('ask', 'ask#2.1[7]')
    """
    counted = ".".join(map(str, iterations))
    return node + (f"#{counted}" if counted else "") + ("" if item is None else f"[{item}]")


def mocked(ctx: NodeContext) -> dict[str, Any] | None:
    """What stands in for a node's answer, as it would have been recorded; None if the run is a real one."""
    if ctx.mock is False:
        return None
    node = ctx.node
    assert isinstance(node, LlmChatNode | HttpRequestNode)
    given = ctx.mock.get(ANSWERS, {}) if isinstance(ctx.mock, Mapping) else {}
    for place in (place_of(node.id, ctx.iterations, ctx.item_index), node.id):
        if place in given:
            return {ANSWER: _decoded(node, given[place])}
    if node.stub is not None:
        return {ANSWER: _decoded(node, node.stub)}
    raise NotFound(
        f"the run is a mock, and nothing answers for {place_of(node.id, ctx.iterations, ctx.item_index)}",
        hint="give the node a stub, or pass mock={'NODE': answer}",
        node=node.id,
    )


def answers_in(effects: Mapping[str, Any]) -> dict[str, Any]:
    """The answers among the effects of a run, by their places; what is bytes, in base64."""
    found: dict[str, Any] = {}
    for key, value in effects.items():
        parts = key.split(":")
        if len(parts) != _PARTS or parts[4] != ANSWER or not isinstance(value, Mapping) or ANSWER not in value:
            continue
        counted, item, node = parts[1], parts[2], parts[3]
        iterations = () if counted == "-" else tuple(map(int, counted.split(".")))
        answer = value[ANSWER]
        place = place_of(node, iterations, None if item == "-" else int(item))
        found[place] = b64encode(answer).decode() if isinstance(answer, bytes) else answer
    return found


def check_places(mock: bool | Mapping[str, Any], nodes: frozenset[str] | None) -> None:
    """Invalid for an answer of what is no node; `nodes` None: nobody knows them all."""
    given = mock.get(ANSWERS, {}) if isinstance(mock, Mapping) else {}
    strange = sorted(place for place in given if nodes is not None and _node_of(place) not in nodes)
    if strange:
        known = ", ".join(sorted(nodes or ()))
        raise Invalid(f"the mock answers for {strange[0]!r}, which is no node", hint=f"there are {known}")


def _node_of(place: str) -> str:
    """The node that a place is of.

    >>> _node_of("ask#2.1[7]"), _node_of("ask[7]")
    ('ask', 'ask')
    """
    return place.partition("#")[0].partition("[")[0]


def read_mock(mock: Any) -> bool | dict[str, Any]:
    """What a caller said about mocks, in the form in which a run keeps it."""
    if isinstance(mock, bool):
        return mock
    if isinstance(mock, Mapping) and all(isinstance(each, str) for each in mock):
        return {ANSWERS: dict(mock)}
    raise Invalid(f"mock is {mock!r:.80}", hint="True, 'recorded', or answers by node: {'ask': 'hello'}")


def _decoded(node: LlmChatNode | HttpRequestNode, answer: Any) -> Any:
    if not isinstance(node, HttpRequestNode) or node.response != "bytes" or not isinstance(answer, str):
        return answer
    try:
        return b64decode(answer, validate=True)
    except ValueError as exc:
        raise Invalid(f"the answer for {node.id} is no base64", hint="bytes are written in base64") from exc
