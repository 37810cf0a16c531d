"""A list that notices its changes, and reads its items from the store when they are asked for.

A large list is a *shell* at first: kept runs of the base's items and runs of new ones, so that appending to it, or
changing a few items, reads nothing else. Once its items are read they stand in the list's own storage, and `_shadow`
has what the base has. What changed is then found by comparing the two, object by object: whatever moved items about,
methods or compiled code such as heapq, is seen."""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, count
from operator import index as as_index
from operator import is_not
from typing import TYPE_CHECKING, Any, SupportsIndex

from analemma.bag.tracked import MAKERS, SLOTS, Base, NotLoaded, Tracked, after, load_whole, resolve, shallow
from analemma.canon.diff import Gap, Runs, align
from analemma.canon.nodes import Wire
from analemma.canon.read import Content


def shell_gaps(runs: Runs, length: int) -> list[Gap]:
    """Of a list that is known as runs of the items it had, of which there were so many, and of new ones."""
    gaps: list[Gap] = []
    old = new = fresh = 0
    for run in [*runs, range(length, length)]:
        if isinstance(run, list):
            fresh += len(run)
            continue
        if run.start > old or fresh:
            gaps.append(Gap(old, run.start, new, new + fresh))
        new += fresh + len(run)
        old, fresh = run.stop, 0
    return gaps


