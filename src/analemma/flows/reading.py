"""Makes workflows of data: everything is checked, and everything wrong is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from analemma.canon.canonical_json import canonical_json
from analemma.contracts.located import Located, locate
from analemma.errors import Invalid
from analemma.flows.checking import check_workflow
from analemma.flows.conditions import Condition
from analemma.flows.document import MAXIMUM_NODES, Edge, Limits, Merge, StateField, StateSchema, Workflow
from analemma.flows.nodes import NODE_TYPES, Case, Message, Retries
from analemma.flows.parts import Part
from analemma.flows.problems import WorkflowProblem, WorkflowProblems, WorkflowReporter, in_order

MAXIMUM_DEPTH: Final = 32
"""How deep lists and objects of a document may nest. Groups do not nest: they name their members."""
MAXIMUM_VALUES: Final = 25_000
MAXIMUM_PROBLEMS: Final = 200
OTHER_NAMES: Final = {("llm_chat", "prompt"): "messages: [{role: user, content: ...}]"}
"""By a type of node and a key that it does not have: where people find what they look for."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What became of a document: a workflow to use, or what is wrong with it."""

    workflow: Workflow | None
    """None if there are problems."""
    problems: tuple[WorkflowProblem, ...]
    warnings: tuple[WorkflowProblem, ...]
    source: str


def read_workflow(data: Mapping[str, Any], source: str = "workflow") -> Workflow:
    """The workflow that data describes; WorkflowProblems lists everything that is wrong.

    >>> greet = {"id": "greet", "type": "python", "function": "hello.greet"}
    >>> read_workflow({"workflow": "hello", "nodes": [greet]}).top_level
    ('greet',)
    """
    return usable(check_data(data, source))


def usable(checked: Checked) -> Workflow:
    """The workflow, or what is wrong with it as an error."""
    if checked.workflow is None:
        raise WorkflowProblems(checked.problems)
    return checked.workflow


def check_data(data: Any, source: str = "workflow") -> Checked:
    """The same without raising."""
    try:
        # Only JSON can be a document; this also finds cycles and what is nested without end.
        canonical_json(data)
    except Invalid as exc:
        return refused(source, None, exc.message, exc.hint)
    return check_located(locate(data), source)


def check_located(document: Located, source: str) -> Checked:
    """The same for data that knows its lines."""
    reporter = WorkflowReporter(source, document)
    workflow = _read(document, reporter)
    if workflow is not None:
        check_workflow(workflow, reporter)
    problems = in_order(reporter.found)
    if len(problems) > MAXIMUM_PROBLEMS:
        more = len(problems) - MAXIMUM_PROBLEMS
        problems = (*problems[:MAXIMUM_PROBLEMS], WorkflowProblem(source, None, f"there are {more} more problems"))
    if workflow is None or problems:
        return Checked(None, problems, in_order(reporter.odd), source)
    # What is left is one spelling of it, so that equal workflows are equal.
    return Checked(Workflow.model_validate(workflow.to_document()), (), in_order(reporter.odd), source)


def refused(source: str, line: int | None, reason: str, hint: str | None = None) -> Checked:
    """What became of something that is no document at all."""
    return Checked(None, (WorkflowProblem(source, line, reason, hint),), (), source)


def _read(document: Located, reporter: WorkflowReporter) -> Workflow | None:
    plain = document.value
    if type(plain) is not dict:
        reporter.at((), "a workflow is an object", "begin with workflow and nodes")
        return None
    line = _too_deep(document)
    if line is not None:
        reporter.at(line, f"nesting deeper than {MAXIMUM_DEPTH}", "groups name their members by id")
        return None
    nodes = plain.get("nodes")
    if type(nodes) is list and len(nodes) > MAXIMUM_NODES:
        reporter.at(
            ("nodes", MAXIMUM_NODES), f"is one of {len(nodes)} nodes", f"the limit is {MAXIMUM_NODES}: use a subflow"
        )
        return None
    try:
        return Workflow.model_validate(plain)
    except ValidationError as exc:
        # It brings the classes of contracts with it, which a document that is right does not need.
        from analemma.contracts.shapes import close_key, report_errors

        report_errors(exc, reporter, lambda place: _elsewhere(place) or close_key(place, _keys_at(place)))
        return None


def _too_deep(document: Located) -> tuple[str | int, ...] | None:
    level: list[tuple[tuple[str | int, ...], Located]] = [((), document)]
    for _ in range(MAXIMUM_DEPTH + 1):
        level = [((*at, key), part) for at, each in level for key, part in each.parts.items()]
        if not level:
            return None
    return level[0][0]


def _keys_at(place: tuple[str | int, ...]) -> tuple[str, ...]:
    """The keys that could stand at a place: in a node, those of its type only."""
    node_type = _node_type(place)
    if node_type is None:
        return known_keys()
    return tuple(sorted(_written(name, each) for name, each in NODE_TYPES[node_type].model_fields.items()))


def _elsewhere(place: tuple[str | int, ...]) -> str | None:
    """What has another name in a node of this type."""
    return OTHER_NAMES.get((_node_type(place) or "", str(place[-1])))


def _node_type(place: tuple[str | int, ...]) -> str | None:
    """Of the node whose own key stands there."""
    if len(place) != 4 or place[0] != "nodes":
        return None
    node_type = str(place[2])
    return node_type if node_type in NODE_TYPES else None


@cache
def known_keys() -> tuple[str, ...]:
    """Every key of the format, whatever it belongs to."""
    parts: tuple[type[Part], ...] = (
        Workflow,
        Edge,
        Limits,
        Merge,
        StateField,
        StateSchema,
        Condition,
        Case,
        Message,
        Retries,
    )
    models = (*parts, *NODE_TYPES.values())
    return tuple(sorted({_written(name, each) for model in models for name, each in model.model_fields.items()}))


def _written(name: str, field: FieldInfo) -> str:
    return field.alias or name
