"""What tracked dicts and lists share: the version that they come from, what stands in them for something that was not
read yet, who contains them, and that something in them changed.

Compiled code (orjson, pydantic) reads the storage of dicts and lists directly, past their methods. What was not read is
therefore never absent there: a `NotLoaded` stands for it, which nothing can serialise, compare or print."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import wraps
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from analemma.canon.nodes import BlockId, StandIn, Stored, Wire, encode, is_special, sort_key, wire_link
from analemma.canon.pointer import MAXIMUM_DEPTH, Path
from analemma.canon.read import Content, container_kind
from analemma.canon.trees import Trees
from analemma.errors import Corrupt, Invalid

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BagStore:
    """One tenant's part of a store, as bags see it."""

    domain: object
    """Equal for two bags exactly when one's blocks can be linked by the other."""
    trees: Trees
    guard: Callable[[BlockId, Callable[[], Any]], Any]
    """Reads something of a version, and says Expired when the version went meanwhile."""


class Place(NamedTuple):
    """Where something stands in the tree of the base's version; looked up when its stored form is wanted."""

    root: BlockId
    path: Path


class Base:
    """A version that containers stand in. Those of a bag share one, which moves on when the bag is saved; what was
    taken out of a bag keeps the version it was last saved in."""

    __slots__ = ("lists", "manifest", "placed", "root", "store")

    def __init__(self, store: BagStore | None = None, manifest: BlockId | None = None, root: BlockId | None = None):
        self.store = store
        self.manifest = manifest
        self.root = root
        self.lists: list[weakref.ref[Any]] = []
        """Lists whose items are in their own storage, where compiled code (heapq) may move them unseen."""
        self.placed: list[weakref.ref[Any]] = []
        """Containers whose stored form is known only as a place in this version."""

    def read(self, read: Callable[[Trees], T]) -> T:
        """Read something of the version."""
        assert self.store is not None and self.manifest is not None
        trees = self.store.trees
        found: T = self.store.guard(self.manifest, lambda: read(trees))
        return found

    def values(self, wires: Sequence[Wire]) -> list[Any]:
        """The values of these wires, with everything below them."""
        return self.read(lambda trees: trees.values(wires))

    def stored(self, wire: Wire, depth: int, at: int) -> Stored:
        """Something of the version that stands in so many containers, at least, to be put as it is into so many. Only
        what moves deeper is read: a link does not say how deep its target is."""
        if at <= depth:
            return Stored(wire, MAXIMUM_DEPTH - depth)
        return Stored(wire, self.read(lambda trees: trees.open().nesting(wire)))


SCALARS = frozenset({str, int, float, bool, type(None)})
"""Stored as they are."""
_UNCHANGING = SCALARS | {bytes, dt.datetime, dt.date, dt.time, dt.timedelta, Decimal, uuid.UUID}


class NotLoaded:
    """A part of a bag that was not read yet. Methods of the bag never show one: they put the value in its place."""

    __slots__ = ("place", "wire")

    def __init__(self, wire: Wire = None, place: int = 0) -> None:
        self.wire = wire
        self.place = place
        """In a list: which item of its base this is."""

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a part of a bag is not loaded: read it through the bag's methods, or call load() first")

    __repr__ = __str__ = __bool__ = __iter__ = __len__ = __reduce_ex__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __copy__ = __deepcopy__ = _refuse
    __hash__ = object.__hash__


def shallow(wire: Wire, place: int = 0) -> Any:
    """The value of a wire when that is a scalar; a placeholder for everything else."""
    cls = type(wire)
    if cls in SCALARS:
        return wire
    if cls is bytes:
        if wire[:1] != b"\0":
            raise Corrupt("a block holds bytes without their marker")
        return wire[1:]
    return NotLoaded(wire, place)


def never_changes(value: Any) -> bool:
    """Whether a value stays what it is, so that it need not be looked at again."""
    cls = type(value)
    if cls in _UNCHANGING:
        return True
    if cls is tuple or cls is frozenset:
        return all(map(never_changes, value))
    return isinstance(value, enum.Enum)


def stored_at(container: Any, key: Any) -> Any:
    """What stands in the own storage of a list or dict."""
    return list.__getitem__(container, key) if isinstance(container, list) else dict.__getitem__(container, key)


def _references(container: Any, key: Any) -> int:
    return getrefcount(stored_at(container, key))


_ALONE = _references([[]], 0)
"""What is counted, in the same way, for a value that only its container holds."""


def held_elsewhere(container: Any, key: Any) -> bool:
    """Whether anybody but this list or dict may hold what stands there: then it can change unseen."""
    return _references(container, key) > _ALONE


SLOTS = (
    "__weakref__",
    "_base",
    "_depth",
    "_dirty",
    "_parents",
    "_shell",
    "_touched",
    "_watched",
    "_wire",
)


