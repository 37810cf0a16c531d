"""Packing: cold blocks leave the database's rows for packs in the object store, and packs that are mostly dead are
written anew.

What is moved is not changed, and readers notice nothing: a block that is not where its row said is looked up again. A
pack is filled, stored and read back; only then do rows point there and give up their bytes. A block moves only from
where its bytes were read, so whoever comes second moves nothing. Every step is a transaction of its own, so a run may
be stopped anywhere, and the next one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from analemma.blocks.packs import HEADER, MAX_READ_BYTES, Pack, PackWriter, pack_key, verify_pack
from analemma.blocks.port import ObjectStore
from analemma.blocks.store import decode_block, decode_blocks, with_bytes
from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Row, Transaction, send
from analemma.catalog.port import BlockRow, UploadId
from analemma.context import Context
from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid, NotFound
from analemma.failpoints import declare, hit

AFTER_CHECK = declare("pack.after_check", "the pack was read back and is whole, and no block has moved")
BEFORE_COMMIT = declare("pack.before_commit", "the blocks have moved inside the transaction")
AFTER_COMMIT = declare("pack.after_commit", "the blocks lie in the pack, but nobody knows")

MOST_BLOCKS = 10_000
"""In one pack. All of them move in one transaction, for which writers of the same database may have to wait."""
BATCH_BYTES = 4 << 20
BATCH_BLOCKS = 1000
COLD_PAGE = 10_000
USAGE_PAGE = 100
TABLE_PAGES = 250
"""PostgreSQL: so many pages of the table are read for a page of blocks. Hardly more than 40 rows fit into one, so none
becomes much longer than others."""
_ENTRY_BYTES = 48
"""What a block takes in a pack's footer, at least nearly: a pack of small blocks is not wasteful for having one."""

Item = TypeVar("Item")
ColdMark = int | str | None
"""Divides what was stored up to some time from what was stored later: a rowid on SQLite, on PostgreSQL a transaction,
or None if nothing was stored later."""


class PackMove(NamedTuple):
    """One block on its way into a pack: where it will lie, what it is, and where it must still be: in which pack, and
    where in that, or in its row."""

    offset: int
    length: int
    id: BlockId
    codec: int
    from_upload: UploadId | None = None
    from_offset: int | None = None


