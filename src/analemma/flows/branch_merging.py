"""Merging what branches changed: one after the other in the order of their names, each against what it began with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analemma.canon.pointer import Operation, Path, format_pointer
from analemma.errors import Conflict
from analemma.flows.working_state import WorkingState
from analemma.state.merge.values import ABSENT, UNDECIDED, Clash, Comparison, Strategies, compare, decide


@dataclass(frozen=True, slots=True)
class BranchChange:
    """What a branch changed."""

    name: str
    base: WorkingState
    """What it began with, unchanged."""
    operations: tuple[Operation, ...]


def strategies_of(merge: Mapping[str, Any]) -> Strategies:
    """Those of a merge segment's configuration."""
    return Strategies(merge.get("strategy", "refuse"), merge.get("strategies", {}))


def merge_branches(state: WorkingState, branches: Sequence[BranchChange], strategies: Strategies) -> None:
    """Change a state by all that the branches changed. Conflict, which names the paths and the branches, where two
    changed the same differently and no strategy decides; what was merged until then stays in the state, which nobody
    may commit."""
    collected: set[Path] = set()
    for number, branch in enumerate(branches):
        operations, clashes = _compared(state, branch)
        undecided = []
        for clash in clashes:
            strategy = strategies.for_path(clash.path)[0]
            value = _decided(strategy, clash, clash.path in collected, state)
            if strategy == "collect":
                collected.add(clash.path)
            if value is UNDECIDED:
                undecided.append(clash)
            elif value is not clash.ours:
                operations.append(_changed(clash, value))
        if undecided:
            raise _refusal(undecided, branch, branches[:number])
        state.apply(operations)


def _compared(state: WorkingState, branch: BranchChange) -> tuple[list[Operation], list[Clash]]:
    """What of a branch's changes can be taken, and what others changed too."""
    base = branch.base
    by_field: dict[str, list[Operation]] = {}
    for operation in branch.operations:
        by_field.setdefault(operation.path[0], []).append(operation)
    taken: list[Operation] = []
    contested: list[Path] = []
    for field, operations in by_field.items():
        # Seen from hashes, without reading what is there.
        path: Path = (field,)
        if state.trees.fingerprint(state.root.id, path) == base.trees.fingerprint(base.root.id, path):
            taken += operations
        else:
            contested.append(path)
    if not contested:
        return taken, []
    theirs = base.copy()
    theirs.apply(branch.operations)
    sides = [side.trees.get_many(side.root.id, contested) for side in (base, state, theirs)]
    found = Comparison(taken)
    for path in contested:
        compare(Clash(path, *[side.get(path, ABSENT) for side in sides]), found, state.trees.registry)
    return found.taken, found.clashes


def _decided(strategy: Any, clash: Clash, again: bool, state: WorkingState) -> Any:
    if strategy == "collect" and again and clash.theirs is not ABSENT:
        # One list of what all the branches say, however many they are.
        return [*clash.ours, clash.theirs]
    return decide(strategy, clash, state.trees.registry)


def _changed(clash: Clash, value: Any) -> Operation:
    return Operation("discard", clash.path) if value is ABSENT else Operation("put", clash.path, value)


def _refusal(clashes: Sequence[Clash], branch: BranchChange, before: Iterable[BranchChange]) -> Conflict:
    earlier = list(before)
    conflicts = []
    for clash in sorted(clashes, key=lambda each: each.path):
        others = [each.name for each in earlier if any(_overlap(clash.path, op.path) for op in each.operations)]
        conflicts.append({**clash.shown(), "branches": [*others, branch.name]})
    first = conflicts[0]
    who = " and ".join(first["branches"]) if len(first["branches"]) > 1 else f"{branch.name} and somebody else"
    more = f", and {len(conflicts) - 1} other places" if len(conflicts) > 1 else ""
    return Conflict(
        f"{who} changed {first['path']} differently{more}",
        hint="give a strategy for the path: in `merge`, or with an aggregator behind the group",
        conflicts=conflicts,
        pointer=format_pointer(clashes[0].path),
    )


def _overlap(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]
