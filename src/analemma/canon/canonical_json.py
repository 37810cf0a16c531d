"""Canonical JSON: RFC 8785 with one extension, integers beyond 2^53 keep their digits.

Sorted `orjson` output already is canonical for most documents. So a value is encoded first and judged afterwards: one
pass over its types finds what may not be there and what the encoder writes otherwise than RFC 8785 asks, and only that
is rewritten:

- floats: `1.0` has to be `1`, `-0.0` is `0`, and from 1e-6 up to 1e21 there is no exponent;
- integers beyond 64 bits, which the encoder refuses;
- objects with some keys above U+FFFF and some in U+E000..U+FFFF: RFC 8785 orders keys by UTF-16 units, the encoder by
  code points, and the two orders differ nowhere else.
"""

from __future__ import annotations

import gc
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import chain
from math import isfinite
from typing import Any, Final

import orjson
from orjson import Fragment

from analemma.canon.pointer import MAXIMUM_DEPTH, format_pointer
from analemma.errors import Invalid

_TOO_DEEP: Final = f"nesting deeper than {MAXIMUM_DEPTH}"

_OPTIONS: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)
_EXACT: Final = frozenset((str, int, bool, type(None), list, dict))
_PLAIN: Final = _EXACT | {float}

_are_exact: Final = _EXACT.issuperset
_are_plain: Final = _PLAIN.issuperset

_LONG_INTEGER: Final = re.compile(rb"(?<![0-9.])[0-9]{19}")
_HUGE_INTEGER: Final = re.compile(rb"(?<![0-9.])[0-9]{309}")
"""More digits than a double can be large, which makes the decoder give up."""

_INT_CHUNK_DIGITS: Final = 600
"""Python converts at most this many digits whatever limit the process has set."""
_INT_CHUNK: Final = 10**_INT_CHUNK_DIGITS


inner_values: Final = gc.get_referents
"""Every item and every value of the lists and dicts among these objects, perhaps with the keys: the collector's own
traversal, several times faster than one written here."""


def canonical_json(value: Any) -> bytes:
    """The only bytes that stand for this value; Invalid, with the JSON pointer to the culprit, if it is not JSON.

    >>> canonical_json({"b": 1.0, "a": [2**64, None, "é"]})
    b'{"a":[18446744073709551616,null,"\\xc3\\xa9"],"b":1}'
    """
    try:
        text = orjson.dumps(value, None, _OPTIONS)
    except TypeError:
        # A value that is not JSON, a cycle, or an integer beyond 64 bits; only the last gets past the check.
        _check(value)
        return _encode_settled(value)

    odd: list[float] = []
    for level in _levels(value):
        if not _are_exact(map(type, level)):
            if not _are_plain(map(type, level)):
                _check(value)
            odd += [
                x
                for x in level
                if type(x) is float and (not (1e-5 <= x < 1e16 or -1e16 < x <= -1e-5) or x.is_integer())
            ]
    if odd:
        text = _without_odd_floats(value, text, odd)
    if not text.isascii() and _may_mix_planes(value, text):
        text = _encode_settled(value)
    return text


