"""Many compiles in one transaction: reading what each begins with, and writing all of them, or none.

The order of the locks is that of a single compile: entities that are joined, by number; entities that are compiled, by
number; lanes; blocks. Those compiled in one go are of one type, and joins go in no circle, so nobody waits in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.entities.bodies import add_bodies
from analemma.catalog.entities.slices import CompileStart, CompileWrite, compile_start
from analemma.catalog.entities.staged_index import settle_entries, write_parted_entries
from analemma.catalog.outbox.events import enqueue
from analemma.catalog.outbox.lanes import LaneKey
from analemma.catalog.port import OutboxEvent, TenantId
from analemma.failpoints import declare, hit

CHECKED = declare(
    "fanout.checked", "it was looked whether a page of compiles was overtaken, and nothing of it is written"
)
AFTER_BLOCKS = declare("fanout.after_blocks", "the events and blocks of a page are written inside the transaction")


def read_starts(source: Statements, tenant: TenantId, versions: Mapping[int, int]) -> dict[int, CompileStart]:
    """What compiling a version of each of these entities, by number, begins with."""
    if not versions:
        return {}
    rows = source.all("compile_starts", tenant=tenant, wanted=list(versions.items()))
    return {row[0]: compile_start(row) for row in rows}


def find_overtaken(tx: Transaction, writes: Sequence[CompileWrite]) -> set[int]:
    """Those of the entities for which something else was written since they were read. All of them, and all that they
    join, stay as they are until the transaction ends."""
    joined = {number for write in writes for number, _ in write.joined}
    seqs = _held(tx, "hold_joined", joined)
    own = _held(tx, "hold_compiled", {write.number for write in writes})
    loaded = tx.one("contracts_generation") if writes else None
    newest_us = 0 if loaded is None else loaded[0]
    hit(CHECKED)
    return {
        write.number
        for write in writes
        if own.get(write.number) != (write.expected, write.expected_ship_seq)  # guard: batch.compiled
        or (write.contracts_us is not None and write.contracts_us < newest_us)  # guard: batch.contracts
        or any(seqs.get(number, (None,))[0] != seq for number, seq in write.joined)  # guard: batch.joined
    }


def write_compiles(
    tx: Transaction,
    tenant: TenantId,
    writes: Sequence[CompileWrite],
    events: Sequence[OutboxEvent],
    *,
    now_us: int,
    settling: LaneKey | None = None,
) -> None:
    """Write compiles that `find_overtaken` found nothing against, with their events and some more."""
    told = [*(event for write in writes for event in write.events), *events]
    enqueue(tx, tenant, told, now_us=now_us, settling=settling)
    blocks = {row.id: row for write in writes for row in write.blocks}
    add_bodies(tx, tenant, blocks.values(), sorted({upload for write in writes for upload in write.uploads}))
    hit(AFTER_BLOCKS)
    if tx.dialect == "postgres":
        _in_one_statement(tx, writes, now_us)
    else:
        _in_steps(tx, writes, now_us)
    for write in writes:
        if write.parted:
            if write.entries is not None:
                write_parted_entries(tx, tenant, write.place.type, write.number, write.entries, newest=write.newest)
            if write.serves:
                settle_entries(tx, write.number)
        elif write.entries is not None:
            _replace_entries(tx, tenant, write)


def _held(tx: Transaction, name: str, numbers: set[int]) -> dict[int, tuple[int, int]]:
    if not numbers:
        return {}
    rows = tx.all(name, entities=sorted(numbers))
    return {number: (compile_seq, ship_seq) for number, compile_seq, ship_seq in rows}


def _in_one_statement(tx: Transaction, writes: Sequence[CompileWrite], now_us: int) -> None:
    if not writes:
        return
    slices = [(write.number, each) for write in writes for each in write.slices]
    tx.execute(
        "write_compiles",
        now=now_us,
        entities=[write.number for write in writes],
        newest=[write.row.version if write.newest else None for write in writes],
        serving=[write.row.version if write.serves else None for write in writes],
        ship_seqs=[write.ship_seq for write in writes],
        versions=[write.row.version for write in writes],
        revisions=[write.row.revision for write in writes],
        ruleset_ids=[write.row.ruleset_id for write in writes],
        ruleset_versions=[write.row.ruleset_version for write in writes],
        fingerprints=[write.row.fingerprint for write in writes],
        modes=[write.mode for write in writes],
        dependencies=[write.row.dependencies for write in writes],
        rules=[write.rules for write in writes],
        slice_entities=[number for number, _ in slices],
        slice_types=[each.type for _, each in slices],
        slice_versions=[each.version for _, each in slices],
        slice_revisions=[each.revision for _, each in slices],
        slice_hashes=[each.hash for _, each in slices],
        slice_roots=[each.root for _, each in slices],
        slice_tombstones=[each.tombstone for _, each in slices],
        slice_details=[each.detail for _, each in slices],
    )


def _in_steps(tx: Transaction, writes: Sequence[CompileWrite], now_us: int) -> None:
    for write in writes:
        tx.execute(
            "move_compiled",
            id=write.number,
            expected=write.expected,
            newest=write.row.version if write.newest else None,
            serving=write.row.version if write.serves else None,
            version=write.row.version,
            rules=write.rules,
            expected_ship_seq=write.expected_ship_seq,
            ship_seq=write.ship_seq,
            contracts=write.contracts_us,
        )
    compiles = [(write.number, *write.row[:5], write.mode, write.row.dependencies, now_us) for write in writes]
    tx.execute_many("add_compile", compiles)
    tx.execute_many("add_slice", [(write.number, *each) for write in writes for each in write.slices])


def _replace_entries(tx: Transaction, tenant: TenantId, write: CompileWrite) -> None:
    rows = write.entries or ()
    if tx.dialect == "postgres":
        tx.execute(
            "replace_index_entries",
            tenant=tenant,
            entity=write.number,
            entity_type=write.place.type,
            entry_types=[each.type for each in rows],
            entry_values=[each.value for each in rows],
            entry_targets=[each.target for each in rows],
        )
        return
    entries = [[each.type, each.value, each.target or 0] for each in rows]
    tx.execute("drop_index_entries", entity=write.number, entries=entries)
    if rows:
        tx.execute(
            "add_index_entries", tenant=tenant, entity_type=write.place.type, entity=write.number, entries=entries
        )
