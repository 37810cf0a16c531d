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


@dataclass(frozen=True, slots=True)
class Channel:
    """One serialized value. `chunks` is all of it, or of one in pieces what stands behind the header, `GROUP` pieces to
    a chunk; `ends` are the ends of its pieces, counted from there."""

    kind: str
    shape: Shape
    chunks: tuple[bytes, ...]
    ends: Sequence[int] = ()

    @property
    def data(self) -> bytes:
        """What the serializer wrote."""
        return self.chunks[0] if self.shape == "whole" else b"".join((_head(self.shape, len(self.ends)), *self.chunks))

    @property
    def size(self) -> int:
        """About how many bytes it takes to keep."""
        return sum(map(len, self.chunks)) + 40 * len(self.ends) + 200

    def pieces(self, first: int = 0, last: int | None = None) -> list[bytes]:
        """Its pieces, or some of them."""
        ends = self.ends
        found: list[bytes] = []
        begin = ends[first - 1] if first else 0
        for place in range(len(ends))[first:last]:
            group, inside = divmod(place, GROUP)
            if not found or not inside:
                chunk = self.chunks[group]
                base = ends[group * GROUP - 1] if group else 0
            found.append(chunk[begin - base : ends[place] - base])
            begin = ends[place]
        return found


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
            stop, until = len(before.ends) - self.last, len(after.ends) - self.last
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
    return Channel(kind, shape, chunks, list(accumulate(map(len, pieces))))


def cut(value: Any, dumps: Dumps, before: Channel | None = None, *, by_items: bool = False) -> Cut:
    """Serialize a value and find its pieces, taking over those of the version before as far as the bytes are the same.
    `by_items`: the serializer is known to write a list or a dict as its items, one after the other."""
    if by_items and before is not None and before.shape != "whole":
        made = _cut_again(value, dumps, before)
        if made is not None:
            return made
    kind, written = dumps(value)
    data = bytes(written)
    if before is not None and before.kind == kind and before.shape == "whole" and before.chunks[0] == data:
        return Cut(before)
    whole = Cut(Channel(kind, "whole", (data,)))
    if kind != MSGPACK or len(data) <= SMALLEST_CUT_BYTES:
        return whole
    shape, count, start = _read_head(data)
    if shape == "whole" or not _has_items(value, shape, count):
        return whole
    known, old = (before.ends, b"".join(before.chunks)) if before is not None and before.shape == shape else ((), b"")
    found = _find_ends(value, dumps, data[start:], shape, known, old)
    if found is None:
        return whole
    if before is not None and found.first == len(known) == count:
        return Cut(before, count)
    return Cut(Channel(kind, shape, _grouped(data[start:], found.ends), found.ends), found.first, found.last)


class _Ends(NamedTuple):
    """Where the pieces of a value end, and how many at its beginning and end are those of another."""

    ends: list[int]
    first: int
    last: int


