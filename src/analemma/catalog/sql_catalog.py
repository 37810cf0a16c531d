"""The kernel's catalog on SQL, whatever the database."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from analemma.canon.identity import BlockId
from analemma.catalog.collecting.places import elsewhere
from analemma.catalog.engine.db import Engine
from analemma.catalog.engine.schema import migrate
from analemma.catalog.engine.wakeups import Wakeups
from analemma.catalog.kernel.commits import (
    AFTER_COMMIT,
    BEFORE_TRANSACTION,
    KEY_KEEP_US,
    check_request,
    commit,
    find_key,
    read_head,
    stored_id,
)
from analemma.catalog.kernel.ledger import SqlLedger
from analemma.catalog.kernel.payloads import LEASE_KEEP_US, SqlPayloads
from analemma.catalog.kernel.records import branch_columns, manifest_row
from analemma.catalog.kernel.rows import NEWEST, SqlRecords
from analemma.catalog.langgraph.pending_writes import carry
from analemma.catalog.langgraph.threads import ThreadRows
from analemma.catalog.names import check_part, check_tenant, check_texts
from analemma.catalog.port import (
    BlockRow,
    BranchKey,
    CatalogStats,
    CommitRequest,
    Committed,
    Head,
    Idempotency,
    JournalRow,
    NamedVersion,
    RowChange,
    TenantId,
    Upload,
    UploadId,
    Verdict,
    Version,
)
from analemma.clock import Clock, SystemClock
from analemma.failpoints import hit

_new_tuple = tuple.__new__


class SqlCatalog(SqlRecords, SqlPayloads, SqlLedger):
    """Implements `KernelCatalog` and `LedgerCatalog`. `engine` is open to layers that write in the
    same transactions. With `migrate_schema=False` an outdated schema is refused instead of upgraded."""

    def __init__(
        self, engine: Engine, wakeups: Wakeups, *, clock: Clock | None = None, migrate_schema: bool = True
    ) -> None:
        self.engine = engine
        self.clock = clock or SystemClock()
        self.migrated = migrate(engine, now_us=self.clock.now_us(), apply=migrate_schema)
        """The migrations that opening the catalog applied."""
        self.key_keep_us = KEY_KEEP_US
        """An idempotency key counts so long at least, and for as long as its version is there."""
        self.lease_keep_us = LEASE_KEEP_US
        self._tenants: dict[str, TenantId] = {}
        self._objects_held: str | None = None
        """Where this program would put objects; None once it is known that nobody chooses another place."""
        self.wakeups = wakeups
        """Producers of events call `wakeups.signal()` after their commit."""

    def store_id(self) -> str:
        """What tells this store from every other."""
        return str(self.engine.value("store_id"))

    def objects_place(self) -> str | None:
        """Where the objects of this store are; None if it was never opened with an object store."""
        place: str | None = self.engine.value("objects_place")
        return place

    def move_objects(self, place: str, *, before: str | None, unless_used: bool) -> bool:
        """Remember another place for them; False if they are no longer where they were before or, `unless_used`, there
        are any."""
        moved = self.engine.execute("move_objects", place=place, before=before or "", unless_used=unless_used)
        return moved == 1

    def hold_objects(self, place: str) -> None:
        """This program puts its objects there."""
        self._objects_held = place

    def claim_objects(self) -> None:
        """Remember the place of this program's objects as the store's, before the first is put there; Invalid if the
        store's are elsewhere by now."""
        place = self._objects_held
        if place is not None:
            known = self.objects_place()
            if known != place and not self.move_objects(place, before=known, unless_used=known is not None):
                self._check_objects()

    def _check_objects(self) -> None:
        # Once an upload is begun nobody can choose another place, so it is asked once, and then.
        place = self._objects_held
        if place is not None:
            known = self.objects_place()
            if known != place:
                raise elsewhere(known, place)
            self._objects_held = None

    def has_objects(self) -> bool:
        """Whether anything of this store is kept as an object, or may be."""
        return bool(self.engine.value("has_objects"))

    def has_uploads(self) -> bool:
        """Whether rows name objects."""
        return bool(self.engine.value("has_uploads"))

    def schema_version(self) -> int:
        """The number of the newest migration."""
        return int(self.engine.value("schema_version"))

    def tenant_count(self) -> int:
        """How many tenants there are."""
        return int(self.engine.value("tenant_count"))

    def tenant(self, name: str) -> TenantId:
        found = self.find_tenant(name)
        if found is None:
            self.engine.execute("add_tenant", name=name)
            found = self.find_tenant(name)
            assert found is not None
        return found

    @contextmanager
    def snapshot(self) -> Iterator[SqlCatalog]:
        with self.engine.transaction() as tx:
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

    def commit(self, request: CommitRequest) -> Committed:
        check_request(request)
        hit(BEFORE_TRANSACTION)
        committed = commit(self.engine, request, now_us=self.clock.now_us(), key_keep_us=self.key_keep_us)
        hit(AFTER_COMMIT)
        return committed

    def head(self, tenant: TenantId, key: BranchKey) -> Head | None:
        return read_head(self.engine, tenant, key)

    def head_and_pending(self, tenant: TenantId, key: BranchKey) -> tuple[Head | None, bool]:
        ((manifest, version, journal_seq, journal_tip, pending),) = self.engine.all(
            "head_and_pending", tenant=tenant, owner=key.owner, workflow=key.workflow, branch=key.branch
        )
        head = None if manifest is None else Head(key, stored_id(manifest, key), version, journal_seq, journal_tip)
        return head, bool(pending)

    def manifest(self, tenant: TenantId, manifest: BlockId) -> Version | None:
        row = self.engine.one("manifest", tenant=tenant, id=manifest)
        return None if row is None else manifest_row(row)

    def versions_between(
        self, tenant: TenantId, low: BlockId, high: BlockId, *, owner: str | None = None, limit: int = 2
    ) -> list[Version]:
        rows = self.engine.all("versions_between", tenant=tenant, low=low, high=high, owner=owner, limit=limit)
        return [manifest_row(row) for row in rows]

    def history(
        self,
        tenant: TenantId,
        key: BranchKey,
        *,
        before_version: int | None = None,
        execution: str | None = None,
        segment: int | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        decision: Verdict | None = None,
        limit: int = 100,
    ) -> list[Version]:
        asked: dict[str, Any] = {
            **branch_columns(tenant, key),
            "before_version": NEWEST if before_version is None else before_version,
            "limit": limit,
        }
        if any(chosen is not None for chosen in (segment, since_us, until_us, decision)):
            since, until = since_us or 0, NEWEST if until_us is None else until_us
            asked |= {"execution": execution, "segment": segment, "since": since, "until": until}
            if decision is not None:
                rows = self.engine.all("history_decided", **asked, decision=decision)
            else:
                rows = self.engine.all("history_filtered", **asked)
        elif execution is not None:
            rows = self.engine.all("history_of_execution", **asked, execution=execution)
        else:
            rows = self.engine.all("history", **asked)
        # All of one branch: a long log need not make its key again for each row.
        return [_new_tuple(Version, (row[0], key, *row[4:], False)) for row in rows]

    def journal(self, tenant: TenantId, key: BranchKey, *, after_seq: int = 0, limit: int = 1000) -> list[JournalRow]:
        return self.engine.rows(
            JournalRow,
            "journal",
            **branch_columns(tenant, key),
            after_seq=after_seq,
            limit=limit,
        )

    def receipt(self, tenant: TenantId, key: BranchKey, idempotency_key: str) -> Idempotency | None:
        row = find_key(self.engine, tenant, key, idempotency_key, key_keep_us=self.key_keep_us)
        return None if row is None else Idempotency(idempotency_key, row[0], row[2])

    def named_versions(
        self, tenant: TenantId, key: BranchKey, *, after: str = "", limit: int = 1000
    ) -> list[NamedVersion]:
        asked = {"tenant": tenant, "owner": key.owner, "thread": key.workflow, "branch": key.branch}
        rows = self.engine.all("named_versions", **asked, after=after, limit=limit)
        return [NamedVersion._make((*row[:4], bool(row[4]), bool(row[5]))) for row in rows]

    def carried_rows(
        self, tenant: TenantId, source: Version, key: BranchKey, made: BlockId, *, at_us: int
    ) -> list[RowChange]:
        return carry(self.threads(tenant, key.owner), source.id, source.key, key, made, at_us)

    def threads(self, tenant: TenantId, owner: str) -> ThreadRows:
        return ThreadRows(self.engine, tenant, owner)

    def open_upload(self, tenant: TenantId, upload: Upload) -> None:
        check_part(upload.object_key, "object key")
        check_texts((upload.owner, upload.workflow, upload.execution))
        self.claim_objects()
        # Durable whatever the store's commits are: an object whose intent was lost would never be found again.
        self.engine.write(
            lambda tx: tx.execute(
                "open_upload",
                tenant=tenant,
                id=upload.id,
                state=upload.state,
                object_key=upload.object_key,
                size=upload.size,
                created_at=upload.created_at_us,
                owner=upload.owner,
                workflow=upload.workflow,
                execution=upload.execution,
            ),
            durable=True,
        )
        self._check_objects()

    def upload(self, tenant: TenantId, upload: UploadId) -> Upload | None:
        row = self.engine.one("upload", tenant=tenant, id=upload)
        return None if row is None else Upload(upload, *row)

    def claim_failed(self, tenant: TenantId, uploads: Sequence[tuple[UploadId, str]], error: str) -> None:
        from analemma.catalog.collecting.uploads import claim_failed

        claim_failed(self.engine, tenant, uploads, error)

    def stats(self, tenant: TenantId | None = None) -> CatalogStats:
        with self.engine.transaction() as tx:
            (blocks,) = tx.all("block_stats", tenant=tenant)
            (rows,) = tx.all("row_stats", tenant=tenant)
        return CatalogStats(*blocks, *rows)

    def close(self) -> None:
        self.wakeups.close()
        self.engine.close()
