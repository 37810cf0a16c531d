"""Reads workflow documents from files and text, YAML or JSON, remembering lines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from analemma.contracts.json_reading import read_json
from analemma.contracts.yaml_reading import Bounds, read_yaml
from analemma.errors import Invalid
from analemma.flows.document import Workflow
from analemma.flows.problems import WorkflowProblem, in_order
from analemma.flows.reading import MAXIMUM_DEPTH, MAXIMUM_VALUES, Checked, check_located, refused, usable

MAXIMUM_BYTES: Final = 1024 * 1024
YAML_BOUNDS: Final = Bounds("workflows", MAXIMUM_VALUES, MAXIMUM_DEPTH)


def load_workflow(path: str | Path) -> Workflow:
    """The workflow in a file; WorkflowProblems lists everything that is wrong with it, by line."""
    return usable(check_file(path))


def parse_workflow(text: str, source: str = "workflow") -> Workflow:
    """The workflow in a text, YAML or JSON."""
    return usable(check_text(text, source))


def check_file(path: str | Path) -> Checked:
    """The same without raising."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            data = stream.read(MAXIMUM_BYTES + 1)
    except (OSError, ValueError) as exc:
        return refused(str(path), None, f"cannot be read: {getattr(exc, 'strerror', None) or exc}")
    return check_bytes(data, str(path))


def check_bytes(data: bytes, source: str) -> Checked:
    """The same for what a file has in it."""
    if len(data) > MAXIMUM_BYTES:
        return refused(source, None, f"is larger than {MAXIMUM_BYTES // 1024} KiB", "use subflows")
    try:
        return check_text(data.decode("utf-8-sig"), source)
    except UnicodeDecodeError as exc:
        return refused(source, data[: exc.start].count(b"\n") + 1, "is not UTF-8")


def check_text(text: str, source: str = "workflow") -> Checked:
    """The same for a text; one that begins with a brace is JSON."""
    if len(text) > MAXIMUM_BYTES:
        return refused(source, None, f"is larger than {MAXIMUM_BYTES // 1024} KiB", "use subflows")
    if text.lstrip()[:1] == "{":
        return _check_json(text, source)
    problems: list[WorkflowProblem] = []

    def report(line: int, reason: str, hint: str | None) -> None:
        problems.append(WorkflowProblem(source, line, reason, hint))

    documents = [each for each in read_yaml(text, report, YAML_BOUNDS) if each.value is not None]
    if len(documents) > 1:
        report(documents[1].line or 1, "a second document", "a file holds one workflow")
    if problems:
        return Checked(None, in_order(problems), (), source)
    if not documents:
        return refused(source, None, "is empty", "begin with workflow and nodes")
    return check_located(documents[0], source)


def _check_json(text: str, source: str) -> Checked:
    try:
        document = read_json(text.encode())
    except Invalid as exc:
        return refused(source, exc.facts.get("line", 1), exc.message, exc.hint)
    except UnicodeEncodeError:
        return refused(source, None, "has a lone surrogate")
    return check_located(document, source)
