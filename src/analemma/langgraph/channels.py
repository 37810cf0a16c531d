"""A channel's value as bytes in pieces: what the serializer made of it, cut where its items end.

If a value serializes to a msgpack array or map, its items are found again inside those bytes: the header and all
pieces, joined, are exactly what the serializer wrote, byte for byte, or the value stays in one piece. So versions share
the items that did not change, whatever the items are, and reading asks nothing of a serializer but to read what it
wrote.

What changed is found by comparing bytes with bytes of the version before. Comparing objects would not do: users change
them in place. A value that was in pieces before is serialized group by group, where the serializer is known to write a
list as its items one after the other: a group stays in the processor's cache, and megabytes do not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

from analemma.canon.pointer import Path
from analemma.canon.trees import Operation
from analemma.errors import Corrupt

Dumps = Callable[[Any], tuple[str, bytes]]
"""A serializer's `dumps_typed`: the name of the format, and the bytes."""

Shape = Literal["whole", "array", "map"]

MSGPACK = "msgpack"
SMALLEST_CUT_BYTES = 8192
"""A value of up to so many bytes is one block anyway, which every change would write anew."""
PIECES = "2"
"""Where the pieces stand in a channel's list: behind the serializer's format and the shape."""
GROUP = 64
"""Pieces to a chunk: of messages, about what fits the cache of a processor's core."""
LARGEST_SPLICE = 256
"""More items than this are not changed one by one: the list is written anew, and shares what it can."""

