"""Making a bag show what others did to the version that it was saved as."""

from __future__ import annotations

from collections.abc import Iterable

from analemma.bag.tracked_dict import TrackedDict
from analemma.canon.edit import Operation
from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path
from analemma.canon.trees import Trees


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
