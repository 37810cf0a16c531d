"""What tasks come to, and how it is recorded: a tree of blocks, whatever its size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from analemma.canon.nodes import BlockId
from analemma.canon.pointer import Operation
from analemma.canon.trees import Edited, Trees
from analemma.catalog.port import OutboxEvent
from analemma.errors import AnalemmaError, Corrupt

READ_AT_ONCE: Final = 100
"""Results of more tasks are read in batches, and put together pair by pair."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What a task came to. Of an item its `value`; of a branch what it changed, on top of which version."""

    events: tuple[OutboxEvent, ...]
    value: Any = None
    operations: tuple[Operation, ...] = ()
    base: str | None = None
    """Of a branch: the manifest that it began with, in hexadecimal."""


def recorded(trees: Trees, result: TaskResult) -> Edited:
    """A result as it is stored."""
    value: dict[str, Any] = {"events": [_without_defaults(event) for event in result.events]}
    if result.base is None:
        value["value"] = result.value
    else:
        value["base"] = result.base
        value["operations"] = [{"op": op, "path": list(path), "value": new} for op, path, new in result.operations]
    return trees.build(value)


def read_results(trees: Trees, roots: Sequence[BlockId]) -> list[TaskResult]:
    """Results, in the order of their tasks; Corrupt if one of them cannot be read."""
    batches = [_read_batch(trees, roots[start : start + READ_AT_ONCE]) for start in range(0, len(roots), READ_AT_ONCE)]
    while len(batches) > 1:
        pairs = [batches[number : number + 2] for number in range(0, len(batches), 2)]
        batches = [[result for batch in pair for result in batch] for pair in pairs]
    return batches[0] if batches else []


def _read_batch(trees: Trees, roots: Sequence[BlockId]) -> list[TaskResult]:
    return [_result(value, root) for value, root in zip(trees.read_many(roots), roots, strict=True)]


def _result(value: Any, root: BlockId) -> TaskResult:
    try:
        events = tuple(OutboxEvent(**event) for event in value["events"])
        if "base" not in value:
            return TaskResult(events, value["value"])
        operations = tuple(Operation(each["op"], tuple(each["path"]), each["value"]) for each in value["operations"])
        return TaskResult(events, operations=operations, base=value["base"])
    except (KeyError, TypeError, AnalemmaError) as exc:
        raise Corrupt(f"what a task came to is no result: {root.hex()}", block=root.hex()) from exc


def events_of(results: Iterable[TaskResult]) -> list[OutboxEvent]:
    """Their events, in the order of the tasks."""
    return [event for result in results for event in result.events]


def _without_defaults(event: OutboxEvent) -> Mapping[str, Any]:
    return {key: value for key, value in asdict(event).items() if value is not None}
