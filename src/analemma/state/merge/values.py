"""Three states, one of which the other two come from: what each side changed, and what is to stand where both did.

What one side changed is taken. Where both changed something a strategy decides, if one is given; else what both changed
alike stands, and what they changed differently is a conflict, which is surfaced. Dicts are compared field by field.
Lists are merged by position as far as the positions are beyond doubt: where a side can be aligned with the base in one
way only, and the sides changed different places. Of stored states only what both sides changed is read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise, takewhile
from typing import Any, Literal, NamedTuple, NewType, get_args

from analemma.canon.build import Packer
from analemma.canon.diff import align
from analemma.canon.nodes import BlockId
from analemma.canon.pointer import Operation, Path, format_pointer
from analemma.canon.read import MISSING, Nodes, Walk, container_kind, locate, step
from analemma.canon.trees import Trees
from analemma.canon.types import TypeRegistry
from analemma.errors import Conflict, Invalid
from analemma.state.arguments import field_path, is_reserved


class Absent(Enum):
    """Stands for "nothing is there" among values, where None is a value like any other."""

    ABSENT = "absent"

    def __bool__(self) -> bool:
        return False


ABSENT = Absent.ABSENT
UNDECIDED = object()
"""The answer where there is none: the conflict is the caller's."""


class Clash(NamedTuple):
    """What three states have at a place, such as one that both sides changed, perhaps alike."""

    path: Path
    base: Any
    ours: Any
    theirs: Any

    def shown(self) -> dict[str, Any]:
        """For callers: the pointer and the three values, those left out where nothing stands."""
        values = {name: value for name, value in self._asdict().items() if value is not ABSENT}
        return {**values, "path": format_pointer(self.path)}

    def fields(self) -> list[Clash] | None:
        """What they have in each field of the dicts that both sides are; None: they are to be seen as a whole."""
        path, base, ours, theirs = self
        if type(ours) is not dict or type(theirs) is not dict or (type(base) is not dict and base is not ABSENT):
            return None
        sides: list[dict[str, Any]] = [{} if base is ABSENT else base, ours, theirs]
        keys = dict.fromkeys([*ours, *theirs, *sides[0]])
        return [Clash((*path, key), *[side.get(key, ABSENT) for side in sides]) for key in keys]


StrategyName = Literal[
    "refuse", "last_write_wins", "ours", "deep_merge", "collect", "append", "replace", "dedupe_append", "set_union"
]
ByKey = NewType("ByKey", str)
"""`by_key:` and the name of a field."""
Decide = Callable[[Any, Any, Any], Any]
NamedStrategy = StrategyName | ByKey
Strategy = NamedStrategy | Decide
"""A name, or a function of base, ours and theirs. What is not there is ABSENT, to a function and as its answer."""

NAMES: tuple[str, ...] = get_args(StrategyName)
BY_KEY = "by_key:"


def by_key(field: str) -> ByKey:
    """The strategy that merges lists of dicts item by item, where this field tells one item from another; also written
    as text, as commands and workflow documents do.

    >>> by_key("id")
    'by_key:id'
    """
    return ByKey(BY_KEY + field)


def check_strategy(strategy: Any) -> Strategy:
    """A strategy as somebody gave it, or Invalid."""
    if callable(strategy) or strategy in NAMES:
        return strategy  # type: ignore[no-any-return]
    if isinstance(strategy, str) and strategy.startswith(BY_KEY) and strategy != BY_KEY:
        return ByKey(strategy)
    names = ", ".join([*NAMES, f"{BY_KEY}FIELD"])
    raise Invalid(f"there is no merge strategy {strategy!r}", hint=f"use a function, or one of {names}")


class Strategies:
    """Strategies for paths. A pattern is a field name or a JSON pointer in which `*` is any one token and `**` any
    number of them; it also covers what is below, unless a longer or more literal pattern does.

    >>> Strategies("refuse", {"/plan": "ours", "/plan/*/notes": "append"}).for_path(("plan", "today", "notes"))
    ('append', 3)
    """

    def __init__(self, default: Strategy = "refuse", patterns: Mapping[str, Strategy] | None = None) -> None:
        self._default = check_strategy(default)
        chosen = [
            (field_path(name) if name else (), check_strategy(strategy)) for name, strategy in (patterns or {}).items()
        ]
        self._patterns = sorted(chosen, key=lambda item: _specificity(item[0]), reverse=True)

    def for_path(self, path: Path) -> tuple[Strategy | None, int]:
        """The strategy for a conflict at this path, and how many of its tokens the pattern matched; None: nobody chose
        one."""
        for pattern, strategy in self._patterns:
            for length in range(len(path), -1, -1):
                if _matches(pattern, path[:length]):
                    return strategy, length
        return None if self._default == "refuse" else self._default, len(path)

    @property
    def are_given(self) -> bool:
        """Whether somebody chose how to decide any conflict."""
        return self._default != "refuse" or bool(self._patterns)

    @property
    def have_functions(self) -> bool:
        """Whether a function is given for some paths."""
        return any(callable(strategy) for _, strategy in self._patterns)


