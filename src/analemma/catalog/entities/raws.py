"""Versions of entities as they came. A new one is written with its blocks and its event in one transaction: one
statement on PostgreSQL, where nothing stands in its way; otherwise step by step, with the entity held."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Row, Statements, Transaction
from analemma.catalog.entities.bodies import add_bodies, body_parameters
from analemma.catalog.entities.entities import MAXIMUM_VERSION, EntityPlace
from analemma.catalog.outbox.events import check_events, enqueue
from analemma.catalog.outbox.lanes import LaneKey, settled_lane
from analemma.catalog.port import BlockRow, OutboxEvent, TenantId, UploadId
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("ingest.before_transaction", "a version's blocks are prepared and nothing is written")
AFTER_BLOCKS = declare("ingest.after_blocks", "the blocks of a version are written inside the transaction")
BEFORE_COMMIT = declare("ingest.before_commit", "version, blocks and event are written, nothing is committed")
AFTER_COMMIT = declare("ingest.after_commit", "the version is there, but the caller does not know")


class RawRow(NamedTuple):
    """A version of an entity as it came."""

    version: int
    hash: bytes
    schema_id: str | None
    schema_version: str | None
    root: BlockId | None
    """None: the entity was deleted."""
    size: int
    created_at_us: int


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
    number: int | None = None
    """The entity's; None if there is none."""


Told = Callable[[Transaction, Sequence[Written]], None]
"""What is to happen together with it."""


