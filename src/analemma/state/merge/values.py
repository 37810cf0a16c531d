"""Three values, one of which the other two come from: what each side changed, and what is to stand where both did.

What one side changed is taken. Where both changed something a strategy decides, if one is given; else what both changed
alike stands, and what they changed differently is a conflict, which is surfaced. Dicts are compared field by field.
Lists are merged by position as far as the positions are beyond doubt: where a side can be aligned with the base in one
way only, and the sides changed different places."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple, NewType, get_args

from analemma.canon.build import Packer
from analemma.canon.diff import Gap, align
from analemma.canon.edit import Operation
from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path, format_pointer, parse_pointer
from analemma.canon.types import TypeRegistry, standard_registry
from analemma.errors import Conflict, Invalid
from analemma.state.arguments import is_reserved


class Absent:
    """Stands for "nothing is there" among values, where None is a value like any other."""

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "<absent>"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


class Undecided:
    """The answer where there is none: the conflict is the caller's."""


UNDECIDED = Undecided()


@dataclass(frozen=True, slots=True)
class Clash:
    """A place that both sides changed, perhaps alike."""

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
        chosen = [(_parse(name), check_strategy(strategy)) for name, strategy in (patterns or {}).items()]
        self._patterns = sorted(chosen, key=lambda item: _specificity(item[0]), reverse=True)

    def for_path(self, path: Path) -> tuple[Strategy, int]:
        """The strategy for a conflict at this path, and how many of its tokens the pattern matched."""
        for pattern, strategy in self._patterns:
            for length in range(len(path), -1, -1):
                if _matches(pattern, path[:length]):
                    return strategy, length
        return self._default, len(path)

    def are_given(self, path: Path) -> bool:
        """Whether somebody chose how to decide a conflict at this path."""
        if self._default != "refuse":
            return True
        return any(_matches(pattern, path[:length]) for pattern, _ in self._patterns for length in range(len(path) + 1))

    def may_be_given(self, path: Path) -> bool:
        """Whether that may be so for this path, or for one above or below it."""
        return self._default != "refuse" or any(_may_overlap(pattern, path) for pattern, _ in self._patterns)

    @property
    def has_functions(self) -> bool:
        """Whether a function is given for some paths."""
        return any(callable(strategy) for _, strategy in self._patterns)


def _parse(name: str) -> Path:
    return parse_pointer(name) if name.startswith("/") or not name else (name,)


def _specificity(pattern: Path) -> tuple[int, int, bool]:
    tokens = [token for token in pattern if token != "**"]
    return len(tokens), len([token for token in tokens if token != "*"]), "**" not in pattern


def _matches(pattern: Path, path: Path) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and _matches(pattern[1:], path[1:])


def _may_overlap(pattern: Path, path: Path) -> bool:
    """Whether the pattern may name this path, one above it or one below."""
    for expected, token in zip(pattern, path, strict=False):
        if expected == "**":
            return True
        if expected not in ("*", token):
            return False
    return True


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


@dataclass(slots=True)
class Comparison:
    """What has to happen to our side: changes of theirs to take, and places to decide."""

    taken: list[Operation] = field(default_factory=list)
    clashes: list[Clash] = field(default_factory=list)
    ours_alone: list[Path] = field(default_factory=list)
    theirs_alone: list[Path] = field(default_factory=list)


def compare(base: Any, ours: Any, theirs: Any, path: Path, found: Comparison, registry: TypeRegistry) -> None:
    """Add to `found` what each side changed at a path."""
    if type(ours) is dict and type(theirs) is dict and (type(base) is dict or base is ABSENT):
        before: dict[str, Any] = base if type(base) is dict else {}
        for key in dict.fromkeys([*ours, *theirs, *before]):
            if path or not is_reserved(key):
                values = [side.get(key, ABSENT) for side in (before, ours, theirs)]
                compare(values[0], values[1], values[2], (*path, key), found, registry)
    elif same(base, theirs, registry):
        if not same(base, ours, registry):
            found.ours_alone.append(path)
    elif same(base, ours, registry):
        found.theirs_alone.append(path)
        found.taken.append(operation(path, ours, theirs))
    else:
        found.clashes.append(Clash(path, base, ours, theirs))


