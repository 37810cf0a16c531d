"""Uploads on their way out: claimed by a pass, or by the commit of theirs that failed, until their objects are deleted.
What failed is in their own rows: deleting an object is tried three times, then people have to look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.leases import SECOND_US, DatabaseClock, database_clock
from analemma.catalog.port import TenantId, UploadId

COMMIT_TIMEOUT = "commit_timeout"
COMMIT_FAILED = "commit_failed"
UNREFERENCED = "unreferenced"

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
    failed = [
        UploadRow(tenant, each, key, 0, "temp", False, claimed_for=COMMIT_FAILED) for each, key in sorted(uploads)
    ]
    claim(engine, failed, error=error)


def claim(
    engine: Engine,
    rows: Sequence[UploadRow],
    *,
    before_us: int = ANY_AGE,
    error: str | None = None,
    clock: DatabaseClock = database_clock,
) -> int:
    """Claim uploads, durably, as all are before their objects are deleted: intents that are older than that, and ready
    ones; how many were still what they were, with no block in them. `error`: of the commit that failed."""

    def move(tx: Transaction) -> int:
        now = clock(tx)
        # One statement for each: every one of them looks at the database as it is then.
        return sum(
            [
                tx.execute(
                    "claim_upload",
                    tenant=each.tenant,
                    id=each.id,
                    state=each.claimed_from,
                    object_key=each.object_key,
                    before=before_us if each.abandoned else ANY_AGE,
                    now=now,
                    reason=each.reason,
                    error=error and error[:LONGEST_ERROR],
                )
                for each in rows
            ]
        )

    return engine.write(move, durable=True)


def find_failures(source: Statements, limit: int) -> list[Failure]:
    """What waits and what is dead, oldest first."""
    return source.rows(_failure, "failures", limit=limit)


def count_failures(source: Statements) -> tuple[int, int]:
    """How many wait, and how many are dead."""
    ((waiting, dead),) = source.all("failure_counts", most=MOST_ATTEMPTS)
    return int(waiting), int(dead)


def retry(tx: Transaction, now_us: int, failure: Failure | None = None, *, dead_for_s: int | None = None) -> int:
    """Give what is dead, for so long at least, all its attempts again: one failure, or every one; how many."""
    which = {"tenant": -1, "id": b""} if failure is None else {"tenant": failure.tenant, "id": failure.upload}
    before = ANY_AGE if dead_for_s is None else now_us - dead_for_s * SECOND_US
    return tx.execute("retry_uploads", now=now_us, before=before, most=MOST_ATTEMPTS, **which)


def try_again(tx: Transaction, now_us: int, upload: UploadRow, error: str | None, *, counted: bool = False) -> bool:
    """Count an attempt to delete its object, unless it is `counted` already: until the next one may begin it is ours,
    however we end. Afterwards, `error` says why it did not work. False if somebody else was faster."""
    return bool(
        tx.execute(
            "try_upload",
            tenant=upload.tenant,
            id=upload.id,
            attempts=upload.attempts + counted,
            tried=upload.attempts + 1,
            due=now_us + AGAIN_AFTER_S * SECOND_US,
            error=error and error[:LONGEST_ERROR],
        )
    )


def note_deleted(tx: Transaction, now_us: int, upload: UploadRow, *, number: int, forget: bool) -> None:
    """Write down that the object is gone; with `forget` the row goes too."""
    which = {"tenant": upload.tenant, "id": upload.id}
    noted = tx.execute("forget_upload", **which) if forget else tx.execute("note_deleted_object", **which, now=now_us)
    if noted and upload.deleted_at_us is None:
        tx.execute(
            "add_audit",
            number=number,
            now=now_us,
            tenant=upload.tenant,
            upload=upload.id,
            object_key=upload.object_key,
            size=upload.size,
            reason=upload.reason,
        )


def _failure(
    tenant: TenantId, upload: UploadId, reason: str | None, attempts: int, due_at: int, claimed_at: int, error: str
) -> Failure:
    kind, state = "commit" if reason == COMMIT_FAILED else "delete", "dead" if attempts >= MOST_ATTEMPTS else "waiting"
    return Failure(int.from_bytes(upload[:6]), tenant, upload, kind, state, attempts, due_at, claimed_at, error)
