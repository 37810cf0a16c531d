"""Finding what changed in a bag: from its root, through the dirty containers only, as operations on its base."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from operator import is_not
from typing import Any

from analemma.bag.tracked import Base, NotLoaded, Place, Tracked, never_changes
from analemma.bag.tracked_dict import TrackedDict
from analemma.bag.tracked_list import TrackedList
from analemma.canon.build import Packer
from analemma.canon.diff import Gap
from analemma.canon.nodes import BlockId, decode, is_special
from analemma.canon.pointer import MAXIMUM_DEPTH, Operation, Path, format_pointer
from analemma.canon.read import MISSING, container_kind
from analemma.canon.types import TypeRegistry, standard_registry
from analemma.errors import AnalemmaError, Invalid

Places = list[tuple[Tracked, Path]]
MANY = 16
"""Changes to a list from which on it may be shorter to write it as a whole."""


@dataclass(slots=True)
class Changes:
    """What turns the base into the bag, and what was met on the way."""

    operations: list[Operation] = field(default_factory=list)
    bases: dict[BlockId, None] = field(default_factory=dict)
    """Versions whose blocks are linked without being emitted."""
    visited: dict[int, tuple[Tracked, Path]] = field(default_factory=dict)
    """Containers that were looked into, each with a place at which it stands."""
    watched: dict[int, dict[Any, bytes]] = field(default_factory=dict)
    """The new stored forms of what is watched and has changed, by container and by what it is watched."""


def registry_of(base: Base) -> TypeRegistry:
    """The types that can be stored where a bag comes from."""
    return standard_registry() if base.store is None else base.store.trees.registry


def packed_form(value: Any, registry: TypeRegistry, at: Sequence[str] = ()) -> bytes:
    """A value as the base would have it, to compare with what it has; where it stands is for messages."""
    packer = Packer(registry, lambda *_: None, accept=lambda links: None)
    return packer.pack(value, at=at).data


def form_of(value: Any, base: Base, by_value: Container[BlockId] = ()) -> bytes:
    """The stored form of a value that stands in the base now."""
    # A search of its own: containers in the value that are met here for the first time would be taken to stand below
    # the place that another is at, and be looked for there after the save.
    return packed_form(_Finder(base, False, by_value)._form(value, (), None), registry_of(base))


def find_changes(bag: TrackedDict, *, values: bool = False, by_value: Container[BlockId] = ()) -> Changes:
    """What changed in a bag. Stored parts that only moved are linked, not read; with `values`, or when they are of
    versions in `by_value`, they are read and given as values."""
    notice_moves(bag._base)
    return _Finder(bag._base, values, by_value).find(bag)


def notice_moves(base: Base) -> None:
    """Mark lists whose items were moved past their methods."""
    alive = []
    for reference in base.lists:
        tracked = reference()
        if tracked is not None and tracked._base is base:
            alive.append(reference)
            if tracked._moved_unseen():
                tracked._mark()
    base.lists = alive


class _Finder:
    def __init__(self, base: Base, values: bool, by_value: Container[BlockId]) -> None:
        self._base = base
        self._values = values
        self._by_value = by_value
        self._registry = registry_of(base)
        self._found = Changes()
        self._above: list[int] = []
        self._noticed: set[int] = {id(base)}

    def find(self, bag: TrackedDict) -> Changes:
        if bag._dirty:
            self._visit(bag, ())
        return self._found

    def _visit(self, container: Tracked, path: Path) -> None:
        """Add the operations that change this container's base, which stands at the path by now."""
        self._enter(container, path)
        self._found.visited.setdefault(id(container), (container, path))
        if isinstance(container, TrackedDict):
            self._visit_dict(container, path)
        elif isinstance(container, TrackedList):
            self._visit_list(container, path)
        self._above.pop()

    def _enter(self, container: Any, path: Path) -> None:
        if id(container) in self._above:
            pointer = format_pointer(path)
            raise Invalid(
                f"cannot store a container that contains itself at {pointer}",
                hint="store a copy, or refer to it by name",
                pointer=pointer,
            )
        self._above.append(id(container))

    def _visit_dict(self, container: TrackedDict, path: Path) -> None:
        for key, original in container._originals.items():
            value = container._peek(key)
            if value is MISSING and original is not MISSING:
                self._found.operations.append(Operation("remove", (*path, key)))
            elif value is not original:
                self._write("put", (*path, key), value, container)
        self._visit_kept(container, container._kept(), path)

    def _visit_kept(self, container: Tracked, kept: list[tuple[Any, Any, Any]], path: Path) -> None:
        for key, watch_key, value in kept:
            self._in_place(container, watch_key, value, (*path, _token(key)))

    def _in_place(self, container: Tracked, key: Any, value: Any, path: Path) -> None:
        """Add what changed in a value that stands where its base stood; `key` is by what it would be watched."""
        if isinstance(value, Tracked) and value._base is container._base:
            if value._dirty:
                self._visit(value, path)
        elif key in container._watched:
            form = packed_form(self._form(value, path, None), self._registry)
            if form != container._watched[key] and form != self._read_again(container, key):
                self._watch(container, key, form)
                self._write("put", path, value, container)
        elif isinstance(value, Tracked):
            # It also stood somewhere else and was taken out there: it does not move on with this bag any more.
            self._write("put", path, value, container)

    def _watch(self, container: Tracked, key: Any, form: bytes) -> None:
        self._found.watched.setdefault(id(container), {})[key] = form

    def _read_again(self, container: Tracked, key: Any) -> bytes | None:
        """The form that a tagged value of the base gets when this program reads and writes it, where that can be told.
        Its class may have fewer fields here than where it was written: to have looked at it is no reason to write it,
        and so to lose them."""
        known = container._watched[key]
        if known is None or container._base.store is None:
            return None
        wire = decode(known)
        if not is_special(wire) or container_kind(wire) is not None:
            return None
        try:
            return packed_form(container._base.values([wire])[0], self._registry)
        except AnalemmaError:
            return None

    def _visit_list(self, container: TrackedList, path: Path) -> None:
        gaps, shell = container._gaps(), container._shell
        changed = sum([gap.old_stop - gap.old_start + gap.new_stop - gap.new_start for gap in gaps])
        if shell is None:
            mostly_new = 3 * changed > len(container)
        else:
            mostly_new = not any(isinstance(run, range) for run in shell.runs)
        if changed > MANY and mostly_new:
            places: Places = []
            self._found.operations.append(Operation("put", path, self._by_items(container, path, places)))
            self._visit_all(places)
            return
        for gap in gaps:
            self._write_gap(container, gap, path)
        self._visit_kept(container, container._kept(gaps), path)

    def _write_gap(self, container: TrackedList, gap: Gap, path: Path) -> None:
        # From left to right: everything before the gap already stands where it will stay.
        removed = gap.old_stop - gap.old_start
        items = container._raw_items(gap.new_start, gap.new_stop)
        for number, item in enumerate(items):
            at = (*path, str(gap.new_start + number))
            self._write("replace" if number < removed else "add", at, item, container)
        for _ in range(removed - len(items)):
            self._found.operations.append(Operation("remove", (*path, str(gap.new_stop))))

    def _write(self, op: Any, path: Path, value: Any, container: Tracked) -> None:
        places: Places = []
        form = self._form(value, path, places, container)
        self._found.operations.append(Operation(op, path, form))
        self._visit_all(places)

    def _visit_all(self, places: Places) -> None:
        for container, path in places:
            self._visit(container, path)

    def _form(self, value: Any, path: Path, places: Places | None, container: Tracked | None = None) -> Any:
        """A value as an operation can have it: plain, with stored parts where tracked containers stand. Those that
        changed are put as they were, and named in `places` for their changes to follow; without it, as they are."""
        if type(value) is NotLoaded:
            assert container is not None
            return self._placeholder_form(container, value, path)
        if never_changes(value):
            return value
        if isinstance(value, Tracked):
            return self._tracked_form(value, path, places)
        cls = type(value)
        if (cls is not dict and cls is not list) or len(path) > MAXIMUM_DEPTH:
            return value
        self._enter(value, path)
        made = self._forms(value, path, places)
        self._above.pop()
        before, after = (value.values(), made.values()) if cls is dict else (value, made)
        return made if self._values or any(map(is_not, before, after)) else value

    def _forms(self, value: Any, path: Path, places: Places | None, container: Tracked | None = None) -> Any:
        """The forms of what the own storage of a dict or list holds, in a plain one."""
        if isinstance(value, dict):
            return {key: self._form(item, (*path, key), places, container) for key, item in dict.items(value)}
        items = enumerate(list.__iter__(value))
        return [self._form(item, (*path, str(place)), places, container) for place, item in items]

    def _placeholder_form(self, container: Tracked, placeholder: NotLoaded, path: Path) -> Any:
        base = container._base
        if self._linkable(container):
            self._hold(base)
            return base.stored(placeholder.wire, container._depth + 1, len(path))
        return base.values([placeholder.wire])[0]

    def _tracked_form(self, value: Tracked, path: Path, places: Places | None) -> Any:
        if id(value._base) not in self._noticed:
            self._noticed.add(id(value._base))
            notice_moves(value._base)
        if self._linkable(value) and (places is not None or not value._dirty):
            stored = value._stored(len(path))
            if stored is not None:
                self._hold(value._base)
                if value._dirty and places is not None:
                    places.append((value, path))
                return stored
        self._enter(value, path)
        made = self._by_items(value, path, places)
        self._above.pop()
        return made

    def _by_items(self, container: Tracked, path: Path, places: Places | None) -> Any:
        """A container as a value, its parts stored ones where possible."""
        self._found.visited.setdefault(id(container), (container, path))
        if self._values:
            container.load()
        container._load_shallow()
        made = self._forms(container, path, places, container)
        if not self._values and container._base is self._base:
            # What is watched in it is written with it, changed or not. Without its new form it would be compared with
            # what an older version had, and going back to that would be no change.
            for _, key, value in container._kept():
                if key in container._watched:
                    self._watch(container, key, form_of(value, self._base, self._by_value))
        return made

    def _linkable(self, container: Tracked) -> bool:
        """Whether a tree in the bag's store can link to what the container had in its own."""
        own, store = self._base.store, container._base.store
        if self._values or own is None or store is None or container._base.manifest in self._by_value:
            return False
        return own.domain == store.domain

    def _hold(self, base: Base) -> None:
        assert base.manifest is not None
        self._found.bases[base.manifest] = None


def _token(key: Any) -> Any:
    """A place in a list, or a field as it is: str() of an enum's member is its name, and dicts go by what it equals."""
    return str(key) if type(key) is int else key


def forget_places(base: Base) -> None:
    """Look up, while their version is there for certain, what is known of shells only by place. Called before a bag's
    base moves on: then only what changed since stands at another place."""
    placed, base.placed = base.placed, []
    for reference in placed:
        container = reference()
        if container is None or container._base is not base or not isinstance(container._wire, Place):
            continue
        if container._dirty:
            base.placed.append(reference)
        elif container._shell is None:
            container._wire = None
        else:
            container._known_wire()
