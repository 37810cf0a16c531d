"""What versions were compiled to: reading what a compile needs, and writing what it made in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.entities.bodies import add_bodies, body_parameters
from analemma.catalog.entities.entities import EntityPlace
from analemma.catalog.entities.staged_index import settle_entries, write_parted_entries
from analemma.catalog.outbox.events import check_events, enqueue, event_parameters
from analemma.catalog.outbox.lanes import LaneKey, settled_lane
from analemma.catalog.port import BlockRow, OutboxEvent, TenantId, UploadId
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("compile.before_transaction", "slices are built and nothing is written")
AFTER_BLOCKS = declare("compile.after_blocks", "the blocks of slices are written inside the transaction")
BEFORE_COMMIT = declare("compile.before_commit", "slices, index entries and events are written, nothing is committed")
AFTER_COMMIT = declare("compile.after_commit", "the compile is there, but the caller does not know")


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
    version: int | None
    """None: there is no such version."""
    document: StoredDocument | None
    base: CompileRow | None
    """The newest compile of the version itself, or else of the greatest compiled version below it."""
    base_document: StoredDocument | None
    serving_version: int | None = None
    ship_seq: int = 0


@dataclass(frozen=True, slots=True)
class WantedSlice:
    """A slice to read: as it is served, or as it was at a version."""

    place: EntityPlace
    type: str
    version: int | None = None


class SliceRow(NamedTuple):
    """A slice as it lies in the catalog."""

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


@dataclass(frozen=True, slots=True)
class CompileWrite:
    """Everything that one compile writes."""

    place: EntityPlace
    number: int
    expected: int
    """The entity's compile_seq when it was read."""
    joined: tuple[tuple[int, int], ...]
    """Number and compile_seq of every entity that was looked up."""
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