def settle(clash: Clash, registry: TypeRegistry, *, rebase: bool = False) -> Any:
    """What stands where both sides changed something and no strategy is given, or UNDECIDED.

    Of a merge, what both changed alike stands once. Of a rebase it does not: two who counted from 1 to 2 both counted.
    There the order is known, so that what both appended to a list stands, ours first."""
    base, ours, theirs = clash.base, clash.ours, clash.theirs
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
        was, own, new = [side.get(key, ABSENT) for side in (before, mine, other)]
        merged[key] = _merged_item(was, own, new, registry, rebase=False)
        if merged[key] is UNDECIDED:
            return UNDECIDED
    return [merged[key] for key in _order(list(before), list(mine), list(other)) if merged[key] is not ABSENT]


def same(one: Any, other: Any, registry: TypeRegistry) -> bool:
    """Whether two values are stored alike, which is stricter than `==`: 1 is not 1.0, and -0.0 is not 0.0."""
    if one is other:
        return True
    cls = type(one)
    if cls is not type(other) or cls is Absent:
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


def applied(value: Any, operations: Iterable[Operation]) -> Any:
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
    lists = (base, ours, theirs)
    shortest = min(map(len, lists))
    start = _alike(lists, range(shortest), registry)
    stop = _alike(lists, range(-1, -1 - (shortest - start), -1), registry)
    before, mine, other = [each[start : len(each) - stop] for each in lists]
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
    item = _merged_item(before[ours.start], ours.items[0], theirs.items[0], registry, rebase=rebase)
    return None if item is UNDECIDED else [item]


def _hunks(
    before: list[Any], after: list[Any], side: Literal["ours", "theirs"], registry: TypeRegistry
) -> dict[tuple[int, int], _Hunk] | None:
    """How one list became another, by stretches of the first, where items were replaced one by one. None if, read from
    the end, other stretches were changed: then nobody can say which of several equal items came or went."""
    old, new = hashes(before, registry), hashes(after, registry)
    gaps = align(old, new)
    mirrored = [
        Gap(len(old) - gap.old_stop, len(old) - gap.old_start, len(new) - gap.new_stop, len(new) - gap.new_start)
        for gap in reversed(align(old[::-1], new[::-1]))
    ]
    if gaps != mirrored:
        return None
    hunks = []
    for a, b, c, d in gaps:
        if b - a == d - c:
            hunks += [_Hunk(a + number, a + number + 1, [after[c + number]], side) for number in range(b - a)]
        else:
            hunks.append(_Hunk(a, b, after[c:d], side))
    return {(hunk.start, hunk.stop): hunk for hunk in hunks}


def _alike(sides: Sequence[list[Any]], places: Iterable[int], registry: TypeRegistry) -> int:
    """How many of these places hold the same on all sides, from the first on."""
    count = 0
    for place in places:
        base, ours, theirs = [side[place] for side in sides]
        if not (same(base, ours, registry) and same(base, theirs, registry)):
            break
        count += 1
    return count


def _merged_item(base: Any, ours: Any, theirs: Any, registry: TypeRegistry, *, rebase: bool) -> Any:
    """An item of a list with the changes of both sides, ABSENT, or UNDECIDED."""
    found = Comparison()
    # Below a field, since a state's reserved names mean nothing in an item.
    compare(base, ours, theirs, ("",), found, registry)
    for clash in found.clashes:
        value = settle(clash, registry, rebase=rebase)
        if value is UNDECIDED:
            return UNDECIDED
        found.taken.append(operation(clash.path, clash.ours, value))
    return applied({} if ours is ABSENT else {"": ours}, found.taken).get("", ABSENT)


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
    order = [] if ours_leads else list(behind.get(None, ()))
    waiting = behind.get(None, []) if ours_leads else []
    for key in lead:
        if key in known:
            order += waiting
            waiting = []
        order.append(key)
        waiting = [*waiting, *behind.get(key, ())]
        if not ours_leads:
            order += waiting
            waiting = []
    return order + waiting


def decide(strategy: Strategy, base: Any, ours: Any, theirs: Any, registry: TypeRegistry) -> Any:
    """What is to stand where both sides changed something: a value, ABSENT, or UNDECIDED when the strategy does not
    apply."""
    if not isinstance(strategy, str):
        return strategy(base, ours, theirs)
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
