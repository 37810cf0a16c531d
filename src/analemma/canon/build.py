"""From Python values to stored form: every type checked, every value too large to stand inline put into a tree of its
own.

Where nodes and long texts are cut is a pure left-to-right function of the content, so the same value has the same cuts.
A chunk ends after an entry once it has the minimum size and the entry's hash falls below a threshold proportional to
the entry's size. A chunk that fills up without such an entry is cut after the smallest hash seen (ties: the last),
which neither runs away on identical items nor shifts every later boundary after an insertion. These numbers are part of
the stored format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import repeat
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from analemma.canon.canonical_json import inner_values
from analemma.canon.nodes import (
    LINKS,
    SPECIALS,
    Block,
    BlockId,
    Entry,
    Kind,
    Link,
    NodeParts,
    StandIn,
    Stored,
    Wire,
    child_link,
    content_block,
    decode,
    encode,
    encode_stored,
    head_bytes,
    index_block,
    index_entry,
    leaf_block,
    link_wire,
    long_block,
    sort_key,
    wire_flags,
    wire_links,
)
from analemma.canon.pointer import MAXIMUM_DEPTH, Path, format_pointer
from analemma.canon.types import RESERVED_NAMES, Tagged, TypeRegistry
from analemma.errors import Invalid

SMALLEST_INT = -(2**63)
LARGEST_INT = 2**64 - 1
LONGEST_KEY = 65_536
"""Keys stand whole in every index node above them, so they cannot be cut like values."""

INLINE_BYTES = 2048
"""A value encoded in more bytes than this gets a tree of its own."""
MINIMUM_BYTES = 2048
FIRST_LEAF_MINIMUM_BYTES = 8192
"""The first leaf may grow further, so that ordinary small containers are one block and one read."""
MEAN_EXTRA_BYTES = 2048
"""How far beyond the minimum a chunk goes on average."""
MAXIMUM_BYTES = 32768
_REMEMBERED_BYTES = 128
"""Entries up to this size, such as those of index nodes, are hashed once for many edits."""
_END_BELOW = [(width << 21).to_bytes(4, "big") for width in range(MEAN_EXTRA_BYTES)]
"""An entry of so many bytes is a natural end if its hash, compared as bytes, is less: that is once in
`MEAN_EXTRA_BYTES` bytes. Longer entries all are."""

TEXT_AVERAGE_BYTES = 131072
TEXT_MINIMUM_BYTES = 65536
TEXT_MAXIMUM_BYTES = 393216
TEXT_NORMALIZATION: Literal[2] = 2

RUN = 512
"""Items or fields of a large container that are taken together."""

Emit = Callable[[Block, NodeParts | None], None]
"""Takes a block, and what it was made of if that is known."""


class Packed(NamedTuple):
    """A value in stored form, and what whoever embeds it needs to know."""

    wire: Wire
    data: bytes
    """`wire`, encoded."""
    flags: int


def packed_wire(wire: Wire) -> Packed:
    """Content that is already in stored form, looked at again."""
    return Packed(wire, encode_stored(wire), wire_flags(wire))


class TooLarge(Exception):
    """A value that was to stand inline as a whole takes more than it may."""


class _Refused(Exception):
    """Carries the path to a value that cannot be stored, collected on the way out of the recursion."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path: list[str | int] = []


_PLAIN = (dict, list, str, int, float, bool, bytes, type(None))
_PLAIN_KINDS = frozenset({dict, list, str, int, float, bool, type(None)})
_SCALAR_KINDS = _PLAIN_KINDS - {dict, list}
_new_tuple = tuple.__new__
"""Makes a named tuple without its constructor, which takes several times as long; every field must be given."""
_SPECIAL = b"\xa1\x60\x82"
"""How a map with the single key "" begins that leads to a list of two."""
_DATA = attrgetter("data")
_TOO_DEEP = f"nesting deeper than {MAXIMUM_DEPTH}"


