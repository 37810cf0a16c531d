"""Payload leases: what a pointer in a payload names, and what keeps the blocks below it from being collected until its
execution ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine, Row, Statements, Transaction
from analemma.catalog.engine.lost_answers import send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.entities.bodies import Bodies
from analemma.catalog.names import check_part
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Conflict, Denied
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("payload.before_transaction", "the blocks are prepared and no lease is written")
AFTER_BLOCKS = declare("payload.after_blocks", "the blocks are written inside the transaction")
BEFORE_COMMIT = declare("payload.before_commit", "blocks and leases are written, nothing is committed")
AFTER_COMMIT = declare("payload.after_commit", "the leases are there, but the caller does not know")
BEFORE_RELEASE = declare("payload.before_release", "an execution and its leases are ended inside the transaction")
AFTER_RELEASE = declare("payload.after_release", "they are ended, but the caller does not know")

BEFORE_RENEWAL = declare(
    "payload.before_renewal", "leases that were not used for a while are renewed inside the transaction"
)
BEFORE_HOLD = declare(
    "payload.before_hold", "an execution that nobody released is found to be over, and still has leases"
)
BEFORE_END = declare("payload.before_end", "leases that nobody released are ended inside the transaction")


LEASE_KEEP_US = 30 * 86_400 * 1_000_000
"""So long leases stay that nobody uses, unless the settings say otherwise."""
USES_PER_KEEP = 10

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
    renewed_at_us: int = 0
    """When it was made or last used, by the database's clock; an execution that nobody releases ends by that."""


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


class SqlPayloads:
    """What payloads need of a catalog. Every call is atomic by itself."""

    engine: Engine
    clock: Clock
    lease_keep_us: int
    """Leases that were not used for so long end, if their execution was not released."""

    def add_leases(self, request: LeaseRequest) -> None:
        """Write blocks and leases, durably. Raises and changes nothing: Denied (a kept lease was released, or a new
        one is of an execution that has ended), Conflict (an upload was collected meanwhile), Unavailable,
        OutcomeUnknown."""
        for lease in request.leases:
            _check_names(lease.owner, lease.workflow, lease.execution)
            if lease.field is not None and lease.field != "":
                check_part(lease.field, "field name")
        hit(BEFORE_TRANSACTION)
        ids = [lease.id for lease in request.leases]
        # Ids of leases are random: one that is there is ours. Without new ones a request only looks.
        send(
            lambda: self._send_leases(request),
            found=lambda: (bool(ids) and len(self.leases(request.tenant, ids)) == len(ids)) or None,
        )
        hit(AFTER_COMMIT)

    def leases(self, tenant: TenantId, ids: Sequence[LeaseId]) -> dict[LeaseId, Lease]:
        """Those of the leases that exist, released or not; one round trip for any number."""
        if not ids:
            return {}
        return {lease.id: lease for lease, _ in self._look(tenant, ids)}

    def use_leases(self, tenant: TenantId, ids: Sequence[LeaseId]) -> dict[LeaseId, Lease]:
        """The same for somebody who goes on using them: those that are live count as used now, where they were not
        used for a while."""
        if not ids:
            return {}
        found = self._look(tenant, ids)
        unused = [lease.id for lease, is_unused in found if is_unused]
        if unused:
            try:
                self._renew_leases(tenant, unused)
            except AnalemmaError as exc:
                # Whoever only reads may not be able to write, and the leases are good all the same.
                import logging

                logging.getLogger("analemma.payloads").warning("leases of payloads could not be renewed: %s", exc)
        return {lease.id: lease for lease, _ in found}

    def leases_of(
        self,
        tenant: TenantId,
        owner: str | None,
        workflow: str | None,
        execution: str | None,
        *,
        after: LeaseId | None = None,
        limit: int = 1000,
    ) -> list[Lease]:
        """A page of the live leases of everybody, of one owner, of one workflow, or of one execution of it, by id."""
        whose = {"owner": owner, "workflow": workflow, "execution": execution}
        given = {name: value for name, value in whose.items() if value is not None}
        statement = ("leases_of_tenant", "leases_of_owner", "leases_of_workflow", "leases_of_execution")[len(given)]
        rows = self.engine.all(statement, tenant=tenant, after=after or b"", limit=limit, **given)
        return [_lease(row) for row in rows]

    def release_leases(self, tenant: TenantId, owner: str, workflow: str, execution: str) -> int:
        """End an execution, with all leases of it; how many there were. From then on it gets no new ones."""
        _check_names(owner, workflow, execution)
        whose = {"tenant": tenant, "owner": owner, "workflow": workflow, "execution": execution}
        count = self.engine.write(lambda tx: _release(tx, whose, self.clock.now_us()))
        hit(AFTER_RELEASE)
        return count

    def lease_roots(
        self, tenant: TenantId, *, after: LeaseId | None = None, limit: int = 1000
    ) -> list[tuple[LeaseId, BlockId]]:
        """A page of the live leases with the roots that a collector must mark, by id."""
        rows = self.engine.all("lease_roots", tenant=tenant, after=after or b"", limit=limit)
        return [(LeaseId(row[0]), BlockId(row[1])) for row in rows]

    @property
    def _unused_us(self) -> int:
        """A lease that was not used for so long is renewed when it is: often enough, and hardly ever a write."""
        return self.lease_keep_us // USES_PER_KEEP

    def _look(self, tenant: TenantId, ids: Sequence[LeaseId]) -> list[tuple[Lease, bool]]:
        rows = self.engine.all("leases", tenant=tenant, unused=self._unused_us, ids=ids)
        return [(_lease(row[:-1]), bool(row[-1])) for row in rows]

    def _renew_leases(self, tenant: TenantId, ids: Sequence[LeaseId]) -> None:
        def renew(tx: Transaction) -> None:
            tx.execute("renew_leases", tenant=tenant, ids=ids)
            hit(BEFORE_RENEWAL)

        self.engine.write(renew)

    def _send_leases(self, request: LeaseRequest) -> bool:
        try:
            self.engine.write(lambda tx: _add_leases(tx, request, unused_us=self._unused_us))
        except _Unused as exc:
            # In a transaction of their own: two who hold leases together, and then renew them, would wait for each
            # other. Whoever ends them from here on sees that they are used; whoever was faster has ended them.
            self._renew_leases(request.tenant, exc.leases)
            self.engine.write(lambda tx: _add_leases(tx, request, unused_us=None))
        return True


