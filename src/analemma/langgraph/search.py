"""Searching the LangGraph store: what filters mean, which texts are embedded, how vectors are stored, and how items are
ranked. Every vector in question is looked at, so the ranking is exact, and the number of them limited."""

from __future__ import annotations

import operator
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from math import hypot, isfinite
from typing import Any

from langgraph.store.base import get_text_at_path, tokenize_path

from analemma.catalog.langgraph.items import StoredItem
from analemma.errors import Invalid, Limit

MAXIMUM_VECTORS = 50_000
"""One search compares with no more than these, which takes seconds."""
MAXIMUM_TEXTS = 1000

WHOLE = "$"

Test = Callable[[Any], bool]

_EQUALITY = ("$eq", "$ne")
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def parse_filter(wanted: Any) -> Test | None:
    """Whether a value has all these fields; None: every value does. Invalid for operators that do not exist. The same
    answers as `InMemoryStore`, and an answer where that one raises.

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
    if name not in _OPERATORS:
        raise Invalid(f"there is no operator {name!r}", hint=f"use {', '.join(_OPERATORS)}")
    compare = _OPERATORS[name]
    if name in _EQUALITY:
        value = _as_stored(wanted)
        return lambda found: bool(compare(found, value))
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


class TextIndex:
    """What of a value is indexed."""

    def __init__(self, fields: Sequence[str] | None, dimensions: int | None) -> None:
        self._paths = _tokenize(fields or [WHOLE])
        self._dimensions = dimensions

    def texts(self, value: Mapping[str, Any], chosen: Any) -> list[str]:
        """The texts of a value to embed; `chosen` as in `put(index=...)`."""
        if chosen is False:
            return []
        if chosen is not None and (isinstance(chosen, str) or not all(isinstance(path, str) for path in chosen)):
            raise Invalid(f"not an index: {chosen!r}", hint="give False, or a list of paths")
        paths = self._paths if chosen is None else _tokenize(chosen)
        found = [text for path in paths for text in get_text_at_path(dict(value), path)]
        if len(found) > MAXIMUM_TEXTS:
            raise Limit(
                f"an item has {len(found)} texts to index", hint=f"the limit is {MAXIMUM_TEXTS}; name fewer paths"
            )
        return found

    def check(self, vector: Iterable[Any]) -> array[float]:
        """A vector that an embedding gave, if it can be stored and compared."""
        numbers = array("d", vector)
        if not numbers or not all(map(isfinite, numbers)):
            raise Invalid("an embedding is empty or holds what is no number", hint="check the `embed` function")
        if self._dimensions is not None and len(numbers) != self._dimensions:
            raise Invalid(
                f"an embedding has {len(numbers)} dimensions", hint=f"the index was given {self._dimensions} as `dims`"
            )
        return numbers

    def pack(self, vectors: Iterable[Any]) -> dict[str, Any]:
        """What is stored of an item's vectors: how many dimensions they have, and all as bytes, the same on all
        machines."""
        checked = [self.check(vector) for vector in vectors]
        return {"dimensions": len(checked[0]), "vectors": portable(chain.from_iterable(checked)).tobytes()}


def rank(query: array[float], found: Iterable[StoredItem], wanted: int) -> list[tuple[float | None, StoredItem]]:
    """Of items with their vectors, so many that a query is nearest to, best first, with their scores; those without
    vectors follow. Equal ones stay in their order."""
    norm, unscored = hypot(*query), list[StoredItem]()

    def similarity(vector: array[float]) -> float:
        norms = norm * hypot(*vector)
        similarity = sum(map(operator.mul, query, vector)) / norms if norms else 0.0
        return similarity if isfinite(similarity) else 0.0

    def scored() -> Iterator[tuple[float, StoredItem]]:
        compared = 0
        for item in found:
            dimensions, data = item.dimensions, item.vectors
            if dimensions is None or data is None:
                if len(unscored) < wanted:
                    unscored.append(item)
                continue
            if dimensions != len(query):
                raise Invalid(
                    f"item {item.key!r} was indexed with {dimensions} dimensions, the query has {len(query)}",
                    hint="open the store with the embedding it was indexed with, or put the items again",
                )
            joined = portable(data)
            vectors = [joined[start : start + dimensions] for start in range(0, len(joined), dimensions)]
            compared += len(vectors)
            if compared > MAXIMUM_VECTORS:
                raise Limit(
                    f"the search would compare more than {MAXIMUM_VECTORS} vectors",
                    hint="search below a longer namespace, or with a filter",
                )
            yield max(map(similarity, vectors)), item

    best = nlargest(wanted, scored(), key=operator.itemgetter(0))
    return [*best, *((None, item) for item in unscored)][:wanted]


def portable(numbers: bytes | Iterable[float]) -> array[float]:
    """Doubles on their way to or from where all machines read them."""
    joined = array("d", numbers)
    if sys.byteorder == "big":
        joined.byteswap()
    return joined


def _tokenize(paths: Iterable[str]) -> list[Any]:
    return [path if path == WHOLE else tokenize_path(path) for path in paths]