class PackUsage(NamedTuple):
    """How much of an object still counts."""

    upload: UploadId
    size: int
    blocks: int
    """How many lie in it; 0: the collector's."""
    live_bytes: int


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
        self._engine = context.engine
        self._tenant = context.tenant

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
        blocks, size = 0, 0
        if mark is not None:
            blocks, size = self._engine.all("count_cold_blocks", tenant=self._tenant, mark=mark[0])[0]
        if mark is None or not blocks or size < self._settings.pack_least_bytes:
            return PackingReport(waiting_bytes=size, dry_run=dry_run)
        if dry_run:
            packs = -(-size // self._settings.pack_target_bytes)
            return PackingReport(blocks=blocks, bytes=size, packs=packs, dry_run=True)
        for row in self._cold(*mark, mover):
            mover.add(row)
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
        pages = self._engine.pages("pack_usage", {"after": b""}, limit=USAGE_PAGE, tenant=self._tenant)
        usages = [PackUsage(*row) for page in pages for row in page]
        chosen = [usage for usage in usages if usage.blocks > 0 and _wasted(usage) > threshold]
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
            for row in self._contents(usage.upload, mover):
                mover.add(row)
        mover.flush()
        for usage in chosen:
            if mover.contents(usage.upload)[0] == 0:
                mover.count(emptied=1, freed_bytes=usage.size)
        return mover.report

    def vacuum(self) -> tuple[int, int]:
        """Make an SQLite file as small as what is in it; its bytes before and after. Nobody can write meanwhile, and it
        takes twice that space for a while."""
        return self._engine.vacuum()

    def _mover(self, progress: Progress | None) -> _Mover:
        if self._context.objects is None:
            raise Invalid(
                "this store has no object store, so there is nowhere for packs to be",
                hint="open it with objects=..., --objects or ANALEMMA_OBJECTS",
            )
        return _Mover(self._context, self._context.objects, progress)

    def _mark(self, older_than_s: float) -> tuple[ColdMark] | None:
        """What was stored so long ago, as far as the times of versions tell; None: nothing was."""
        if not 0 <= older_than_s <= 1e10:
            raise Invalid(f"{older_than_s} is no number of seconds ago", hint="give 0 or more")
        if older_than_s == 0:
            return (None,)
        until_us = self._context.clock.now_us() - round(older_than_s * 1_000_000)
        row = self._engine.one("cold_mark", tenant=self._tenant, until=until_us)
        return None if row is None else (row[0],)

    def _cold(self, mark: ColdMark, mover: _Mover) -> Iterator[BlockRow]:
        """Blocks in rows that are not doomed and not newer than the mark, checked. What is damaged stays."""
        for page in self._cold_pages(mark):
            for batch in _in_batches(page, lambda row: int(row[2])):
                rows = self._context.catalog.read_blocks(self._tenant, [row[1] for row in batch])
                inline = [rows[row[1]] for row in batch if row[1] in rows and rows[row[1]].body is not None]
                if len(inline) < len(batch):
                    mover.count(left=len(batch) - len(inline))
                for row in inline:
                    try:
                        decode_blocks([row])
                    except Corrupt as exc:
                        mover.complain(str(exc))
                    else:
                        yield row

    def _cold_pages(self, mark: ColdMark) -> Iterator[list[Row]]:
        """Each block with the length of its stored bytes, oldest first as far as the database tells. All pages together
        take one look at each row, and what is written meanwhile may be in several or in none."""
        which = {"tenant": self._tenant, "mark": mark}
        if self._engine.has_one_writer:
            yield from self._engine.pages("cold_blocks", {"after": 0}, limit=COLD_PAGE, **which)
            return
        # There is no index in the order in which rows were stored, but new rows mostly go to the end of the table.
        pages = self._engine.value("block_table_pages")
        for first in range(0, pages, TABLE_PAGES):
            places = {"first": f"({first},0)", "behind": f"({min(first + TABLE_PAGES, pages)},0)"}
            yield self._engine.all("cold_blocks", **which, **places)

    def _contents(self, upload: UploadId, mover: _Mover) -> Iterator[BlockRow]:
        """What lies in a pack, with its bytes, checked. What cannot be read stays, and so does the pack."""
        which = {"tenant": self._tenant, "upload": upload}
        for page in self._engine.pages("packed_blocks", {"after": -1}, limit=COLD_PAGE, **which):
            rows = [BlockRow(*row[1:]) for row in page]
            for near in _in_batches(rows, lambda row: row.length or 0, MAX_READ_BYTES // 2):
                try:
                    yield from mover.read(upload, near)
                except NotFound as exc:
                    if mover.contents(upload)[0] == 0:
                        # Others have moved everything meanwhile, and the collector was here.
                        mover.count(left=len(near))
                    else:
                        mover.complain(f"object {pack_key(upload)}: {exc}")
                    return


class _Mover:
    """Takes blocks one after the other, moves them by the pack, and keeps the report of the run so far."""

    def __init__(self, context: Context, objects: ObjectStore, progress: Progress | None) -> None:
        self._context = context
        self._engine = context.engine
        self._tenant = context.tenant
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

    def add(self, row: BlockRow) -> None:
        """Move this block, whose row has its bytes, which were checked against its id, with others of its kind."""
        branching = row.links is not None
        writer, moves = self._packs.setdefault(branching, (PackWriter(), {}))
        entry = writer.add(row.id, row.codec, row.body or b"", row.size)
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

    def read(self, upload: UploadId, rows: Sequence[BlockRow]) -> list[BlockRow]:
        """These rows of one pack with their bytes, checked against their ids; those that are damaged are left out."""
        try:
            found = with_bytes(self._objects, upload, rows)
            decode_blocks(found)
            return found
        except Corrupt as exc:
            if len(rows) == 1:
                self.complain(f"block {rows[0].id.hex()} in object {pack_key(upload)}: {exc}")
                return []
            # One of them is damaged: the others can still be saved.
            middle = len(rows) // 2
            return self.read(upload, rows[:middle]) + self.read(upload, rows[middle:])

    def contents(self, upload: UploadId) -> tuple[int, int]:
        """How many blocks lie in an upload, and their bytes."""
        blocks, size = self._engine.all("pack_contents", tenant=self._tenant, upload=upload)[0]
        return blocks, size

    def _move(self, branching: bool) -> None:
        writer, moves = self._packs.pop(branching)
        pack, size = writer.finish(), writer.size - len(HEADER)
        del writer  # It holds a copy of the pack.
        upload = self._context.blocks.store_pack(pack)
        self._check(pack_key(upload), pack)
        hit(AFTER_CHECK)
        # One in which less than half would count from the beginning, because others move the same blocks, is not worth
        # having: it is left to the collector, and the few blocks to the next run.
        moved = self._move_into(upload, list(moves.values()), at_least=(len(moves) + 1) // 2)
        if 0 < moved < len(moves):
            _, size = self.contents(upload)
        self.count(blocks=moved, bytes=size if moved else 0, packs=1, left=len(moves) - moved)

    def _move_into(self, upload: UploadId, moves: Sequence[PackMove], *, at_least: int) -> int:
        """Let the blocks lie in the upload's object, which is there, and finish the upload; how many moved. Fewer than
        `at_least`: none at all, and the upload is left to the collector. Raises and changes nothing: Conflict (the
        collector has it already), Unavailable, OutcomeUnknown."""
        # The order of locks is that of a commit: blocks by id, then uploads.
        ordered = sorted(moves, key=lambda move: move.id)

        def move(tx: Transaction) -> int:
            tx.all("hold_moving_blocks", tenant=self._tenant, ids=[move.id for move in ordered])
            if self._engine.has_one_writer:
                rows = [(upload, *move[:2], self._tenant, *move[2:]) for move in ordered]
                moved = tx.execute_many("move_into_pack", rows)
            else:
                moved = tx.execute("move_into_pack", tenant=self._tenant, upload=upload, moves=ordered)
            if moved < max(1, at_least):
                raise _TooFew("too few blocks were where they had been read")
            if tx.execute("finish_pack", tenant=self._tenant, id=upload) != 1:
                raise Conflict("a pack was collected before its blocks moved there", hint="run it again")
            hit(BEFORE_COMMIT)
            return moved

        def once() -> int:
            try:
                return self._engine.write(move)
            except _TooFew:
                return 0

        # Nobody else lets blocks lie in this upload.
        moved = send(once, found=lambda: self.contents(upload)[0] or None)
        # None were where they had been read: gone with a transaction whose answer was lost, or really gone.
        moved = moved or self.contents(upload)[0]
        hit(AFTER_COMMIT)
        return moved

    def _check(self, key: str, pack: Pack) -> None:
        """Read it back as a reader would: soon these are the only bytes there are."""
        data = self._objects.get(key)
        if verify_pack(data) != pack.entries:
            raise Corrupt(
                f"object {key} was stored but reads back as another pack", hint="check the object store", key=key
            )
        view = memoryview(data)
        for each in pack.entries:
            decode_block(each.id, each.codec, bytes(view[each.offset : each.end]), each.size)


class _TooFew(AnalemmaError):
    """Rolls the transaction back: a pack that would begin mostly dead is not begun."""


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
