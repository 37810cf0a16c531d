"""Three values, one of which the other two come from: what each side changed, and what stands where both did and no
strategy is given.

Dicts are compared field by field. Lists are merged by position as far as the positions are beyond doubt: where a side
can be aligned with the base in one way only, and the sides changed different places."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from analemma.canon.align import Gap, align
from analemma.canon.edit import Operation, build
from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.types import TypeRegistry
from analemma.errors import Invalid
from analemma.state.reserved_fields import is_reserved


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
    return build(one, registry).root.id == build(other, registry).root.id


def hashes(items: Iterable[Any], registry: TypeRegistry) -> list[BlockId]:
    """Items by their hashes: to Python 1, 1.0 and True are equal, and dicts cannot be put into a set."""
    return [build(item, registry).root.id for item in items]


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
