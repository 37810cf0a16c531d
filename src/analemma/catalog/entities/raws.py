"""Versions of entities as they came. Where the entities stand is read without locks; what is new is written with its
blocks and its event in one transaction, if they still stand there, and otherwise looked at again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import NamedTuple

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Transaction, send
from analemma.catalog.entities.entities import MAXIMUM_VERSION, EntityPlace, Overtaken, write_whole
from analemma.catalog.outbox.lanes import Within, in_lanes, settled_lane
from analemma.catalog.port import BlockRow, OutboxEvent, TenantId, UploadId
from analemma.clock import Clock, attempts
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("ingest.before_transaction", "a version's blocks are prepared and nothing is written")
LOOKED = declare("ingest.looked", "it is known which versions are new, and nothing is written")
BEFORE_COMMIT = declare("ingest.before_commit", "version, blocks and event are written, nothing is committed")
AFTER_COMMIT = declare("ingest.after_commit", "the version is there, but the caller does not know")


@dataclass(frozen=True, slots=True)
class NewRaw:
    """A version that somebody wants to write."""

    place: EntityPlace
    hash: bytes
    schema_id: str | None
    schema_version: str | None
    root: BlockId | None
    size: int
    version: int
    """What it will be, or (not `named`) the least that it may be."""
    named: bool
    """Whether the caller chose the version: then it may also be an older one."""
    event: Callable[[int], OutboxEvent]
    """Tells of it under a version."""
    blocks: tuple[BlockRow, ...] = ()


class Fate(Enum):
    """What became of it."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    """The newest version, or the one named, has the same content."""
    CONFLICT = "conflict"
    """The version named has other content."""
    ABSENT = "absent"
    """There is nothing to delete."""
    EXHAUSTED = "exhausted"
    """There is no greater version."""


class Written(NamedTuple):
    """The answer for one of them."""

    fate: Fate
    version: int


Told = Callable[[Transaction, Sequence[Written]], None]
"""What is to happen together with it."""


class _Known(NamedTuple):
    """Where an entity stands."""

    newest: int | None
    newest_hash: bytes | None
    there: bytes | None
    """The hash of the version that was asked for, if it is there."""


class _Raw(NamedTuple):
    item: NewRaw
    version: int


class Raws:
    """One tenant's versions."""

    def __init__(self, engine: Engine, tenant: TenantId, clock: Clock) -> None:
        self._engine = engine
        self._tenant = tenant
        self._clock = clock

    def write(
        self,
        items: Sequence[NewRaw],
        *,
        uploads: Sequence[UploadId] = (),
        now_us: int,
        within: Within | None = None,
        told: Told | None = None,
    ) -> list[Written]:
        """Write them in one transaction, each entity at most once; in the order given, what became of each. `told` and
        `within` run in that transaction, at its end; `told` hears what becomes of each, in the order of their keys."""
        hit(BEFORE_TRANSACTION)
        order = sorted(range(len(items)), key=lambda index: items[index].place)
        ordered = [items[index] for index in order]
        for _ in attempts(self._clock, "the entities change too fast", hint="write to them from fewer places"):
            try:
                answers = self._attempt(ordered, uploads, now_us, within, told)
            except Overtaken:
                continue
            hit(AFTER_COMMIT)
            found = dict(zip(order, answers, strict=True))
            return [found[index] for index in range(len(items))]
        raise AssertionError("unreachable")

    def _attempt(
        self,
        items: Sequence[NewRaw],
        uploads: Sequence[UploadId],
        now_us: int,
        within: Within | None,
        told: Told | None,
    ) -> list[Written]:
        known = self._look((item.place, item.version) for item in items)
        answers = [_decide(item, each) for item, each in zip(items, known, strict=True)]
        hit(LOOKED)
        is_alone = within is None and told is None
        held: list[SimpleNamespace] = []
        new: list[_Raw] = []
        for item, each, (fate, version) in zip(items, known, answers, strict=True):
            # An entity must stand where it was seen; at -1, if it has no version.
            seen = -1 if each.newest is None else each.newest
            if fate is Fate.CREATED:
                new.append(_Raw(item, version))
            elif is_alone or fate is Fate.ABSENT:
                continue
            moves = fate is Fate.CREATED and version > seen
            newest, newest_hash = (version, item.hash) if moves else (each.newest, each.newest_hash)
            held.append(SimpleNamespace(place=item.place, seen=seen, newest=newest, newest_hash=newest_hash))
        events = [item.event(version) for item, version in new]
        lanes, placed = in_lanes(events, settled_lane(within) if new else None)
        given = SimpleNamespace(
            tenant=self._tenant,
            now=now_us,
            held=held,
            raws=new,
            blocks=[*{block.id: block for item, _ in new for block in item.blocks}.values()],
            uploads=sorted(set(uploads)) if new else (),
            lanes=lanes,
            events=placed,
        )

        def move(tx: Transaction) -> bool:
            if held:
                changed = "an entity got another version since it was looked at"
                write_whole(tx, "add_raws", given, overtaken=changed, hint="look again")
            if told is not None:
                told(tx, answers)
            if within is not None:
                within(tx)
            if tx.is_open:
                hit(BEFORE_COMMIT)
            return True

        if not is_alone:
            self._engine.write(move)
        elif new:
            send(lambda: self._engine.write(move, alone=True), found=lambda: self._are_there(new) or None)
        return answers

    def _look(self, wanted: Iterable[tuple[EntityPlace, int]]) -> list[_Known]:
        asked = [(place.type, place.id, version) for place, version in wanted]
        return self._engine.rows(_Known, "known_raws", tenant=self._tenant, wanted=asked)

    def _are_there(self, new: Sequence[_Raw]) -> bool:
        """Whether what was sent, and not answered, has happened."""
        known = self._look((item.place, version) for item, version in new)
        return all(each.there == item.hash for each, (item, _) in zip(known, new, strict=True))


def _decide(item: NewRaw, known: _Known) -> Written:
    """What becomes of one of them, if its entity stands where it was seen."""
    newest = known.newest
    if newest is None:
        return Written(Fate.ABSENT, 0) if item.root is None else Written(Fate.CREATED, item.version)
    if item.named and item.version <= newest:
        if known.there is None:
            return Written(Fate.CREATED, item.version)
        return Written(Fate.UNCHANGED if known.there == item.hash else Fate.CONFLICT, item.version)
    if known.newest_hash == item.hash:
        return Written(Fate.UNCHANGED, newest)
    # Versions made elsewhere may be ahead of ours; a new one is the newest all the same.
    version = max(item.version, newest + 1)
    return Written(Fate.CREATED if version <= MAXIMUM_VERSION else Fate.EXHAUSTED, version)
