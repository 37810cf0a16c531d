"""Workflows for tests: short ways to write documents and to walk through plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from analemma.flows.document import Workflow
from analemma.flows.loading import check_text
from analemma.flows.partitioning import partition
from analemma.flows.reading import read_workflow
from analemma.flows.segments import Plan, Segment
from analemma.flows.walking import DONE, Again, Outcome, Took, advance, begin
from tests.docs.pages import ROOT

TRIAGE = ROOT / "examples" / "triage" / "triage.yaml"

Node = dict[str, Any]


def python(name: str, **more: Any) -> Node:
    """A node that calls a function of its own name."""
    return {"id": name, "type": "python", "function": f"test.{name}", **more}


def human(name: str, **more: Any) -> Node:
    """A node that waits."""
    return {"id": name, "type": "human", "choices": ["yes", "no"], **more}


def loop(name: str, *body: str, **more: Any) -> Node:
    """A node that repeats others."""
    return {"id": name, "type": "loop", "body": list(body), **({"times": 2} | more)}


def branch(name: str, *arms: list[str], default: list[str]) -> Node:
    """A node that goes one of several ways; the first when `way` is 0, and so on."""
    cases = [{"when": {"path": "way", "is": "equals", "value": number}, "then": arm} for number, arm in enumerate(arms)]
    return {"id": name, "type": "branch", "cases": cases, "default": default}


def document(*nodes: Node, edges: list[tuple[str, str]] | None = None, **more: Any) -> dict[str, Any]:
    """A document of nodes."""
    made: dict[str, Any] = {"workflow": "test", "nodes": list(nodes), **more}
    return made if edges is None else made | {"edges": [{"from": one, "to": other} for one, other in edges]}


def workflow(*nodes: Node, edges: list[tuple[str, str]] | None = None, **more: Any) -> Workflow:
    """A checked workflow of nodes."""
    return read_workflow(document(*nodes, edges=edges, **more))


def plan_of_nodes(*nodes: Node, edges: list[tuple[str, str]] | None = None, **more: Any) -> Plan:
    """The plan of nodes."""
    return partition(workflow(*nodes, edges=edges, **more))


def problems(text: str) -> list[str]:
    """What is wrong with a text, each as `line: node: reason`."""
    checked = check_text(text, "w.yaml")
    assert (checked.workflow is None) == bool(checked.problems)
    return [str(each).removeprefix("w.yaml:") for each in checked.problems]


def warnings(text: str) -> list[str]:
    """What is odd about a text that can be used."""
    checked = check_text(text, "w.yaml")
    assert checked.problems == ()
    return [str(each).removeprefix("w.yaml:") for each in checked.warnings]


def walk(
    plan: Plan, decide: Callable[[Segment, int], Outcome] | None = None, start: str | None = None
) -> Iterator[str]:
    """The segments that run, one after the other. By default branches take their last arm, and loops run twice."""
    position = begin(plan, start)
    while position.at is not None:
        segment = plan.segment(position.at)
        yield segment.id
        count = dict(position.iterations).get(segment.id, 0)
        position = advance(plan, position, (decide or decide_simply)(segment, count))


def decide_simply(segment: Segment, count: int) -> Outcome:
    """A loop runs twice, a branch takes its last arm."""
    if segment.type == "loop":
        return Again(count < 2)
    return Took(len(segment.arms) - 1) if segment.type == "branch" else DONE


def read(file: Path) -> str:
    """A file's text."""
    return file.read_text(encoding="utf-8")