def _specificity(pattern: Path) -> tuple[int, int, bool]:
    tokens = [token for token in pattern if token != "**"]
    return len(tokens), len([token for token in tokens if token != "*"]), "**" not in pattern


def _matches(pattern: Path, path: Path) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and _matches(pattern[1:], path[1:])


@dataclass(slots=True)
class Resolution:
    """What has to happen to our side, and how conflicts were decided."""

    operations: list[Operation] = field(default_factory=list)
    decided: list[Clash] = field(default_factory=list)
    undecided: list[Clash] = field(default_factory=list)


def _resolve(found: Comparison, strategies: Strategies, roots: Roots, trees: Trees, *, rebase: bool) -> Resolution:
    """Decide what both sides changed. A function decides the whole value at the path its pattern names, everything else
    decides at the conflict itself."""
    wholes = _changed_in_parts(found, strategies)
    chosen: list[tuple[Clash, Strategy | None]] = []
    for clash in found.clashes:
        strategy, length = strategies.for_path(clash.path)
        if callable(strategy) and length < len(clash.path):
            wholes[clash.path[:length]] = strategy
        else:
            chosen.append((clash, strategy))
    chosen += [(clash, wholes[clash.path]) for clash in _values_at(roots, trees, wholes)]
    made: dict[Path, Operation] = {}
    resolution, registry = Resolution(), trees.registry
    # What is decided for a whole comes after what is decided for a part of it, and replaces it.
    for clash, strategy in sorted(chosen, key=lambda item: (-len(item[0].path), item[0].path)):
        value = decide(strategy, clash, registry, rebase=rebase)
        if value is UNDECIDED:
            resolution.undecided.append(clash)
            continue
        if clash.path in wholes:
            made = {path: each for path, each in made.items() if path[: len(clash.path)] != clash.path}
        if not (clash.path or rebase):
            # Whoever rebases a state of their own may change its reserved fields too.
            value = _with_reserved(value, clash.ours)
        if not same(value, clash.ours, registry):
            made[clash.path] = operation(clash.path, clash.ours, value)
        if strategy is not None and not same(clash.ours, clash.theirs, registry):
            resolution.decided.append(clash)
    # Below what is decided as a whole nothing is anyone else's to change.
    resolution.operations = [each for each in found.taken if not _is_covered(each.path, wholes)] + [*made.values()]
    resolution.decided.sort(key=lambda clash: clash.path)
    resolution.undecided.sort(key=lambda clash: clash.path)
    return resolution


def _changed_in_parts(found: Comparison, strategies: Strategies) -> dict[Path, Strategy]:
    """Where a function is given for a value of which the sides changed different parts: both differ from the base
    there, although nothing below was changed by both."""
    sides: list[dict[Path, Strategy]] = []
    for paths in (found.ours_alone, found.theirs_alone):
        chosen = [(path, *strategies.for_path(path)) for path in paths] if strategies.have_functions else []
        sides.append({path[:length]: strategy for path, strategy, length in chosen if callable(strategy)})
    return {path: strategy for path, strategy in sides[0].items() if path in sides[1]}


def _with_reserved(value: Any, ours: Any) -> Any:
    """A whole state that a function decided, with our reserved fields: those are not its to decide."""
    if type(value) is not dict or type(ours) is not dict:
        return value
    free = {key: item for key, item in value.items() if not (type(key) is str and is_reserved(key))}
    return free | {key: item for key, item in ours.items() if is_reserved(key)}


def refusal(conflicts: Sequence[dict[str, Any]]) -> Conflict:
    """The error that surfaces conflicts, as `Clash.shown` has them, that nobody decided."""
    first = conflicts[0]["path"] or "the root"
    more = f" and at {len(conflicts) - 1} other places" if len(conflicts) > 1 else ""
    return Conflict(
        f"both sides changed what stands at {first}{more}",
        hint="choose a strategy for these paths, or change one side first",
        conflicts=conflicts,
    )


