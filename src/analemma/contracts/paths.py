"""Paths into JSON documents, as contracts write them: one parser, and every question that is asked of a path.

`/a/b`, `a.b` and `$.a.b` are the same path. `*` (also `[*]`) stands for one segment, `**` for any number of them, none
included. `['...']` takes what it quotes literally. A pattern covers everything below what it matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, Final, NamedTuple

from analemma.canon.pointer import LONGEST_INDEX, Path, format_pointer, parse_pointer
from analemma.errors import Invalid

MAXIMUM_LENGTH: Final = 1000
MAXIMUM_SEGMENTS: Final = 64
MAXIMUM_STATES: Final = 5000
"""Wildcards behind `**` can make the question of what covers what grow without bounds."""


class Wildcard(Enum):
    """Segments that stand for more than themselves."""

    ONE = "*"
    ANY = "**"


Segment = str | Wildcard
Token = str | int
"""A step into a document: the name of a member, or a position in a list."""

_PIECE: Final = re.compile(
    r"\.(?P<name>[^.\[\]'\"]+)"
    r"|\[(?P<index>\*|[0-9]+)\]"
    r"|\[(?P<quoted>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]"
)
_ESCAPED: Final = re.compile(r"\\(.)")


class Found(NamedTuple):
    """One place in a document that a pattern matches."""

    path: tuple[Token, ...]
    bound: tuple[Token, ...]
    """What each `*` of the pattern stands for, in order; empty for patterns with `**`."""
    value: Any


@dataclass(frozen=True)
class Pattern:
    """A path that may have wildcards."""

    segments: tuple[Segment, ...]

    def __str__(self) -> str:
        if any(segment == "" or segment in ("*", "**") for segment in self.segments):
            return "$" + "".join(map(_in_brackets, self.segments))
        return format_pointer(_text(segment) for segment in self.segments) or "$"

    @cached_property
    def literal(self) -> Path | None:
        """The one path it stands for, if it has no wildcard."""
        path = tuple(segment for segment in self.segments if isinstance(segment, str))
        return path if len(path) == len(self.segments) else None

    @cached_property
    def has_depth(self) -> bool:
        """Whether it has `**`."""
        return Wildcard.ANY in self.segments

    @cached_property
    def wildcards(self) -> int:
        """How many segments are wildcards."""
        return sum(isinstance(segment, Wildcard) for segment in self.segments)

    def select(self, document: Any) -> list[Found]:
        """The highest places that match, members of objects in the order of their names."""
        if self.has_depth:
            return list(_select_deep(self, document, (), self._start))
        return list(_select(self.segments, document, (), ()))

    def covers(self, path: Path) -> bool:
        """Whether the path is at or below a place that matches."""
        if self.literal is not None:
            return path[: len(self.literal)] == self.literal
        return self._follow(path) is True

    def touches(self, path: Path) -> bool:
        """Whether a change of all that is at this path can change what the pattern matches or what is below it."""
        if self.literal is not None:
            shared = min(len(path), len(self.literal))
            return path[:shared] == self.literal[:shared]
        first = self.segments[0]
        if path and isinstance(first, str) and first != path[0]:
            return False
        return self._follow(path) is not False

    def overlaps(self, other: Pattern) -> bool:
        """Whether both can reach the same place: one matches at or below where the other does."""
        seen: set[tuple[int, int]] = set()
        waiting = [(mine, theirs) for mine in self._start for theirs in other._start]
        while waiting:
            pair = waiting.pop()
            if pair in seen:
                continue
            seen.add(pair)
            mine, theirs = pair
            if mine == len(self.segments) or theirs == len(other.segments):
                return True
            for token in _tokens_of((self.segments[mine], other.segments[theirs])):
                waiting += [
                    (one, two)
                    for one in self._step(frozenset((mine,)), token)
                    for two in other._step(frozenset((theirs,)), token)
                ]
        return False

    def covered_by(self, patterns: Sequence[Pattern]) -> bool:
        """Whether every place that matches is at or below one that some of these patterns match.

        Patterns that are too intricate to decide count as not covered."""
        tokens = _tokens_of([segment for pattern in (self, *patterns) for segment in pattern.segments])
        start = tuple(pattern._start for pattern in patterns)
        seen: set[tuple[int, tuple[frozenset[int], ...]]] = set()
        waiting = [(state, start) for state in self._start]
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            if len(seen) == MAXIMUM_STATES:
                return False
            seen.add(here)
            state, others = here
            if any(len(pattern.segments) in states for pattern, states in zip(patterns, others, strict=True)):
                continue
            if state == len(self.segments):
                return False
            for token in tokens:
                moved = tuple(pattern._step(states, token) for pattern, states in zip(patterns, others, strict=True))
                waiting += [(after, moved) for after in self._step(frozenset((state,)), token)]
        return True

    @cached_property
    def _start(self) -> frozenset[int]:
        return self._closed((0,))

    def _closed(self, states: Iterable[int]) -> frozenset[int]:
        """These positions, and those reached from them when `**` stands for nothing."""
        found: set[int] = set()
        for state in states:
            found.add(state)
            while state < len(self.segments) and self.segments[state] is Wildcard.ANY:
                state += 1
                found.add(state)
        return frozenset(found)

    def _step(self, states: frozenset[int], token: Token | None) -> frozenset[int]:
        """The positions after one more token; None is a token that no pattern names."""
        name = None if token is None else str(token)
        after: list[int] = []
        for state in states:
            if state < len(self.segments):
                segment = self.segments[state]
                if segment is Wildcard.ANY:
                    after.append(state)
                elif segment is Wildcard.ONE or segment == name:
                    after.append(state + 1)
        return self._closed(after)

    def _follow(self, path: Path) -> bool | None:
        """True: covered; False: elsewhere; None: what matches may be further below."""
        states = self._start
        for token in path:
            if len(self.segments) in states:
                return True
            states = self._step(states, token)
            if not states:
                return False
        return True if len(self.segments) in states else None


@lru_cache(maxsize=4096)
def parse_path(text: str) -> Pattern:
    """Read a path in any of its forms; Invalid says what is wrong with it.

    >>> str(parse_path("$.stock.sites[*].count"))
    '/stock/sites/*/count'
    """
    if not text or text != text.strip():
        raise Invalid(f"not a path: {text!r}", hint="the whole document is `$`; write no spaces around a path")
    if len(text) > MAXIMUM_LENGTH:
        raise Invalid(f"a path of {len(text)} characters", hint=f"the limit is {MAXIMUM_LENGTH}")
    segments = _pointer_segments(text) if text.startswith("/") else _dotted_segments(text)
    if len(segments) > MAXIMUM_SEGMENTS:
        raise Invalid(f"a path of {len(segments)} segments", hint=f"the limit is {MAXIMUM_SEGMENTS}")
    # Two of them in a row say no more than one.
    kept = [
        segment
        for number, segment in enumerate(segments)
        if not (segment is Wildcard.ANY and number > 0 and segments[number - 1] is Wildcard.ANY)
    ]
    return Pattern(tuple(kept))


def _pointer_segments(text: str) -> list[Segment]:
    tokens = parse_pointer(text)
    if "" in tokens:
        raise Invalid(
            f"not a path: {text!r} has an empty segment", hint="remove the extra `/`; a nameless field is `['']`"
        )
    return [_segment(token) for token in tokens]


def _dotted_segments(text: str) -> list[Segment]:
    rest = text[1:] if text.startswith("$") else text if text.startswith("[") else f".{text}"
    segments: list[Segment] = []
    position = 0
    while position < len(rest):
        piece = _PIECE.match(rest, position)
        if piece is None:
            raise Invalid(
                f"not a path: {text!r} is not understood from {rest[position:]!r} on",
                hint="write `/a/b`, `a.b[*].c` or `$.a.b`; quote odd names as `['a.b']`; any depth is `**`",
            )
        if piece["quoted"] is not None:
            segments.append(_ESCAPED.sub(r"\1", piece["quoted"][1:-1]))
        else:
            segments.append(_segment(piece["name"] or piece["index"]))
        position = piece.end()
    return segments


def _segment(token: str) -> Segment:
    if token == "*":
        return Wildcard.ONE
    if token == "**":
        return Wildcard.ANY
    return token


def _text(segment: Segment) -> str:
    return segment if isinstance(segment, str) else segment.value


def _in_brackets(segment: Segment) -> str:
    if isinstance(segment, Wildcard):
        return f".{segment.value}"
    quoted = segment.replace("\\", "\\\\").replace("'", "\\'")
    return f"['{quoted}']"


def _tokens_of(segments: Iterable[Segment]) -> list[str | None]:
    """The tokens that make a difference to these segments; None stands for all others."""
    return [*dict.fromkeys(segment for segment in segments if isinstance(segment, str)), None]


def _members(document: Any) -> Iterable[tuple[Token, Any]]:
    if type(document) is dict:
        return sorted(document.items())
    return enumerate(document) if type(document) is list else ()


def _member(document: Any, name: str) -> tuple[Token, Any] | None:
    """What a literal segment leads to, and whether as a name or as a position."""
    if type(document) is dict:
        return (name, document[name]) if name in document else None
    is_index = name.isascii() and name.isdigit() and (name == "0" or name[0] != "0") and len(name) <= LONGEST_INDEX
    if type(document) is list and is_index and int(name) < len(document):
        return int(name), document[int(name)]
    return None


def _select(
    segments: tuple[Segment, ...], document: Any, path: tuple[Token, ...], bound: tuple[Token, ...]
) -> Iterator[Found]:
    if not segments:
        yield Found(path, bound, document)
        return
    first, rest = segments[0], segments[1:]
    if isinstance(first, str):
        found = _member(document, first)
        if found is not None:
            yield from _select(rest, found[1], (*path, found[0]), bound)
        return
    for token, value in _members(document):
        yield from _select(rest, value, (*path, token), (*bound, token))


def _select_deep(pattern: Pattern, document: Any, path: tuple[Token, ...], states: frozenset[int]) -> Iterator[Found]:
    if len(pattern.segments) in states:
        yield Found(path, (), document)
        return
    for token, value in _members(document):
        after = pattern._step(states, token)
        if after:
            yield from _select_deep(pattern, value, (*path, token), after)
