"""Entering and settling entries for a database with one writer (SQLite): one statement for all rows of a table.

Each statement that runs lets the other threads of the process have their turn, so one per row would cost more than the
rows do. JSON has no binary, so all that is binary goes beside it in one piece (`_Rows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analemma.catalog.bodies import spare_blocks
from analemma.catalog.commit_steps import begin_branch, remember_request
from analemma.catalog.commits import AFTER_BLOCKS, AFTER_HEAD, BEFORE_COMMIT, missing_upload
from analemma.catalog.engine import Transaction
from analemma.catalog.ledger_port import BranchSettlement, LedgerEntry
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.port import CommitRequest, Head, TenantId
from analemma.errors import Conflict
from analemma.failpoints import hit

_NOTHING = (None, None)


class _Rows:
    """Rows of one table on their way into one statement."""

    def __init__(self) -> None:
        self._rows: list[list[Any]] = []
        self._pieces: list[bytes] = []
        self._length = 0

    def add(self, columns: Sequence[str | int | None], binary: Sequence[bytes | None]) -> None:
        """One row: what JSON can say, then the place (from 1) and length of each part that is binary."""
        row = [*columns]
        place = self._length
        for piece in binary:
            if piece is None:
                row += _NOTHING
            else:
                length = len(piece)
                row += (place + 1, length)
                self._pieces.append(piece)
                place += length
        self._length = place
        self._rows.append(row)

    def parameters(self) -> dict[str, Any]:
        """As the statements take them."""
        return {"rows": self._rows, "data": b"".join(self._pieces)}

    def __len__(self) -> int:
        return len(self._rows)


def enter_in_steps(tx: Transaction, tenant: TenantId, entries: Sequence[LedgerEntry]) -> dict[bytes, int]:
    """Insert the entries; place by secret."""
    rows = _Rows()
    for entry in entries:
        delta = entry.delta
        rows.add(
            [*entry.key, entry.created_at_us, entry.idempotency_key, delta.codec, delta.size, len(delta.body)],
            [entry.secret, delta.digest, entry.fingerprint, delta.body],
        )
    tx.execute("enter", tenant=tenant, **rows.parameters())
    return {bytes(secret): int(seq) for secret, seq in tx.all("entered", count=len(rows))}


def settle_in_steps(
    tx: Transaction, tenant: TenantId, settlements: Sequence[BranchSettlement], *, now_us: int, key_keep_us: int
) -> None:
    """Write everything, or raise; the transaction must then be undone. Heads and entries are held already."""
    grown = [(settlement.expected, commits) for settlement in settlements if (commits := settlement.commits)]
    requests = [request for _, commits in grown for request in commits]
    if requests:
        _move_heads(tx, tenant, [(expected, commits[-1].head) for expected, commits in grown])
        hit(AFTER_HEAD)
        enqueue(tx, tenant, [event for request in requests for event in request.events], now_us=now_us)
        _add_blocks(tx, tenant, requests)
        hit(AFTER_BLOCKS)
        _add_versions(tx, tenant, requests)
    for expected, commits in grown:
        if expected is None:
            begin_branch(tx, commits[0])
    for upload in sorted({upload for request in requests for upload in request.uploads}):
        if tx.execute("finish_upload", tenant=tenant, id=upload) != 1:
            raise missing_upload()
    for request in requests:
        remember_request(tx, request, key_keep_us=key_keep_us)
    hit(BEFORE_COMMIT)
    steps = [step for settlement in settlements for step in settlement.steps]
    outcomes = _Rows()
    for step in steps:
        outcomes.add([step.seq, step.failure], [step.receipt])
    tx.execute("add_tickets", tenant=tenant, settled_at=now_us, **outcomes.parameters())
    tx.execute("drop_entries", tenant=tenant, seqs=[step.seq for step in steps])


def _move_heads(tx: Transaction, tenant: TenantId, moves: Sequence[tuple[Head | None, Head]]) -> None:
    """Each head goes to the last of its branch's versions at once; nobody sees it anywhere between."""
    begun = [(tenant, *head.key, *_place(head)) for expected, head in moves if expected is None]
    grown = [
        (*_place(head), tenant, *head.key, *_place(expected), False) for expected, head in moves if expected is not None
    ]
    created = tx.execute_many("create_head", begun) if begun else 0
    moved = tx.execute_many("move_head", grown) if grown else 0
    if created != len(begun) or moved != len(grown):
        raise Conflict("another branch of the same name began at this moment", hint="look again")


def _place(head: Head) -> tuple[bytes, int, int, bytes]:
    return head.manifest, head.version, head.journal_seq, head.journal_tip


def _add_blocks(tx: Transaction, tenant: TenantId, requests: Sequence[CommitRequest]) -> None:
    # As they were emitted, version by version: packing takes the place of a manifest's block for the end of its commit.
    blocks = {block.id: block for request in requests for block in request.blocks}
    rows = _Rows()
    for row in blocks.values():
        rows.add([row.size, row.codec, row.offset, row.length], [row.id, row.body, row.upload, row.links])
    added = tx.execute("settle_blocks", tenant=tenant, **rows.parameters())
    if added != len(blocks):
        spare_blocks(tx, tenant, list(blocks))


def _add_versions(tx: Transaction, tenant: TenantId, requests: Sequence[CommitRequest]) -> None:
    manifests, journal = _Rows(), _Rows()
    for request in requests:
        row = request.manifest
        manifests.add(
            [*row.key, row.version, row.created_at_us, row.execution, row.segment, row.message],
            [row.id, row.parent, row.root],
        )
        for record in request.journal:
            journal.add(
                [*request.head.key, record.seq, record.kind, record.created_at_us],
                [record.manifest, record.body, record.hash],
            )
    tx.execute("settle_manifests", tenant=tenant, **manifests.parameters())
    tx.execute("settle_journal", tenant=tenant, **journal.parameters())