@dataclass(slots=True)
class Comparison:
    """What has to happen to our side: changes of theirs to take, and places to decide."""

    taken: list[Operation] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    ours_alone: list[Path] = field(default_factory=list)
    theirs_alone: list[Path] = field(default_factory=list)


def compare(there: Clash, found: Comparison, registry: TypeRegistry) -> None:
    """Add to `found` what each side changed at a place."""
    path, base, ours, theirs = there
    fields = there.fields()
    if fields is not None:
        for each in fields:
            if path or not is_reserved(each.path[0]):
                compare(each, found, registry)
    elif same(base, theirs, registry):
        if not same(base, ours, registry):
            found.ours_alone.append(path)
    elif same(base, ours, registry):
        found.theirs_alone.append(path)
        found.taken.append(operation(path, ours, theirs))
    else:
        found.clashes.append(there)


class Roots(NamedTuple):
    """Three trees: where two sides come from (None: they are compared as if they had begun empty), and the sides."""

    base: BlockId | None
    ours: BlockId
    theirs: BlockId


Changes = Mapping[Path, Sequence[Operation]]
"""What one side changed, by place."""


def merge_trees(roots: Roots, trees: Trees, strategies: Strategies) -> tuple[Resolution, bool]:
    """What brings the changes of theirs to ours, which keeps its reserved fields; and whether it becomes theirs by
    that, having no changes of its own."""
    if roots.base is not None:
        base = roots.base
        ours, theirs = [_by_place(trees, base, trees.diff(base, side)) for side in (roots.ours, roots.theirs)]
    else:
        # As if both had begun empty: what only one has it added, what both have differently both added.
        differences = _by_place(trees, roots.ours, trees.diff(roots.ours, roots.theirs))
        whole = {path: each[0].op if each[0].path == path else "replace" for path, each in differences.items()}
        ours = {path: each for path, each in differences.items() if whole[path] != "add"}
        theirs = {path: each for path, each in differences.items() if whole[path] != "remove"}
    free = {path: operations for path, operations in theirs.items() if not is_reserved(path[0])}
    is_theirs = roots.base is not None and not ours and len(free) == len(theirs)
    return _reconcile(roots, ours, free, trees, strategies, rebase=False), is_theirs


def rebase(roots: Roots, operations: Iterable[Operation], trees: Trees, strategies: Strategies) -> list[Operation]:
    """The operations that bring what led from the base to theirs onto ours, which others have moved; Conflict, with
    `conflicts`, where both changed something and no strategy decides."""
    base = roots.base
    assert base is not None
    moved = _by_place(trees, base, trees.diff(base, roots.ours))
    resolution = _reconcile(roots, moved, _by_place(trees, base, operations), trees, strategies, rebase=True)
    if resolution.undecided:
        raise refusal([clash.shown() for clash in resolution.undecided])
    return resolution.operations


def _reconcile(
    roots: Roots, ours: Changes, theirs: Changes, trees: Trees, strategies: Strategies, *, rebase: bool
) -> Resolution:
    """Of a rebase, both sides having come to the same is a conflict like any other: two who counted from 1 to 2 would
    have counted once."""
    changed_here, changed_there = _touching(ours), _touching(theirs)
    contested = [path for path in _outermost([*ours, *theirs]) if changed_here(path) and changed_there(path)]
    under = set(contested)
    found = Comparison(
        taken=[operation for path, each in theirs.items() if not _is_covered(path, under) for operation in each],
        ours_alone=[path for path in ours if not changed_there(path)],
        theirs_alone=[path for path in theirs if not changed_here(path)],
    )
    if not (rebase or strategies.are_given):
        # Both may have come to the same: that is seen from hashes, without reading what they came to.
        at = trees.fingerprint
        contested = [path for path in contested if at(roots.ours, path) != at(roots.theirs, path)]
    for clash in _values_at(roots, trees, contested):
        compare(clash, found, trees.registry)
    return _resolve(found, strategies, roots, trees, rebase=rebase)


def _values_at(roots: Roots, trees: Trees, paths: Iterable[Path]) -> list[Clash]:
    wanted = list(paths)
    sides = [{} if root is None or not wanted else trees.get_many(root, wanted) for root in roots]
    return [Clash(path, *[side.get(path, ABSENT) for side in sides]) for path in wanted]


