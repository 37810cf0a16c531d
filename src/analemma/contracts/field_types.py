"""The types that an entity's fields may have, and whether a JSON value is of one."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from analemma.errors import Invalid

SCALARS: Final = ("string", "int", "long", "double", "boolean", "datetime", "object", "array")
MAXIMUM_NESTING: Final = 8
MAXIMUM_LENGTH: Final = 100
_LIST: Final = re.compile(r"list<\s*(.+?)\s*>")
_RANGES: Final = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
_DATETIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[-+][0-9]{2}:[0-9]{2})"
)


@dataclass(frozen=True, slots=True)
class FieldType:
    """A type: one of `SCALARS`, or a list whose items have a type."""

    name: str
    items: FieldType | None = None

    def __str__(self) -> str:
        return self.name if self.items is None else f"list<{self.items}>"


@lru_cache(maxsize=256)
def parse_field_type(text: str) -> FieldType:
    """`"list<string>"` -> FieldType("list", FieldType("string")); Invalid for what is no type."""
    depth, rest = 0, text.strip() if len(text) <= MAXIMUM_LENGTH else ""
    while (found := _LIST.fullmatch(rest)) is not None and depth < MAXIMUM_NESTING:
        depth, rest = depth + 1, found[1]
    if rest not in SCALARS:
        raise Invalid(
            f"unknown field type {text[:MAXIMUM_LENGTH]!r}", hint=f"there are {', '.join(SCALARS)} and list<T>"
        )
    made = FieldType(rest)
    for _ in range(depth):
        made = FieldType("list", made)
    return made


def mismatches(
    field_type: FieldType, value: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Where a value is not of a type, and why."""
    if field_type.items is not None:
        if type(value) is not list:
            yield path, f"{_shown(value)} is not a list"
            return
        for number, item in enumerate(value):
            yield from mismatches(field_type.items, item, (*path, number))
    elif not _is_of(field_type.name, value):
        yield path, f"{_shown(value)} is not of type {field_type.name}"


def _is_of(name: str, value: Any) -> bool:
    if name == "string":
        return type(value) is str
    if name in _RANGES:
        # Canonical JSON writes 1.0 as 1, so the two are one value.
        low, high = _RANGES[name]
        return (type(value) is int or (type(value) is float and value.is_integer())) and low <= value <= high
    if name == "double":
        return type(value) in (int, float)
    if name == "boolean":
        return type(value) is bool
    if name == "datetime":
        return type(value) is str and _is_datetime(value)
    return type(value) is (dict if name == "object" else list)


def _is_datetime(text: str) -> bool:
    """RFC 3339, with its offset; a leap second counts as the second before it."""
    if not _DATETIME.fullmatch(text):
        return False
    whole = text[:19].upper()
    if whole.endswith(":60"):
        whole = whole[:-2] + "59"
    offset = text[-6:] if text[-1] not in "Zz" else "+00:00"
    try:
        dt.datetime.fromisoformat(f"{whole}{offset}")
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    if value is None or type(value) is bool:
        return {None: "null", True: "true", False: "false"}[value]
    if type(value) in (dict, list):
        return "an object" if type(value) is dict else "a list"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
