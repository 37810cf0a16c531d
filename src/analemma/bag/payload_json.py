"""Values as JSON and back without loss: what is not JSON stands in an object whose only key is empty.

    {"": ["datetime", payload]}        a value of a registered type, as in stored blocks
    {"": {"bytes": "aGk="}}            bytes, in base64
    {"": {"int": "9007199254740993"}}  an integer beyond 2^53, which many JSON readers would round
    {"": {"float": "-0.0"}}            a float without fraction, which many would give back as an integer
    {"": {"map": {...}}}               a dict of the user's own that looks like one of these, or like a pointer

Sizes are those of `json.dumps(value)` with its defaults (ASCII, a space after each comma and colon): no other common
encoder makes more bytes of the same value, so a budget that holds here holds everywhere.
"""

from __future__ import annotations

import base64
import binascii
import json
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple

from analemma.canon.build import LARGEST_INT, LONGEST_KEY, MAXIMUM_DEPTH, SMALLEST_INT, Packer
from analemma.canon.pointer import format_pointer
from analemma.canon.read import UnknownTypes
from analemma.canon.types import RESERVED_NAMES, Tagged, TypeRegistry
from analemma.canon.values import StandIn
from analemma.errors import AnalemmaError, Invalid, Limit

POINTER_KEY = "__pointer__"
S3_POINTER_KEY = "__s3_pointer__"
LARGEST_EXACT_INT = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

_TAG_BYTES = len('{"": [, ]}')
_OWN_BYTES = {name: len(json.dumps({"": {name: 0}})) - 1 for name in ("bytes", "int", "float", "map")}


class Encoded(NamedTuple):
    """A value as JSON, and how many bytes `json.dumps` makes of it."""

    json: Any
    size: int


class _TooLarge(Exception):
    """The measurement passed its limit: nothing more is looked at."""


class _Refused(Exception):
    """Not for JSON; canon knows why, or takes it all the same."""


def text_bytes(text: str) -> int:
    """How many bytes `json.dumps` makes of a string."""
    return len(encode_basestring_ascii(text))


def field_bytes(name: str, value_bytes: int) -> int:
    """What a field adds to an object: its name, a colon, the value and a comma, with their spaces."""
    return text_bytes(name) + 2 + value_bytes + 2


class Encoder:
    """Makes JSON of values of registered types."""

    def __init__(self, registry: TypeRegistry) -> None:
        self._registry = registry

    def encode(self, name: str, value: Any, limit_bytes: int) -> Encoded | None:
        """A field's value as JSON; None as soon as it is known to take more than `limit_bytes`. Invalid, with the
        pointer, for what cannot be stored."""
        run = _Run(self._registry, limit_bytes)
        try:
            made = run.value(value, 1)
        except _TooLarge:
            return None
        except _Refused:
            # Whether it can be stored at all is canon's to say, in canon's words.
            Packer(self._registry, lambda block: None).pack(value, at=(name,))
            return None
        return Encoded(made, limit_bytes - run.left)


