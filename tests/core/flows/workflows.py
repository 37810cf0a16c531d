"""Workflows for tests: short ways to write documents, and to read what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.core.entry_points.flows import check_text, partition, read_workflow
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


def workflow(*nodes: Node, edges: list[tuple[str, str]] | None = None, **more: Any) -> Any:
    """A checked workflow of nodes."""
    return read_workflow(document(*nodes, edges=edges, **more))


def plan_of_nodes(*nodes: Node, edges: list[tuple[str, str]] | None = None, **more: Any) -> Any:
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


def read(file: Path) -> str:
    """A file's text."""
    return file.read_text(encoding="utf-8")