def loaded_gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Of items that are all at hand. The same is what is the same object: equal ones may differ in type."""
    shorter = min(len(old), len(new))
    start = next(compress(count(), map(is_not, old, new)), shorter)
    if start == len(old) == len(new):
        return []
    most = shorter - start
    end = min(most, next(compress(count(), map(is_not, reversed(old), reversed(new))), most))
    middle = align(
        list(map(id, old[start : len(old) - end])),
        list(map(id, new[start : len(new) - end])),
    )
    return [Gap(*[place + start for place in gap]) for gap in middle]


def new_place(gaps: Sequence[Gap], place: int) -> int | None:
    """Where an item stands that stood at this place; None if it was not kept."""
    before = bisect_right(gaps, place, key=lambda gap: gap.old_stop)
    if before < len(gaps) and place >= gaps[before].old_start:
        return None
    return place + (gaps[before - 1].new_stop - gaps[before - 1].old_stop if before else 0)


FEW = 256
"""A slice of a shell up to this long is worked on item by item; for a longer one the list is read."""

_item = list.__getitem__
_set_item = list.__setitem__


class ListShell:
    """What is known of a list of which nothing was read but what was asked for."""

    __slots__ = ("length", "overlay", "runs", "small")

    def __init__(self, length: int) -> None:
        self.length = length
        """Items of the base."""
        self.runs = Runs(range(length))
        self.overlay: dict[int, Any] = {}
        """Items of the base that were handed out, by their positions in it: the next who asks gets the same."""
        self.small: bool | None = None


def _compared(method: Callable[[Any, Any], Any]) -> Any:
    def compare(self: TrackedList, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        load_whole([each for each in (self, other) if isinstance(each, Tracked)])
        return method(self, other)

    return compare


_equal = _compared(list.__eq__)


class TrackedList(Tracked, list[Any]):
    """A list of a bag. It behaves as a list does, wherever its items are; `load()` makes sure that they are here."""

    __slots__ = ("_shadow", *SLOTS)

    _shell: ListShell | None
    _shadow: list[Any]

    def __new__(cls, *args: Any) -> Any:
        # Code that makes another of the same type (`type(x)(...)`) wants a list: only a bag makes tracked ones.
        return list(*args)

    @classmethod
    def _made(cls, base: Base, wire: Any, depth: int) -> TrackedList:
        made: TrackedList = list.__new__(cls)
        made._start(base, wire, depth)
        made._shadow = []
        return made

    def _become_shell(self, length: int) -> None:
        list.clear(self)
        # Three, so that no function of heapq gets by without comparing two of them, which raises.
        list.extend(self, (NotLoaded(), NotLoaded(), NotLoaded()))
        self._shadow = []
        self._shell = ListShell(length)

    # Reading.

    def _few(self, places: range) -> bool:
        """Whether these items can be worked on without reading the others."""
        if self._shell is not None and len(places) > FEW:
            self._load_shallow()
        return self._is_shell()

    def _shell_items(self, shell: ListShell, places: range) -> list[Any]:
        stand = [shell.runs.get(place) for place in places]
        bases = dict.fromkeys([run[offset] for run, offset in stand if isinstance(run, range)])
        found = {base: shell.overlay[base] for base in bases if base in shell.overlay}
        unread = [base for base in bases if base not in found]
        if unread:
            wire = self._known_wire()
            parts = self._base.read(lambda trees: trees.open().items(wire, unread))
            read = {base: shallow(part, base) for base, part in zip(unread, parts, strict=True)}
            opened = [base for base, item in read.items() if type(item) is NotLoaded]
            values = resolve([(self, None, read[base]) for base in opened])
            found |= read | dict(zip(opened, values, strict=True))
        return [run[offset] if isinstance(run, list) else found[run[offset]] for run, offset in stand]

    def __getitem__(self, index: Any) -> Any:
        if self._shell is not None and self._few(places := self._range(index)):
            items = self._shell_items(self._shell, places)
            return items if isinstance(index, slice) else items[0]
        item = _item(self, index)
        if isinstance(index, slice):
            if NotLoaded not in set(map(type, item)):
                return item
            stand = zip(range(*index.indices(list.__len__(self))), item, strict=True)
            resolve([(self, place, each) for place, each in stand if type(each) is NotLoaded])
            return _item(self, index)
        if type(item) is NotLoaded:
            return resolve([(self, as_index(index) % list.__len__(self), item)])[0]
        return item

    def _range(self, index: Any, doing: str = "") -> range:
        """The places that an index or slice stands for."""
        if isinstance(index, slice):
            return range(*index.indices(len(self)))
        place = self._place(index, f"list {doing}index out of range")
        return range(place, place + 1)

    def _place(self, index: Any, message: str) -> int:
        place, length = as_index(index), len(self)
        place += length if place < 0 else 0
        if not 0 <= place < length:
            raise IndexError(message)
        return place

    def __len__(self) -> int:
        return self._shell.runs.length if self._shell is not None else list.__len__(self)

    if not TYPE_CHECKING:
        __iter__ = after(Tracked._resolve_all, list.__iter__)
        __reversed__ = after(Tracked._resolve_all, list.__reversed__)
        __contains__ = after(Tracked._resolve_all, list.__contains__)
        index = after(Tracked._resolve_all, list.index)
        count = after(Tracked._resolve_all, list.count)
        __lt__ = _compared(list.__lt__)
        __le__ = _compared(list.__le__)
        __gt__ = _compared(list.__gt__)
        __ge__ = _compared(list.__ge__)

    def to_list(self) -> list[Any]:
        """A copy of plain dicts and lists, detached from the store."""
        return self.to_plain()  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list) and (self is other or len(self) != len(other)):
            return self is other
        return _equal(self, other)  # type: ignore[no-any-return]

    __hash__ = None

    def __add__(self, other: Any) -> Any:
        return list(self) + (list(other) if isinstance(other, TrackedList) else other)

    def __radd__(self, other: Any) -> Any:
        return other + list(self) if isinstance(other, list) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return list(self) * times

    __rmul__ = __mul__

    def copy(self) -> list[Any]:
        """A plain list with the same items."""
        return list(self)

    __copy__ = copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As a plain list that is filled afterwards, so that what is contained twice, or in itself, comes back so.
        self.load()
        return list, (), None, iter(list(list.__iter__(self)))

    # Changing.

    def __init__(self, items: Iterable[Any] = (), /) -> None:
        self[:] = items

    def append(self, item: Any, /) -> None:
        self._mark()
        if self._shell is not None:
            self._shell.runs.splice(self._shell.runs.length, 0, [item])
        else:
            list.append(self, item)

    def extend(self, items: Iterable[Any], /) -> None:
        # Through a list first: the items may be this list itself, with placeholders in its storage.
        for item in list(items):
            self.append(item)

    def __iadd__(self, items: Iterable[Any]) -> Any:  # type: ignore[misc]
        self.extend(items)
        return self

    if not TYPE_CHECKING:
        __imul__ = after(Tracked._resolve_and_mark, list.__imul__)
        remove = after(Tracked._resolve_and_mark, list.remove)
        sort = after(Tracked._resolve_and_mark, list.sort)

    def insert(self, index: SupportsIndex, item: Any, /) -> None:
        self._mark()
        if self._shell is None:
            list.insert(self, index, item)
        else:
            place = slice(as_index(index), None).indices(self._shell.runs.length)[0]
            self._shell.runs.splice(place, 0, [item])

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            self._set_slice(index, list(value))
            return
        if self._shell is not None and self._few(places := self._range(index, "assignment ")):
            run, offset = self._shell.runs.get(places[0])
            if not isinstance(run, range) or self._shell.overlay.get(run[offset], self) is not value:
                self._mark()
                self._shell.runs.splice(places[0], 1, [value])
            return
        _set_item(self, index, value)
        self._mark()

    def _set_slice(self, index: slice, values: list[Any]) -> None:
        places = self._range(index)
        if self._shell is not None and places.step == 1 and self._few(places):
            del self[index]
            self._shell.runs.splice(places.start, 0, values)
            return
        self._load_shallow()
        _set_item(self, index, values)
        self._mark()

    def __delitem__(self, index: Any) -> None:
        if self._shell is not None and self._few(places := self._range(index, "assignment ")):
            self._mark()
            for place in sorted(places, reverse=True):
                self._shell.runs.splice(place, 1, ())
            return
        list.__delitem__(self, index)
        self._mark()

    def pop(self, index: SupportsIndex = -1, /) -> Any:
        if not len(self):
            raise IndexError("pop from empty list")
        place = self._place(index, "pop index out of range")
        item = self[place]
        del self[place]
        return item

    def reverse(self) -> None:
        self._load_shallow()
        list.reverse(self)
        self._mark()

    def clear(self) -> None:
        self._mark()
        if self._shell is not None:
            self._shell.runs = Runs()
        else:
            list.clear(self)

    # What tracking asks.

    def _fill(self, content: Content) -> None:
        assert isinstance(content, list)
        shell, self._shell = self._shell, None
        overlay = {} if shell is None else shell.overlay
        self._shadow = [
            overlay[place] if place in overlay else shallow(wire, place) for place, wire in enumerate(content)
        ]
        list.clear(self)
        if shell is None:
            list.extend(self, self._shadow)
        else:
            for run in shell.runs:
                list.extend(self, self._shadow[run.start : run.stop] if isinstance(run, range) else run)
        self._base.lists.append(weakref.ref(self))

    def _put_loaded(self, key: Any, placeholder: NotLoaded, value: Any) -> None:
        place = placeholder.place
        if self._shell is not None:
            self._shell.overlay[place] = value
        else:
            _set_item(self, key, value)
            self._shadow[place] = value
        self._arrived(id(value), placeholder.wire, value, place)

    def _at_hand(self) -> Iterable[tuple[Any, Any]]:
        if self._shell is None:
            return enumerate(list(list.__iter__(self)))
        fresh = [(None, item) for run in self._shell.runs if isinstance(run, list) for item in run]
        return [*self._shell.overlay.items(), *fresh]

    def _in_base(self) -> Iterable[tuple[int, Any]]:
        """What is at hand of the base's items, by their places in it."""
        return enumerate(self._shadow) if self._shell is None else self._shell.overlay.items()

    def _base_children(self) -> Iterable[Any]:
        return [item for _, item in self._in_base()]

    def _places_of(self, child: Tracked, key: Any) -> list[Any]:
        return [place for place, item in self._in_base() if item is child]

    def _restore(self) -> None:
        if self._shell is not None:
            kept = self._shell.overlay
            self._shell = ListShell(self._shell.length)
            self._shell.overlay = kept
        else:
            _set_item(self, slice(None), self._shadow)

    def _unload(self, key: Any, wire: Wire) -> None:
        if self._shell is not None:
            self._shell.overlay.pop(key, None)
        else:
            placeholder = NotLoaded(wire, key)
            _set_item(self, key, placeholder)
            self._shadow[key] = placeholder

    # What changed.

    def _moved_unseen(self) -> bool:
        """Whether the own storage differs from the base although nothing was noticed."""
        return (
            self._shell is None
            and not self._dirty
            and (list.__len__(self) != len(self._shadow) or any(map(is_not, list.__iter__(self), self._shadow)))
        )

    def _gaps(self) -> list[Gap]:
        """Where the items differ from the base's, left to right; what lies between was kept."""
        if self._shell is None:
            return loaded_gaps(self._shadow, list(list.__iter__(self)))
        return shell_gaps(self._shell.runs, self._shell.length)

    def _raw_items(self, start: int, stop: int) -> list[Any]:
        """Items as they are, perhaps placeholders; of a shell, only new ones."""
        if self._shell is None:
            return _item(self, slice(start, stop))
        return [run[offset] for run, offset in map(self._shell.runs.get, range(start, stop))]

    def _kept(self, gaps: Sequence[Gap] | None = None) -> list[tuple[Any, Any, Any]]:
        touched, watched = self._touched, self._watched
        if not touched and not watched:
            return []
        gaps = self._gaps() if gaps is None else gaps
        kept = [(place, item) for place, item in self._in_base() if id(item) in touched or place in watched]
        return [(new, place, item) for place, item in kept if (new := new_place(gaps, place)) is not None]


MAKERS["list"] = TrackedList._open