class Slices:
    """One tenant's compiles, slices and index entries."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def start(self, place: EntityPlace, version: int | None) -> CompileStart | None:
        """What compiling a version, or the newest, begins with; None if there is no such entity."""
        row = self._engine.one("compile_start", tenant=self._tenant, type=place.type, key=place.id, version=version)
        if row is None:
            return None
        return compile_start(row)

    def compiled(self, place: EntityPlace, version: int | None) -> tuple[int, CompileRow | None] | None:
        """The newest compile of a version, or of the one that is served, with the entity's number; None if there is no
        such entity."""
        row = self._engine.one("slices_start", tenant=self._tenant, type=place.type, key=place.id, version=version)
        if row is None or row[1] is None:
            return None
        return row[0], None if row[2] is None else CompileRow(*row[2:8])

    def find(self, wanted: Sequence[WantedSlice]) -> list[FoundSlice]:
        """What there is of each, in one round trip."""
        if not wanted:
            return []
        asked = [(each.place.type, each.place.id, each.type, each.version) for each in wanted]
        rows = self._engine.all("wanted_slices", tenant=self._tenant, wanted=asked)
        found = [FoundSlice(None, 0, None)] * len(wanted)
        for at, number, compile_seq, version, revision, *content in rows:
            there = None if version is None else SliceRow(wanted[at].type, version, revision, *content)
            found[at] = FoundSlice(number, compile_seq or 0, there)
        return found

    def following(self, number: int, version: int) -> tuple[CompileRow | None, set[str]]:
        """The first compile of the version that follows among those compiled, and the slices that it wrote."""
        row = self._engine.one("next_compile", entity=number, version=version)
        if row is None:
            return None, set()
        own = self._engine.all("own_slices", entity=number, version=row[0], revision=row[1])
        return CompileRow(row[0], row[1], "", "", "", row[2]), {each[0] for each in own}

    def newest_revision(self, number: int, version: int) -> int:
        """The newest revision of a version of which there are slices; 0: there are none."""
        row = self._engine.one("newest_slice_revision", entity=number, version=version)
        return 0 if row is None else row[0] or 0

    def entries(self, number: int) -> list[tuple[str, str, EntityPlace | None]]:
        """Everything that an entity can be found by."""
        rows = self._engine.all("index_entries_of", entity=number)
        return [
            (kind, value, None if target is None else EntityPlace(target, key)) for kind, value, target, key in rows
        ]

    def write(self, write: CompileWrite, *, now_us: int, within: Callable[[Transaction], None] | None = None) -> bool:
        """Write it in one transaction; False, and nothing is written, if what it was made of has changed since."""
        check_events(write.events)
        hit(BEFORE_TRANSACTION)
        if self._engine.dialect == "postgres" and within is None and not write.parted:
            written = self._send(write, now_us)
        else:
            written = self._engine.write(lambda tx: self._move(tx, write, now_us, within))
        hit(AFTER_COMMIT)
        return written

    def _send(self, write: CompileWrite, now_us: int) -> bool:
        from analemma.catalog.engine.postgres.engine import retry_contention

        # Sent again because its answer was lost, it finds the entity compiled, and whoever asked looks again.
        return retry_contention(lambda: _in_one_statement(self._engine, self._tenant, write, now_us))

    def _move(
        self, tx: Transaction, write: CompileWrite, now_us: int, within: Callable[[Transaction], None] | None
    ) -> bool:
        plain = replace(write, entries=None) if write.parted else write
        if tx.dialect == "postgres":
            written = _in_one_statement(tx, self._tenant, plain, now_us, settled_lane(within))
        else:
            written = _in_steps(tx, self._tenant, plain, now_us)
        if written and write.parted:
            if write.entries is not None:
                write_parted_entries(
                    tx, self._tenant, write.place.type, write.number, write.entries, newest=write.newest
                )
            if write.serves:
                settle_entries(tx, write.number)
        if written and within is not None:
            within(tx)
        hit(BEFORE_COMMIT)
        return written


def compile_start(row: Sequence[Any]) -> CompileStart:
    """What a row of `compile_start` or `compile_starts` says."""
    number, newest_raw, newest_compiled, compile_seq = row[:4]
    document = None if row[4] is None else _document(row[5:9])
    base = None if row[9] is None else CompileRow(*row[9:15])
    return CompileStart(
        number,
        newest_raw,
        newest_compiled,
        compile_seq,
        row[4],
        document,
        base,
        None if base is None else _document(row[15:19]),
        row[19],
        row[20],
    )


def _in_one_statement(
    source: Statements, tenant: TenantId, write: CompileWrite, now_us: int, settling: LaneKey | None = None
) -> bool:
    entries, row = write.entries or (), write.row
    answer = source.value(
        "compile",
        tenant=tenant,
        now=now_us,
        entity=write.number,
        entity_type=write.place.type,
        expected=write.expected,
        joined_ids=[number for number, _ in write.joined],
        joined_seqs=[seq for _, seq in write.joined],
        joined_count=len(write.joined),
        newest=write.newest,
        serves=write.serves,
        ship_seq=write.ship_seq,
        expected_ship_seq=write.expected_ship_seq,
        contracts=write.contracts_us,
        version=row.version,
        revision=row.revision,
        ruleset_id=row.ruleset_id,
        ruleset_version=row.ruleset_version,
        fingerprint=row.fingerprint,
        rules=write.rules,
        mode=write.mode,
        dependencies=row.dependencies,
        slice_types=[each.type for each in write.slices],
        slice_versions=[each.version for each in write.slices],
        slice_revisions=[each.revision for each in write.slices],
        slice_hashes=[each.hash for each in write.slices],
        slice_roots=[each.root for each in write.slices],
        slice_tombstones=[each.tombstone for each in write.slices],
        slice_details=[each.detail for each in write.slices],
        replace_entries=write.entries is not None,
        entry_types=[each.type for each in entries],
        entry_values=[each.value for each in entries],
        entry_targets=[each.target for each in entries],
        **body_parameters(write.blocks, write.uploads),
        **event_parameters(write.events, settling),
    )
    return bool(answer)


def _in_steps(tx: Transaction, tenant: TenantId, write: CompileWrite, now_us: int) -> bool:
    row = write.row
    # guard: compile.joined.sqlite
    if write.joined and tx.one("compiles_since", read=write.joined) is not None:
        return False
    moved = tx.execute(
        "move_compiled",
        id=write.number,
        expected=write.expected,
        newest=row.version if write.newest else None,
        serving=row.version if write.serves else None,
        version=row.version,
        rules=write.rules,
        expected_ship_seq=write.expected_ship_seq,
        ship_seq=write.ship_seq,
        contracts=write.contracts_us,
    )
    if moved != 1:
        return False
    enqueue(tx, tenant, write.events, now_us=now_us)
    add_bodies(tx, tenant, write.blocks, write.uploads)
    hit(AFTER_BLOCKS)
    told: dict[str, Any] = {**row._asdict(), "mode": write.mode, "created_at": now_us}
    tx.execute("add_compile", entity=write.number, **told)
    if write.slices:
        tx.execute_many("add_slice", [(write.number, *each) for each in write.slices])
    if write.entries is not None:
        entries = [[each.type, each.value, each.target or 0] for each in write.entries]
        tx.execute("drop_index_entries", entity=write.number, entries=entries)
        if write.entries:
            tx.execute(
                "add_index_entries", tenant=tenant, entity_type=write.place.type, entity=write.number, entries=entries
            )
    return True


def _document(columns: Sequence[Any]) -> StoredDocument:
    return StoredDocument(*columns)