class _Unused(Exception):
    """Leases that a payload goes on using were not used for a while, and are to be renewed first."""

    def __init__(self, leases: Sequence[LeaseId]) -> None:
        super().__init__()
        self.leases = leases


def _add_leases(tx: Transaction, request: LeaseRequest, *, unused_us: int | None) -> None:
    """The order of locks is that of a commit: what is built upon, then blocks by id, then what is new."""
    for owner, workflow, execution in sorted({(each.owner, each.workflow, each.execution) for each in request.leases}):
        whose = {"tenant": request.tenant, "owner": owner, "workflow": workflow, "execution": execution}
        tx.all("share_execution", **whose)
        # After the lock, in a statement of its own: that sees what was committed while we waited.
        if tx.one("execution_ended", **whose) is not None:
            raise ended(execution)
    kept = sorted(set(request.kept))
    if kept:
        held = tx.all("hold_leases", tenant=request.tenant, unused=unused_us or 0, ids=kept)
        if len(held) != len(kept):  # guard: lease.counted
            raise released()
        unused = [LeaseId(row[0]) for row in held if row[1]]
        if unused and unused_us is not None:
            raise _Unused(unused)
    if request.blocks or request.uploads:
        blocks = {block.id: block for block in request.blocks}
        try:
            tx.call("add_bodies", Bodies(request.tenant, [*blocks.values()], sorted(set(request.uploads))))
        except Refused as refused:
            raise Conflict("an upload of this payload was collected meanwhile", hint="dehydrate again") from refused
    hit(AFTER_BLOCKS)
    tx.execute_many("add_lease", [_lease_row(request.tenant, lease) for lease in request.leases])
    hit(BEFORE_COMMIT)


def _release(tx: Transaction, whose: dict[str, Any], now_us: int) -> int:
    _hold_execution(tx, whose)
    tx.execute("end_execution", **whose, now=now_us)
    count = tx.execute("release_leases", **whose, now=now_us)
    hit(BEFORE_RELEASE)
    return count


def _hold_execution(tx: Transaction, whose: dict[str, Any]) -> None:
    """Nobody gives the execution leases, renews those that it has or passes them on, until the transaction ends."""
    tx.all("hold_execution", **whose)
    tx.all("hold_leases_of_execution", **whose)


class LeasedExecution(NamedTuple):
    """An execution that has live leases."""

    owner: str
    workflow: str
    execution: str
    used_at_us: int
    """When one of them was made or last used."""
    is_ended_run: bool


def leased_executions(source: Statements, tenant: TenantId, *, limit: int = 1000) -> Iterator[LeasedExecution]:
    """Every execution with live leases, by name, read in pages."""
    after = ("", "", "")
    while page := source.all(
        "leased_executions",
        tenant=tenant,
        after_owner=after[0],
        after_workflow=after[1],
        after_execution=after[2],
        limit=limit,
    ):
        for owner, workflow, execution, used_at_us, is_ended_run in page:
            yield LeasedExecution(owner, workflow, execution, used_at_us, bool(is_ended_run))
        after = page[-1][:3]


def is_over(source: Statements, tenant: TenantId, each: LeasedExecution, *, before_us: int) -> bool:
    """Whether an execution is over that nobody released: it is a run that has ended, or none of its leases was used
    since that time; and nothing that goes on may need them."""
    return source.one("is_execution_over", tenant=tenant, before=before_us, **_whose(each)) is not None


def end_leases(tx: Transaction, tenant: TenantId, each: LeasedExecution, *, before_us: int, now_us: int) -> int:
    """End the leases of an execution that is over; how many. It may get new ones: a run may be run again, and what that
    leaves is ended as these are."""
    whose = {"tenant": tenant, **_whose(each)}
    _hold_execution(tx, whose)
    # After the locks, in a statement of its own: that sees who used them while we waited.
    if not is_over(tx, tenant, each, before_us=before_us):
        return 0
    count = tx.execute("release_leases", **whose, now=now_us)
    hit(BEFORE_END)
    return count


def _whose(each: LeasedExecution) -> dict[str, str]:
    return {"owner": each.owner, "workflow": each.workflow, "execution": each.execution}


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
