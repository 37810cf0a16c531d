"""Packing: cold blocks leave the database's rows for packs in the object store; packs that are mostly dead are written
anew; and all of it can be undone.

What is moved is not changed, and readers notice nothing: a block that is not where its row said is looked up again.
Every step is a transaction of its own, so a run may be stopped anywhere, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from analemma.blocks.codec import decode_block
from analemma.blocks.packs import StoredBlock
from analemma.blocks.port import ObjectStore
from analemma.catalog.packing import ColdBlock, ColdMark, PackingCatalog
from analemma.catalog.port import BlockRow, KernelCatalog, TenantId
from analemma.clock import Clock, Entropy
from analemma.errors import Corrupt, Invalid
from analemma.gc.packing_moves import PackFiller, PackingReport, Progress, Tally, in_batches
from analemma.gc.repacking import Repacker, Unpacker, plan_repacking, plan_unpacking


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """When a block is cold, and what packs are like."""

    after_s: float
    """How long a block stays in its row."""
    target_bytes: int
    """How large packs become."""
    least_bytes: int
    """What is less than this waits for more."""
    waste: float
    """The share of dead bytes from which a pack is written anew."""


class Packing:
    """One tenant's blocks, moved between rows and packs."""

    def __init__(
        self,
        catalog: KernelCatalog,
        packing: PackingCatalog,
        tenant: TenantId,
        *,
        objects: ObjectStore | None,
        policy: PackingPolicy,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._catalog = catalog
        self._packing = packing
        self._tenant = tenant
        self._objects = objects
        self._policy = policy
        self._clock = clock
        self._entropy = entropy

    def pack(
        self, *, older_than_s: float | None = None, dry_run: bool = False, progress: Progress | None = None
    ) -> PackingReport:
        """Move blocks into packs that were stored more than so many seconds ago (`pack_after_s` unless given; 0: all).

        >>> import analemma
        >>> app = analemma.open("sqlite:///:memory:")
        >>> app.packing.pack().blocks
        0
        """
        objects = self._needed_objects()
        mark = self._mark(self._policy.after_s if older_than_s is None else older_than_s)
        blocks, size = (0, 0) if mark is None else self._packing.count_cold_blocks(self._tenant, mark)
        if mark is None or not blocks or size < self._policy.least_bytes:
            return PackingReport(waiting_bytes=size, dry_run=dry_run)
        if dry_run:
            packs = -(-size // self._policy.target_bytes)
            return PackingReport(blocks=blocks, bytes=size, packs=packs, dry_run=True)
        tally = Tally(progress)
        filler = self._filler(objects, tally)
        for batch in self._cold(mark):
            rows = self._catalog.read_blocks(self._tenant, [block.id for block in batch])
            inline = [rows[block.id] for block in batch if block.id in rows and rows[block.id].body is not None]
            if len(inline) < len(batch):
                tally.add(left=len(batch) - len(inline))
            for row in inline:
                self._add(filler, row, tally)
        waiting_bytes = filler.flush(self._policy.least_bytes)
        return replace(tally.report, waiting_bytes=waiting_bytes)

    def repack(
        self, *, waste: float | None = None, dry_run: bool = False, progress: Progress | None = None
    ) -> PackingReport:
        """Write packs anew of which more than this share is dead (`pack_waste` unless given); the collector removes the
        old ones."""
        objects = self._needed_objects()
        threshold = self._policy.waste if waste is None else waste
        if not 0 <= threshold < 1:
            raise Invalid(f"{threshold} is no share of dead bytes", hint="give a number from 0 to below 1")
        if dry_run:
            return plan_repacking(self._packing, self._tenant, threshold, self._policy.target_bytes)
        tally = Tally(progress)
        filler = self._filler(objects, tally)
        Repacker(self._packing, objects, self._tenant, filler, tally).run(threshold)
        return tally.report

    def unpack(self, *, dry_run: bool = False, progress: Progress | None = None) -> PackingReport:
        """Move every block back into the database, for example to change the object store; the collector removes the
        packs."""
        objects = self._needed_objects()
        if dry_run:
            return plan_unpacking(self._packing, self._tenant)
        tally = Tally(progress)
        Unpacker(self._packing, objects, self._tenant, tally).run()
        return tally.report

    def vacuum(self) -> tuple[int, int]:
        """Make an SQLite file as small as what is in it; its bytes before and after. Nobody can write meanwhile, and it
        takes twice that space for a while."""
        return self._packing.vacuum()

    def _needed_objects(self) -> ObjectStore:
        if self._objects is None:
            raise Invalid(
                "this store has no object store, so there is nowhere for packs to be",
                hint="open it with objects=..., --objects or ANALEMMA_OBJECTS",
            )
        return self._objects

    def _mark(self, older_than_s: float) -> ColdMark | None:
        if not 0 <= older_than_s <= 1e10:
            raise Invalid(f"{older_than_s} is no number of seconds ago", hint="give 0 or more")
        until_us = None if older_than_s == 0 else self._clock.now_us() - round(older_than_s * 1_000_000)
        return self._packing.cold_mark(self._tenant, until_us)

    def _cold(self, mark: ColdMark) -> Iterator[list[ColdBlock]]:
        page = self._packing.cold_blocks(self._tenant, mark)
        while True:
            yield from in_batches(page.blocks, lambda block: block.length)
            if page.end is None:
                return
            page = self._packing.cold_blocks(self._tenant, mark, after=page.end)

    def _add(self, filler: PackFiller, row: BlockRow, tally: Tally) -> None:
        body = row.body or b""
        try:
            decode_block(row.id, row.codec, body, row.size)
        except Corrupt as exc:
            tally.complain(str(exc))
            return
        filler.add(StoredBlock(row.id, row.codec, body, row.size), branching=row.links is not None, origin=None)

    def _filler(self, objects: ObjectStore, tally: Tally) -> PackFiller:
        return PackFiller(
            self._catalog,
            self._packing,
            objects,
            self._tenant,
            target_bytes=self._policy.target_bytes,
            clock=self._clock,
            entropy=self._entropy,
            tally=tally,
        )