def parse_json(data: bytes) -> Any:
    """Read JSON, integers exactly; Invalid for duplicate keys, numbers out of range, NaN, bad UTF-8, lone surrogates.

    >>> parse_json(b'{"a": 123456789012345678901234567890}')
    {'a': 123456789012345678901234567890}
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        if _HUGE_INTEGER.search(data):
            return _parse_carefully(data)
        raise _not_json(exc) from exc

    beyond_64_bits = False
    for level in _levels(value):
        if not _are_exact(map(type, level)):
            floats = [x for x in level if type(x) is float]
            beyond_64_bits |= min(floats) <= -(2.0**63) or max(floats) >= 2.0**64

    # The decoder turns integers beyond 64 bits into floats, and keeps the last of two equal keys. Each member has one
    # colon, so a dropped member leaves a colon too many; only a colon written as an escape could hide that.
    has_big_integers = beyond_64_bits and _LONG_INTEGER.search(data) is not None
    has_escaped_colons = b"\\" in data and (b"\\u003a" in data or b"\\u003A" in data)
    if has_big_integers or has_escaped_colons or data.count(b":") != orjson.dumps(value).count(b":"):
        return _parse_carefully(data)
    return value


def _levels(value: Any) -> Iterator[list[Any]]:
    """A value, then what is in it, level by level; Invalid if there are too many."""
    level = [value]
    depth = 0
    while level:
        if depth == MAXIMUM_DEPTH:
            _check(value)
        yield level
        level = inner_values(*level)
        depth += 1


def _without_odd_floats(value: Any, text: bytes, odd: list[float]) -> bytes:
    """The text of a value some of whose floats the encoder may have written in another form than RFC 8785's."""
    if not all(map(isfinite, odd)):
        _check(value)
    whole = list(filter(float.is_integer, odd))
    # Small fractions apart, what is to be rewritten are whole numbers, written "N.0". The text is edited where that is
    # provably right: a form that occurs exactly as often as such floats do is in no string.
    shorter = text.replace(b".0,", b",").replace(b".0}", b"}").replace(b".0]", b"]") if whole else text
    if (
        (len(whole) < len(odd) and any(1e-6 <= abs(x) < 1e-5 for x in odd))
        or (whole and (min(whole) <= -1e16 or max(whole) >= 1e16))
        or (b"-0.0" in text and "-0.0" in map(str, whole))
        or len(text) - len(shorter) != 2 * len(whole)
    ):
        return _encode_settled(value)
    return shorter


def _may_mix_planes(value: Any, text: bytes) -> bool:
    """Whether the keys, taken together, have characters above U+FFFF as well as in U+E000..U+FFFF."""
    # The first bytes, in UTF-8, of the one kind and of the other; written out because this runs on all text but ASCII.
    if not (b"\xef" in text or b"\xee" in text):
        return False
    if not (b"\xf0" in text or b"\xf1" in text or b"\xf2" in text or b"\xf3" in text or b"\xf4" in text):
        return False
    return _mixes_planes(chain.from_iterable(x for level in _levels(value) for x in level if type(x) is dict))


def _mixes_planes(keys: Iterable[str]) -> bool:
    joined = "".join(keys)
    return not joined.isascii() and max(joined) > "\uffff" and any("\ue000" <= x <= "\uffff" for x in joined)


def _encode_settled(value: Any) -> bytes:
    return orjson.dumps(_settle(value), None, _OPTIONS)


def _settle(value: Any) -> Any:
    """A copy of a checked value that the encoder writes as RFC 8785 asks."""
    kind = type(value)
    if kind is list:
        return [x if type(x) is str else _settle(x) for x in value]
    if kind is dict:
        if _mixes_planes(value):
            return Fragment(_encode_in_utf16_order(value))
        return {key: x if type(x) is str else _settle(x) for key, x in value.items()}
    if kind is float:
        size = abs(value)
        if size <= 2.0**53 and value.is_integer():
            return int(value)
        if size < 1e-6 or 1e-5 <= size <= 2.0**53:
            return value
        # From 1e21 on, Python has the form that RFC 8785 asks for, and older encoders leave out the exponent's sign.
        return Fragment(repr(value) if size >= 1e21 else f"{Decimal(repr(value)):f}".removesuffix(".0"))
    if kind is int and not -(2**63) <= value < 2**64:
        return Fragment(_format_integer(value))
    return value


def _encode_in_utf16_order(members: dict[str, Any]) -> bytes:
    ordered = sorted(members, key=lambda key: key.encode("utf-16-be"))
    return b"{%b}" % b",".join(b"%b:%b" % (orjson.dumps(key), _encode_settled(members[key])) for key in ordered)