class Tracked(StandIn):
    """A container that notices its own changes.

    It is *dirty* when it, or something in it, may differ from its base; then all containers it is known to stand in are
    dirty too, so that looking for changes from the root can pass over everything else. What is in it but cannot tell of
    its changes (a set, the user's own list) is *watched*: compared with what the base has, every time."""

    if not TYPE_CHECKING:
        # Those of SLOTS are in the subclasses: only one base of a class may have any, and dict and list count as such.
        __slots__ = ()

    _base: Base
    _wire: Wire | Place | None
    """The stored form in the base; None when only the values themselves tell."""
    _depth: int
    """How many containers it stood in, at least: what is below it can be stored that deep."""
    _shell: Any
    """The changes to a container whose own storage holds nothing yet; None once it is loaded."""
    _dirty: bool
    _touched: dict[Any, Tracked]
    """Contained ones that are dirty: in a dict by key, in a list by id."""
    _watched: dict[Any, bytes | None]
    """The stored form of what is watched, by key or position in the base; None: whatever it is, it is written."""
    _parents: list[tuple[weakref.ref[Any], Any]]

    def _start(self, base: Base, wire: Wire | Place | None, depth: int) -> None:
        self._base = base
        self._wire = wire
        self._depth = depth
        self._shell = None
        self._dirty = False
        self._touched = {}
        self._watched = {}
        self._parents = []

    def _mark(self) -> None:
        """Say that something here changed, or may from now on change unseen."""
        if not self._dirty:
            self._dirty = True
            for reference, key in self._parents:
                parent = reference()
                if parent is not None:
                    parent._touched[key] = self
                    parent._mark()

    def _known_wire(self) -> Wire | None:
        """The stored form in the base, looked up if need be; None if there is none."""
        wire = self._wire
        if isinstance(wire, Place):
            root, path = wire
            found = self._base.read(lambda trees: trees.open().wires([(root, path)])[0])
            if container_kind(found) != ("map" if isinstance(self, dict) else "list"):
                raise Corrupt(f"the tree {root.hex()} does not have what was saved in it", block=root.hex())
            self._wire = wire = found
        return wire

    def _stored(self, depth: int) -> Stored | None:
        """The base's content, to be put at another place as it is; None when it has no stored form of its own."""
        wire = self._known_wire()
        return None if wire is None else self._base.stored(wire, self._depth, depth)

    if TYPE_CHECKING:
        # What dicts and lists do each in a way of its own.

        @classmethod
        def _made(cls, base: Base, wire: Any, depth: int) -> Any:
            """One with nothing in it yet."""

        def _become_shell(self, length: int) -> None:
            """Have nothing in the own storage but what nothing gets by unseen."""

        def _fill(self, content: Content) -> None:
            """Take the base's content into the own storage, with the changes that were made before."""

        def _at_hand(self) -> Iterable[tuple[Any, Any]]:
            """What is at hand of the values that stand here now: of one that is loaded all, by key or index."""

        def _base_children(self) -> Iterable[Any]:
            """What is at hand of the values that stand here in the base."""

        def _put_loaded(self, key: Any, placeholder: NotLoaded, value: Any) -> None:
            """Put a value in its placeholder's place."""

        def _kept(self) -> list[tuple[Any, Any, Any]]:
            """What stands here as it does in the base, and is watched or changed in itself: where it stands now, by
            what it is watched, and the value."""

        def _places_of(self, child: Tracked, key: Any) -> list[Any]:
            """Where in the base this child stands, which was once attached by the key: what it would be watched by."""

        def _restore(self) -> None:
            """Have again what the base has, as it is by now."""

        def _unload(self, key: Any, wire: Wire) -> None:
            """Forget a value of the base that was read: it is read again when it is asked for."""

    @classmethod
    def _open(cls, base: Base, wire: Wire, depth: int) -> Any:
        """The container that stands in a version as this wire."""
        made = cls._made(base, wire, depth)
        link = wire_link(wire)
        if link is not None:
            made._become_shell(link.count)
            return made
        if type(wire) is dict:
            # In the order of stored maps: a wire that was made a moment ago has the order in which it was made.
            wire = {"": wire[""][1]} if is_special(wire) else {key: wire[key] for key in sorted(wire, key=sort_key)}
        made._fill(wire)
        return made

    def _arrived(self, key: Any, wire: Wire, value: Any, watched_as: Any) -> None:
        """A value of the base has been read: see to it that its changes are noticed."""
        if isinstance(value, Tracked):
            value._parents.append((weakref.ref(self), key))
        elif not never_changes(value):
            self._watched[watched_as] = encode(wire)
            self._mark()

    def _load_shallow(self) -> None:
        """Bring the own storage up to date, with placeholders for what is inside."""
        if self._shell is not None:
            _fill_shells([self])

    def _resolve_all(self) -> None:
        """Put values in the place of all placeholders of the own storage."""
        _load_level([self])

    def _resolve_and_mark(self) -> None:
        """The same before all of it is changed."""
        _load_level([self])
        self._mark()

    def _is_shell(self) -> bool:
        """Whether it stays a shell although it is read from: what is small is read as a whole."""
        shell = self._shell
        if shell is not None and shell.small is None:
            wire = self._known_wire()
            shell.small = self._base.read(lambda trees: trees.open().is_small(wire))
            if shell.small:
                self._load_shallow()
        return self._shell is not None

    def load(self) -> Any:
        """Read everything below into memory, in few batched reads; gives itself back.

        Code that reads the storage of dicts and lists directly (orjson, pydantic) needs that first."""
        load_whole([self])
        return self

    def to_plain(self) -> Any:
        """A copy of plain dicts and lists, detached from the store."""
        load_whole([self])
        return plain_copy(self, [])

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __repr__(self) -> str:
        self.load()
        return super().__repr__()


