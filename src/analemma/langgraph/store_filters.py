"""Filters of the LangGraph store: what `search(filter=...)` means. The same answers as `InMemoryStore`, and an answer
where that one raises."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from analemma.errors import Invalid

Test = Callable[[Any], bool]

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
OPERATORS = ("$eq", "$ne", *_ORDER)


def parse_filter(wanted: Any) -> Test | None:
    """Whether a value has all these fields; None: every value does. Invalid for operators that do not exist.

    A field that is missing counts as null. Numbers compare as numbers, also when they are written as text; other text
    compares by code points; whatever cannot be compared does not match.

    >>> matches = parse_filter({"kind": "report", "score": {"$gte": 3}})
    >>> matches({"kind": "report", "score": 3.5}), matches({"kind": "report"})
    (True, False)
    """
    if not wanted:
        return None
    if not isinstance(wanted, Mapping):
        raise Invalid(f"the filter is of type {type(wanted).__name__}", hint="give a mapping of fields")
    return _fields(wanted)


def _parse(wanted: Any) -> Test:
    if isinstance(wanted, Mapping):
        if any(isinstance(name, str) and name.startswith("$") for name in wanted):
            tests = [_operator(name, value) for name, value in wanted.items()]
            return lambda found: all(test(found) for test in tests)
        fields = _fields(wanted)
        return lambda found: isinstance(found, dict) and fields(found)
    if isinstance(wanted, list | tuple):
        items = [_parse(item) for item in wanted]
        return lambda found: (
            isinstance(found, list)
            and len(found) == len(items)
            and all(test(item) for test, item in zip(items, found, strict=True))
        )
    return lambda found: bool(found == wanted)


def _fields(wanted: Mapping[Any, Any]) -> Test:
    tests = [(name, _parse(value)) for name, value in wanted.items()]
    return lambda found: all(test(found.get(name)) for name, test in tests)


def _operator(name: Any, wanted: Any) -> Test:
    if name == "$eq":
        value = _as_stored(wanted)
        return lambda found: bool(found == value)
    if name == "$ne":
        value = _as_stored(wanted)
        return lambda found: bool(found != value)
    if name not in _ORDER:
        raise Invalid(f"there is no operator {name!r}", hint=f"use {', '.join(OPERATORS)}")
    compare = _ORDER[name]
    return lambda found: any(compare(left, right) for left, right in _comparable(found, wanted))


def _comparable(found: Any, wanted: Any) -> list[tuple[Any, Any]]:
    """The two as things that have an order, or nothing."""
    if not (isinstance(found, str | int | float) and isinstance(wanted, str | int | float)):
        return []
    texts = isinstance(found, str), isinstance(wanted, str)
    if not any(texts):
        return [(found, wanted)]
    try:
        return [(float(found), float(wanted))]
    except (ValueError, OverflowError):
        return [(found, wanted)] if all(texts) else []


def _as_stored(value: Any) -> Any:
    """Tuples are lists once they are stored."""
    if isinstance(value, list | tuple):
        return [_as_stored(item) for item in value]
    if isinstance(value, Mapping):
        return {name: _as_stored(item) for name, item in value.items()}
    return value
