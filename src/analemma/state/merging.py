"""Three-way merging: what one side changed is taken, what both changed alike stands, and what they changed differently
is a conflict, decided by a strategy or surfaced.

Dicts are merged field by field. A list is one thing: positions that two sides changed independently do not fit
together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.editing import Operation, build
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.registry import TypeRegistry
from analemma.canon.standard_types import standard_registry
from analemma.errors import Conflict, Invalid
from analemma.state.merge_strategies import ABSENT, UNDECIDED, Strategies, Strategy, decide
from analemma.state.reserved_fields import is_reserved

__all__ = ["ABSENT", "Clash", "Comparison", "Resolution", "compare", "merge_values", "refusal", "resolve"]


@dataclass(frozen=True, slots=True)
class Clash:
    """A place that both sides changed, differently."""

    path: Path
    base: Any
    ours: Any
    theirs: Any

    def shown(self) -> dict[str, Any]:
        """For callers: the pointer and the three values, those left out where nothing stands."""
        values = {"base": self.base, "ours": self.ours, "theirs": self.theirs}
        return {"path": format_pointer(self.path)} | {
            name: value for name, value in values.items() if value is not ABSENT
        }


@dataclass(slots=True)
class Comparison:
    """What has to happen to our side: changes of theirs to take, and places to decide."""

    taken: list[Operation] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)


@dataclass(slots=True)
class Resolution:
    """How conflicts were decided."""

    operations: list[Operation] = field(default_factory=list)
    decided: list[Clash] = field(default_factory=list)
    undecided: list[Clash] = field(default_factory=list)
    wholes: set[Path] = field(default_factory=set)
    """Where a function decided a value that has conflicts somewhere below: nothing below is anyone else's to change."""

    def with_taken(self, taken: Iterable[Operation]) -> list[Operation]:
        """What has to happen to our side: first the changes of theirs that are taken, then what was decided."""
        return [*[each for each in taken if not self._is_below_whole(each.path)], *self.operations]

    def add(self, clash: Clash, value: Any, registry: TypeRegistry) -> None:
        """Take in what a conflict was decided to; those at deeper paths come first."""
        if clash.path in self.wholes:
            self.operations = [each for each in self.operations if each.path[: len(clash.path)] != clash.path]
        self.decided.append(clash)
        if not _same(value, clash.ours, registry):
            self.operations.append(_operation(clash.path, clash.ours, value))

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

    resolved = resolve(found.clashes, chosen, values_at, registry)
    if resolved.undecided:
        raise refusal(resolved.undecided)
    return _applied(ours, resolved.with_taken(found.taken))


def compare(base: Any, ours: Any, theirs: Any, path: Path, found: Comparison, registry: TypeRegistry) -> None:
    """Add to `found` how theirs differs from ours at a path, and on whose account."""
    if type(ours) is dict and type(theirs) is dict and (type(base) is dict or base is ABSENT):
        for key in dict.fromkeys([*ours, *theirs]):
            if path or not is_reserved(key):
                before, mine, other = [_field(side, key) for side in (base, ours, theirs)]
                compare(before, mine, other, (*path, key), found, registry)
    elif _same(ours, theirs, registry) or _same(base, theirs, registry):
        return
    elif _same(base, ours, registry):
        found.taken.append(_operation(path, ours, theirs))
    else:
        found.clashes.append(Clash(path, base, ours, theirs))


def resolve(
    clashes: Sequence[Clash],
    strategies: Strategies,
    values_at: Callable[[Iterable[Path]], Iterable[Clash]],
    registry: TypeRegistry,
) -> Resolution:
    """Decide conflicts. A function decides the whole value at the path its pattern names; everything else decides at
    the conflict itself. `values_at` gives the three values of paths above conflicts."""
    resolution = Resolution()
    lifted: dict[Path, Strategy] = {}
    chosen: list[tuple[Clash, Strategy]] = []
    for clash in clashes:
        strategy, length = strategies.for_path(clash.path)
        if callable(strategy) and length < len(clash.path):
            lifted[clash.path[:length]] = strategy
        else:
            chosen.append((clash, strategy))
    chosen += [(clash, lifted[clash.path]) for clash in values_at(lifted)] if lifted else []
    resolution.wholes.update(lifted)
    # What is decided for a whole comes after what is decided for a part of it, and replaces it.
    for clash, strategy in sorted(chosen, key=lambda item: (-len(item[0].path), item[0].path)):
        sides = (clash.base, clash.ours, clash.theirs)
        # A function may change what it is given and return that: seen against itself it would be no change.
        value = decide(strategy, *(copy.deepcopy(sides) if callable(strategy) else sides), registry)
        if value is UNDECIDED:
            resolution.undecided.append(clash)
        else:
            resolution.add(clash, value if clash.path else _with_reserved(value, clash.ours), registry)
    resolution.decided.sort(key=lambda clash: clash.path)
    resolution.undecided.sort(key=lambda clash: clash.path)
    return resolution


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


def _operation(path: Path, old: Any, new: Any) -> Operation:
    if new is ABSENT:
        if not path:
            raise Invalid("a merge cannot remove the whole value", hint="merge it into a value that stays", pointer="")
        return Operation("remove", path)
    return Operation("add" if old is ABSENT else "replace", path, new)


def _same(one: Any, other: Any, registry: TypeRegistry) -> bool:
    """Whether two values are stored alike, which is stricter than `==`: 1 is not 1.0, and -0.0 is not 0.0."""
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other) or cls is type(ABSENT):
        return False
    if cls is dict:
        return one.keys() == other.keys() and all(_same(one[key], other[key], registry) for key in one)
    if cls is list:
        return len(one) == len(other) and all(_same(a, b, registry) for a, b in zip(one, other, strict=True))
    if cls in (str, int, bool, bytes):
        return bool(one == other)
    return build(one, registry).root.id == build(other, registry).root.id


def _at(value: Any, path: Path) -> Any:
    for token in path:
        value = _field(value, token)
    return value


def _field(value: Any, key: str) -> Any:
    return value.get(key, ABSENT) if type(value) is dict else ABSENT


def _applied(value: Any, operations: Iterable[Operation]) -> Any:
    """The value after these operations, all of them on fields of dicts; the value itself is left as it was."""
    result = copy.deepcopy(value)
    for op, path, new in operations:
        if not path:
            result = copy.deepcopy(new)
            continue
        container = result
        for token in path[:-1]:
            container = container[token]
        if op == "remove":
            del container[path[-1]]
        else:
            container[path[-1]] = copy.deepcopy(new)
    return result
