"""Payload leases: what a pointer in a payload names, and what keeps the blocks below it from being collected until its
execution ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NewType

from analemma.canon.nodes import BlockId
from analemma.catalog.engine.db import Engine, Transaction, send
from analemma.catalog.engine.procedures import Refused
from analemma.catalog.port import BlockRow, TenantId, UploadId
from analemma.errors import AnalemmaError, Conflict, Denied
from analemma.failpoints import declare, hit

BEFORE_TRANSACTION = declare("payload.before_transaction", "the blocks are prepared and no lease is written")
BEFORE_COMMIT = declare("payload.before_commit", "blocks and leases are written, nothing is committed")
AFTER_COMMIT = declare("payload.after_commit", "the leases are there, but the caller does not know")
BEFORE_RELEASE = declare("payload.before_release", "an execution and its leases are ended inside the transaction")
AFTER_RELEASE = declare("payload.after_release", "they are ended, but the caller does not know")

BEFORE_RENEWAL = declare(
    "payload.before_renewal", "leases that were not used for a while are renewed inside the transaction"
)

USES_PER_KEEP = 10
"""A lease that was not used for this part of the time for which unused ones stay is renewed when it is: often enough,
and hardly ever a write."""
PAGE = 1000

LeaseId = NewType("LeaseId", bytes)
LEASE_ID_BYTES = 16


class PayloadLease(NamedTuple):
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


class Leases:
    """The leases of one tenant's payloads. Every call is atomic by itself."""

    def __init__(self, engine: Engine, tenant: TenantId, *, keep_s: float) -> None:
        """Leases that nobody uses stay for so long, if their execution is not released."""
        self._engine = engine
        self._tenant = tenant
        self._unused_us = round(keep_s * 1_000_000) // USES_PER_KEEP

    def add(
        self,
        leases: Sequence[PayloadLease],
        kept: Iterable[LeaseId],
        blocks: Sequence[BlockRow],
        uploads: Sequence[UploadId],
    ) -> None:
        """Write leases of one execution, with every block of their trees, durably. `kept` are those that the payload
        goes on using, or whose trees new leases name without emitting their blocks. Raises and changes nothing: Denied
        (a kept lease was released, or a new one is of an execution that has ended), Conflict (an upload was collected
        meanwhile), Unavailable, OutcomeUnknown."""
        hit(BEFORE_TRANSACTION)
        ids = [lease.id for lease in leases]
        request = SimpleNamespace(
            tenant=self._tenant,
            executions=leases[:1],
            leases=leases,
            kept=sorted(kept),
            blocks=blocks,
            uploads=uploads,
            unused_us=self._unused_us,
        )
        # Ids of leases are random: one that is there is ours. Without new ones a request only looks.
        send(lambda: self._add(request), found=lambda: (bool(ids) and len(self.find(ids)) == len(ids)) or None)
        hit(AFTER_COMMIT)

    def _add(self, request: Any) -> bool:
        def add(tx: Transaction) -> None:
            tx.call("add_leases", request)
            hit(BEFORE_COMMIT)

        try:
            self._engine.write(add)
        except Refused as refused:
            if refused.refusal == "execution_ended":
                raise ended(request.leases[0].execution) from None
            if refused.refusal == "upload_gone":
                raise Conflict("an upload of this payload was collected meanwhile", hint="dehydrate again") from refused
            if request.unused_us is None:
                raise released() from None
            # Perhaps only not used for a while. In a transaction of their own: two who hold leases together, and then
            # renew them, would wait for each other. Whoever ends them from here on sees that they are used; whoever was
            # faster has ended them.
            self._renew(request.kept)
            request.unused_us = None
            return self._add(request)
        return True

    def find(self, ids: Sequence[LeaseId]) -> dict[LeaseId, PayloadLease]:
        """Those of the leases that exist, released or not; one round trip for any number."""
        return {lease.id: lease for lease, _ in self._look(ids)}

    def use(self, ids: Sequence[LeaseId]) -> dict[LeaseId, PayloadLease]:
        """The same for somebody who goes on using them: those that are live count as used now, where they were not
        used for a while."""
        found = self._look(ids)
        unused = [lease.id for lease, is_unused in found if is_unused]
        if unused:
            try:
                self._renew(unused)
            except AnalemmaError as exc:
                # Whoever only reads may not be able to write, and the leases are good all the same.
                import logging

                logging.getLogger("analemma.payloads").warning("leases of payloads could not be renewed: %s", exc)
        return {lease.id: lease for lease, _ in found}

    def live(self, *whose: str) -> Iterator[PayloadLease]:
        """The live leases of everybody, of one owner, of one workflow of it, or of one execution of that, by id; read
        in pages."""
        given = dict(zip(("owner", "workflow", "execution"), whose, strict=False))
        statement = ("leases_of_tenant", "leases_of_owner", "leases_of_workflow", "leases_of_execution")[len(given)]
        for page in self._engine.pages(statement, {"after": b""}, limit=PAGE, tenant=self._tenant, **given):
            yield from [PayloadLease(*row) for row in page]

    def release(self, owner: str, workflow: str, execution: str, now_us: int) -> int:
        """End an execution, with all leases of it; how many there were. From then on it gets no new ones."""
        whose = {"tenant": self._tenant, "owner": owner, "workflow": workflow, "execution": execution}

        def release(tx: Transaction) -> int:
            tx.call("end_execution", SimpleNamespace(**whose, now=now_us))
            count = tx.execute("release_leases", **whose, now=now_us)
            hit(BEFORE_RELEASE)
            return count

        count = self._engine.write(release)
        hit(AFTER_RELEASE)
        return count

    def _look(self, ids: Sequence[LeaseId]) -> list[tuple[PayloadLease, bool]]:
        if not ids:
            return []
        rows = self._engine.all("leases", tenant=self._tenant, unused=self._unused_us, ids=ids)
        return [(PayloadLease._make(row[:-1]), bool(row[-1])) for row in rows]

    def _renew(self, ids: Sequence[LeaseId]) -> None:
        def renew(tx: Transaction) -> None:
            tx.execute("renew_leases", tenant=self._tenant, ids=ids)
            hit(BEFORE_RENEWAL)

        self._engine.write(renew)


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
