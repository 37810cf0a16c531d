"""Three-way merging: what one side changed is taken, and where both changed something a strategy decides, if one is
given; else what both changed alike stands, and what they changed differently is a conflict, which is surfaced."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.edit import Operation
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.types import TypeRegistry, standard_registry
from analemma.errors import Conflict
from analemma.state.merge_strategies import Strategies, Strategy, decide
from analemma.state.reserved_fields import is_reserved
from analemma.state.three_way import (
    ABSENT,
    UNDECIDED,
    Clash,
    Comparison,
    applied,
    compare,
    operation,
    same,
    settle,
)

__all__ = ["ABSENT", "Clash", "Comparison", "Resolution", "compare", "merge_values", "refusal", "resolve"]


@dataclass(slots=True)
class Resolution:
    """How conflicts were decided."""

    operations: list[Operation] = field(default_factory=list)
    decided: list[Clash] = field(default_factory=list)
    undecided: list[Clash] = field(default_factory=list)
    wholes: set[Path] = field(default_factory=set)
    """Where a function decided a value that both changed somewhere below: nothing below is anyone else's to change."""

    def with_taken(self, taken: Iterable[Operation]) -> list[Operation]:
        """What has to happen to our side: first the changes of theirs that are taken, then what was decided."""
        return [*[each for each in taken if not self._is_below_whole(each.path)], *self.operations]

    def put(self, clash: Clash, value: Any, registry: TypeRegistry) -> None:
        """Take in what is to stand at a place; those at deeper paths come first."""
        if clash.path in self.wholes:
            self.operations = [each for each in self.operations if each.path[: len(clash.path)] != clash.path]
        if not same(value, clash.ours, registry):
            self.operations.append(operation(clash.path, clash.ours, value))

    def _is_below_whole(self, path: Path) -> bool:
        return bool(self.wholes) and any(path[:length] in self.wholes for length in range(len(path) + 1))


def merge_values(
    base: Any,
    ours: Any,
    theirs: Any,
    strategies: Mapping[str, Strategy] | Strategies | None = None,
    *,
    default: Strategy = "refuse",
    registry: TypeRegistry | None = None,
) -> Any:
    """Our value with the changes that led from base to theirs. Conflict, with `conflicts`, where no strategy decides.
    Reserved fields of the value stay ours. Pass ABSENT for a base that does not exist.

    >>> base, ours, theirs = {"n": 1, "log": ["a"]}, {"n": 2, "log": ["a", "b"]}, {"n": 1, "log": ["a", "c"]}
    >>> merge_values(base, ours, theirs, {"log": "append"})
    {'n': 2, 'log': ['a', 'b', 'c']}
    """
    registry = registry or standard_registry()
    chosen = strategies if isinstance(strategies, Strategies) else Strategies(default, strategies)
    found = Comparison()
    compare(base, ours, theirs, (), found, registry)

    def values_at(paths: Iterable[Path]) -> list[Clash]:
        return [Clash(path, _at(base, path), _at(ours, path), _at(theirs, path)) for path in paths]

    if base is ABSENT:
        # Nobody can say that both changed what both have.
        found.clashes = [clash for clash in found.clashes if not same(clash.ours, clash.theirs, registry)]
    resolved = resolve(found, chosen, values_at, registry)
    if resolved.undecided:
        raise refusal(resolved.undecided)
    return applied(ours, resolved.with_taken(found.taken))


def resolve(
    found: Comparison,
    strategies: Strategies,
    values_at: Callable[[Iterable[Path]], Iterable[Clash]],
    registry: TypeRegistry,
    *,
    rebase: bool = False,
) -> Resolution:
    """Decide what both sides changed. A strategy that is given is asked whatever the sides came to; without one, see
    `settle`. A function decides the whole value at the path its pattern names, everything else decides at the conflict
    itself. `values_at` gives the three values of paths above conflicts."""
    resolution = Resolution()
    lifted = _changed_in_parts(found, strategies)
    chosen: list[tuple[Clash, Strategy | None]] = []
    for clash in found.clashes:
        strategy, length = strategies.for_path(clash.path)
        if callable(strategy) and length < len(clash.path):
            lifted[clash.path[:length]] = strategy
        else:
            chosen.append((clash, strategy if strategies.are_given(clash.path) else None))
    chosen += [(clash, lifted[clash.path]) for clash in values_at(lifted)] if lifted else []
    resolution.wholes.update(lifted)
    # What is decided for a whole comes after what is decided for a part of it, and replaces it.
    for clash, chosen_strategy in sorted(chosen, key=lambda item: (-len(item[0].path), item[0].path)):
        if chosen_strategy is None:
            value = settle(clash, registry, rebase=rebase)
        else:
            value = _decided(chosen_strategy, clash, registry, rebase)
        if value is UNDECIDED:
            resolution.undecided.append(clash)
            continue
        # Whoever rebases a state of their own may change its reserved fields too.
        whole = not clash.path and not rebase
        resolution.put(clash, _with_reserved(value, clash.ours) if whole else value, registry)
        if chosen_strategy is not None and not same(clash.ours, clash.theirs, registry):
            resolution.decided.append(clash)
    resolution.decided.sort(key=lambda clash: clash.path)
    resolution.undecided.sort(key=lambda clash: clash.path)
    return resolution


def _changed_in_parts(found: Comparison, strategies: Strategies) -> dict[Path, Strategy]:
    """Where a function is given for a value of which the sides changed different parts: both differ from the base
    there, although nothing below was changed by both."""
    sides: list[dict[Path, Strategy]] = []
    for paths in (found.ours_alone, found.theirs_alone):
        chosen = [(path, *strategies.for_path(path)) for path in paths] if strategies.has_functions else []
        sides.append({path[:length]: strategy for path, strategy, length in chosen if callable(strategy)})
    return {path: strategy for path, strategy in sides[0].items() if path in sides[1]}


def _decided(strategy: Strategy, clash: Clash, registry: TypeRegistry, rebase: bool) -> Any:
    sides = (clash.base, clash.ours, clash.theirs)
    # A function may change what it is given and return that: seen against itself it would be no change.
    value = decide(strategy, *(copy.deepcopy(sides) if callable(strategy) else sides), registry)
    if value is UNDECIDED and not rebase and same(clash.ours, clash.theirs, registry):
        return clash.ours
    return value


def _with_reserved(value: Any, ours: Any) -> Any:
    """A whole state that a function decided, with our reserved fields: those are not its to decide."""
    if type(value) is not dict or type(ours) is not dict:
        return value
    free = {key: item for key, item in value.items() if not (type(key) is str and is_reserved(key))}
    return free | {key: item for key, item in ours.items() if is_reserved(key)}


def refusal(clashes: Sequence[Clash]) -> Conflict:
    """The error that surfaces conflicts nobody decided."""
    first = format_pointer(clashes[0].path) or "the root"
    more = f" and at {len(clashes) - 1} other places" if len(clashes) > 1 else ""
    return Conflict(
        f"both sides changed what stands at {first}{more}",
        hint="choose a strategy for these paths, or change one side first",
        conflicts=[clash.shown() for clash in clashes],
    )


def _at(value: Any, path: Path) -> Any:
    for token in path:
        value = value.get(token, ABSENT) if type(value) is dict else ABSENT
    return value
