"""Changes where blocks lie: from rows into packs, and between packs. A block moves only from where its bytes were
read, so whoever comes second moves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.engine.lost_answers import send
from analemma.catalog.engine.sqlite.transaction import SqliteTransaction
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import AnalemmaError, Conflict, Invalid
from analemma.failpoints import declare, hit

PACK_BEFORE_COMMIT = declare("pack.before_commit", "the blocks have moved inside the transaction")
PACK_AFTER_COMMIT = declare("pack.after_commit", "the blocks lie in the pack, but nobody knows")

LARGEST_ROWID = 2**63 - 1

ROWS_PER_TABLE_PAGE = 40
"""PostgreSQL: so many pages of the table are read for an answer of some blocks. Hardly more rows fit into a page, so
no answer becomes much longer than it was asked to be."""

ColdPlace = tuple[int, int]
"""Where a page begins. SQLite: behind this rowid. PostgreSQL: at this page of the table, of so many in all."""


class Origin(NamedTuple):
    """Where in a pack a block was read."""

    upload: UploadId
    offset: int


class PackMove(NamedTuple):
    """One block on its way into a pack: what it is, where it will lie, and where it must still be."""

    id: BlockId
    codec: int
    offset: int
    length: int
    origin: Origin | None
    """None: its row."""


class ColdBlock(NamedTuple):
    """A block that has been in its row for long."""

    id: BlockId
    length: int
    """Of its stored bytes."""


@dataclass(frozen=True, slots=True)
class ColdMark:
    """Divides what was stored up to some time from what was stored later: a rowid on SQLite, on PostgreSQL a
    transaction. None: nothing was stored later."""

    place: int | str | None


@dataclass(frozen=True, slots=True)
class ColdPage:
    """Some cold blocks, oldest first as far as the database tells; perhaps none."""

    blocks: tuple[ColdBlock, ...]
    end: ColdPlace | None
    """Where the next page begins; None: there is none."""


@dataclass(frozen=True, slots=True)
class PackUsage:
    """How much of an object still counts."""

    upload: UploadId
    size: int
    blocks: int
    """How many lie in it; 0: the collector's."""
    live_bytes: int


class PackingCatalog(Protocol):
    """What packing needs of a catalog. Every call is atomic by itself."""

    def cold_mark(self, tenant: TenantId, until_us: int | None) -> ColdMark | None:
        """What was stored up to this time, as far as the times of versions tell; None: nothing was. Given None:
        everything."""

    def count_cold_blocks(self, tenant: TenantId, mark: ColdMark) -> tuple[int, int]:
        """How many there are, and their stored bytes."""

    def cold_blocks(
        self, tenant: TenantId, mark: ColdMark, *, after: ColdPlace | None = None, limit: int = 10_000
    ) -> ColdPage:
        """A page of about so many of the blocks in rows that are not doomed and not newer than the mark. All pages
        together take one look at each row, and what is written meanwhile may be in several or in none."""

    def move_into_pack(self, tenant: TenantId, upload: UploadId, moves: Sequence[PackMove], *, at_least: int) -> int:
        """Let the blocks lie in the upload's object, which is there, and finish the upload; how many moved. Fewer than
        `at_least`: none at all, and the upload is left to the collector. Raises and changes nothing: Conflict (the
        collector has it already), Unavailable, OutcomeUnknown."""

    def pack_usage(self, tenant: TenantId, *, after: UploadId | None = None, limit: int = 100) -> list[PackUsage]:
        """A page of the finished uploads, by id."""

    def packed_blocks(
        self, tenant: TenantId, upload: UploadId, *, after: int = -1, limit: int = 10_000
    ) -> list[BlockRow]:
        """A page of the blocks in an upload, by offset."""

    def pack_contents(self, tenant: TenantId, upload: UploadId) -> tuple[int, int]:
        """How many blocks lie in an upload, and their bytes."""

    def vacuum(self) -> tuple[int, int]:
        """Give free pages of the database back to the file system; its bytes before and after."""


