"""Packing: cold blocks leave the database's rows for packs in the object store, and packs that are mostly dead are
written anew.

What is moved is not changed, and readers notice nothing: a block that is not where its row said is looked up again. A
pack is filled, stored and read back; only then do rows point there and give up their bytes. Every step is a transaction
of its own, so a run may be stopped anywhere, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from analemma.blocks.codec import decode_block, decode_blocks
from analemma.blocks.packs import (
    HEADER,
    MAX_READ_BYTES,
    Pack,
    PackEntry,
    PackWriter,
    StoredBlock,
    pack_key,
    read_entries,
    verify_pack,
)
from analemma.blocks.port import ObjectStore
from analemma.canon.identity import BlockId
from analemma.catalog.collecting.packs import ColdMark, PackMove, PackRows, PackUsage
from analemma.catalog.port import BlockRow, UploadId
from analemma.context import Context
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.failpoints import declare, hit

AFTER_CHECK = declare("pack.after_check", "the pack was read back and is whole, and no block has moved")

MOST_BLOCKS = 10_000
"""In one pack. All of them move in one transaction, for which writers of the same database may have to wait."""
BATCH_BYTES = 4 << 20
BATCH_BLOCKS = 1000
_ENTRY_BYTES = 48
"""What a block takes in a pack's footer, at least nearly: a pack of small blocks is not wasteful for having one."""

Item = TypeVar("Item")
Read = tuple[BlockRow, bytes]
"""A row, and its bytes as stored."""


@dataclass(frozen=True, slots=True)
class PackingReport:
    """What was moved, or in a dry run would be."""

    blocks: int = 0
    bytes: int = 0
    """As stored: compressed."""
    packs: int = 0
    """Objects written; in a dry run, about how many."""
    emptied: int = 0
    """Packs in which nothing lies any more: the collector removes them."""
    freed_bytes: int = 0
    """Their size."""
    left: int = 0
    """Blocks that stay where they are, because somebody else moved or deleted them meanwhile."""
    waiting_bytes: int = 0
    """Cold, but too few for a pack of their own."""
    problems: tuple[str, ...] = ()
    """What could not be read, and was left alone."""
    dry_run: bool = False


Progress = Callable[[PackingReport], None]


