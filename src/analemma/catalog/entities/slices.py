"""What versions were compiled to: reading what a compile needs, writing what compiles made in one transaction, and the
rows that views are answered from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import orjson

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction, send
from analemma.catalog.entities.entities import EntityPlace, Overtaken, write_whole
from analemma.catalog.outbox.lanes import LaneKey, Within, in_lanes, settled_lane
from analemma.catalog.port import BlockRow, OutboxEvent, TenantId, UploadId
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("compile.before_transaction", "slices are built and nothing is written")
BEFORE_COMMIT = declare("compile.before_commit", "slices, index entries and events are written, nothing is committed")
AFTER_COMMIT = declare("compile.after_commit", "the compile is there, but the caller does not know")
PAGE_WRITTEN = declare("fanout.after_blocks", "the compiles of a page are written inside the transaction")

SHARED: Final = 0
NEWEST_ONLY: Final = 1
SERVED_ONLY: Final = 2
"""What `waiting` is of an index entry while the newest compiled version of its entity is not the one that is served: it
is one of both, or of only one of the two. Readers find the served one's; whoever looks for dependants finds all."""


class StoredDocument(NamedTuple):
    """A raw document: where it lies, and what it must hash to."""

    hash: bytes
    schema_id: str | None
    schema_version: str | None
    root: BlockId | None


class CompileRow(NamedTuple):
    """One compile of one version."""

    version: int
    revision: int
    ruleset_id: str
    ruleset_version: str
    fingerprint: str
    dependencies: str
    """JSON: by slice type, [entity type, id, slice type, hash] for each slice that was looked up."""


@dataclass(frozen=True, slots=True)
class CompileStart:
    """What a compile begins with."""

    number: int
    newest_raw: int | None
    newest_compiled: int | None
    compile_seq: int
    serving_version: int | None
    ship_seq: int
    version: int | None
    """None: there is no such version."""
    document: StoredDocument | None
    base: CompileRow | None
    """The newest compile of the version itself, or else of the greatest compiled version below it."""
    base_document: StoredDocument | None


@dataclass(frozen=True, slots=True)
class WantedSlice:
    """A slice to read: as it is served, or as it was at a version."""

    place: EntityPlace
    type: str
    version: int | None = None


class SliceRow(NamedTuple):
    """A slice, or the tombstone in its place, as it lies in the catalog."""

    type: str
    version: int
    revision: int
    hash: bytes | None
    root: BlockId | None
    tombstone: str | None
    detail: str | None


class FoundSlice(NamedTuple):
    """What there is of a wanted slice."""

    number: int | None
    """None: the entity has no row, not even as a placeholder."""
    compile_seq: int
    row: SliceRow | None


class EntryRow(NamedTuple):
    """An index entry; `target` is an entity's number."""

    type: str
    value: str
    target: int | None


class Seen(NamedTuple):
    """An entity that was looked at, and by what one can tell later whether it is still the same."""

    number: int
    compile_seq: int