class _Run:
    """One value on its way into JSON; `left` is what remains of its limit."""

    __slots__ = ("_registry", "left")

    def __init__(self, registry: TypeRegistry, limit_bytes: int) -> None:
        self._registry = registry
        self.left = limit_bytes

    def value(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls is str:
            self._text(value)
            return value
        if value is None or value is True:
            self._take(4)
            return value
        if value is False:
            self._take(5)
            return value
        if cls is int:
            return self._int(value)
        if cls is dict:
            return self._dict(value, depth)
        if cls is list:
            return self._list(value, depth)
        if cls is float:
            return self._float(value)
        if isinstance(value, StandIn):
            return self.value(value.to_plain(), depth)
        if cls is bytes:
            self._take(_OWN_BYTES["bytes"] + 2 + (len(value) + 2) // 3 * 4)
            return {"": {"bytes": base64.b64encode(value).decode()}}
        return self._tagged(value, depth)

    def _take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise _TooLarge

    def _text(self, text: str) -> None:
        if len(text) + 2 > self.left:
            raise _TooLarge
        if not text.isascii():
            _check_unicode(text)
        self._take(len(encode_basestring_ascii(text)))

    def _int(self, value: int) -> Any:
        if not SMALLEST_INT <= value <= LARGEST_INT:
            raise _Refused
        text = str(value)
        if abs(value) <= LARGEST_EXACT_INT:
            self._take(len(text))
            return value
        self._take(_OWN_BYTES["int"] + len(text) + 2)
        return {"": {"int": text}}

    def _float(self, value: float) -> Any:
        if value - value != 0.0:
            raise _Refused
        text = repr(value)
        if not value.is_integer():
            self._take(len(text))
            return value
        self._take(_OWN_BYTES["float"] + len(text) + 2)
        return {"": {"float": text}}

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        if depth >= MAXIMUM_DEPTH:
            raise _Refused
        escaped = looks_special(value)
        # Braces, and no comma after the last field.
        self._take((2 if not value else 0) + (_OWN_BYTES["map"] if escaped else 0))
        made: dict[str, Any] = {}
        for key, item in value.items():
            if type(key) is not str or len(key) > LONGEST_KEY or (not key.isascii() and len(_utf8(key)) > LONGEST_KEY):
                raise _Refused
            self._text(key)
            self._take(4)
            made[key] = self.value(item, depth + 1)
        return {"": {"map": made}} if escaped else made

    def _list(self, value: list[Any], depth: int) -> Any:
        if depth >= MAXIMUM_DEPTH:
            raise _Refused
        self._take(2 if not value else 0)
        made = []
        for item in value:
            self._take(2)
            made.append(self.value(item, depth + 1))
        return made

    def _tagged(self, value: Any, depth: int) -> Any:
        if type(value) is Tagged:
            name, payload = value.name, value.payload
            if type(name) is not str or not name or name in RESERVED_NAMES:
                raise _Refused
        else:
            try:
                codec = self._registry.for_value(value)
            except Invalid:
                raise _Refused from None
            if codec is None:
                raise _Refused
            name = codec.name
            try:
                payload = codec.encode(value)
            except Exception:
                raise _Refused from None
        if name in ("set", "frozenset") and type(payload) is not list:
            raise _Refused
        if depth >= MAXIMUM_DEPTH:
            raise _Refused
        self._take(_TAG_BYTES)
        self._text(name)
        # A tag counts as a level here; canon counts it only around another, and gets what is too deep for this.
        made = self.value(payload, depth + 1)
        if name in ("set", "frozenset"):
            # Equal sets must give equal payloads, in every process.
            made = sorted(made, key=json.dumps)
        return {"": [name, made]}


def looks_special(value: dict[Any, Any]) -> bool:
    """Whether a dict would be taken for something else than itself when it is read back."""
    return POINTER_KEY in value or S3_POINTER_KEY in value or (len(value) == 1 and "" in value)


def measure(value: Any, limit_bytes: int | None = None) -> int:
    """How many bytes `json.dumps` makes of a value that is JSON already, without making them; Limit as soon as it is
    more than `limit_bytes`."""
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            total += text_bytes(item)
        elif isinstance(item, dict):
            total += 2 if not item else 0
            for key, inner in item.items():
                total += text_bytes(key) + 4
                stack.append(inner)
        elif isinstance(item, list | tuple):
            total += 2 * len(item) if item else 2
            stack.extend(item)
        else:
            total += len(json.dumps(item))
        if limit_bytes is not None and total > limit_bytes:
            raise too_large(limit_bytes)
    return total


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

    def decode(self, name: str, value: Any) -> Any:
        """A field's value; Invalid, with the pointer, for what no encoder wrote, Limit when all fields together are
        too large."""
        try:
            self._take(name)
            return self._value(value, 1)
        except _Malformed as exc:
            pointer = format_pointer(tuple(str(token) for token in (name, *reversed(exc.path))))
            # A key may be what is wrong, and whoever logs the message must be able to encode it.
            pointer = pointer.encode(errors="backslashreplace").decode()
            raise Invalid(
                f"{exc.reason} at {pointer}", hint="pass the payload on as it came", pointer=pointer
            ) from None

    def _value(self, value: Any, depth: int) -> Any:
        cls = type(value)
        if cls is str:
            self._take(value)
            return value
        self._take("")
        if value is None or cls is bool:
            return value
        if cls is int:
            if not SMALLEST_INT <= value <= LARGEST_INT:
                raise _Malformed("an integer outside -2^63..2^64-1")
            return value
        if cls is float:
            if value - value != 0.0:
                raise _Malformed(f"{value} is no JSON number")
            return value
        if cls is list:
            return self._list(value, depth)
        if cls is dict:
            return self._special(value[""], depth) if len(value) == 1 and "" in value else self._dict(value, depth)
        raise _Malformed(f"a {cls.__name__} is no JSON")

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        _check_depth(depth)
        made: list[Any] = []
        try:
            for item in value:
                made.append(self._value(item, depth + 1))
        except _Malformed as exc:
            exc.path.append(len(made))
            raise
        return made

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        _check_depth(depth)
        made: dict[str, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                if type(key) is not str:
                    raise _Malformed(f"a key of type {type(key).__name__}")
                self._take(key)
                made[key] = self._value(item, depth + 1)
        except _Malformed as exc:
            exc.path.append(key if type(key) is str else "?")
            raise
        return made

    def _special(self, body: Any, depth: int) -> Any:
        _check_depth(depth)
        if type(body) is list and len(body) == 2 and type(body[0]) is str and body[0]:
            self._take(body[0])
            if body[0] in RESERVED_NAMES:
                raise _Malformed(f"a tag named {body[0]!r}")
            return self._tagged(body[0], self._value(body[1], depth + 1))
        if type(body) is dict and len(body) == 1:
            ((name, inner),) = body.items()
            if name == "map" and type(inner) is dict:
                return self._dict(inner, depth)
            if type(inner) is str:
                self._take(inner)
                made = _own(name, inner)
                if made is not None:
                    return made
        raise _Malformed("an object with an empty key that stands for nothing")

    def _tagged(self, name: str, payload: Any) -> Any:
        codec = self._registry.for_name(name)
        if codec is None:
            if self._unknown == "keep":
                return Tagged(name, payload)
            raise _Malformed(f"a value of type {name!r}, which this program has not registered,")
        if name in ("set", "frozenset", "tuple") and type(payload) is not list:
            raise _Malformed(f"a {name} that is no list")
        try:
            return codec.decode(payload)
        except AnalemmaError as exc:
            raise _Malformed(exc.message) from exc
        except Exception as exc:
            raise _Malformed(f"a {name} that cannot be read ({type(exc).__name__})") from exc

    def _take(self, text: str) -> None:
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise _Malformed("a lone surrogate") from None
        self._left -= len(text) + 2
        if self._left < 0:
            raise too_large(self._limit_bytes)


class _Malformed(Exception):
    """Carries the path to what is wrong, collected on the way out of the recursion."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = []


def _own(name: Any, text: str) -> Any:
    """The value of one of the encoding's own forms, or None if it is none, or not as we write it."""
    try:
        if name == "bytes":
            data = base64.b64decode(text.encode("ascii"), validate=True)
            return data if base64.b64encode(data).decode() == text else None
        if name == "int":
            number = int(text) if len(text) <= 20 else 0
            exact = SMALLEST_INT <= number <= LARGEST_INT and abs(number) > LARGEST_EXACT_INT
            return number if exact and str(number) == text else None
        if name == "float":
            value = float(text)
            return value if repr(value) == text and value - value == 0.0 and value.is_integer() else None
    except (ValueError, binascii.Error, UnicodeEncodeError):
        pass
    return None


def _check_depth(depth: int) -> None:
    if depth >= MAXIMUM_DEPTH:
        raise _Malformed(f"nesting deeper than {MAXIMUM_DEPTH}")


def _check_unicode(text: str) -> None:
    _utf8(text)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _Refused from None