def _by_place(trees: Trees, root: BlockId, operations: Iterable[Operation]) -> dict[Path, list[Operation]]:
    """Operations by the field they change; those inside a list by the list, whose positions mean nothing to the other
    side."""
    listed = list(operations)
    parents = list(dict.fromkeys(operation.path[:-1] for operation in listed))
    lengths = Nodes(trees.fetch).run(_list_above(root, parent) for parent in parents)
    lists = {parent: length for parent, length in zip(parents, lengths, strict=True) if length is not None}
    changes: dict[Path, list[Operation]] = {}
    for operation in listed:
        length = lists.get(operation.path[:-1], len(operation.path))
        changes.setdefault(operation.path[:length], []).append(operation)
    return changes


def _list_above(root: BlockId, path: Path) -> Walk[int | None]:
    """How long the path of the outermost list on the way to this path is, itself included; None if there is none."""
    wire = yield from locate(root, ())
    for length, token in enumerate(path):
        if container_kind(wire) == "list":
            return length
        wire = yield from step(wire, token)
        if wire is MISSING:
            return None
    return len(path) if container_kind(wire) == "list" else None


def _touching(changes: Changes) -> Callable[[Path], bool]:
    """What tells whether something was changed at, above or below a path."""
    above = {path[:length] for path in changes for length in range(len(path))}
    return lambda path: path in above or _is_covered(path, changes)


def _is_covered(path: Path, paths: Container[Path]) -> bool:
    """Whether this path, or one above it, is among these."""
    return any(path[:length] in paths for length in range(len(path) + 1))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """Those paths that are not below another one, in order."""
    named = set(paths)
    return sorted(path for path in named if not _is_covered(path[:-1], named) or not path)


def settle(clash: Clash, registry: TypeRegistry, *, rebase: bool = False) -> Any:
    """What stands where both sides changed something and no strategy is given, or UNDECIDED.

    Of a merge, what both changed alike stands once. Of a rebase it does not: two who counted from 1 to 2 both counted.
    There the order is known, so that what both appended to a list stands, ours first."""
    _, base, ours, theirs = clash
    if not rebase and same(ours, theirs, registry):
        return ours
    if base is ABSENT and rebase:
        base = []
    if type(base) is list and type(ours) is list and type(theirs) is list:
        return _merged_by_position(base, ours, theirs, registry, rebase)
    return UNDECIDED


def merge_by_key(name: str, base: Any, ours: Any, theirs: Any, registry: TypeRegistry) -> Any:
    """A list of dicts in which a field tells one item from another: items are merged each with its own, in our order
    unless only theirs has moved some. UNDECIDED if an item lacks the field, shares it, or was changed differently."""
    sides = [_by_key(name, side, registry) for side in ([] if base is ABSENT else base, ours, theirs)]
    before, mine, other = sides
    if before is None or mine is None or other is None:
        return UNDECIDED
    merged = {}
    for key in dict.fromkeys([*before, *mine, *other]):
        item = Clash((), *[side.get(key, ABSENT) for side in (before, mine, other)])
        merged[key] = _merged_item(item, registry, rebase=False)
        if merged[key] is UNDECIDED:
            return UNDECIDED
    return [merged[key] for key in _order(list(before), list(mine), list(other)) if merged[key] is not ABSENT]


def same(one: Any, other: Any, registry: TypeRegistry) -> bool:
    """Whether two values are stored alike, which is stricter than `==`: 1 is not 1.0, and -0.0 is not 0.0."""
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other):
        return False
    if cls is dict:
        return one.keys() == other.keys() and all(same(one[key], other[key], registry) for key in one)
    if cls is list:
        return len(one) == len(other) and all(same(a, b, registry) for a, b in zip(one, other, strict=True))
    if cls in (str, int, bool, bytes):
        return bool(one == other)
    return hashes([one], registry) == hashes([other], registry)


def hashes(items: Iterable[Any], registry: TypeRegistry) -> list[BlockId]:
    """Items by their hashes: to Python 1, 1.0 and True are equal, and dicts cannot be put into a set."""
    packer = Packer(registry, lambda *_: None)
    return [packer.pack_root(item).id for item in items]


def operation(path: Path, old: Any, new: Any) -> Operation:
    """What makes the new value of the old one."""
    if new is ABSENT:
        if not path:
            raise Invalid("a merge cannot remove the whole value", hint="merge it into a value that stays", pointer="")
        return Operation("remove", path)
    return Operation("add" if old is ABSENT else "replace", path, new)