class SqlPacking:
    """Implements `PackingCatalog`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._postgres = engine.dialect == "postgres"

    def cold_mark(self, tenant: TenantId, until_us: int | None) -> ColdMark | None:
        if until_us is None:
            return ColdMark(None)
        return self._engine.row(ColdMark, "cold_mark", tenant=tenant, until=until_us)

    def count_cold_blocks(self, tenant: TenantId, mark: ColdMark) -> tuple[int, int]:
        ((blocks, size),) = self._engine.all("count_cold_blocks", tenant=tenant, mark=self._mark(mark))
        return blocks, size

    def cold_blocks(
        self, tenant: TenantId, mark: ColdMark, *, after: ColdPlace | None = None, limit: int = 10_000
    ) -> ColdPage:
        if self._postgres:
            return self._cold_rows_of_pages(tenant, mark, after, max(1, limit // ROWS_PER_TABLE_PAGE))
        start = 0 if after is None else after[0]
        rows = self._engine.all("cold_blocks", tenant=tenant, mark=self._mark(mark), limit=limit, after=start)
        end = (rows[-1][2], 0) if len(rows) == limit else None
        return ColdPage(tuple(ColdBlock(BlockId(row[0]), row[1]) for row in rows), end)

    def move_into_pack(self, tenant: TenantId, upload: UploadId, moves: Sequence[PackMove], *, at_least: int) -> int:
        # Nobody else lets blocks lie in this upload.
        moved = send(
            lambda: self._send_pack(tenant, upload, moves, at_least),
            found=lambda: self.pack_contents(tenant, upload)[0] or None,
        )
        # None were where they had been read: gone with a transaction whose answer was lost, or really gone.
        moved = moved or self.pack_contents(tenant, upload)[0]
        hit(PACK_AFTER_COMMIT)
        return moved

    def pack_usage(self, tenant: TenantId, *, after: UploadId | None = None, limit: int = 100) -> list[PackUsage]:
        rows = self._engine.all("pack_usage", tenant=tenant, after=after or b"", limit=limit)
        return [PackUsage(UploadId(row[0]), *row[1:]) for row in rows]

    def packed_blocks(
        self, tenant: TenantId, upload: UploadId, *, after: int = -1, limit: int = 10_000
    ) -> list[BlockRow]:
        rows = self._engine.all("packed_blocks", tenant=tenant, upload=upload, after=after, limit=limit)
        return [BlockRow._make(row) for row in rows]

    def pack_contents(self, tenant: TenantId, upload: UploadId) -> tuple[int, int]:
        ((blocks, size),) = self._engine.all("pack_contents", tenant=tenant, upload=upload)
        return blocks, size

    def vacuum(self) -> tuple[int, int]:
        if self._postgres:
            raise Invalid(
                "PostgreSQL reuses free pages by itself",
                hint="leave it to autovacuum; VACUUM FULL or pg_repack give them back to the system",
            )
        before = self._bytes()
        with self._engine.transaction(write=True) as tx:
            # Nobody else writes until the block ends. VACUUM only works outside of a transaction.
            connection = cast(SqliteTransaction, tx)
            connection.control("rollback_transaction")
            connection.control("temporary_in_files")
            try:
                connection.control("vacuum")
            finally:
                connection.control("temporary_in_memory")
            connection.control("truncate_log")
            connection.control("begin_write")
        return before, self._bytes()

    def _cold_rows_of_pages(self, tenant: TenantId, mark: ColdMark, place: ColdPlace | None, count: int) -> ColdPage:
        """What lies in so many pages of the table: there is no index in the order in which rows were stored, but new
        rows mostly go to the end."""
        if place is None:
            place = (0, self._engine.value("block_table_pages"))
        first, pages = place
        behind = min(first + count, pages)
        rows = self._engine.all(
            "cold_blocks", tenant=tenant, mark=mark.place, first=f"({first},0)", behind=f"({behind},0)"
        )
        end = (behind, pages) if behind < pages else None
        return ColdPage(tuple(ColdBlock(BlockId(row[0]), row[1]) for row in rows), end)

    def _mark(self, mark: ColdMark) -> int | str | None:
        return LARGEST_ROWID if mark.place is None and not self._postgres else mark.place

    def _bytes(self) -> int:
        return int(self._engine.value("database_bytes"))

    def _send_pack(self, tenant: TenantId, upload: UploadId, moves: Sequence[PackMove], at_least: int) -> int:
        try:
            return self._engine.write(lambda tx: self._move_into_pack(tx, tenant, upload, moves, at_least))
        except _TooFew:
            return 0

    def _move_into_pack(
        self, tx: Transaction, tenant: TenantId, upload: UploadId, moves: Sequence[PackMove], at_least: int
    ) -> int:
        """The order of locks is that of a commit: blocks by id, then uploads."""
        ordered = sorted(moves, key=lambda move: move.id)
        self._hold(tx, tenant, ordered)
        inline = [move for move in ordered if move.origin is None]
        packed = [move for move in ordered if move.origin is not None]
        moved = (self._from_rows(tx, tenant, upload, inline) if inline else 0) + (
            self._from_packs(tx, tenant, upload, packed) if packed else 0
        )
        if moved < max(1, at_least):
            raise _TooFew("too few blocks were where they had been read")
        if tx.execute("finish_pack", tenant=tenant, id=upload) != 1:
            raise Conflict("a pack was collected before its blocks moved there", hint="run it again")
        hit(PACK_BEFORE_COMMIT)
        return moved

    def _hold(self, tx: Transaction, tenant: TenantId, ordered: Sequence[PackMove]) -> None:
        tx.all("hold_moving_blocks", tenant=tenant, ids=[move.id for move in ordered])

    def _from_rows(self, tx: Transaction, tenant: TenantId, upload: UploadId, moves: Sequence[PackMove]) -> int:
        if self._postgres:
            return tx.execute("move_into_pack", tenant=tenant, upload=upload, **_columns(moves))
        rows = [(upload, move.offset, move.length, tenant, move.id, move.codec) for move in moves]
        return tx.execute_many("move_into_pack", rows)

    def _from_packs(self, tx: Transaction, tenant: TenantId, upload: UploadId, moves: Sequence[PackMove]) -> int:
        origins = [move.origin for move in moves if move.origin is not None]
        if self._postgres:
            return tx.execute(
                "move_between_packs",
                tenant=tenant,
                upload=upload,
                from_uploads=[origin.upload for origin in origins],
                from_offsets=[origin.offset for origin in origins],
                **_columns(moves),
            )
        rows = [
            (upload, move.offset, move.length, tenant, move.id, *origin, move.codec)
            for move, origin in zip(moves, origins, strict=True)
        ]
        return tx.execute_many("move_between_packs", rows)


class _TooFew(AnalemmaError):
    """Rolls the transaction back: a pack that would begin mostly dead is not begun."""


def _columns(moves: Sequence[PackMove]) -> dict[str, Any]:
    return {
        "ids": [move.id for move in moves],
        "codecs": [move.codec for move in moves],
        "offsets": [move.offset for move in moves],
        "lengths": [move.length for move in moves],
    }
