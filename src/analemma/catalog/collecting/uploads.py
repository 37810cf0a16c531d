"""Uploads on their way out: claimed by a pass, or by the commit of theirs that failed, until their objects are deleted.
What failed is in their own rows: deleting an object is tried three times, then people have to look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import SECOND_US, DatabaseClock, database_clock
from analemma.catalog.port import TenantId, UploadId
from analemma.failpoints import declare, hit

AFTER_CLAIM = declare("gc.after_claim", "uploads are claimed durably, and their objects are still there")

COMMIT_TIMEOUT = "commit_timeout"
COMMIT_FAILED = "commit_failed"
UNREFERENCED = "unreferenced"

PAGE = 1000
CLAIM_BATCH = 100
FAILURE_BATCH = 10
AGAIN_AFTER_S = 300
MOST_ATTEMPTS = 3
DEAD_LETTER_S = 14 * 86_400
LONGEST_ERROR = 500

ANY_AGE = 2**62
"""Before this time, in microseconds, everything was begun."""


class UploadRow(NamedTuple):
    """An upload that may be claimed, or that is: what deleting its object asks."""

    tenant: TenantId
    id: UploadId
    object_key: str
    size: int
    claimed_from: str | None
    """`temp` or `ready`; of one that is not claimed yet, its state."""
    in_use: bool
    """Blocks lie in it, whatever its row says: it must not be claimed, nor its object deleted."""
    claimed_at_us: int = 0
    deleted_at_us: int | None = None
    claimed_for: str | None = None
    attempts: int = 0

    @property
    def abandoned(self) -> bool:
        """Its commit never came."""
        return self.claimed_from == "temp"

    @property
    def reason(self) -> str:
        """Why its object goes."""
        return self.claimed_for or (COMMIT_TIMEOUT if self.claimed_from != "ready" else UNREFERENCED)


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
    """An upload whose object is to be deleted since something failed, and how often that was tried."""

    id: int
    """Names it, as long as it is there."""
    tenant: TenantId
    upload: UploadId
    kind: str
    """`commit`: its commit failed. `delete`: deleting its object failed."""
    state: str
    """`waiting` or `dead`."""
    attempts: int
    visible_at_us: int
    created_at_us: int
    error: str


def claim_failed(engine: Engine, tenant: TenantId, uploads: Sequence[tuple[UploadId, str]], error: str) -> None:
    """Claim the intents of a commit that failed, each with its object's key. If its answer was only lost, and it did
    happen, they are ready, and stay."""
    rows = [
        UploadRow(tenant, upload, key, 0, "temp", False, claimed_for=COMMIT_FAILED) for upload, key in sorted(uploads)
    ]
    # Durable, as every claim is before its object is deleted.
    engine.write(lambda tx: [_claim(tx, row, ANY_AGE, database_clock(tx), error) for row in rows], durable=True)


class UploadRows:
    """Nothing here needs the collector's lease: nothing undoes a claim."""

    def __init__(self, engine: Engine, *, clock: DatabaseClock = database_clock) -> None:
        self._engine = engine
        self._clock = clock

    def now_us(self) -> int:
        """The time that ages go by."""
        return self._clock(self._engine)

    def any(self) -> bool:
        """Whether rows name objects."""
        return bool(self._engine.value("has_uploads"))

    def size(self, tenant: TenantId, upload: bytes) -> int:
        """How large an upload's object is; 0 if there is no such upload."""
        row = self._engine.one("upload", tenant=tenant, id=upload)
        return 0 if row is None else int(row[2])

    def abandoned(self, before_us: int, after: UploadRow | None) -> list[UploadRow]:
        """A page of the intents that are older than that and whose commit has not come."""
        return self._page("abandoned_uploads", after, before=before_us)

    def unreferenced(self, tenant: TenantId, after: bytes) -> tuple[list[UploadRow], bytes | None]:
        """Those of a page of ready uploads in which no block of this tenant lies, and where the next page begins."""
        rows = self._engine.all("ready_uploads", tenant=tenant, after=after, limit=PAGE)
        return [UploadRow(*row[:-1]) for row in rows if not row[-1]], rows[-1][1] if rows else None

    def claimed(self, claimed_before_us: int, deleted_before_us: int, after: UploadRow | None) -> list[UploadRow]:
        """A page of the uploads whose objects are to be deleted, for the first time or once more."""
        return self._page("claimed_uploads", after, claimed_before=claimed_before_us, deleted_before=deleted_before_us)

    def _page(self, statement: str, after: UploadRow | None, **which: Any) -> list[UploadRow]:
        place = {"after_tenant": after.tenant, "after_id": after.id} if after else {"after_tenant": -1, "after_id": b""}
        return self._engine.rows(UploadRow, statement, limit=CLAIM_BATCH, **place, **which)

    def claim(self, rows: Sequence[UploadRow], before_us: int) -> int:
        """Claim uploads, durably: intents that are older than that, and ready ones; how many were still what they were,
        with no block in them."""

        def move(tx: Transaction) -> int:
            now = self._clock(tx)
            # One statement for each: every one of them looks at the database as it is then.
            return sum([_claim(tx, each, before_us if each.abandoned else ANY_AGE, now, None) for each in rows])

        claimed = self._engine.write(move, durable=True)
        if claimed:
            hit(AFTER_CLAIM)
        return claimed

    def failed(self) -> list[UploadRow]:
        """A batch of the uploads that failed and may be tried again now; each is ours for a while, however we end."""
        which = {"most": MOST_ATTEMPTS, "limit": FAILURE_BATCH}
        if not (found := self._engine.rows(UploadRow, "failed_uploads", now=self.now_us(), **which)):
            return []

        def move(tx: Transaction) -> list[UploadRow]:
            return [each for each in sorted(found) if self._tried(tx, each, each.attempts, None)]

        return self._engine.write(move)

    def fail(self, upload: UploadRow, error: str, *, taken: bool) -> None:
        """Its object could not be deleted: wait for the next attempt, if there is one. `taken`: this one was counted
        when it began."""
        self._engine.write(lambda tx: self._tried(tx, upload, upload.attempts + taken, error))

    def _tried(self, tx: Transaction, upload: UploadRow, attempts: int, error: str | None) -> bool:
        return bool(
            tx.execute(
                "try_upload",
                tenant=upload.tenant,
                id=upload.id,
                attempts=attempts,
                tried=upload.attempts + 1,
                due=self._clock(tx) + AGAIN_AFTER_S * SECOND_US,
                error=error and error[:LONGEST_ERROR],
            )
        )

    def deleted(self, upload: UploadRow, *, number: int, forget: bool) -> None:
        """Write down that the object is gone; with `forget` the row goes too."""

        def move(tx: Transaction) -> None:
            now, which = self._clock(tx), {"tenant": upload.tenant, "id": upload.id}
            if forget:
                noted = tx.execute("forget_upload", **which)
            else:
                noted = tx.execute("note_deleted_object", **which, now=now)
            if noted and upload.deleted_at_us is None:
                tx.execute(
                    "add_audit",
                    number=number,
                    now=now,
                    tenant=upload.tenant,
                    upload=upload.id,
                    object_key=upload.object_key,
                    size=upload.size,
                    reason=upload.reason,
                )

        self._engine.write(move)

    def audit(self, limit: int) -> list[Audit]:
        """The objects that were deleted, newest first."""
        return self._engine.rows(Audit, "audit", limit=limit)

    def failures(self, limit: int) -> list[Failure]:
        """What waits and what is dead, oldest first."""
        return self._engine.rows(_failure, "failures", limit=limit)

    def failure_counts(self) -> tuple[int, int]:
        """How many wait, and how many are dead."""
        ((waiting, dead),) = self._engine.all("failure_counts", most=MOST_ATTEMPTS)
        return int(waiting), int(dead)

    def retry(self, failure: Failure | None = None, *, dead_for_s: int = 0) -> int:
        """Give what is dead, for so long at least, all its attempts again: one failure, or every one; how many."""
        which = {"tenant": -1, "id": b""} if failure is None else {"tenant": failure.tenant, "id": failure.upload}

        def move(tx: Transaction) -> int:
            now = self._clock(tx)
            before = now - dead_for_s * SECOND_US if dead_for_s else ANY_AGE
            return tx.execute("retry_uploads", now=now, before=before, most=MOST_ATTEMPTS, **which)

        return self._engine.write(move)


def _claim(tx: Transaction, each: UploadRow, before_us: int, now_us: int, error: str | None) -> int:
    return tx.execute(
        "claim_upload",
        tenant=each.tenant,
        id=each.id,
        state=each.claimed_from,
        object_key=each.object_key,
        before=before_us,
        now=now_us,
        reason=each.reason,
        error=error and error[:LONGEST_ERROR],
    )


def _failure(
    tenant: TenantId, upload: UploadId, reason: str | None, attempts: int, due_at: int, claimed_at: int, error: str
) -> Failure:
    kind, state = "commit" if reason == COMMIT_FAILED else "delete", "dead" if attempts >= MOST_ATTEMPTS else "waiting"
    return Failure(int.from_bytes(upload[:6]), tenant, upload, kind, state, attempts, due_at, claimed_at, error)