def _format_integer(number: int) -> str:
    if number < 0:
        return "-" + _format_integer(-number)
    chunks: list[str] = []
    while number >= _INT_CHUNK:
        number, low = divmod(number, _INT_CHUNK)
        chunks.append(f"{low:0{_INT_CHUNK_DIGITS}d}")
    chunks.append(str(number))
    return "".join(reversed(chunks))


def _check(value: Any) -> None:
    """Raise Invalid at the first thing, in document order, that canonical JSON has no form for."""
    _check_below(value, [], [])


def _check_below(value: Any, path: list[str | int], ancestors: list[int]) -> None:
    kind = type(value)
    if kind is list or kind is dict:
        if id(value) in ancestors:
            raise _refusal("a container that contains itself", path)
        if len(ancestors) == MAXIMUM_DEPTH:
            raise _refusal(_TOO_DEEP, path, "flatten the value")
        ancestors.append(id(value))
        path.append(0)
        for token, child in value.items() if kind is dict else enumerate(value):
            path[-1] = token
            if kind is dict:
                if type(token) is not str:
                    raise _refusal(f"a key of type {type(token).__qualname__}", path, "keys are strings")
                _check_text(token, "a lone surrogate in a key", path)
            _check_below(child, path, ancestors)
        path.pop()
        ancestors.pop()
    elif kind is float:
        if not isfinite(value):
            raise _refusal(f"the number {value}", path, "use null or a string instead")
    elif kind is str:
        _check_text(value, "a lone surrogate", path)
    elif kind is _DuplicateKey:
        pointer = format_pointer([*path, value.key])
        raise Invalid(f"an object names the same key twice (at {pointer})", pointer=pointer)
    elif kind not in _PLAIN:
        raise _refusal(f"a value of type {kind.__module__}.{kind.__qualname__}", path, "convert it to a JSON type")


def _check_text(text: str, what: str, path: list[str | int]) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refusal(what, path, "decode the text with errors='replace'") from None


def _refusal(reason: str, path: list[str | int], hint: str | None = None) -> Invalid:
    # A lone surrogate in a key must not make the message about it unprintable.
    pointer = format_pointer(path).encode(errors="backslashreplace").decode()
    return Invalid(f"JSON has no form for {reason} (at {pointer or 'the root'})", hint=hint, pointer=pointer)


class _DuplicateKey:
    """Stands in a parsed document for an object that names a key twice, until its place is known."""

    def __init__(self, key: str) -> None:
        self.key = key


def _parse_carefully(data: bytes) -> Any:
    """Read JSON with the standard library: slower, but it can be told of duplicate keys and keeps all integers."""
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=_unique_members,
            parse_int=_parse_integer,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise Invalid(f"not JSON we take: {_TOO_DEEP}", hint="flatten the value") from None
    except UnicodeDecodeError as exc:
        raise Invalid(f"not JSON: {exc}") from exc
    except json.JSONDecodeError as exc:
        raise _not_json(exc) from exc
    _check(value)
    return value


def _not_json(error: json.JSONDecodeError) -> Invalid:
    return Invalid(f"not JSON: {error}", line=error.lineno, column=error.colno)


def _refuse_constant(name: str) -> None:
    raise Invalid(f"not JSON: {name}", hint="use null or a string instead")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _DuplicateKey:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    counts = Counter(key for key, _ in pairs)
    return _DuplicateKey(next(key for key, count in counts.items() if count > 1))


def _parse_integer(text: str) -> int:
    if len(text) <= _INT_CHUNK_DIGITS:
        return int(text)
    if text.startswith("-"):
        return -_parse_integer(text[1:])
    head = len(text) % _INT_CHUNK_DIGITS
    number = int(text[:head] or "0")
    for start in range(head, len(text), _INT_CHUNK_DIGITS):
        number = number * _INT_CHUNK + int(text[start : start + _INT_CHUNK_DIGITS])
    return number
