"""The kernel's catalog on SQL, whatever the database."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import cast

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.engine.schema import migrate
from analemma.catalog.kernel import commits, pending, versions
from analemma.catalog.langgraph.carried_writes import carry
from analemma.catalog.langgraph.threads import ThreadRows
from analemma.catalog.names import check_part, check_tenant, check_texts
from analemma.catalog.object_places import elsewhere, move_objects
from analemma.catalog.port import (
    BlockRow,
    BranchKey,
    CatalogStats,
    RowChange,
    TenantId,
    Upload,
    UploadId,
    Version,
)
from analemma.clock import Clock, SystemClock

COMMIT_FAILED = "commit_failed"
"""Why an upload is to go: its commit failed."""
ANY_AGE = 2**62
"""Before this time, in microseconds, everything was begun."""
LONGEST_ERROR = 500

_new_tuple = tuple.__new__


class SqlCatalog:
    """Implements `KernelCatalog`. `engine` is open to layers that write in the
    same transactions. With `migrate_schema=False` an outdated schema is refused instead of upgraded."""

    commit = commits.commit
    receipt = commits.receipt
    append = commits.append
    head = versions.head
    head_and_pending = versions.head_and_pending
    manifest = versions.manifest
    history = versions.history
    every_version = versions.every_version
    last_record = versions.last_record
    journal = versions.journal
    branch_start = versions.branch_start
    refs = versions.refs
    expired = versions.expired
    expired_version = versions.expired_version
    enter = pending.enter
    ticket = pending.ticket
    pending_request = pending.pending_request
    newest_pending = pending.newest_pending
    pending_count = pending.pending_count
    pending_branches = pending.pending_branches
    pending_entries = pending.pending_entries
    heads = pending.heads
    settle = pending.settle
    forget_tickets = pending.forget_tickets

    def __init__(self, engine: Engine, *, clock: Clock | None = None, migrate_schema: bool = True) -> None:
        self.engine = engine
        self.clock = clock or SystemClock()
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)
        """The migrations that opening the catalog applied."""
        self.key_keep_us = commits.KEY_KEEP_US
        """An idempotency key counts so long at least, and for as long as its version is there."""
        self._tenants: dict[str, TenantId] = {}
        self._objects_held: str | None = None
        """Where this program would put objects; None once it is known that nobody chooses another place."""
        self.wakeups = engine.wakeups()
        """Producers of events call `wakeups.signal()` after their commit."""

    def store_id(self) -> str:
        """What tells this store from every other."""
        return str(self.engine.value("store_id"))

    def objects_place(self) -> str | None:
        """Where the objects of this store are; None if it was never opened with an object store."""
        place: str | None = self.engine.value("objects_place")
        return place

    def hold_objects(self, place: str) -> None:
        """This program puts its objects there."""
        self._objects_held = place

    def claim_objects(self) -> None:
        """Remember the place of this program's objects as the store's, before the first is put there; Invalid if the
        store's are elsewhere by now."""
        place = self._objects_held
        if place is not None:
            known = self.objects_place()
            if known != place and not move_objects(self.engine, place, before=known, unless_used=known is not None):
                self._check_objects()

    def _check_objects(self) -> None:
        # Once an upload is begun nobody can choose another place, so it is asked once, and then.
        place = self._objects_held
        if place is not None:
            known = self.objects_place()
            if known != place:
                raise elsewhere(known, place)
            self._objects_held = None

    def tenant(self, name: str) -> TenantId:
        found = self.find_tenant(name)
        if found is None:
            self.engine.execute("add_tenant", name=name)
            found = self.find_tenant(name)
            assert found is not None
        return found

    @contextmanager
    def snapshot(self) -> Iterator[SqlCatalog]:
        """The catalog as it is when the block begins, only to be read: whoever compares rows with each other."""
        with self.engine.snapshot() as tx:
            seen = copy.copy(self)
            # What reads asks its engine for statements, and for nothing else.
            seen.engine = cast(Engine, tx)
            yield seen

    def find_tenant(self, name: str) -> TenantId | None:
        """The tenant of this name, if there is one."""
        known = self._tenants.get(name) if isinstance(name, str) else None
        if known is not None:
            return known
        check_tenant(name)
        row = self.engine.one("find_tenant", name=name)
        if row is None:
            return None
        # Tenants are never renumbered, so this may be remembered for ever.
        self._tenants[name] = TenantId(row[0])
        return self._tenants[name]

    def read_blocks(self, tenant: TenantId, ids: Sequence[BlockId]) -> dict[BlockId, BlockRow]:
        if not ids:
            return {}
        rows = self.engine.all("read_blocks", tenant=tenant, ids=ids)
        # Not BlockRow(...): that takes as long as reading them.
        return {row[0]: _new_tuple(BlockRow, row) for row in rows}

    def carried_rows(
        self, tenant: TenantId, source: Version, key: BranchKey, made: BlockId, *, at_us: int
    ) -> list[RowChange]:
        """What else a version takes along when it becomes the newest of a branch again, or the first of another, as the
        version `made`: what waits to be done on top of it."""
        return carry(self.threads(tenant, key.owner), source.id, source.key, key, made, at_us)

    def threads(self, tenant: TenantId, owner: str) -> ThreadRows:
        """The rows of checkpoints beside an owner's versions."""
        return ThreadRows(self.engine, tenant, owner)

    def open_upload(self, tenant: TenantId, upload: Upload) -> None:
        check_part(upload.object_key, "object key")
        check_texts((upload.owner, upload.workflow, upload.execution))
        self.claim_objects()
        # Durable whatever the store's commits are: an object whose intent was lost would never be found again.
        self.engine.write(lambda tx: tx.execute("open_upload", tenant=tenant, **upload._asdict()), durable=True)
        self._check_objects()

    def upload(self, tenant: TenantId, upload: UploadId) -> Upload | None:
        return self.engine.row(partial(Upload, upload), "upload", tenant=tenant, id=upload)

    def claim_failed(self, tenant: TenantId, uploads: Sequence[tuple[UploadId, str]], error: str) -> None:
        """Claim the intents of a commit that failed, each with its object's key. If its answer was only lost, and it
        did happen, they are ready, and stay."""
        why = {"reason": COMMIT_FAILED, "error": error[:LONGEST_ERROR]}

        def move(tx: Transaction) -> None:
            now = tx.value("database_now")
            for upload, key in sorted(uploads):
                which = {"tenant": tenant, "id": upload, "object_key": key, "state": "temp", "before": ANY_AGE}
                tx.execute("claim_upload", **which, **why, now=now)

        self.engine.write(move, durable=True)

    def stats(self, tenant: TenantId | None = None) -> CatalogStats:
        with self.engine.snapshot() as tx:
            (blocks,) = tx.all("block_stats", tenant=tenant)
            (rows,) = tx.all("row_stats", tenant=tenant)
        return CatalogStats(*blocks, *rows)

    def close(self) -> None:
        self.wakeups.close()
        self.engine.close()