@dataclass(frozen=True, slots=True)
class CompileWrite:
    """Everything that one compile writes."""

    place: EntityPlace
    number: int
    expected: int
    """The entity's compile_seq when it was read."""
    joined: tuple[Seen, ...]
    """Every entity that was looked up."""
    row: CompileRow
    mode: str
    newest: bool
    """Whether this is now the newest compiled version."""
    serves: bool
    """Whether readers who name no version get this one from now on."""
    expected_ship_seq: int
    """The entity's ship_seq when it was read."""
    ship_seq: int
    """What it becomes: one more, if what sinks get has changed."""
    slices: tuple[SliceRow, ...]
    entries: tuple[EntryRow, ...] | None
    """All entries of the entity; None: they stay as they are."""
    blocks: tuple[BlockRow, ...]
    uploads: tuple[UploadId, ...]
    events: tuple[OutboxEvent, ...]
    parted: bool = False
    """Whether the newest compiled version and the served one are two, before or after this, and this is of one of them:
    then the entity has the index entries of both."""
    is_delete: bool = False
    contracts_us: int | None = None
    """When the contracts that it goes by were loaded. Whoever has others since may join it, and by those only a compile
    tells him of a change."""

    @property
    def rules(self) -> str | None:
        """By which the entity is found, if the version is served; None: it is deleted, and is not found at all."""
        return None if self.is_delete else self.row.fingerprint

    @property
    def newest_version(self) -> int | None:
        """The newest compiled version from now on, if that changes."""
        return self.row.version if self.newest else None

    @property
    def served_version(self) -> int | None:
        """What is served from now on, if that changes."""
        return self.row.version if self.serves else None

    @property
    def own(self) -> int:
        """What `waiting` is of its entries."""
        return (NEWEST_ONLY if self.newest else SERVED_ONLY) if self.parted else SHARED

    @property
    def other(self) -> int:
        """What `waiting` is of the entries that only the other of two versions has."""
        return SERVED_ONLY if self.newest else NEWEST_ONLY

    @property
    def kept(self) -> str:
        """Its entries as the statements compare them."""
        return orjson.dumps([[each.type, each.value, each.target or 0] for each in self.entries or ()]).decode()


def compile_starts(
    source: Statements, tenant: TenantId, wanted: Sequence[tuple[EntityPlace, int | None]]
) -> list[CompileStart | None]:
    """What compiling each of these versions, or the newest, begins with; None if there is no such entity."""
    found: list[CompileStart | None] = [None] * len(wanted)
    asked = [(place.type, place.id, version) for place, version in wanted]
    for at, *row in source.all("compile_starts", tenant=tenant, wanted=asked) if wanted else ():
        document = None if row[6] is None else StoredDocument(*row[7:11])
        base = None if row[11] is None else CompileRow(*row[11:17])
        base_document = None if base is None else StoredDocument(*row[17:21])
        found[at] = CompileStart(*(*row[:7], document, base, base_document))
    return found


def find_slices(source: Statements, tenant: TenantId, wanted: Sequence[WantedSlice]) -> list[FoundSlice]:
    """What there is of each, in one round trip."""
    if not wanted:
        return []
    asked = [(each.place.type, each.place.id, each.type, each.version) for each in wanted]
    found = [FoundSlice(None, 0, None)] * len(wanted)
    for at, number, compile_seq, version, revision, *content in source.all(
        "wanted_slices", tenant=tenant, wanted=asked
    ):
        there = None if version is None else SliceRow(wanted[at].type, version, revision, *content)
        found[at] = FoundSlice(number, compile_seq or 0, there)
    return found


def write_compile(
    engine: Engine, tenant: TenantId, write: CompileWrite, *, now_us: int, within: Within | None = None
) -> bool:
    """Write one in a transaction; False, and nothing is written, if what it was made of has changed since."""

    def move(tx: Transaction) -> None:
        write_compiles(tx, tenant, [write], now_us=now_us, settling=settled_lane(within))
        if within is not None:
            within(tx)
        if tx.is_open:
            hit(BEFORE_COMMIT)

    hit(BEFORE_TRANSACTION)
    try:
        if within is None:
            # Sent again because its answer was lost, it finds the entity compiled, and whoever asked looks again.
            send(lambda: engine.write(move, alone=True))
        else:
            engine.write(move)
    except Overtaken:
        return False
    hit(AFTER_COMMIT)
    return True


