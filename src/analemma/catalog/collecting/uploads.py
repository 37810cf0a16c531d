"""Uploads on their way out: claims, deleted objects and their audit, and the queue of what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analemma.catalog.engine.db import Engine, Row, Transaction
from analemma.catalog.leases import SECOND_US, DatabaseClock, database_clock
from analemma.catalog.port import TenantId, UploadId
from analemma.failpoints import declare, hit

AFTER_CLAIM = declare("gc.after_claim", "uploads are claimed durably, and their objects are still there")

CLAIM_BATCH = 100
PAGE = 1000
FAILURE_BATCH = 10
VISIBILITY_S = 300
MOST_ATTEMPTS = 3
DEAD_LETTER_S = 14 * 86_400
LONGEST_ERROR = 500

ANY_AGE = 2**62
"""Before this time, in microseconds, everything was begun."""

FailureKind = Literal["commit", "delete"]
UploadState = Literal["temp", "ready"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """An upload that may be claimed."""

    tenant: TenantId
    id: UploadId
    state: UploadState
    object_key: str
    size: int
    in_use: bool = False
    """Blocks lie in it, whatever its row says: it must not be claimed."""

    @property
    def abandoned(self) -> bool:
        """Its commit never came."""
        return self.state == "temp"


@dataclass(frozen=True, slots=True)
class Claimed:
    """An upload whose object is to be deleted."""

    tenant: TenantId
    id: UploadId
    object_key: str
    size: int
    claimed_from: str | None
    claimed_at_us: int
    deleted_at_us: int | None
    in_use: bool
    """Blocks lie in it, whatever its row says: its object must not be deleted."""


@dataclass(frozen=True, slots=True)
class Audit:
    """An object that was deleted."""

    number: int
    """Of the pass; 0: outside of any."""
    at_us: int
    tenant: TenantId
    upload: UploadId
    object_key: str
    size: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A request to collect one upload, and how often that was tried."""

    id: int
    tenant: TenantId
    upload: UploadId
    kind: FailureKind
    """`commit`: its commit failed. `delete`: deleting its object failed."""
    state: str
    """`waiting` or `dead`."""
    attempts: int
    visible_at_us: int
    created_at_us: int
    error: str | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A failure that is ours for a while."""

    id: int
    tenant: TenantId
    upload: UploadId
    kind: FailureKind
    attempts: int


class CollectingUploads:
    """Nothing here needs the collector's lease: nothing undoes a claim."""

    def __init__(self, engine: Engine, *, clock: DatabaseClock = database_clock) -> None:
        self._engine = engine
        self._clock = clock

    def now_us(self) -> int:
        """The time that ages go by."""
        return self._clock(self._engine)

    def abandoned(self, before_us: int, after: Candidate | None = None, limit: int = CLAIM_BATCH) -> list[Candidate]:
        """A page of the intents that are older than that and whose commit has not come."""
        rows = self._engine.all(
            "abandoned_uploads",
            before=before_us,
            after_tenant=after.tenant if after else -1,
            after_id=after.id if after else b"",
            limit=limit,
        )
        return [Candidate(row[0], row[1], "temp", row[2], row[3], bool(row[4])) for row in rows]

    def unreferenced(self, tenant: TenantId, after: bytes, limit: int = PAGE) -> tuple[list[Candidate], bytes | None]:
        """Those of a page of ready uploads in which no block of this tenant lies, and where the next page begins."""
        rows = self._engine.all("ready_uploads", tenant=tenant, after=after, limit=limit)
        found = [Candidate(tenant, row[0], "ready", row[1], row[2], bool(row[4])) for row in rows if not row[3]]
        return found, UploadId(rows[-1][0]) if rows else None

    def claim(self, candidates: Sequence[Candidate], before_us: int = ANY_AGE) -> list[Candidate]:
        """Claim uploads, durably: intents that are older than that, and ready ones; those of them that were still what
        they were, and in which no block lies."""

        def move(tx: Transaction) -> list[Candidate]:
            now = self._clock(tx)
            # One statement for each: every one of them looks at the database as it is then.
            return [each for each in candidates if self._claim(tx, each, before_us, now) == 1]

        claimed = self._engine.write(move, durable=True)
        if claimed:
            hit(AFTER_CLAIM)
        return claimed

    def _claim(self, tx: Transaction, each: Candidate, before_us: int, now: int) -> int:
        return tx.execute(
            "claim_upload",
            tenant=each.tenant,
            id=each.id,
            state=each.state,
            object_key=each.object_key,
            before=before_us if each.abandoned else ANY_AGE,
            now=now,
        )

    def claimed(
        self, *, claimed_before_us: int, deleted_before_us: int, after: Claimed | None = None, limit: int = CLAIM_BATCH
    ) -> list[Claimed]:
        """A page of the uploads whose objects are to be deleted, for the first time or once more."""
        rows = self._engine.all(
            "claimed_uploads",
            claimed_before=claimed_before_us,
            deleted_before=deleted_before_us,
            after_tenant=after.tenant if after else -1,
            after_id=after.id if after else b"",
            limit=limit,
        )
        return [_claimed(row) for row in rows]

    def claimed_upload(self, tenant: TenantId, upload: UploadId) -> Claimed | None:
        """One upload, if it is claimed."""
        row = self._engine.one("claimed_upload", tenant=tenant, id=upload)
        return None if row is None else _claimed(row)

    def size(self, tenant: TenantId, upload: bytes) -> int:
        """How large an upload's object is; 0 if there is no such upload."""
        row = self._engine.one("upload", tenant=tenant, id=upload)
        return 0 if row is None else int(row[2])

    def deleted(self, upload: Claimed, *, number: int, reason: str, forget: bool) -> None:
        """Write down that the object is gone; with `forget` the row goes too."""

        def move(tx: Transaction) -> None:
            now = self._clock(tx)
            if forget:
                noted = tx.execute("forget_upload", tenant=upload.tenant, id=upload.id)
            else:
                noted = tx.execute("note_deleted_object", tenant=upload.tenant, id=upload.id, now=now)
            if noted and upload.deleted_at_us is None:
                tx.execute(
                    "add_audit",
                    now=now,
                    tenant=upload.tenant,
                    upload=upload.id,
                    object_key=upload.object_key,
                    size=upload.size,
                    reason=reason,
                    number=number,
                )

        self._engine.write(move)

    def audit(self, limit: int = 100) -> list[Audit]:
        """The objects that were deleted, newest first."""
        return [
            Audit(row[0], row[1], TenantId(row[2]), UploadId(row[3]), *row[4:])
            for row in self._engine.all("audit", limit=limit)
        ]

    def enqueue(self, tenant: TenantId, uploads: Sequence[UploadId], kind: FailureKind, error: str) -> None:
        """Ask for these uploads to be collected."""

        def move(tx: Transaction) -> None:
            now = self._clock(tx)
            for upload in uploads:
                tx.execute("add_failure", tenant=tenant, upload=upload, kind=kind, now=now, error=error[:LONGEST_ERROR])

        self._engine.write(move)

    def take_failures(self) -> list[Taken]:
        """A batch of requests; each is ours until its visibility ends, however we end."""
        if not self._engine.all("visible_failures", now=self.now_us(), limit=1):
            return []

        def move(tx: Transaction) -> list[Taken]:
            now = self._clock(tx)
            until = now + VISIBILITY_S * SECOND_US
            chosen = [row[0] for row in tx.all("visible_failures", now=now, limit=FAILURE_BATCH)]
            rows = [tx.one("take_failure", id=number, now=now, until=until) for number in sorted(chosen)]
            return [Taken(row[0], TenantId(row[1]), UploadId(row[2]), row[3], row[4]) for row in rows if row]

        return self._engine.write(move)

    def settle_failure(self, taken: Taken) -> None:
        """It is done."""
        self._engine.execute("settle_failure", id=taken.id)

    def fail_again(self, taken: Taken, error: str) -> None:
        """It did not work: wait for the next attempt, or stop trying."""
        state = "dead" if taken.attempts >= MOST_ATTEMPTS else "waiting"
        self._engine.execute("fail_again", id=taken.id, error=error[:LONGEST_ERROR], state=state)

    def retry(self, failure: int | None = None) -> int:
        """Give a dead request all its attempts again, or every one; how many."""
        return self._engine.write(lambda tx: tx.execute("retry_failures", id=failure or 0, now=self._clock(tx)))

    def forget_failures(self) -> int:
        """Drop requests that have been dead for long."""
        if not self.failure_counts()[1]:
            return 0
        return self._engine.write(
            lambda tx: tx.execute("forget_failures", before=self._clock(tx) - DEAD_LETTER_S * SECOND_US)
        )

    def failures(self, limit: int = 100) -> list[Failure]:
        """What waits and what is dead, oldest first."""
        return [
            Failure(row[0], TenantId(row[1]), UploadId(row[2]), *row[3:])
            for row in self._engine.all("failures", limit=limit)
        ]

    def any(self) -> bool:
        """Whether rows name objects."""
        return bool(self._engine.value("has_uploads"))

    def failure_counts(self) -> tuple[int, int]:
        """How many wait, and how many are dead."""
        (row,) = self._engine.all("failure_counts")
        return int(row[0]), int(row[1])


def _claimed(row: Row) -> Claimed:
    return Claimed(TenantId(row[0]), UploadId(row[1]), *row[2:])