class _Hunk(NamedTuple):
    """What a side made of a stretch of the base's items."""

    start: int
    stop: int
    items: list[Any]
    side: Literal["ours", "theirs", "both"]

    def leaves_room(self, following: _Hunk) -> bool:
        """Whether the order of what stands here and of what follows is beyond doubt."""
        if self.stop != following.start or self.side == following.side:
            return self.stop <= following.start
        return all(each.start < each.stop and len(each.items) <= each.stop - each.start for each in (self, following))


def _merged_by_position(
    base: list[Any], ours: list[Any], theirs: list[Any], registry: TypeRegistry, rebase: bool
) -> Any:
    start = _alike((base, ours, theirs), registry)
    rest = [each[start:] for each in (base, ours, theirs)]
    stop = _alike([each[::-1] for each in rest], registry)
    before, mine, other = [each[: len(each) - stop] for each in rest]
    first, second = _hunks(before, mine, "ours", registry), _hunks(before, other, "theirs", registry)
    if first is None or second is None:
        return UNDECIDED
    end = len(before) if rebase and not stop else None
    for place in first.keys() & second.keys():
        items = _of_both(first[place], second.pop(place), before, end, registry, rebase)
        if items is None:
            return UNDECIDED
        first[place] = _Hunk(*place, items, "both")
    hunks = sorted([*first.values(), *second.values()], key=lambda hunk: (hunk.start, hunk.stop))
    if not all(hunk.leaves_room(following) for hunk, following in pairwise(hunks)):
        return UNDECIDED
    merged, position = base[:start], 0
    for hunk in hunks:
        merged += [*before[position : hunk.start], *hunk.items]
        position = hunk.stop
    return [*merged, *before[position:], *base[len(base) - stop :]]


def _of_both(
    ours: _Hunk, theirs: _Hunk, before: list[Any], end: int | None, registry: TypeRegistry, rebase: bool
) -> list[Any] | None:
    """What stands where both sides changed the same stretch; None if that is in doubt. What is added at `end` was
    appended."""
    if ours.start == ours.stop == end:
        return [*ours.items, *theirs.items]
    if not ours.stop - ours.start == len(ours.items) == len(theirs.items) == 1:
        return None
    item = _merged_item(Clash((), before[ours.start], ours.items[0], theirs.items[0]), registry, rebase=rebase)
    return None if item is UNDECIDED else [item]


def _hunks(
    before: list[Any], after: list[Any], side: Literal["ours", "theirs"], registry: TypeRegistry
) -> dict[tuple[int, int], _Hunk] | None:
    """How one list became another, by stretches of the first, where items were replaced one by one. None if, read from
    the end, other stretches were changed: then nobody can say which of several equal items came or went."""
    old, new = hashes(before, registry), hashes(after, registry)
    gaps = align(old, new)
    mirrored = [(len(old) - b, len(old) - a, len(new) - d, len(new) - c) for a, b, c, d in align(old[::-1], new[::-1])]
    if gaps != mirrored[::-1]:
        return None
    hunks = []
    for a, b, c, d in gaps:
        if b - a == d - c:
            hunks += [_Hunk(a + number, a + number + 1, [after[c + number]], side) for number in range(b - a)]
        else:
            hunks.append(_Hunk(a, b, after[c:d], side))
    return {(hunk.start, hunk.stop): hunk for hunk in hunks}


def _alike(sides: Iterable[list[Any]], registry: TypeRegistry) -> int:
    """How many items, from the first on, are the same on all sides."""
    equal = (
        same(base, ours, registry) and same(base, theirs, registry) for base, ours, theirs in zip(*sides, strict=False)
    )
    return sum(1 for _ in takewhile(bool, equal))


def _merged_item(there: Clash, registry: TypeRegistry, *, rebase: bool) -> Any:
    """An item of a list with the changes of both sides, ABSENT, or UNDECIDED."""
    fields = there.fields()
    if fields is not None:
        merged = {each.path[-1]: _merged_item(each, registry, rebase=rebase) for each in fields}
        undecided = any(value is UNDECIDED for value in merged.values())
        return UNDECIDED if undecided else {key: value for key, value in merged.items() if value is not ABSENT}
    if same(there.base, there.theirs, registry):
        return there.ours
    return there.theirs if same(there.base, there.ours, registry) else settle(there, registry, rebase=rebase)


