"""The plan of a workflow: its segments, in the order in which they stand in a manifest, and how one leads to another.

A plan can be made of a document (`partitioning`) or of the segments that a manifest has (`plan_of`): they are the same,
but for segments that were injected since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, get_args

from analemma.errors import Invalid
from analemma.flows.document import FORMAT

SegmentType = Literal["steps", "llm", "human", "branch", "loop", "parallel", "for_each", "subflow", "merge"]
SEGMENT_TYPES: Final[tuple[str, ...]] = get_args(SegmentType)
GROUPS: Final = ("parallel", "for_each")
"""Segments whose nodes run elsewhere, as tasks."""


@dataclass(frozen=True)
class Segment:
    """One unit of execution. `config` is all of it as data, and what a manifest has the hash of."""

    id: str
    """That of its first node."""
    type: SegmentType
    nodes: tuple[str, ...]
    """Ids, in the order in which they run; those inside a group behind it."""
    next: tuple[str, ...]
    """The segments that follow. Of a branch, none: its arms say."""
    arms: tuple[tuple[str, ...], ...] = ()
    """Of a branch: where each case and then the default leads."""
    body: str | None = None
    """Of a loop: the segment that its body begins with."""
    loop: str | None = None
    """The innermost loop that it stands in."""
    start: bool = False
    """Whether a run begins with it."""
    automatic: bool = False
    """Whether it stands for no node of the document."""
    injected: int = 0
    """The hash version of the list that it was injected into; 0: it was there from the beginning."""
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def ring(self) -> str:
        """The ring whose view of the state it may see, as `filter_event_payload` takes it."""
        return str(self.config["ring"])


@dataclass(frozen=True)
class Plan:
    """Segments in an order that respects every edge; the body of a loop stands directly behind it."""

    segments: tuple[Segment, ...]
    iteration_limit: int
    """How many segments a run may execute, counting every time."""
    hash_version: int = 1
    """Of the list of segments: 1, and one more with every one that was injected."""

    @property
    def total_segments(self) -> int:
        """How many there are. It stays the same while a run goes on."""
        return len(self.segments)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The place of each segment, from 0."""
        return {segment.id: number for number, segment in enumerate(self.segments)}

    def segment(self, segment: str) -> Segment:
        """A segment by its id."""
        return self.segments[self.numbers[segment]]

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """The segments that a run begins with."""
        return tuple(each.id for each in self.segments if each.start)

    def loops_around(self, segment: str) -> tuple[str, ...]:
        """The loops that a segment stands in, from the innermost outwards."""
        return self._around[segment]

    @cached_property
    def _around(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for segment in self.segments:
            # A loop stands before its body.
            found[segment.id] = () if segment.loop is None else (segment.loop, *found[segment.loop])
        return found

    @cached_property
    def entrances(self) -> dict[str, str]:
        """For segments that others were injected directly before: the first of those."""
        return self.entrances_since(0)

    def entrances_since(self, hash_version: int) -> dict[str, str]:
        """The same for those alone that were injected after a hash version."""
        found: dict[str, str] = {}
        first: str | None = None
        for segment in self.segments:
            if first is not None:
                found[segment.id] = first
            first = (first or segment.id) if segment.injected > hash_version else None
        return found

    @cached_property
    def appended(self) -> tuple[str, ...]:
        """The segments that were injected behind all others."""
        trailing: list[str] = []
        for segment in reversed(self.segments):
            if not segment.injected:
                break
            trailing.append(segment.id)
        return tuple(reversed(trailing))

    def segment_manifest(self) -> list[dict[str, Any]]:
        """What `create_manifest` takes: each configuration, wrapped in what an orchestrator wants to see of it."""
        return [
            {
                "segment_id": number,
                "segment_name": segment.id,
                "segment_type": segment.type,
                "total_segments": self.total_segments,
                "segment_config": dict(segment.config),
            }
            for number, segment in enumerate(self.segments)
        ]


def plan_of(entries: Iterable[Mapping[str, Any]], iteration_limit: int, hash_version: int = 1) -> Plan:
    """The plan that a manifest's segments make; entries may wrap their `segment_config`."""
    configs = [each.get("segment_config", each) for each in entries]
    segments = [segment_of(config) for config in configs]
    known = {segment.id for segment in segments}
    if len(known) != len(segments):
        raise Invalid("two segments have the same id", hint="give an injected segment a name of its own")
    for segment in segments:
        named = (*segment.next, *(each for arm in segment.arms for each in arm))
        others = tuple(each for each in (segment.body, segment.loop) if each is not None)
        for other in (*named, *others):
            if other not in known:
                raise Invalid(f"segment {segment.id} names {other}, which there is not")
    return Plan(tuple(_placed(segments)), iteration_limit, hash_version)


def segment_of(config: Mapping[str, Any]) -> Segment:
    """The segment that a configuration describes."""
    if not isinstance(config, Mapping) or config.get("format") != FORMAT or config.get("type") not in SEGMENT_TYPES:
        raise Invalid(
            "a segment's configuration is of no format that is known", hint=f"this program reads format {FORMAT}"
        )
    try:
        return Segment(
            id=_text(config["id"]),
            type=config["type"],
            nodes=tuple(_text(node["id"]) for node in config["nodes"]),
            next=_texts(config["next"]),
            arms=tuple(map(_texts, config.get("arms", ()))),
            body=config.get("body"),
            loop=config.get("loop"),
            start=config.get("start", False) is True,
            automatic=config.get("automatic", False) is True,
            # A store of an earlier version says only that it was.
            injected=int(config.get("injected", 0)),
            config=config,
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise Invalid(f"a segment's configuration lacks {exc}") from exc


def _placed(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Check that bodies stand together, directly behind their loops: walking relies on it."""
    numbers = {segment.id: number for number, segment in enumerate(segments)}
    open_loops: list[str] = []
    for number, segment in enumerate(segments):
        while open_loops and segment.loop != open_loops[-1]:
            open_loops.pop()
        if segment.loop is not None and (not open_loops or numbers[segment.loop] >= number):
            raise Invalid(f"segment {segment.id} does not stand in the body of {segment.loop}")
        if segment.type == "loop":
            open_loops.append(segment.id)
    return segments


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("an id that is text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list of ids")
    return tuple(map(_text, value))
