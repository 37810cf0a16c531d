"""Payload leases: what a pointer in a payload names, and what keeps the blocks below it from being collected until its
execution ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NewType, Protocol

from analemma.canon.identity import BlockId
from analemma.catalog.arrays import Blobs
from analemma.catalog.bodies import emit_blocks
from analemma.catalog.engine import Engine, Row, Transaction
from analemma.catalog.names import check_part
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.catalog.statements import Dialect
from analemma.clock import Clock
from analemma.errors import Conflict, Denied, OutcomeUnknown
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("payload.before_transaction", "the blocks are prepared and no lease is written")
AFTER_BLOCKS = declare("payload.after_blocks", "the blocks are written inside the transaction")
BEFORE_COMMIT = declare("payload.before_commit", "blocks and leases are written, nothing is committed")
AFTER_COMMIT = declare("payload.after_commit", "the leases are there, but the caller does not know")
BEFORE_RELEASE = declare("payload.before_release", "an execution and its leases are ended inside the transaction")
AFTER_RELEASE = declare("payload.after_release", "they are ended, but the caller does not know")

LeaseId = NewType("LeaseId", bytes)
LEASE_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Lease:
    """One tree that a payload of one execution points to."""

    id: LeaseId
    owner: str
    workflow: str
    execution: str
    root: BlockId
    size: int
    """Bytes of the tree's blocks, before compression."""
    field: str | None
    """The field whose value it is; None: several fields together."""
    created_at_us: int
    released_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Everything of one payload that becomes visible together, or not at all."""

    tenant: TenantId
    leases: tuple[Lease, ...]
    blocks: tuple[BlockRow, ...] = ()
    """Every block of the new trees, whether or not it is believed to be stored already."""
    uploads: tuple[UploadId, ...] = ()
    kept: tuple[LeaseId, ...] = ()
    """Leases that the payload goes on using, or whose trees new leases name without emitting their blocks."""


class PayloadCatalog(Protocol):
    """What payloads need of a catalog. Every call is atomic by itself."""

    def add_leases(self, request: LeaseRequest) -> None:
        """Write blocks and leases, durably. Raises and changes nothing: Denied (a kept lease was released, or a new
        one is of an execution that has ended), Conflict (an upload was collected meanwhile), Unavailable,
        OutcomeUnknown."""

    def leases(self, tenant: TenantId, ids: Sequence[LeaseId]) -> dict[LeaseId, Lease]:
        """Those of the leases that exist, released or not; one round trip for any number."""

    def leases_of(
        self,
        tenant: TenantId,
        owner: str,
        workflow: str,
        execution: str | None,
        *,
        after: LeaseId | None = None,
        limit: int = 1000,
    ) -> list[Lease]:
        """A page of the live leases of one workflow, or of one execution of it, by id."""

    def release_leases(self, tenant: TenantId, owner: str, workflow: str, execution: str) -> int:
        """End an execution, with all leases of it; how many there were. From then on it gets no new ones."""

    def lease_roots(
        self, tenant: TenantId, *, after: LeaseId | None = None, limit: int = 1000
    ) -> list[tuple[LeaseId, BlockId]]:
        """A page of the live leases with the roots that a collector must mark, by id."""


class SqlPayloads:
    """Implements `PayloadCatalog`."""

    engine: Engine
    clock: Clock

    def add_leases(self, request: LeaseRequest) -> None:
        for lease in request.leases:
            _check_names(lease.owner, lease.workflow, lease.execution)
            if lease.field is not None and lease.field != "":
                check_part(lease.field, "field name")
        hit(BEFORE_TRANSACTION)
        try:
            self._send_leases(request)
        except OutcomeUnknown:
            self._settle_leases(request)
        hit(AFTER_COMMIT)

    def leases(self, tenant: TenantId, ids: Sequence[LeaseId]) -> dict[LeaseId, Lease]:
        if not ids:
            return {}
        rows = self.engine.all("leases", tenant=tenant, **_chosen(self.engine.dialect, ids))
        return {lease.id: lease for lease in map(_lease, rows)}

    def leases_of(
        self,
        tenant: TenantId,
        owner: str,
        workflow: str,
        execution: str | None,
        *,
        after: LeaseId | None = None,
        limit: int = 1000,
    ) -> list[Lease]:
        rows = self.engine.all(
            "leases_of_workflow" if execution is None else "leases_of_execution",
            tenant=tenant,
            owner=owner,
            workflow=workflow,
            after=after or b"",
            limit=limit,
            **({} if execution is None else {"execution": execution}),
        )
        return [_lease(row) for row in rows]

    def release_leases(self, tenant: TenantId, owner: str, workflow: str, execution: str) -> int:
        _check_names(owner, workflow, execution)
        whose = {"tenant": tenant, "owner": owner, "workflow": workflow, "execution": execution}
        count = self.engine.write(lambda tx: _release(tx, whose, self.clock.now_us(), self.engine.dialect))
        hit(AFTER_RELEASE)
        return count

    def lease_roots(
        self, tenant: TenantId, *, after: LeaseId | None = None, limit: int = 1000
    ) -> list[tuple[LeaseId, BlockId]]:
        rows = self.engine.all("lease_roots", tenant=tenant, after=after or b"", limit=limit)
        return [(LeaseId(row[0]), BlockId(row[1])) for row in rows]

    def _send_leases(self, request: LeaseRequest) -> None:
        self.engine.write(lambda tx: _add_leases(tx, request, self.engine.dialect))

    def _settle_leases(self, request: LeaseRequest) -> None:
        """Find out whether it happened, and if not, make it happen: lease ids are random, so a lease that is there is
        ours. (A request without new leases only looks, and may be sent again as often as one likes.)"""
        ids = [lease.id for lease in request.leases]
        if ids and len(self.leases(request.tenant, ids)) == len(ids):
            return
        try:
            self._send_leases(request)
        except Conflict:
            # The lost transaction was still under way, and was first.
            if len(self.leases(request.tenant, ids)) != len(ids):
                raise


def _add_leases(tx: Transaction, request: LeaseRequest, dialect: Dialect) -> None:
    """The order of locks is that of a commit: what is built upon, then blocks by id, then what is new."""
    for owner, workflow, execution in sorted({(each.owner, each.workflow, each.execution) for each in request.leases}):
        whose = {"tenant": request.tenant, "owner": owner, "workflow": workflow, "execution": execution}
        if dialect == "postgres":
            tx.one("share_execution", **whose)
        # After the lock, in a statement of its own: that sees what was committed while we waited.
        if tx.one("execution_ended", **whose) is not None:
            raise ended(execution)
    kept = sorted(set(request.kept))
    if kept and len(tx.all("hold_leases", tenant=request.tenant, **_chosen(dialect, kept))) != len(kept):
        raise released()
    emit_blocks(tx, request.tenant, request.blocks)
    hit(AFTER_BLOCKS)
    tx.execute_many("add_lease", [_lease_row(request.tenant, lease) for lease in request.leases])
    for upload in request.uploads:
        if tx.execute("finish_upload", tenant=request.tenant, id=upload) != 1:
            raise Conflict("an upload of this payload was collected meanwhile", hint="dehydrate again")
    hit(BEFORE_COMMIT)


def _release(tx: Transaction, whose: dict[str, Any], now_us: int, dialect: Dialect) -> int:
    if dialect == "postgres":
        tx.one("hold_execution", **whose)
    tx.execute("end_execution", **whose, now=now_us)
    count = tx.execute("release_leases", **whose, now=now_us)
    hit(BEFORE_RELEASE)
    return count


def ended(execution: str) -> Denied:
    """What whoever makes a payload for an execution that was released is told."""
    return Denied(
        f"the execution {execution!r} was released, and gets no new pointers",
        hint="release an execution after its last payload; a new run has an id of its own",
        execution=execution,
    )


def released() -> Denied:
    """What whoever uses a lease after its execution ended is told."""
    return Denied("a pointer's lease was released", hint="its execution has ended; load the state from its workflow")


def _check_names(owner: str, workflow: str, execution: str) -> None:
    check_part(owner, "owner")
    check_part(workflow, "workflow")
    check_part(execution, "execution")


def _chosen(dialect: Dialect, ids: Sequence[LeaseId]) -> dict[str, Any]:
    """Many ids as one parameter, as each database takes them."""
    if dialect == "postgres":
        return {"ids": Blobs(ids)}
    return {"ids": b"".join(ids), "count": len(ids)}


def _lease_row(tenant: TenantId, lease: Lease) -> tuple[Any, ...]:
    return (
        tenant,
        lease.id,
        lease.owner,
        lease.workflow,
        lease.execution,
        lease.root,
        lease.size,
        lease.field,
        lease.created_at_us,
    )


def _lease(row: Row) -> Lease:
    lease, owner, workflow, execution, root, *rest = row
    return Lease(LeaseId(lease), owner, workflow, execution, BlockId(root), *rest)
