"""Values as JSON and back without loss: what is not JSON stands in an object whose only key is empty.

    {"": ["datetime", payload]}        a value of a registered type, as in stored blocks
    {"": {"bytes": "aGk="}}            bytes, in base64
    {"": {"int": "9007199254740993"}}  an integer beyond 2^53, which many JSON readers would round
    {"": {"float": "-0.0"}}            a float without fraction, which many would give back as an integer
    {"": {"map": {...}}}               a dict of the user's own that looks like one of these, or like a pointer

It is another spelling of the stored form (`canon.nodes`). Sizes are those of `json.dumps(value)` with its defaults
(ASCII, a space after each comma and colon): no other common encoder makes more bytes of the same value, so a budget
that holds here holds everywhere.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from analemma.canon.build import LARGEST_INT, SMALLEST_INT, Packer, TooLarge
from analemma.canon.nodes import Wire, is_special
from analemma.canon.pointer import MAXIMUM_DEPTH, format_pointer
from analemma.canon.read import UnknownTypes
from analemma.canon.types import RESERVED_NAMES, Tagged, TypeRegistry
from analemma.errors import AnalemmaError, Invalid, Limit

POINTER_KEY = "__pointer__"
S3_POINTER_KEY = "__s3_pointer__"
LARGEST_EXACT_INT = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""
_SETS = frozenset({"set", "frozenset"})
_FLOAT = b"\xfb"
"""How a float begins in the stored form."""


class Encoded(NamedTuple):
    """A value as JSON, and as the text that `json.dumps` makes of it."""

    json: Any
    text: str

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.text)


def encode_field(name: str, value: Any, registry: TypeRegistry, limit_bytes: int) -> Encoded | None:
    """A field's value as JSON; None for one that takes more than `limit_bytes`, as soon as that is certain. Invalid,
    with the pointer, for what cannot be stored."""
    # JSON takes more than half the bytes of the stored form, whatever the value: that is 9 bytes for "0.5, ".
    packer = Packer(registry, inline_bytes=2 * limit_bytes + 16, whole=True)
    try:
        wire, data, _ = packer.pack(value, at=(name,))
        # Nothing else takes more bytes there than here; but for the length of a text, by a byte or three.
        if len(data) > limit_bytes and len(data) - 4 * data.count(_FLOAT) - (len(data) >> 16) - 16 > limit_bytes:
            return None
        made = _spell(wire, 1)
    except TooLarge:
        return None
    text = json.dumps(made)
    return Encoded(made, text) if len(text) <= limit_bytes else None


def _spell(wire: Wire, depth: int) -> Any:
    cls = type(wire)
    if cls is str or wire is None or cls is bool:
        return wire
    if cls is int:
        return wire if abs(wire) <= LARGEST_EXACT_INT else {"": {"int": str(wire)}}
    if cls is float:
        return {"": {"float": repr(wire)}} if wire.is_integer() else wire
    if cls is bytes:
        return {"": {"bytes": base64.b64encode(wire[1:]).decode()}}
    if wire == {"": ["float", "-0.0"]}:
        return {"": {"float": "-0.0"}}
    if depth >= MAXIMUM_DEPTH:
        # A tag counts as a level here; canon counts it only around another, and gets what is too deep for this.
        raise TooLarge
    if cls is list:
        return [_spell(item, depth + 1) for item in wire]
    if not is_special(wire):
        made = {key: _spell(item, depth + 1) for key, item in wire.items()}
        return {"": {"map": made}} if POINTER_KEY in made or S3_POINTER_KEY in made else made
    name, inner = wire[""]
    payload = _spell(inner, depth + 1)
    if name == "map":
        return {"": {"map": {"": payload}}}
    # Equal sets must give equal payloads, in every process.
    return {"": [name, sorted(payload, key=json.dumps) if name in _SETS else payload]}


def text_bytes(value: Any) -> int:
    """How many bytes `json.dumps` makes of a value."""
    return len(json.dumps(value))


def field_bytes(name: str, value_bytes: int) -> int:
    """What a field adds to an object: its name, a colon, the value and a comma, with their spaces."""
    return text_bytes(name) + 2 + value_bytes + 2


def too_large(limit_bytes: int) -> Limit:
    """What whoever sends too much is told."""
    return Limit(
        f"the event takes more than {limit_bytes} bytes",
        hint="pass large values as pointers, or raise payload_event_bytes",
        limit=limit_bytes,
    )


class Decoder:
    """Makes values of JSON that anyone may have written."""

    def __init__(self, registry: TypeRegistry, unknown: UnknownTypes, *, limit_bytes: int) -> None:
        self._registry = registry
        self._unknown = unknown
        self._limit_bytes = limit_bytes
        self._left = limit_bytes
        self._path: list[Any] = []
        """Where it is looking."""

    def decode(self, name: str, value: Any) -> Any:
        """A field's value; Invalid, with the pointer, for what no encoder wrote, Limit when all fields together are
        too large."""
        self._path = [name]
        self._take(name)
        return self._value(value, 1)

    def _refused(self, reason: str) -> Invalid:
        # A key may be what is wrong, and whoever logs the message must be able to encode it.
        pointer = format_pointer([str(token) for token in self._path]).encode(errors="backslashreplace").decode()
        return Invalid(f"{reason} at {pointer}", hint="pass the payload on as it came", pointer=pointer)

    def _value(self, value: Any, depth: int) -> Any:
        cls = type(value)
        self._take(value if cls is str else "")
        if cls is str or value is None or cls is bool:
            return value
        if cls is int:
            if not SMALLEST_INT <= value <= LARGEST_INT:
                raise self._refused("an integer outside -2^63..2^64-1")
            return value
        if cls is float:
            if value - value != 0.0:
                raise self._refused(f"{value} is no JSON number")
            return value
        if cls is not list and cls is not dict:
            raise self._refused(f"a {cls.__name__} is no JSON")
        if depth >= MAXIMUM_DEPTH:
            raise self._refused(f"nesting deeper than {MAXIMUM_DEPTH}")
        if cls is list:
            return self._parts(enumerate(value), depth)
        return self._special(value[""], depth) if is_special(value) else self._fields(value, depth)

    def _parts(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> list[Any]:
        found, path = [], self._path
        path.append(None)
        # The last token is where it is by now.
        for path[-1], part in pairs:
            found.append(self._value(part, depth + 1))
        path.pop()
        return found

    def _fields(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        for key in value:
            if type(key) is not str:
                raise self._refused(f"a key of type {type(key).__name__}")
            self._take(key)
        return dict(zip(value, self._parts(value.items(), depth), strict=True))

    def _special(self, body: Any, depth: int) -> Any:
        if type(body) is list and len(body) == 2 and type(body[0]) is str and body[0]:
            self._take(body[0])
            if body[0] in RESERVED_NAMES:
                raise self._refused(f"a tag named {body[0]!r}")
            return self._tagged(body[0], self._value(body[1], depth + 1))
        if type(body) is dict and len(body) == 1:
            ((name, inner),) = body.items()
            if name == "map" and type(inner) is dict:
                return self._fields(inner, depth)
            if type(inner) is str:
                self._take(inner)
                made = _own(name, inner)
                if made is not None:
                    return made
        raise self._refused("an object with an empty key that stands for nothing")

    def _tagged(self, name: str, payload: Any) -> Any:
        codec = self._registry.for_name(name)
        if codec is None:
            if self._unknown == "keep":
                return Tagged(name, payload)
            raise self._refused(f"a value of type {name!r}, which this program has not registered,")
        if (name in _SETS or name == "tuple") and type(payload) is not list:
            raise self._refused(f"a {name} that is no list")
        try:
            return codec.decode(payload)
        except AnalemmaError as exc:
            raise self._refused(exc.message) from exc
        except Exception as exc:
            raise self._refused(f"a {name} that cannot be read ({type(exc).__name__})") from exc

    def _take(self, text: str) -> None:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise self._refused("a lone surrogate") from None
        self._left -= len(text) + 2
        if self._left < 0:
            raise too_large(self._limit_bytes)


_OWN: dict[Any, Callable[[str], Any]] = {
    "bytes": lambda text: b"\0" + base64.b64decode(text.encode("ascii"), validate=True),
    "int": int,
    "float": float,
}
"""How each of the spelling's own forms is read, into stored form."""
_LONGEST_NUMBER = 32


def _own(name: Any, text: str) -> Any:
    """The value of one of the spelling's own forms, or None if it is none, or not as we write it."""
    if name not in _OWN or (name != "bytes" and len(text) > _LONGEST_NUMBER):
        return None
    try:
        wire = _OWN[name](text)
    except ValueError:
        return None
    if _spell(wire, 1) != {"": {name: text}} or (name == "int" and not SMALLEST_INT <= wire <= LARGEST_INT):
        return None
    return wire[1:] if name == "bytes" else wire