class Raws:
    """One tenant's versions."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def find(self, entity: int, version: int, *, source: Statements | None = None) -> RawRow | None:
        """A version."""
        row = (source or self._engine).one("raw_version", entity=entity, version=version)
        return None if row is None else _raw(row)

    def write(
        self,
        items: Sequence[NewRaw],
        *,
        uploads: Sequence[UploadId] = (),
        now_us: int,
        within: Callable[[Transaction], None] | None = None,
        told: Told | None = None,
    ) -> list[Written]:
        """Write them, each entity at most once; in the order given, what became of each. All in one transaction, except
        those of a batch on PostgreSQL that have to be looked at first. `told` and `within` run in that transaction, at
        its end; `told` hears what becomes of each, in the order of their keys."""
        hit(BEFORE_TRANSACTION)
        order = sorted(range(len(items)), key=lambda index: items[index].place)
        ordered = [items[index] for index in order]
        found: list[Written | None] = [None] * len(items)
        # Blocks may come to lie in an upload only in the transaction that finishes it: a batch with one is not divided.
        at_once = within is None and told is None
        if self._engine.dialect == "postgres" and at_once and not (uploads and len(items) > 1):
            found = self._send(ordered, uploads, now_us)
        left = [index for index, each in enumerate(found) if each is None]
        if left:
            rest = [ordered[index] for index in left]
            answers = self._engine.write(lambda tx: self._in_transaction(tx, rest, uploads, now_us, within, told))
            for index, answer in zip(left, answers, strict=True):
                found[index] = answer
        hit(AFTER_COMMIT)
        answered = {index: answer for index, answer in zip(order, found, strict=True) if answer is not None}
        return [answered[index] for index in range(len(items))]

    def _send(self, items: Sequence[NewRaw], uploads: Sequence[UploadId], now_us: int) -> list[Written | None]:
        """Write what is newer than everything and has other content than the newest; None for what needs a look."""
        from analemma.catalog.engine.postgres.engine import retry_contention

        return retry_contention(lambda: self._in_one_statement(self._engine, items, uploads, now_us))

    def _in_one_statement(
        self,
        source: Statements,
        items: Sequence[NewRaw],
        uploads: Sequence[UploadId],
        now_us: int,
        settling: LaneKey | None = None,
    ) -> list[Written | None]:
        events = [item.event(item.version) for item in items]
        check_events(events)
        parameters = {
            "tenant": self._tenant,
            "now": now_us,
            "trace": events[0].trace,
            "settling_type": None if settling is None else settling.aggregate_type,
            "settling_id": None if settling is None else settling.aggregate_id,
            "types": [item.place.type for item in items],
            "keys": [item.place.id for item in items],
            "versions": [item.version for item in items],
            "hashes": [item.hash for item in items],
            "schema_ids": [item.schema_id for item in items],
            "schema_versions": [item.schema_version for item in items],
            "roots": [item.root for item in items],
            "sizes": [item.size for item in items],
            "lane_ids": [event.aggregate_id for event in events],
            "event_ids": [event.id for event in events],
            "payloads": [event.payload for event in events],
            **body_parameters((block for item in items for block in item.blocks), uploads),
        }
        rows = source.all("ingest", **parameters)
        return [_seen(item, row) for item, row in zip(items, rows, strict=True)]

    def _in_transaction(
        self,
        tx: Transaction,
        items: Sequence[NewRaw],
        uploads: Sequence[UploadId],
        now_us: int,
        within: Callable[[Transaction], None] | None,
        told: Told | None,
    ) -> list[Written]:
        answers: list[Written] = []
        if tx.dialect == "postgres" and len(items) == 1 and (told is not None or within is not None):
            # What the statement leaves for a look it did not touch.
            sent = self._in_one_statement(tx, items, uploads, now_us, settled_lane(within))
            answers = [each for each in sent if each is not None]
        answers = answers or self._in_steps(tx, items, uploads, now_us, settled_lane(within))
        if told is not None:
            told(tx, answers)
        if within is not None:
            within(tx)
        hit(BEFORE_COMMIT)
        return answers

    def _in_steps(
        self,
        tx: Transaction,
        items: Sequence[NewRaw],
        uploads: Sequence[UploadId],
        now_us: int,
        settling: LaneKey | None,
    ) -> list[Written]:
        answers: list[Written] = []
        rows: list[tuple[Any, ...]] = []
        moved: list[tuple[Any, ...]] = []
        events: list[OutboxEvent] = []
        blocks: list[BlockRow] = []
        for item in items:
            number, newest, answer = self._decide(tx, item)
            answers.append(answer)
            if answer.fate is not Fate.CREATED or number is None:
                continue
            version = answer.version
            rows.append((number, version, item.hash, item.schema_id, item.schema_version, item.root, item.size, now_us))
            if newest is None or version > newest:
                moved.append((version, item.hash, number))
            events.append(item.event(version))
            blocks += item.blocks
        if rows:
            tx.execute_many("move_newest_raw", moved)
            enqueue(tx, self._tenant, events, now_us=now_us, settling=settling)
            add_bodies(tx, self._tenant, blocks, uploads)
            hit(AFTER_BLOCKS)
            tx.execute_many("add_raw", rows)
        return answers

    def _decide(self, tx: Transaction, item: NewRaw) -> tuple[int | None, int | None, Written]:
        """What to do with one of them, its entity held: the entity to write it to, if it is to be written, and the
        newest version there."""
        asked = {"tenant": self._tenant, "type": item.place.type, "key": item.place.id}
        row = tx.one("hold_entity", **asked)
        if row is None and item.root is not None:
            tx.execute("add_entity", **asked)
            row = tx.one("hold_entity", **asked)
        if row is None or (row[1] is None and item.root is None):
            return None, None, Written(Fate.ABSENT, 0)
        number, newest, newest_hash = row
        if newest is None:
            return number, newest, Written(Fate.CREATED, item.version, number)
        there = self.find(number, item.version, source=tx) if item.version <= newest else None
        if item.named and item.version <= newest:
            if there is None:
                return number, newest, Written(Fate.CREATED, item.version, number)
            fate = Fate.UNCHANGED if there.hash == item.hash else Fate.CONFLICT
            return None, newest, Written(fate, item.version, number)
        if there is not None and there.hash == item.hash:
            # Sent again because its answer was lost, after somebody else had added a version.
            return None, newest, Written(Fate.CREATED, item.version, number)
        if newest_hash == item.hash:
            return number, newest, Written(Fate.UNCHANGED, newest, number)
        # Versions made elsewhere may be ahead of ours; a new one is the newest all the same.
        version = max(item.version, newest + 1)
        return number, newest, Written(Fate.CREATED if version <= MAXIMUM_VERSION else Fate.EXHAUSTED, version, number)


def _seen(item: NewRaw, row: Row) -> Written | None:
    """The answer of the one statement, if what it saw is enough for one."""
    _, number, newest, newest_hash, _, known = row
    if number is not None:
        return Written(Fate.CREATED, item.version, number)
    if newest is None or newest_hash != item.hash or (item.named and item.version < newest):
        return None
    # A statement that is sent again because its answer was lost finds what it wrote.
    mine = not item.named and newest == item.version
    return Written(Fate.CREATED if mine else Fate.UNCHANGED, newest, known)


def _raw(row: Row) -> RawRow:
    version, content_hash, schema_id, schema_version, root, size, created_at = row
    return RawRow(
        version, content_hash, schema_id, schema_version, None if root is None else BlockId(root), size, created_at
    )