class Packing:
    """One tenant's blocks, moved between rows and packs."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = context.settings
        self._rows = PackRows(context.engine, context.tenant)

    def pack(
        self, *, older_than_s: float | None = None, dry_run: bool = False, progress: Progress | None = None
    ) -> PackingReport:
        """Move blocks into packs that were stored more than so many seconds ago (`pack_after_s` unless given; 0: all).

        >>> import analemma
        >>> app = analemma.open("sqlite:///:memory:")
        >>> app.packing.pack().blocks
        0
        """
        mover = self._mover(progress)
        mark = self._mark(self._settings.pack_after_s if older_than_s is None else older_than_s)
        blocks, size = (0, 0) if mark is None else self._rows.count_cold_blocks(*mark)
        if mark is None or not blocks or size < self._settings.pack_least_bytes:
            return PackingReport(waiting_bytes=size, dry_run=dry_run)
        if dry_run:
            packs = -(-size // self._settings.pack_target_bytes)
            return PackingReport(blocks=blocks, bytes=size, packs=packs, dry_run=True)
        for row in self._cold(*mark, mover):
            mover.add(row, row.body or b"")
        waiting_bytes = mover.flush(self._settings.pack_least_bytes)
        return replace(mover.report, waiting_bytes=waiting_bytes)

    def repack(
        self, *, waste: float | None = None, dry_run: bool = False, progress: Progress | None = None
    ) -> PackingReport:
        """Write packs anew of which more than this share is dead (`pack_waste` unless given); the collector removes the
        old ones."""
        mover = self._mover(progress)
        threshold = self._settings.pack_waste if waste is None else waste
        if not 0 <= threshold < 1:
            raise Invalid(f"{threshold} is no share of dead bytes", hint="give a number from 0 to below 1")
        # One in which nothing lies is the collector's.
        chosen = [usage for usage in self._rows.pack_usage() if usage.blocks > 0 and _wasted(usage) > threshold]
        if dry_run:
            live_bytes = sum(usage.live_bytes for usage in chosen)
            return PackingReport(
                blocks=sum(usage.blocks for usage in chosen),
                bytes=live_bytes,
                packs=-(-live_bytes // self._settings.pack_target_bytes),
                emptied=len(chosen),
                freed_bytes=sum(usage.size for usage in chosen),
                dry_run=True,
            )
        for usage in chosen:
            for row, stored in self._contents(usage.upload, mover):
                mover.add(row, stored)
        mover.flush()
        for usage in chosen:
            if self._rows.pack_contents(usage.upload)[0] == 0:
                mover.count(emptied=1, freed_bytes=usage.size)
        return mover.report

    def vacuum(self) -> tuple[int, int]:
        """Make an SQLite file as small as what is in it; its bytes before and after. Nobody can write meanwhile, and it
        takes twice that space for a while."""
        return self._rows.vacuum()

    def _mover(self, progress: Progress | None) -> _Mover:
        if self._context.objects is None:
            raise Invalid(
                "this store has no object store, so there is nowhere for packs to be",
                hint="open it with objects=..., --objects or ANALEMMA_OBJECTS",
            )
        return _Mover(self._context, self._rows, self._context.objects, progress)

    def _mark(self, older_than_s: float) -> tuple[ColdMark] | None:
        if not 0 <= older_than_s <= 1e10:
            raise Invalid(f"{older_than_s} is no number of seconds ago", hint="give 0 or more")
        until_us = None if older_than_s == 0 else self._context.clock.now_us() - round(older_than_s * 1_000_000)
        return self._rows.cold_mark(until_us)

    def _cold(self, mark: ColdMark, mover: _Mover) -> Iterator[BlockRow]:
        """Blocks in rows that are not newer than the mark, checked. What is damaged stays."""
        for page in self._rows.cold_blocks(mark):
            for batch in _in_batches(page, lambda row: int(row[1])):
                rows = self._context.catalog.read_blocks(self._context.tenant, [row[0] for row in batch])
                inline = [rows[row[0]] for row in batch if row[0] in rows and rows[row[0]].body is not None]
                if len(inline) < len(batch):
                    mover.count(left=len(batch) - len(inline))
                for row in inline:
                    try:
                        decode_block(row.id, row.codec, row.body or b"", row.size)
                    except Corrupt as exc:
                        mover.complain(str(exc))
                    else:
                        yield row

    def _contents(self, upload: UploadId, mover: _Mover) -> Iterator[Read]:
        """What lies in a pack, checked. What cannot be read stays, and so does the pack."""
        for rows in self._rows.packed_blocks(upload):
            for near in _in_batches(rows, lambda row: row.length or 0, MAX_READ_BYTES // 2):
                try:
                    yield from mover.read(upload, near)
                except NotFound as exc:
                    if self._rows.pack_contents(upload)[0] == 0:
                        # Others have moved everything meanwhile, and the collector was here.
                        mover.count(left=len(near))
                    else:
                        mover.complain(f"object {pack_key(upload)}: {exc}")
                    return


class _Mover:
    """Takes blocks one after the other, moves them by the pack, and keeps the report of the run so far."""

    def __init__(self, context: Context, rows: PackRows, objects: ObjectStore, progress: Progress | None) -> None:
        self._context = context
        self._rows = rows
        self._objects = objects
        self._progress = progress
        self.report = PackingReport()
        self._packs: dict[bool, tuple[PackWriter, dict[BlockId, PackMove]]] = {}
        """Those in the making, by whether their blocks link to others: whoever walks trees reads these and no
        others."""

    def count(self, **counts: int) -> None:
        """Add to the report, and tell whoever follows."""
        sums = {name: getattr(self.report, name) + count for name, count in counts.items()}
        self.report = replace(self.report, **sums)
        if self._progress is not None:
            self._progress(self.report)

    def complain(self, problem: str) -> None:
        """Something is damaged or gone."""
        self.report = replace(self.report, problems=(*self.report.problems, problem))

    def add(self, row: BlockRow, stored: bytes) -> None:
        """Move this block, whose bytes were checked against its id, with others of its kind."""
        branching = row.links is not None
        writer, moves = self._packs.setdefault(branching, (PackWriter(), {}))
        entry = writer.add(StoredBlock(row.id, row.codec, stored, row.size))
        moves[entry.id] = PackMove(entry.offset, entry.length, entry.id, entry.codec, row.upload, row.offset)
        if writer.size >= self._context.settings.pack_target_bytes or len(moves) >= MOST_BLOCKS:
            self._move(branching)

    def flush(self, least_bytes: int = 0) -> int:
        """Move what waits, if it is no less than this; the bytes that still wait."""
        waiting = 0
        for branching, (writer, _) in list(self._packs.items()):
            size = writer.size - len(HEADER)
            if size >= least_bytes:
                self._move(branching)
            else:
                waiting += size
        return waiting

    def read(self, upload: UploadId, rows: Sequence[BlockRow]) -> list[Read]:
        """The bytes of these blocks of one pack, checked against their ids; those that are damaged are left out."""
        entries = [PackEntry(row.id, row.codec, row.offset or 0, row.length or 0, row.size) for row in rows]
        try:
            stored = read_entries(self._objects, pack_key(upload), entries)
            decode_blocks([(row.id, row.codec, stored[row.id], row.size) for row in rows])
        except Corrupt as exc:
            if len(rows) == 1:
                self.complain(f"block {rows[0].id.hex()} in object {pack_key(upload)}: {exc}")
                return []
            # One of them is damaged: the others can still be saved.
            middle = len(rows) // 2
            return self.read(upload, rows[:middle]) + self.read(upload, rows[middle:])
        return [(row, stored[row.id]) for row in rows]

    def _move(self, branching: bool) -> None:
        writer, moves = self._packs.pop(branching)
        pack, size = writer.finish(), writer.size - len(HEADER)
        del writer  # It holds a copy of the pack.
        upload, key = self._context.blocks.store_pack(pack)
        self._check(key, pack)
        hit(AFTER_CHECK)
        # One in which less than half would count from the beginning, because others move the same blocks, is not worth
        # having: it is left to the collector, and the few blocks to the next run.
        moved = self._rows.move_into_pack(upload, list(moves.values()), at_least=(len(moves) + 1) // 2)
        if 0 < moved < len(moves):
            _, size = self._rows.pack_contents(upload)
        self.count(blocks=moved, bytes=size if moved else 0, packs=1, left=len(moves) - moved)

    def _check(self, key: str, pack: Pack) -> None:
        """Read it back as a reader would: soon these are the only bytes there are."""
        data = self._objects.get(key)
        if verify_pack(data) != pack.entries:
            raise Corrupt(
                f"object {key} was stored but reads back as another pack", hint="check the object store", key=key
            )
        view = memoryview(data)
        for entries in _in_batches(pack.entries, lambda entry: entry.length):
            decode_blocks([(each.id, each.codec, bytes(view[each.offset : each.end]), each.size) for each in entries])


def _wasted(usage: PackUsage) -> float:
    """The share of a pack that no block lies in."""
    return max(0.0, 1 - (usage.live_bytes + usage.blocks * _ENTRY_BYTES) / max(1, usage.size))


def _in_batches(
    items: Iterable[Item], length: Callable[[Item], int], most_bytes: int = BATCH_BYTES
) -> Iterator[list[Item]]:
    """The items in order, some at a time: few enough for memory, and for one statement."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (size + length(item) > most_bytes or len(batch) >= BATCH_BLOCKS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length(item)
    if batch:
        yield batch