class Packer:
    """Packs values, handing each block of a larger value to `emit`; without it, they are kept in `made`. Links of
    stored parts go to `accept`; without it, there can be none. A value of more than `inline_bytes` gets blocks; one
    that is to stand inline as a `whole` is TooLarge instead, as soon as that is certain, and its fields stay in the
    order of their dict, and are not sorted."""

    def __init__(
        self,
        registry: TypeRegistry,
        emit: Emit | None = None,
        accept: Callable[[Sequence[Link]], None] | None = None,
        inline_bytes: int = INLINE_BYTES,
        whole: bool = False,
    ) -> None:
        self._registry = registry
        self._emit = self._keep if emit is None else emit
        self.made: dict[BlockId, Block] = {}
        self._accept = accept
        self._inline_bytes = inline_bytes
        self._whole = whole

    def pack(self, value: Any, *, at: Sequence[str | int] = ()) -> Packed:
        """The stored form of a value that will stand at this path; Invalid, with the pointer, if it cannot be
        stored."""
        try:
            if self._whole:
                # Once for all that it holds, which is then looked at in small portions: at each level all of what is
                # below would be a lot.
                _are_plain([value], self._inline_bytes, MAXIMUM_DEPTH)
            return self._pack(value, len(at))
        except _Refused as refused:
            raise _invalid(refused, value, at) from None

    def pack_root(self, value: Any) -> Link:
        """The tree of a whole value. The root is always a node, however small the value is."""
        if isinstance(value, StandIn):
            value = value.to_plain()
        cls = type(value)
        try:
            if cls is list or cls is dict:
                found = self._pack_container(value, 0, -1)
                return found if type(found) is Link else self.sequence("list" if cls is list else "map", [])
            if cls is str:
                return self._long("text", _utf8(value))
            if cls is bytes:
                return self._long("bytes", value)
            packed = self._pack(value, 0)
        except _Refused as refused:
            raise _invalid(refused, value, ()) from None
        links = wire_links(packed.wire)
        block = content_block("value", packed.wire, packed.flags, tuple([link.id for link in links]))
        self._emit(block, None)
        return Link(block.id, "value", 1, len(block.data) + sum([link.size for link in links]), bool(links))

    def sequence(self, kind: Kind, entries: Sequence[Entry], level: int = 0) -> Link:
        """The tree over these entries, in order."""
        nodes = Cutter(self, kind, level)
        nodes.add(entries)
        return nodes.tree()

    def node(self, kind: Kind, level: int, entries: Sequence[Entry], *, forced: bool) -> Entry:
        """Emit one node; gives its entry for the level above."""
        if level:
            block, below, count = index_block(kind, level, entries)
        else:
            block, below = leaf_block(kind, entries)
            count = len(entries)
        self._emit(block, (kind, level, count, entries))
        last_key = entries[-1][3] if entries else None
        return index_entry(block, count=count, below=below, forced=forced, last_key=last_key)

    def _keep(self, block: Block, parts: NodeParts | None) -> None:
        self.made[block.id] = block

    def _pack(self, value: Any, depth: int) -> Packed:
        cls = type(value)
        if cls is str:
            if not value.isascii():
                _utf8(value)
            if len(value) <= self._inline_bytes and len(data := encode(value)) <= self._inline_bytes:
                return _new_tuple(Packed, (value, data, 0))
            return _linked(self._long("text", value.encode()))
        if cls is int and not SMALLEST_INT <= value <= LARGEST_INT:
            raise _Refused("an integer outside -2^63..2^64-1", "store it as a string or a Decimal")
        if cls is float:
            if value - value != 0.0:
                raise _Refused(f"{value}, which has no canonical form,", "store None or a string instead")
            if value == 0.0 and str(value) == "-0.0":
                return _special("float", packed_wire("-0.0"))
        if cls in _SCALAR_KINDS:
            return _new_tuple(Packed, (value, encode(value), 0))
        if cls is dict or cls is list:
            plain = _pack_plain(value, self._inline_bytes, MAXIMUM_DEPTH - depth, whole=self._whole)
            if plain is not None:
                return plain
            found = self._pack_container(value, depth, self._inline_bytes)
            return found if isinstance(found, Packed) else _linked(found)
        if cls is bytes:
            if len(value) <= self._inline_bytes and len(data := encode(wire := b"\0" + value)) <= self._inline_bytes:
                return Packed(wire, data, SPECIALS)
            return _linked(self._long("bytes", value))
        return value if cls is Packed else self._pack_tagged(value, depth)

    def _pack_container(self, value: Any, depth: int, inline_bytes: int) -> Packed | Link:
        """A list or dict: inline, in its own order, or the tree of one that takes more."""
        if depth >= MAXIMUM_DEPTH:
            raise _Refused(_TOO_DEEP, "flatten the value")
        keyed = type(value) is dict
        packed: dict[Any, Packed] = {}
        size = len(head_bytes(5 if keyed else 4, len(value)))
        key: Any = None
        try:
            for key in value if keyed else ():
                if type(key) is not str:
                    raise _Refused(f"a key of type {type(key).__qualname__}", "keys are strings")
                if len(key) > LONGEST_KEY or not key.isascii():
                    _check_key(key)
                size += len(encode(key))
            for key, item in value.items() if keyed else enumerate(value):
                part = packed[key] = self._pack(item, depth + 1)
                size += len(part.data)
                if size > inline_bytes:
                    break
            if size <= inline_bytes or not value:
                return _inline_fields(packed) if keyed else _inline_items(packed.values())
            # It is too large for its place, so its nodes are made while its items are still packed: of one that takes
            # gigabytes, no more than a few nodes are at hand in any other form than their blocks.
            nodes = Cutter(self, "map" if keyed else "list")
            keys: Sequence[Any] = sorted(value, key=sort_key) if keyed else range(len(value))
            for start in range(0, len(keys), RUN):
                run = keys[start : start + RUN]
                entries = None
                if not keyed:
                    items = value[start : start + RUN]
                    entries = _plain_entries(items, self._inline_bytes, MAXIMUM_DEPTH - depth - 1)
                if entries is None:
                    entries = []
                    for key in run:
                        part = packed.pop(key) if key in packed else self._pack(value[key], depth + 1)
                        entries.append(map_entry(key, part) if keyed else list_entry(part))
                nodes.add(entries)
                while nodes.cut():
                    pass
        except _Refused as refused:
            refused.path.append(_token(key) if keyed else key)
            raise
        return nodes.tree()

    def _pack_tagged(self, value: Any, depth: int) -> Packed:
        if isinstance(value, StandIn):
            return self._pack(value.to_plain(), depth)
        if type(value) is Stored and self._accept is not None:
            if depth + value.nesting > MAXIMUM_DEPTH:
                raise _Refused(_TOO_DEEP, "flatten the value")
            self._accept(wire_links(value.wire))
            return packed_wire(value.wire)
        if type(value) is not Tagged:
            try:
                tagged = self._registry.taken_apart(value)
            except Invalid as exc:
                raise _Refused(exc.message, exc.hint) from exc
            if tagged is None:
                raise _Refused(
                    f"a value of type {type(value).__module__}.{type(value).__qualname__}",
                    "convert it, or register the type",
                )
            value = tagged
        name, payload = value.name, value.payload
        if type(name) is not str or not name or name in RESERVED_NAMES:
            raise _Refused(f"a tag named {name!r}", "keep the name that was read")
        _utf8(name)
        if name in ("set", "frozenset"):
            if type(payload) is not list:
                raise _Refused(f"a tag {name!r} around a {type(payload).__name__}", "keep the payload that was read")
            found = self._pack_container(sorted(self._items(payload, depth), key=_DATA), depth, self._inline_bytes)
            packed = found if isinstance(found, Packed) else _linked(found)
        else:
            # A tag is no deeper than what it is around; only tags around tags count, or they would have no end.
            inner = depth + 1 if type(payload) not in _PLAIN else depth
            if inner > MAXIMUM_DEPTH:
                raise _Refused(_TOO_DEEP, "flatten the value")
            packed = self._pack(payload, inner)
        return _special(name, packed)

    def _items(self, items: Sequence[Any], depth: int) -> Iterator[Packed]:
        if depth >= MAXIMUM_DEPTH:
            raise _Refused(_TOO_DEEP, "flatten the value")
        number = 0
        try:
            for item in items:
                yield self._pack(item, depth + 1)
                number += 1
        except _Refused as refused:
            refused.path.append(number)
            raise

    def check_apart(self) -> None:
        """Raise TooLarge unless values may have blocks."""
        if self._whole:
            raise TooLarge

    def _long(self, kind: Kind, data: bytes) -> Link:
        self.check_apart()
        entries: list[Entry] = []
        start = 0
        for end in text_cuts(data):
            if kind == "text":
                # Cuts are found on bytes; a character that a cut would split belongs to the chunk it starts in.
                while end < len(data) and data[end] & 0xC0 == 0x80:
                    end += 1
            block = long_block(kind, data[start:end])
            self._emit(block, None)
            entries.append(index_entry(block, count=end - start, below=0))
            start = end
        return child_link(kind, entries[0][2]) if len(entries) == 1 else self.sequence(kind, entries, level=1)


