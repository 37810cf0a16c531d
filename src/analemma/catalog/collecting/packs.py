"""Changes where blocks lie: from rows into packs, and between packs. A block moves only from where its bytes were
read, so whoever comes second moves nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Row, Transaction, send
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import AnalemmaError, Conflict
from analemma.failpoints import declare, hit

PACK_BEFORE_COMMIT = declare("pack.before_commit", "the blocks have moved inside the transaction")
PACK_AFTER_COMMIT = declare("pack.after_commit", "the blocks lie in the pack, but nobody knows")

COLD_PAGE = 10_000
USAGE_PAGE = 100
TABLE_PAGES = 250
"""PostgreSQL: so many pages of the table are read for a page of blocks. Hardly more than 40 rows fit into one, so none
becomes much longer than others."""

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


class PackRows:
    """What packing asks of one tenant's rows. Every call is atomic by itself."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def cold_mark(self, until_us: int | None) -> tuple[ColdMark] | None:
        """What was stored up to this time, as far as the times of versions tell; None: nothing was. Given None:
        everything."""
        if until_us is None:
            return (None,)
        row = self._engine.one("cold_mark", tenant=self._tenant, until=until_us)
        return None if row is None else (row[0],)

    def count_cold_blocks(self, mark: ColdMark) -> tuple[int, int]:
        """How many there are, and their stored bytes."""
        ((blocks, size),) = self._engine.all("count_cold_blocks", tenant=self._tenant, mark=mark)
        return blocks, size

    def cold_blocks(self, mark: ColdMark) -> Iterator[list[Row]]:
        """The blocks in rows that are not doomed and not newer than the mark, each with the length of its stored bytes:
        in pages, oldest first as far as the database tells. All pages together take one look at each row, and what is
        written meanwhile may be in several or in none."""
        if self._engine.has_one_writer:
            after = 0
            while page := self._engine.all("cold_blocks", tenant=self._tenant, mark=mark, limit=COLD_PAGE, after=after):
                yield page
                after = page[-1][2]
            return
        # There is no index in the order in which rows were stored, but new rows mostly go to the end of the table.
        pages = self._engine.value("block_table_pages")
        for first in range(0, pages, TABLE_PAGES):
            places = {"first": f"({first},0)", "behind": f"({min(first + TABLE_PAGES, pages)},0)"}
            yield self._engine.all("cold_blocks", tenant=self._tenant, mark=mark, **places)

    def move_into_pack(self, upload: UploadId, moves: Sequence[PackMove], *, at_least: int) -> int:
        """Let the blocks lie in the upload's object, which is there, and finish the upload; how many moved. Fewer than
        `at_least`: none at all, and the upload is left to the collector. Raises and changes nothing: Conflict (the
        collector has it already), Unavailable, OutcomeUnknown."""
        # Nobody else lets blocks lie in this upload.
        moved = send(
            lambda: self._send_pack(upload, moves, at_least), found=lambda: self.pack_contents(upload)[0] or None
        )
        # None were where they had been read: gone with a transaction whose answer was lost, or really gone.
        moved = moved or self.pack_contents(upload)[0]
        hit(PACK_AFTER_COMMIT)
        return moved

    def pack_usage(self) -> Iterator[PackUsage]:
        """The finished uploads, by id."""
        for page in self._engine.pages("pack_usage", {"after": b""}, limit=USAGE_PAGE, tenant=self._tenant):
            yield from [PackUsage(*row) for row in page]

    def packed_blocks(self, upload: UploadId) -> Iterator[list[BlockRow]]:
        """The blocks in an upload, in pages by offset."""
        which, after = {"tenant": self._tenant, "upload": upload, "limit": COLD_PAGE}, -1
        while page := self._engine.rows(BlockRow, "packed_blocks", **which, after=after):
            yield page
            after = page[-1].offset or 0

    def pack_contents(self, upload: UploadId) -> tuple[int, int]:
        """How many blocks lie in an upload, and their bytes."""
        ((blocks, size),) = self._engine.all("pack_contents", tenant=self._tenant, upload=upload)
        return blocks, size

    def vacuum(self) -> tuple[int, int]:
        """Give free pages of the database back to the file system; its bytes before and after."""
        return self._engine.vacuum()

    def _send_pack(self, upload: UploadId, moves: Sequence[PackMove], at_least: int) -> int:
        try:
            return self._engine.write(lambda tx: self._move(tx, upload, moves, at_least))
        except _TooFew:
            return 0

    def _move(self, tx: Transaction, upload: UploadId, moves: Sequence[PackMove], at_least: int) -> int:
        """The order of locks is that of a commit: blocks by id, then uploads."""
        ordered = sorted(moves, key=lambda move: move.id)
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
        hit(PACK_BEFORE_COMMIT)
        return moved


class _TooFew(AnalemmaError):
    """Rolls the transaction back: a pack that would begin mostly dead is not begun."""
