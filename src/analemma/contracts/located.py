"""Documents that remember on which line each part stood."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Located:
    """One value of a contract file: plain data, and where it and its parts are."""

    value: Any
    line: int | None
    parts: dict[str | int, Located] = field(default_factory=dict)
    key_lines: dict[str, int | None] = field(default_factory=dict)
    """For objects: the line of each key, which is not always that of its value."""

    def line_of(self, *path: str | int) -> int | None:
        """The line of what is there; steps that lead nowhere are skipped, so that what is missing is at its parent."""
        return self._find(path)[0].line

    def key_line_of(self, *path: str | int) -> int | None:
        """The line of the key that the path ends with."""
        node, missed = self._find(path[:-1])
        last = path[-1]
        if not missed and isinstance(last, str) and last in node.key_lines:
            return node.key_lines[last]
        return self.line_of(*path)

    def without(self, places: Collection[tuple[str | int, ...]]) -> Located:
        """The same without the parts at these places; what is left keeps its lines."""
        below: dict[str | int, list[tuple[str | int, ...]]] = {}
        for place in places:
            if place:
                below.setdefault(place[0], []).append(place[1:])
        left = {
            token: part.without(below.get(token, ()))
            for token, part in self.parts.items()
            if () not in below.get(token, ())
        }
        if type(self.value) is list:
            items = list(left.values())
            return Located([item.value for item in items], self.line, dict(enumerate(items)))
        if type(self.value) is not dict:
            return self
        return Located({str(token): part.value for token, part in left.items()}, self.line, left, self.key_lines)

    def _find(self, path: tuple[str | int, ...]) -> tuple[Located, bool]:
        node, missed = self, False
        for token in path:
            if token in node.parts:
                node = node.parts[token]
            else:
                missed = True
        return node, missed


def locate(value: Any) -> Located:
    """Data that comes from no file."""
    node = Located(value, None)
    for token, part in _parts_of(value):
        node.parts[token] = locate(part)
    return node


def _parts_of(value: Any) -> Iterator[tuple[str | int, Any]]:
    if type(value) is dict:
        yield from value.items()
    elif type(value) is list:
        yield from enumerate(value)