def resolve(waiting: Sequence[tuple[Tracked, Any, NotLoaded]]) -> list[Any]:
    """Put values in the place of these placeholders, whose containers have one base: containers as tracked ones that
    read on when asked, everything else read now."""
    if not waiting:
        return []
    base = waiting[0][0]._base
    values: list[Any] = []
    rest: list[int] = []
    for number, (container, _, placeholder) in enumerate(waiting):
        kind = container_kind(placeholder.wire)
        if kind is None:
            rest.append(number)
            values.append(None)
        else:
            values.append(MAKERS[kind](base, placeholder.wire, container._depth + 1))
    if rest:
        for number, value in zip(rest, base.values([waiting[number][2].wire for number in rest]), strict=True):
            values[number] = value
    for (container, key, placeholder), value in zip(waiting, values, strict=True):
        container._put_loaded(key, placeholder, value)
    return values


MAKERS: dict[str, Any] = {}
"""What makes the container of a wire: the modules of dicts and lists, which need each other, put theirs here."""


def load_whole(containers: Iterable[Tracked]) -> None:
    """Read everything below these containers, all of one level together."""
    seen: set[int] = set()
    level: list[Any] = list(containers)
    while level:
        tracked: list[Tracked] = []
        following: list[Any] = []
        for item in level:
            if id(item) in seen:
                continue
            seen.add(id(item))
            if isinstance(item, Tracked):
                tracked.append(item)
            elif type(item) is dict:
                following += item.values()
            elif type(item) in (list, tuple):
                following += item
        _load_level(tracked)
        for container in tracked:
            following += [value for _, value in container._at_hand()]
        level = [item for item in following if isinstance(item, Tracked | dict | list | tuple)]


def _load_level(containers: Sequence[Tracked]) -> None:
    """Read these containers, without what is inside of those that they contain."""
    for base in {id(container._base): container._base for container in containers}.values():
        own = [container for container in containers if container._base is base]
        _fill_shells([container for container in own if container._shell is not None])
        resolve(
            [
                (container, key, value)
                for container in own
                for key, value in container._at_hand()
                if type(value) is NotLoaded
            ]
        )


def _fill_shells(containers: Sequence[Tracked]) -> None:
    """Bring the own storage of containers with one base up to date."""
    if containers:
        wires = [container._known_wire() for container in containers]
        contents = containers[0]._base.read(lambda trees: trees.open().contents(wires))
        for container, content in zip(containers, contents, strict=True):
            container._fill(content)


def after(prepare: Callable[[Any], object], method: Callable[..., Any]) -> Any:
    """What a dict or list does, once its own storage is prepared for it."""

    @wraps(method)
    def call(self: Any, /, *arguments: Any, **options: Any) -> Any:
        prepare(self)
        return method(self, *arguments, **options)

    return call


def plain_copy(value: Any, above: list[int]) -> Any:
    """A deep copy of dicts, lists and tuples as plain ones; everything else is shared."""
    cls = type(value)
    if not (isinstance(value, Tracked) or cls is dict or cls is list or cls is tuple):
        return value
    if id(value) in above:
        raise Invalid("a container contains itself", hint="store a copy, or refer to it by name", pointer="")
    above.append(id(value))
    if isinstance(value, Tracked):
        value._resolve_all()
    if isinstance(value, dict):
        copy: Any = {key: plain_copy(item, above) for key, item in dict.items(value)}
    else:
        iterate = list.__iter__ if isinstance(value, list) else tuple.__iter__
        copy = [plain_copy(item, above) for item in iterate(value)]
        if cls is tuple:
            copy = tuple(copy)
    above.pop()
    return copy
