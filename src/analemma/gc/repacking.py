"""Repacking and unpacking: reading what still lies in packs, and moving it into fewer packs or back into rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analemma.blocks.codec import decode_blocks
from analemma.blocks.packs import MAX_READ_BYTES, PackEntry, StoredBlock, pack_key, read_entries
from analemma.blocks.port import ObjectStore
from analemma.catalog.packing import Origin, PackingCatalog, PackUsage, RowMove
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import Corrupt, NotFound
from analemma.gc.packing_moves import BATCH_BLOCKS, PackFiller, PackingReport, Tally

_ENTRY_BYTES = 48
"""What a block takes in a pack's footer, at least nearly: a pack of small blocks is not wasteful for having one."""

Read = tuple[BlockRow, bytes]
"""A row, and its bytes as stored."""


def wasted(usage: PackUsage) -> float:
    """The share of a pack that no block lies in."""
    return max(0.0, 1 - (usage.live_bytes + usage.blocks * _ENTRY_BYTES) / max(1, usage.size))


def is_wasteful(usage: PackUsage, waste: float) -> bool:
    """Whether a pack is to be written anew. One in which nothing lies is the collector's."""
    return usage.blocks > 0 and wasted(usage) > waste


def plan_repacking(packing: PackingCatalog, tenant: TenantId, waste: float, target_bytes: int) -> PackingReport:
    """What repacking would do."""
    chosen = [usage for usage in _packs(packing, tenant) if is_wasteful(usage, waste)]
    report = _planned(chosen)
    return PackingReport(
        blocks=report.blocks,
        bytes=report.bytes,
        packs=-(-report.bytes // target_bytes),
        emptied=report.emptied,
        freed_bytes=report.freed_bytes,
        dry_run=True,
    )


def plan_unpacking(packing: PackingCatalog, tenant: TenantId) -> PackingReport:
    """What unpacking would do."""
    return _planned([usage for usage in _packs(packing, tenant) if usage.blocks])


class Repacker:
    """Moves what lives in wasteful packs to new ones."""

    def __init__(
        self,
        packing: PackingCatalog,
        objects: ObjectStore,
        tenant: TenantId,
        filler: PackFiller,
        tally: Tally,
    ) -> None:
        self._packing = packing
        self._objects = objects
        self._tenant = tenant
        self._filler = filler
        self._tally = tally

    def run(self, waste: float) -> None:
        """Through all packs that there were in the beginning."""
        chosen = [usage for usage in _packs(self._packing, self._tenant) if is_wasteful(usage, waste)]
        for usage in chosen:
            for batch in _contents(self._packing, self._objects, self._tenant, usage.upload, self._tally):
                for row, stored in batch:
                    self._filler.add(
                        StoredBlock(row.id, row.codec, stored, row.size),
                        branching=row.links is not None,
                        origin=Origin(usage.upload, row.offset or 0),
                    )
        self._filler.flush()
        _count_emptied(self._packing, self._tenant, chosen, self._tally)


class Unpacker:
    """Moves everything that lies in packs back to its rows."""

    def __init__(self, packing: PackingCatalog, objects: ObjectStore, tenant: TenantId, tally: Tally) -> None:
        self._packing = packing
        self._objects = objects
        self._tenant = tenant
        self._tally = tally

    def run(self) -> None:
        """Through all packs that there were in the beginning."""
        chosen = [usage for usage in _packs(self._packing, self._tenant) if usage.blocks]
        for usage in chosen:
            for batch in _contents(self._packing, self._objects, self._tenant, usage.upload, self._tally):
                moves = [
                    RowMove(row.id, row.codec, stored, Origin(usage.upload, row.offset or 0)) for row, stored in batch
                ]
                moved = self._packing.move_into_rows(self._tenant, moves)
                size = sum(len(move.body) for move in moves)
                self._tally.add(blocks=moved, bytes=size * moved // len(moves), left=len(moves) - moved)
        _count_emptied(self._packing, self._tenant, chosen, self._tally)


def _packs(packing: PackingCatalog, tenant: TenantId) -> Iterator[PackUsage]:
    after: UploadId | None = None
    while page := packing.pack_usage(tenant, after=after):
        yield from page
        after = page[-1].upload


def _contents(
    packing: PackingCatalog, objects: ObjectStore, tenant: TenantId, upload: UploadId, tally: Tally
) -> Iterator[list[Read]]:
    """What lies in a pack, checked, some at a time. What cannot be read stays, and so does the pack."""
    after = -1
    while rows := packing.packed_blocks(tenant, upload, after=after):
        after = rows[-1].offset or 0
        for near in _near(rows):
            try:
                if read := _read(objects, upload, near, tally):
                    yield read
            except NotFound as exc:
                if packing.pack_contents(tenant, upload)[0] == 0:
                    # Others have moved everything meanwhile, and the collector was here.
                    tally.add(left=len(near))
                else:
                    tally.complain(f"object {pack_key(upload)}: {exc}")
                return


def _read(objects: ObjectStore, upload: UploadId, rows: Sequence[BlockRow], tally: Tally) -> list[Read]:
    entries = [PackEntry(row.id, row.codec, row.offset or 0, row.length or 0, row.size) for row in rows]
    try:
        stored = read_entries(objects, pack_key(upload), entries)
        decode_blocks([(row.id, row.codec, stored[row.id], row.size) for row in rows])
    except Corrupt as exc:
        if len(rows) == 1:
            tally.complain(f"block {rows[0].id.hex()} in object {pack_key(upload)}: {exc}")
            return []
        # One of them is damaged: the others can still be saved.
        middle = len(rows) // 2
        return _read(objects, upload, rows[:middle], tally) + _read(objects, upload, rows[middle:], tally)
    return [(row, stored[row.id]) for row in rows]


def _near(rows: Sequence[BlockRow]) -> Iterator[list[BlockRow]]:
    """Rows that lie close enough together to be read in one go."""
    batch: list[BlockRow] = []
    for row in rows:
        end = (row.offset or 0) + (row.length or 0)
        if batch and (end - (batch[0].offset or 0) > MAX_READ_BYTES // 2 or len(batch) >= BATCH_BLOCKS):
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _count_emptied(packing: PackingCatalog, tenant: TenantId, packs: Sequence[PackUsage], tally: Tally) -> None:
    for usage in packs:
        left, _ = packing.pack_contents(tenant, usage.upload)
        if left == 0:
            tally.add(emptied=1, freed_bytes=usage.size)


def _planned(packs: Sequence[PackUsage]) -> PackingReport:
    return PackingReport(
        blocks=sum(usage.blocks for usage in packs),
        bytes=sum(usage.live_bytes for usage in packs),
        emptied=len(packs),
        freed_bytes=sum(usage.size for usage in packs),
        dry_run=True,
    )
