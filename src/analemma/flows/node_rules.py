"""What can be wrong with one node by itself, beyond the shape of its keys."""

from __future__ import annotations

import re
from typing import Any, Final

from analemma.contracts.reporting import Place
from analemma.flows.document import plain
from analemma.flows.nodes import (
    AnyNode,
    CodeInterpreterNode,
    ForEachNode,
    HttpRequestNode,
    HumanNode,
    IngestNode,
    LlmChatNode,
    LoopNode,
    ParallelGroupNode,
    TriggerNode,
    ViewNode,
)
from analemma.flows.problems import WorkflowReporter
from analemma.flows.texts import secret_problem, texts_in

_URL: Final = re.compile(r"(?i:https?://)|\$\{|\{\{")
_CRON_FIELD: Final = re.compile(r"[0-9A-Za-z*/,#?-]+")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def check_node(node: AnyNode, at: Place, reporter: WorkflowReporter) -> None:
    """Report what is wrong with a node."""
    _check_secrets(node, at, reporter)
    for key in ("reads", "writes", "capabilities"):
        _check_repeats(getattr(node, key), (*at, key), reporter)
    match node:
        case LoopNode():
            _check_loop(node, at, reporter)
        case HumanNode():
            _check_human(node, at, reporter)
        case TriggerNode():
            _check_trigger(node, at, reporter)
        case HttpRequestNode():
            _check_request(node, at, reporter)
        case LlmChatNode():
            if not _URL.match(node.base_url):
                reporter.at((*at, "base_url"), f"{node.base_url!r} is no HTTP address", "it begins with https:// or ${")
            if node.usage_into == node.target:
                reporter.at((*at, "usage_into"), f"the answer and its usage would both be {node.target}")
        case CodeInterpreterNode() if (node.code is None) == (node.code_path is None):
            reporter.at(at, "needs either code or code_path")
        case ViewNode() if (node.entity_id is None) == (node.search is None):
            reporter.at(at, "needs either entity_id or search")
        case IngestNode() if (node.payload is None) != node.delete:
            reporter.at(at, "needs either payload or delete: true")
        case ForEachNode() if node.item == node.index:
            reporter.at((*at, "index"), f"the item and its index are both {node.item}")
        case ParallelGroupNode():
            for name, ids in node.branches.items():
                if not ids:
                    reporter.at((*at, "branches", name), f"the branch {name} is empty")


def _check_repeats(names: tuple[str, ...], at: Place, reporter: WorkflowReporter) -> None:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            reporter.at((*at, number), f"{name} stands twice in {at[-1]}")
        seen.add(name)


def _check_loop(node: LoopNode, at: Place, reporter: WorkflowReporter) -> None:
    said = [
        key
        for key, value in (("while", node.while_), ("until", node.until), ("times", node.times))
        if value is not None
    ]
    if len(said) != 1:
        found = " and ".join(said) or "none of them"
        reporter.at(at, f"a loop has one of while, until and times, not {found}")


def _check_human(node: HumanNode, at: Place, reporter: WorkflowReporter) -> None:
    _check_repeats(node.choices, (*at, "choices"), reporter)
    if node.default is not None and node.default not in node.choices:
        reporter.at((*at, "default"), f"{node.default!r} is not among the choices", ", ".join(node.choices[:10]))
    if node.default is not None and node.timeout_s is None:
        reporter.at((*at, "default"), "a default that is never used", "give timeout_s")
    if node.default is None and node.timeout_s is not None:
        reporter.warn((*at, "timeout_s"), "without a default, the run fails when nobody decides in time")
    if node.retries.times:
        reporter.at((*at, "retries"), "a human step is not tried again")


def _check_trigger(node: TriggerNode, at: Place, reporter: WorkflowReporter) -> None:
    given = {"cron": node.cron, "every_s": node.every_s, "event": node.event}
    said = {key for key, value in given.items() if value is not None}
    wanted = {"manual": [set[str]()], "schedule": [{"cron"}, {"every_s"}], "event": [{"event"}]}[node.on]
    if said not in wanted:
        needs = " or ".join(" and ".join(each) for each in wanted)
        reporter.at(at, f"on {node.on} needs {needs or 'neither cron, every_s nor event'}")
    if node.cron is not None:
        fields = node.cron.split()
        if len(fields) != 5 or not all(map(_CRON_FIELD.fullmatch, fields)):
            reporter.at((*at, "cron"), f"{node.cron!r} is no schedule", "minute hour day month weekday")


def _check_request(node: HttpRequestNode, at: Place, reporter: WorkflowReporter) -> None:
    if not _URL.match(node.url):
        reporter.at((*at, "url"), f"{node.url!r} is no HTTP address", "it begins with http:// or https://")
    if _CONTROL.search(node.url):
        reporter.at((*at, "url"), "has a control character")
    for name, text in node.headers.items():
        if not _HEADER.fullmatch(name):
            reporter.at_key((*at, "headers", name), f"{name!r} is no name of a header")
        if _CONTROL.search(text):
            reporter.at((*at, "headers", name), f"the header {name} has a control character")
    if node.body is not None and node.method in ("GET", "HEAD"):
        reporter.at((*at, "body"), f"a {node.method} has no body", "give the method")


def _check_secrets(node: AnyNode, at: Place, reporter: WorkflowReporter) -> None:
    data: dict[str, Any] = plain(node)
    sent = {"http_request": ("headers", "query", "body"), "llm_chat": ("api_key", "parameters")}.get(node.type, ())
    for key, value in data.items():
        for name, text in texts_in(value, key):
            # Elsewhere a key such as `token` is the name of a field.
            problem = secret_problem(name if key in sent else "", text)
            if problem is not None:
                reporter.at((*at, key), f"{key}: {problem}", "write ${NAME}, and set that variable where the flow runs")