def write_compiles(
    tx: Transaction,
    tenant: TenantId,
    writes: Sequence[CompileWrite],
    events: Sequence[OutboxEvent] = (),
    *,
    now_us: int,
    settling: LaneKey | None = None,
) -> None:
    """Write compiles with their events, and some more; Overtaken, and the transaction must be undone, if something that
    one of them was made of has changed since. A lane of which the transaction settles an event is locked with those of
    the events."""
    told = [*(event for write in writes for event in write.events), *events]
    indexed = [write for write in writes if write.entries is not None]
    lanes, placed = in_lanes(told, settling)
    given = SimpleNamespace(
        tenant=tenant,
        now=now_us,
        contracts_us=min((write.contracts_us for write in writes if write.contracts_us is not None), default=None),
        joined=[*{seen for write in writes for seen in write.joined}],
        compiles=writes,
        slices=[SimpleNamespace(entity=write.number, slice=each) for write in writes for each in write.slices],
        indexed=indexed,
        parted=[write for write in indexed if write.parted],
        entries=[
            SimpleNamespace(entity=write.number, entity_type=write.place.type, entry=each, own=write.own)
            for write in indexed
            for each in write.entries or ()
        ],
        served=[write for write in writes if write.parted and write.serves],
        blocks=[*{block.id: block for write in writes for block in write.blocks}.values()],
        uploads=sorted({upload for write in writes for upload in write.uploads}),
        lanes=lanes,
        events=placed,
    )
    changed = "what was compiled has changed since it was read"
    write_whole(tx, "write_compiles", given, overtaken=changed, hint="compile it again")


def find_overtaken(source: Statements, writes: Sequence[CompileWrite]) -> set[int]:
    """Those of the entities of which something has changed since they were read."""
    numbers = {number for write in writes for number in (write.number, *(seen.number for seen in write.joined))}
    stand = {row[0]: row[1:] for row in source.all("compile_seqs", entities=sorted(numbers))}
    loaded_us = source.value("contracts_generation")
    return {
        write.number
        for write in writes
        if stand.get(write.number) != (write.expected, write.expected_ship_seq)
        or (write.contracts_us is not None and write.contracts_us < loaded_us)
        or any(stand.get(seen.number, (None,))[0] != seen.compile_seq for seen in write.joined)
    }


AFTER_ALL_KEYS: Final = "\U0010ffff" * 129
"""Greater than every id: those have at most 512 bytes, so at most 128 of the greatest characters."""
LEAST_SUFFIX: Final = "\x01"
"""Ids hold no control characters, so the least id after X is not less than X with this behind it."""


class CompiledRow(NamedTuple):
    """The newest compile of a version."""

    revision: int
    ruleset_id: str
    ruleset_version: str
    fingerprint: str


class ServedEntity(NamedTuple):
    """An entity at a version, with the slices that it has there."""

    number: int
    key: str
    newest_raw: int | None
    newest_compiled: int | None
    serving_version: int | None
    version: int | None
    """The one that was asked for, or is served; None if there is none."""
    created_at_us: int | None
    deleted: bool
    schema: tuple[str, str] | None
    compiled: CompiledRow | None
    slices: tuple[SliceRow, ...]


def entities_with_slices(source: Statements, statement: str, **asked: Any) -> list[ServedEntity]:
    """The entities that one of `view_by_keys`, `view_by_range` and `view_by_index` answers, in its order. Each is one
    statement, so its answer is of one moment."""
    found: dict[int, ServedEntity] = {}
    slices: dict[int, list[SliceRow]] = {}
    for row in source.all(statement, **asked):
        number = row[0]
        if number not in found:
            is_deleted = row[5] is not None and bool(row[7])
            schema = None if row[8] is None else (row[8], row[9])
            compiled = None if row[10] is None else CompiledRow(*row[10:14])
            found[number] = ServedEntity._make((*row[:7], is_deleted, schema, compiled, ()))
            slices[number] = []
        if row[14] is not None:
            slices[number].append(SliceRow(*row[14:]))
    return [entity._replace(slices=tuple(slices[number])) for number, entity in found.items()]


def count_by_rules(source: Statements, tenant: TenantId, entity_type: str, skipped: Collection[str]) -> dict[str, int]:
    """How many entities are served as they were compiled by other rules than these, by the fingerprint of those; what
    is deleted is not counted. It costs what it finds."""
    return dict(source.all("served_by_rules", tenant=tenant, entity_type=entity_type, skipped=sorted(skipped)))


def key_bounds(prefix: str, after: str | None = None) -> dict[str, str]:
    """The ids with a prefix, after an id, as statements ask for them."""
    return {"low": prefix if after is None else after + LEAST_SUFFIX, "high": prefix + AFTER_ALL_KEYS}