def _by_key(name: str, items: Any, registry: TypeRegistry) -> dict[BlockId, Any] | None:
    if type(items) is not list or not all(type(item) is dict and name in item for item in items):
        return None
    keyed = dict(zip(hashes([item[name] for item in items], registry), items, strict=True))
    return keyed if len(keyed) == len(items) else None


def _order(base: list[BlockId], ours: list[BlockId], theirs: list[BlockId]) -> list[BlockId]:
    """All keys: as ours has them, or theirs if only theirs has moved some, and what the other added behind what it
    stands behind there, our additions before theirs."""
    in_all = set(base) & set(ours) & set(theirs)
    kept, mine, other = [[key for key in side if key in in_all] for side in (base, ours, theirs)]
    ours_leads = mine != kept or other == kept
    lead, following = (ours, theirs) if ours_leads else (theirs, ours)
    leading, known = set(lead), set(base) | set(following)
    behind: dict[BlockId | None, list[BlockId]] = {}
    last = None
    for key in following:
        if key in leading:
            last = key
        else:
            behind.setdefault(last, []).append(key)
    order: list[BlockId] = []
    waiting = behind.get(None, [])
    for key in lead:
        if key in known or not ours_leads:
            order += waiting
            waiting = []
        order.append(key)
        waiting = [*waiting, *behind.get(key, ())]
    return order + waiting


def decide(strategy: Strategy | None, clash: Clash, registry: TypeRegistry, *, rebase: bool = False) -> Any:
    """What is to stand where both sides changed something: a value, ABSENT, or UNDECIDED. A strategy that is given is
    asked whatever the sides came to; without one, see `settle`."""
    value = UNDECIDED if strategy is None else _chosen(strategy, clash, registry)
    if value is UNDECIDED and (strategy is None or (not rebase and same(clash.ours, clash.theirs, registry))):
        return settle(clash, registry, rebase=rebase)
    return value


def _chosen(strategy: Strategy, clash: Clash, registry: TypeRegistry) -> Any:
    """What a strategy makes of three values; UNDECIDED if it does not apply."""
    _, base, ours, theirs = clash
    if not isinstance(strategy, str):
        # It may change what it is given and return that: seen against itself it would be no change.
        return strategy(*copy.deepcopy((base, ours, theirs)))
    if ours is ABSENT and theirs is ABSENT and strategy != "refuse":
        return ABSENT
    if strategy == "last_write_wins":
        return theirs
    if strategy == "ours":
        return ours
    if strategy == "deep_merge":
        return _deep_merged(ours, theirs)
    if strategy == "collect":
        return [value for value in (ours, theirs) if value is not ABSENT]
    if strategy == "set_union" and type(ours) is type(theirs) and type(ours) in (set, frozenset):
        return ours | theirs
    if strategy == "refuse" or type(ours) is not list or type(theirs) is not list:
        return UNDECIDED
    if strategy.startswith(BY_KEY):
        return merge_by_key(strategy.removeprefix(BY_KEY), base, ours, theirs, registry)
    if strategy == "replace":
        return theirs
    if strategy == "append":
        return ours + _added(base, theirs, registry)
    if strategy == "dedupe_append":
        return ours + _unique(_added(base, theirs, registry), registry, besides=ours)
    return _unique([*ours, *theirs], registry)


def _deep_merged(ours: Any, theirs: Any) -> Any:
    """Dicts field by field; of anything else theirs. What one side removed and the other changed stays."""
    if type(ours) is dict and type(theirs) is dict:
        fields = dict.fromkeys([*ours, *theirs])
        return {key: _deep_merged(ours.get(key, ABSENT), theirs.get(key, ABSENT)) for key in fields}
    return ours if theirs is ABSENT else theirs


def _added(base: Any, theirs: list[Any], registry: TypeRegistry) -> list[Any]:
    """The items that one side's list has and the base's has not, in order. What it removed does not count."""
    if type(base) is not list:
        return list(theirs)
    gaps = align(hashes(base, registry), hashes(theirs, registry))
    return [item for gap in gaps for item in theirs[gap.new_start : gap.new_stop]]


def _unique(items: list[Any], registry: TypeRegistry, besides: Iterable[Any] = ()) -> list[Any]:
    seen = set(hashes(besides, registry))
    kept = []
    for item, key in zip(items, hashes(items, registry), strict=True):
        if key not in seen:
            seen.add(key)
            kept.append(item)
    return kept