def _cut_again(value: Any, dumps: Dumps, before: Channel) -> Cut | None:
    """The same for a value that was in pieces before; None if it is not alike any more."""
    shape = before.shape
    make: type[Any] = list if shape == "array" else dict
    # Exactly these: of a class that is derived from them, a serializer may make something else.
    if type(value) not in ((list, tuple) if shape == "array" else (dict,)):
        return None
    items = list(value.items()) if isinstance(value, dict) else value
    count, known = len(items), before.ends
    head = _head(shape, GROUP)
    same = 0
    # Groups that are full on both sides, as long as they are equal.
    for chunk in before.chunks[: min(count, len(known)) // GROUP]:
        kind, data = dumps(make(items[same : same + GROUP]))
        if kind != MSGPACK or len(data) != len(head) + len(chunk) or not data.endswith(chunk):
            break
        same += GROUP
    rest = make(items[same:])
    kind, data = dumps(rest)
    head = _head(shape, count - same)
    base = known[same - 1] if same else 0
    body = bytes(data[len(head) :])
    size = len(_head(shape, count)) + base + len(body)
    if kind != MSGPACK or not data.startswith(head) or size <= SMALLEST_CUT_BYTES:
        return None
    kept, old = before.chunks[: same // GROUP], b"".join(before.chunks[same // GROUP :])
    found = _find_ends(rest, dumps, body, shape, [end - base for end in known[same:]], old)
    if found is None:
        return None
    if same + found.first == len(known) == count:
        return Cut(before, count)
    ends = [*known[:same], *[base + end for end in found.ends]]
    return Cut(Channel(MSGPACK, shape, (*kept, *_grouped(body, found.ends)), ends), same + found.first, found.last)


def _find_ends(value: Any, dumps: Dumps, body: bytes, shape: Shape, known: Sequence[int], old: bytes) -> _Ends | None:
    """Where the items of a value end in its bytes, given where those of another do; None if its bytes are not those of
    its items."""
    count = len(value)
    first, last = _shared(body, count, known, old)
    opening = known[first - 1] if first else 0
    closing = known[-1] - (known[-last - 1] if last < len(known) else 0) if last else 0
    middle = _middle(value, dumps, shape, first, count - last)
    if last and middle is not None and body[opening : len(body) - closing] != b"".join(middle):
        # Read from its end, msgpack is ambiguous: what was an item before may be the end of a longer one now.
        last = closing = 0
        middle = _middle(value, dumps, shape, first, count)
    # The proof that the pieces are what was written: not assumed of any serializer, but looked at each time.
    if middle is None or body[opening : len(body) - closing] != b"".join(middle):
        return None
    ends = list(known[:first])
    ends += [opening + end for end in accumulate(map(len, middle))]
    if last:
        shift = len(body) - known[-1]
        ends += [end + shift for end in known[-last:]]
    return _Ends(ends, first, last)


def _grouped(body: bytes, ends: Sequence[int]) -> tuple[bytes, ...]:
    marks = [0, *ends[GROUP - 1 : -1 : GROUP], len(body)] if ends else [0]
    return tuple([body[begin:end] for begin, end in pairwise(marks)])


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


def _has_items(value: Any, shape: Shape, count: int) -> bool:
    """Whether the value itself has the items that its bytes have."""
    return isinstance(value, list | tuple if shape == "array" else dict) and len(value) == count


def _middle(value: Any, dumps: Dumps, shape: Shape, first: int, stop: int) -> list[bytes] | None:
    """Some items, each serialized by itself; None if that does not give what it should."""
    if shape == "array":
        alone: list[Any] = [[item] for item in value[first:stop]]
        head = 0x91
    else:
        alone = [{key: item} for key, item in list(value.items())[first:stop]]
        head = 0x81
    found: list[bytes] = []
    for one in alone:
        kind, data = dumps(one)
        if kind != MSGPACK or data[0] != head:
            return None
        found.append(bytes(data[1:]))
    return found


def _shared(body: bytes, count: int, ends: Sequence[int], old: bytes) -> tuple[int, int]:
    """How many pieces at the beginning and at the end are those of the version before. Compares memory, in halves."""
    view = memoryview(old)
    most = min(count, bisect_right(ends, len(body)))
    if most == len(ends) and body.startswith(old):
        return most, 0
    first, beyond = 0, most + 1
    while first + 1 < beyond:
        middle = (first + beyond) // 2
        begin, end = ends[first - 1] if first else 0, ends[middle - 1]
        if body.startswith(view[begin:end], begin):
            first = middle
        else:
            beyond = middle
    most = min(count, len(ends)) - first
    room = len(body) - (ends[first - 1] if first else 0)
    last, beyond = 0, most + 1
    while last + 1 < beyond:
        middle = (last + beyond) // 2
        begin = ends[-middle - 1] if middle < len(ends) else 0
        if ends[-1] - begin <= room and body.endswith(view[begin:]):
            last = middle
        else:
            beyond = middle
    return first, last