_HEADS: dict[int, tuple[Shape, int]] = {0xDC: ("array", 2), 0xDD: ("array", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}
"""First bytes of long arrays and maps, and how many bytes of the count follow."""
_TYPES: dict[Shape, tuple[type, ...]] = {"array": (list, tuple), "map": (dict,)}
"""What is serialized to them."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One serialized value. `chunks` is all of it, or of one in pieces what stands behind the header, `GROUP` pieces to
    a chunk; `marks` say where each piece begins, counted from there, and where the last one ends."""

    kind: str
    shape: Shape
    chunks: tuple[bytes, ...]
    marks: Sequence[int] = (0,)

    @property
    def count(self) -> int:
        """How many pieces there are; none of a whole value."""
        return len(self.marks) - 1

    @property
    def data(self) -> bytes:
        """What the serializer wrote."""
        return self.chunks[0] if self.shape == "whole" else b"".join((_head(self.shape, self.count), *self.chunks))

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep."""
        return sum(map(len, self.chunks)) + 40 * self.count + 200

    def pieces(self, first: int = 0, last: int | None = None) -> list[bytes]:
        """Its pieces, or some of them."""
        chunks, marks = self.chunks, self.marks
        found: list[bytes] = []
        for place in range(self.count)[first:last]:
            group = place // GROUP
            base = marks[group * GROUP]
            found.append(chunks[group][marks[place] - base : marks[place + 1] - base])
        return found


NOTHING = Channel("", "whole", ())
"""What is known of a value that no version before has."""


class Cut(NamedTuple):
    """A value in pieces, and how many at its beginning and at its end are those of the version before."""

    channel: Channel
    first: int = 0
    last: int = 0

    def operations(self, path: Path, before: Channel | None) -> list[Operation]:
        """What makes this of the version before, which stands at a path: a few other pieces, or all of it."""
        after = self.channel
        if after is before:
            return []
        if before is not None and (before.kind, before.shape) == (after.kind, after.shape) and after.shape != "whole":
            stop, until = before.count - self.last, after.count - self.last
            if (stop - self.first) + (until - self.first) <= LARGEST_SPLICE:
                gone = [Operation("remove", (*path, PIECES, str(self.first)))] * (stop - self.first)
                pieces = enumerate(after.pieces(self.first, until), self.first)
                return [*gone, *(Operation("add", (*path, PIECES, str(place)), piece) for place, piece in pieces)]
        return [Operation("put", path, slot(after))]


def slot(channel: Channel) -> list[Any]:
    """A channel, as it stands in the state."""
    if channel.shape == "whole":
        return [channel.kind, *channel.chunks]
    return [channel.kind, channel.shape, channel.pieces()]


def to_channel(found: list[Any]) -> Channel:
    """The other way round."""
    if len(found) == 2:
        return Channel(found[0], "whole", (found[1],))
    kind, shape, pieces = found
    if shape not in ("array", "map"):
        raise Corrupt(f"a checkpoint holds a channel of unknown shape {shape!r}")
    chunks = tuple([b"".join(pieces[start : start + GROUP]) for start in range(0, len(pieces), GROUP)])
    return Channel(kind, shape, chunks, list(accumulate(map(len, pieces), initial=0)))


def cut(value: Any, dumps: Dumps, before: Channel | None = None, *, by_items: bool = False) -> Cut:
    """Serialize a value and find its pieces, taking over those of the version before as far as the bytes are the same.
    `by_items`: the serializer is known to write a list or a dict as its items, one after the other."""
    past = NOTHING if before is None else before
    items: Sequence[Any] = list(value.items()) if isinstance(value, dict) else value
    same = _equal_groups(value, items, dumps, past) if by_items else 0
    kind, written = dumps(_part(items, past.shape, same) if same else value)
    data = bytes(written)
    shape, count, start = _read_head(data) if kind == MSGPACK and data else ("whole", 0, 0)
    # The value itself has to have the items that its bytes have.
    if shape != "whole" and isinstance(value, _TYPES[shape]) and len(items) == same + count:
        made = _cut_items(items, same, dumps, shape, data[start:], past if past.shape == shape else NOTHING)
        if made is not None:
            return made
    if same:
        return cut(value, dumps, before)
    whole = Channel(kind, "whole", (data,))
    return Cut(past if past == whole else whole)


def _equal_groups(value: Any, items: Sequence[Any], dumps: Dumps, past: Channel) -> int:
    """How many items stand in groups that are full and equal, before the first that is not."""
    # Exactly these: of a class that is derived from them, a serializer may make something else.
    if past.shape == "whole" or type(value) not in _TYPES[past.shape]:
        return 0
    size, same = len(_head(past.shape, GROUP)), 0
    for chunk in past.chunks[: min(len(items), past.count) // GROUP]:
        kind, data = dumps(_part(items, past.shape, same, same + GROUP))
        if kind != MSGPACK or len(data) != size + len(chunk) or not data.endswith(chunk):
            break
        same += GROUP
    return same


def _part(items: Sequence[Any], shape: Shape, first: int, last: int | None = None) -> Any:
    """Some items of a list or a dict as one of their own."""
    return dict(items[first:last]) if shape == "map" else items[first:last]


def _cut_items(items: Sequence[Any], same: int, dumps: Dumps, shape: Shape, body: bytes, past: Channel) -> Cut | None:
    """The items of a value, of which so many are those of the version before, in pieces: `body` is the bytes of the
    others. None if these are too few, or not those of the items."""
    base, count = past.marks[same], len(items) - same
    if len(_head(shape, len(items))) + base + len(body) <= SMALLEST_CUT_BYTES:
        return None
    known, chunks = [mark - base for mark in past.marks[same:]], past.chunks[same // GROUP :]
    first, shared = _shared(body, count, known, b"".join(chunks))
    # Read from its end, msgpack is ambiguous: what was an item before may be the end of a longer one now.
    for last in dict.fromkeys((shared, 0)):
        opening, closing = known[first], len(body) - (known[-1] - known[-1 - last])
        middle = _serialize_each(items, dumps, shape, same + first, len(items) - last)
        # The proof that the pieces are what was written: not assumed of any serializer, but looked at each time.
        if middle is not None and body[opening:closing] == b"".join(middle):
            break
    else:
        return None
    if first == len(known) - 1 == count:
        return Cut(past, same + first)
    marks = [*known[:first], *accumulate(map(len, middle), initial=opening)]
    marks += [mark + len(body) - known[-1] for mark in known[len(known) - last :]]
    groups = [body[begin:end] for begin, end in pairwise([*marks[:-1:GROUP], marks[-1]])]
    marks = [*past.marks[:same], *[base + mark for mark in marks]]
    return Cut(Channel(MSGPACK, shape, (*past.chunks[: same // GROUP], *groups), marks), same + first, last)


def _head(shape: Shape, count: int) -> bytes:
    """What stands before the pieces: msgpack's header, in the fewest bytes."""
    short, long = (0x90, 0xDC) if shape == "array" else (0x80, 0xDE)
    if count < 16:
        return bytes((short | count,))
    if count < 1 << 16:
        return bytes((long,)) + count.to_bytes(2, "big")
    return bytes((long + 1,)) + count.to_bytes(4, "big")


def _read_head(data: bytes) -> tuple[Shape, int, int]:
    """Shape, number of pieces, and where the first begins. A header that is longer than it need be counts as none."""
    first = data[0]
    if first & 0xF0 == 0x90:
        return "array", first & 0x0F, 1
    if first & 0xF0 == 0x80:
        return "map", first & 0x0F, 1
    shape, width = _HEADS.get(first, ("whole", 0))
    count = int.from_bytes(data[1 : 1 + width], "big")
    if shape == "whole" or _head(shape, count) != data[: 1 + width]:
        return "whole", 0, 0
    return shape, count, 1 + width


def _serialize_each(items: Sequence[Any], dumps: Dumps, shape: Shape, first: int, stop: int) -> list[bytes] | None:
    """Some items, each serialized by itself; None if that does not give what it should."""
    (head,) = _head(shape, 1)
    found: list[bytes] = []
    for place in range(first, stop):
        kind, data = dumps(_part(items, shape, place, place + 1))
        if kind != MSGPACK or data[0] != head:
            return None
        found.append(bytes(data[1:]))
    return found


def _shared(body: bytes, count: int, marks: Sequence[int], old: bytes) -> tuple[int, int]:
    """How many pieces at the beginning and at the end are those of the version before. Compares memory, in halves."""
    view, known = memoryview(old), len(marks) - 1
    most = min(count, bisect_right(marks, len(body)) - 1)
    if most == known and body.startswith(old):
        return most, 0
    first = _most(most, lambda low, high: body.startswith(view[marks[low] : marks[high]], marks[low]))
    room = len(body) - marks[first]
    last = _most(
        min(count, known) - first,
        lambda _, high: marks[-1] - marks[-1 - high] <= room and body.endswith(view[marks[-1 - high] :]),
    )
    return first, last


def _most(limit: int, holds: Callable[[int, int], bool]) -> int:
    """The largest number up to a limit of which something holds, given that it holds of a smaller one."""
    low, beyond = 0, limit + 1
    while low + 1 < beyond:
        middle = (low + beyond) // 2
        if holds(low, middle):
            low = middle
        else:
            beyond = middle
    return low
