"""Bringing a bag's changes onto a head that others have moved: what they did not touch is applied as it is, what both
appended stands both, a strategy decides the rest, and what is left is a conflict, also where both changed it alike: two
who counted from 1 to 2 would have counted once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from analemma.bag.tracked_dict import TrackedDict
from analemma.canon.edit import Operation
from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path
from analemma.canon.trees import Trees
from analemma.state.merge_strategies import Strategies
from analemma.state.merging import ABSENT, Clash, Comparison, compare, refusal, resolve

Changes = Mapping[Path, Sequence[Operation]]
ByPlace = Callable[[BlockId, Iterable[Operation]], Changes]


@dataclass(frozen=True, slots=True)
class Roots:
    """The three trees: what the bag was read as, what it is now, and what the head has become."""

    base: BlockId
    mine: BlockId
    head: BlockId


def rebase(
    roots: Roots, operations: Iterable[Operation], trees: Trees, by_place: ByPlace, strategies: Strategies
) -> list[Operation]:
    """The operations that bring a bag's own onto the head; Conflict, with `conflicts`, where both changed something and
    no strategy decides."""
    mine = by_place(roots.base, operations)
    theirs = by_place(roots.base, trees.diff(roots.base, roots.head))
    ours_touched, theirs_touched = _Touched(mine), _Touched(theirs)
    contested = [path for path in _outermost([*mine, *theirs]) if ours_touched.at(path) and theirs_touched.at(path)]
    found = Comparison(
        ours_alone=[path for path in theirs if not ours_touched.at(path)],
        theirs_alone=[path for path in mine if not theirs_touched.at(path)],
    )

    def values_at(paths: Iterable[Path]) -> list[Clash]:
        wanted = list(paths)
        sides = [trees.get_many(root, wanted) if wanted else {} for root in (roots.base, roots.head, roots.mine)]
        return [Clash(path, *[side.get(path, ABSENT) for side in sides]) for path in wanted]

    for clash in values_at(contested):
        compare(clash.base, clash.ours, clash.theirs, clash.path, found, trees.registry)
    resolution = resolve(found, strategies, values_at, trees.registry, rebase=True)
    if resolution.undecided:
        raise refusal(resolution.undecided)
    under = set(contested)
    kept = [operation for path, each in mine.items() if not _covered(path, under) for operation in each]
    return resolution.with_taken([*kept, *found.taken])


def follow(bag: TrackedDict, operations: Iterable[Operation]) -> None:
    """Make the changes of others to the bag itself, so that containers that were handed out show them too."""
    for op, path, value in operations:
        container: TrackedDict | list[object] = bag
        for token in path[:-1]:
            container = container[int(token)] if isinstance(container, list) else container[token]  # type: ignore[assignment]
        if isinstance(container, list):
            place = int(path[-1])
            if op == "add":
                container.insert(place, value)
            elif op == "remove":
                del container[place]
            else:
                container[place] = value
        elif op == "remove":
            del container[path[-1]]
        else:
            container[path[-1]] = value


def separate(bag: TrackedDict, differing: Iterable[Path], trees: Trees, root: BlockId, length: int) -> None:
    """Give the bag containers of its own at these places, cut to a length, with what the tree has there: one container
    that stands at several places cannot follow what others did to one of them. A list stays the same object, unless
    the length is 1: then nothing is changed but the bag's own fields."""
    places = sorted({_fields_only(bag, path[:length]) for path in differing})
    values = trees.get_many(root, places)
    for path in places:
        container = bag
        for token in path[:-1]:
            container = container[token]
        value, present = values.get(path), container.get(path[-1])
        if path not in values:
            container.pop(path[-1], None)
        elif length > 1 and isinstance(present, list) and isinstance(value, list):
            present[:] = value
        else:
            container[path[-1]] = value


def _fields_only(bag: TrackedDict, path: Path) -> Path:
    """As much of a path as leads through dicts: positions in lists shift while operations are applied."""
    container: object = bag
    for number, token in enumerate(path):
        if not isinstance(container, dict):
            return path[:number]
        container = container.get(token)
    return path


class _Touched:
    """Tells where one side changed something."""

    def __init__(self, changes: Changes) -> None:
        self._paths = set(changes)
        self._above = {path[:length] for path in changes for length in range(len(path))}

    def at(self, path: Path) -> bool:
        """Whether something was changed at, above or below this path."""
        return path in self._above or _covered(path, self._paths)


def _covered(path: Path, paths: set[Path]) -> bool:
    return any(path[:length] in paths for length in range(len(path) + 1))


def _outermost(paths: Iterable[Path]) -> list[Path]:
    chosen: set[Path] = set()
    for path in sorted(paths, key=len):
        if not _covered(path, chosen):
            chosen.add(path)
    return sorted(chosen)