class Cutter:
    """Makes nodes of the entries of one level, while those are still coming.

    The first `clean` of them are known to hold no natural end. With `again`, most of the others were looked at before:
    of an edit's, all but one or two are those of the edit before."""

    def __init__(
        self, packer: Packer, kind: Kind, level: int = 0, *, first: bool = True, clean: int = 0, again: bool = False
    ) -> None:
        packer.check_apart()
        self.made: list[Entry] = []
        """The nodes, as the level above holds them."""
        self.taken = 0
        """How many entries stand in them."""
        self._packer = packer
        self._kind: Kind = kind
        self._level = level
        self._first = first
        self._clean = clean
        self._clean_bytes: int | None = None
        """How long those are, once they were looked at here."""
        self._again = again
        self._entries: list[Entry] = []
        self._start = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Take more entries."""
        del self._entries[: self._start]
        self._start = 0
        self._entries += entries

    def cut(self, *, ended: bool = False) -> bool:
        """Make the next node, unless there is none or its end depends on entries to come. An empty level has one."""
        entries, start = self._entries, self._start
        if start == len(entries) and (self.made or not ended):
            return False
        found = self._find_end()
        if found is None and not ended:
            self._clean = len(entries) - start
            return False
        stop, forced = found or (len(entries), False)
        self.made.append(self._packer.node(self._kind, self._level, entries[start:stop], forced=forced))
        self.taken += stop - start
        self._start, self._first, self._clean, self._clean_bytes = stop, False, 0, 0
        return True

    def tree(self) -> Link:
        """The tree over all entries."""
        while self.cut(ended=True):
            pass
        if len(self.made) > 1:
            return self._packer.sequence(self._kind, self.made, self._level + 1)
        return child_link(self._kind, self.made[0][2])

    def _find_end(self) -> tuple[int, bool] | None:
        """Where the next node ends, and whether only because it is full; None when that depends on entries to come."""
        level, entries, start, clean, again = self._level, self._entries, self._start, self._clean, self._again
        minimum = FIRST_LEAF_MINIMUM_BYTES if self._first and level == 0 else MINIMUM_BYTES
        # An index node with one child would let a tree grow without getting any narrower.
        fewest = start + (2 if level else 1)
        prefix = bytes((level,))
        size = self._clean_bytes
        if size is None:
            size = sum([len(entry[0]) for entry in entries[start : start + clean]])
        if size > MAXIMUM_BYTES:
            size = clean = 0
        for position in range(start + clean, len(entries)):
            data = entries[position][0]
            width = len(data)
            size += width
            if size < minimum or position + 1 < fewest:
                continue
            if size > MAXIMUM_BYTES and position >= fewest:
                return _smallest_hash(prefix, entries, start, position, minimum, fewest), True
            if again and width <= _REMEMBERED_BYTES:
                ends = _ends(prefix, data)
            else:
                ends = width >= MEAN_EXTRA_BYTES or sha256(prefix + data).digest() < _END_BELOW[width]
            if ends:
                return position + 1, False
        self._clean_bytes = size
        return None


def check_path(path: Path) -> None:
    """Raise Invalid unless every token can be the key of a stored dict."""
    for token in path:
        try:
            token.encode()
        except (AttributeError, UnicodeEncodeError):
            shown = format_pointer(path).encode(errors="backslashreplace").decode()
            raise Invalid(
                f"{shown} has a token that is no valid text",
                hint="tokens are strings without lone surrogates",
                pointer=shown,
            ) from None


def check_new_key(key: str, path: Sequence[str]) -> None:
    """Raise Invalid unless a field that is put at this path can have this name."""
    try:
        _check_key(key)
    except _Refused as refused:
        raise _invalid(refused, None, path) from None


def list_entry(packed: Packed) -> Entry:
    """An item as the leaf of a list holds it."""
    return packed.data, packed.flags, packed.wire, None


def map_entry(key: str, packed: Packed) -> Entry:
    """A field as the leaf of a map holds it."""
    return encode(key) + packed.data, packed.flags, packed.wire, key


def _pack_plain(value: Any, most_bytes: int, most_levels: int, *, whole: bool) -> Packed | None:
    """A small container of nothing but plain values: the encoder takes it as a whole. None for any other, and for one
    that may have something to refuse, such as a long key."""
    most_bytes = min(most_bytes, LONGEST_KEY)
    try:
        if not _are_plain([value], most_bytes, most_levels):
            return None
        data = encode(value)
    except (TooLarge, ValueError):
        return None
    if len(data) > most_bytes:
        return None
    return _new_tuple(Packed, (value if whole else decode(data), data, 0))


def _plain_entries(items: Sequence[Any], inline_bytes: int, most_levels: int) -> list[Entry] | None:
    """The items of a long list that are all plain and small, as its leaves hold them; None when one is something else,
    or may be one to refuse."""
    try:
        if not _are_plain(items, inline_bytes * len(items), most_levels):
            return None
        encoded = [*map(encode, items)]
    except (TooLarge, ValueError):
        return None
    if max(map(len, encoded)) > inline_bytes:
        return None
    wires = items if _SCALAR_KINDS.issuperset(map(type, items)) else map(decode, encoded)
    return [*zip(encoded, repeat(0), wires, repeat(None), strict=False)]


def _are_plain(values: Sequence[Any], most_bytes: int, most_levels: int) -> bool:
    """Whether these are plain all the way down, so that the encoder takes them as they are, and none among them may be
    one to refuse. TooLarge if they certainly take more than so many bytes."""
    text = 0
    while values:
        if len(values) + text > most_bytes:
            raise TooLarge
        found = set(map(type, values))
        if not _PLAIN_KINDS.issuperset(found) or most_levels < 1:
            return False
        if str in found:
            text += sum([len(each) for each in values if type(each) is str])
        # The encoder takes integers down to -2^64; and a zero may be a negative one. (0 and False equal it.)
        if int in found and min([each for each in values if type(each) is int]) < SMALLEST_INT:
            return False
        if float in found and 0.0 in values and 0.0 in [each for each in values if type(each) is float]:
            return False
        if dict in found:
            for each in values:
                if type(each) is dict and len(each) == 1 and "" in each:
                    return False
        most_levels -= 1
        values = inner_values(*values) if dict in found or list in found else ()
    return True


def _inline_items(items: Collection[Packed]) -> Packed:
    data = head_bytes(4, len(items)) + b"".join([item.data for item in items])
    return _new_tuple(Packed, ([item.wire for item in items], data, _flags(items)))


def _inline_fields(fields: dict[str, Packed]) -> Packed:
    if len(fields) == 1 and "" in fields:
        return _special("map", fields[""])
    wire = {key: item.wire for key, item in fields.items()}
    return Packed(wire, encode(wire), _flags(fields.values()))


def _token(key: Any) -> str:
    """A key, whatever it is, as a pointer shows it."""
    if type(key) is str:
        return key
    try:
        return str(key)[:64]
    except Exception:
        return f"<{type(key).__qualname__}>"


def _check_key(key: str) -> None:
    if len(_utf8(key)) > LONGEST_KEY:
        raise _Refused(f"a key of more than {LONGEST_KEY} bytes", "store the text as a value")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _Refused("a lone surrogate", "decode the text with errors='replace', or store bytes") from None


def _linked(link: Link) -> Packed:
    wire = link_wire(link)
    return Packed(wire, encode(wire), LINKS | SPECIALS)


def _special(name: str, packed: Packed) -> Packed:
    """What stands in a map with the single key "": a list of its name and its payload, which is encoded already."""
    data = _SPECIAL + encode(name) + packed.data
    return _new_tuple(Packed, ({"": [name, packed.wire]}, data, packed.flags | SPECIALS))


def _flags(parts: Iterable[Packed]) -> int:
    flags = 0
    for part in parts:
        flags |= part.flags
    return flags


def _invalid(refused: _Refused, value: Any, at: Sequence[str | int]) -> Invalid:
    path = refused.path[::-1]
    if refused.reason == _TOO_DEEP and (around := _cycle(value, path)) is not None:
        refused = _Refused("a container that contains itself", "store a copy, or refer to it by name")
        path = around
    pointer = format_pointer([*at, *path])
    place = pointer.encode(errors="backslashreplace").decode() or "the root"
    return Invalid(f"cannot store {refused.reason} at {place}", hint=refused.hint, pointer=pointer)


def _cycle(value: Any, path: list[Any]) -> list[Any] | None:
    """The beginning of this path that leads back to a container on it; None when the value is merely too deep."""
    passed: set[int] = set()
    for number, token in enumerate(path):
        if id(value) in passed:
            return path[:number]
        if type(value) not in (dict, list, tuple):
            return None
        passed.add(id(value))
        value = value[token]
    return path if id(value) in passed else None


def _smallest_hash(prefix: bytes, entries: Sequence[Entry], start: int, stop: int, minimum: int, fewest: int) -> int:
    best, best_hash = stop, 1 << 32
    size = 0
    for position in range(start, stop):
        data = entries[position][0]
        size += len(data)
        if size >= minimum and position + 1 >= fewest and (hashed := _hash(prefix, data)) <= best_hash:
            best, best_hash = position + 1, hashed
    return best


@lru_cache(maxsize=16384)
def _ends(prefix: bytes, data: bytes) -> bool:
    return sha256(prefix + data).digest() < _END_BELOW[len(data)]


def _hash(prefix: bytes, data: bytes) -> int:
    return int.from_bytes(sha256(prefix + data).digest()[:4], "big")


def text_cuts(data: bytes) -> list[int]:
    """The end of each chunk of a long text or of long bytes, the last one being the length."""
    if len(data) <= TEXT_MINIMUM_BYTES:
        return [len(data)]
    # Most programs never cut a long text.
    from pyfastcdc import FastCDC

    chunker = FastCDC(
        TEXT_AVERAGE_BYTES,
        min_size=TEXT_MINIMUM_BYTES,
        max_size=TEXT_MAXIMUM_BYTES,
        normalized_chunking=TEXT_NORMALIZATION,
    )
    return [chunk.offset + chunk.length for chunk in chunker.cut_buf(data)]
