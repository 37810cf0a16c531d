"""Collecting objects: claim uploads that nothing will ever name, delete their objects by name, and write down why. No
listing: every object has a row, from before its first byte until after it is gone. What failed is in that row too:
deleting an object is tried three times, then people have to look at it. One that cannot be deleted is tagged as an
orphan, so that the bucket's own rules may do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from analemma.blocks.ownership import NotOwner
from analemma.blocks.packs import UPLOAD_ID_BYTES, pack_key
from analemma.blocks.port import ObjectStore
from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import SECOND_US, DatabaseClock
from analemma.catalog.port import TenantId, UploadId
from analemma.catalog.sql_catalog import ANY_AGE, COMMIT_FAILED, LONGEST_ERROR
from analemma.errors import AnalemmaError, Corrupt, Unavailable
from analemma.failpoints import declare, hit
from analemma.gc.lifecycle import ORPHAN_TAG
from analemma.gc.reports import Collection
from analemma.settings import Settings

BEFORE_CLAIM = declare("gc.before_claim", "a pass has found uploads that nobody needs, and none of them is claimed")
AFTER_CLAIM = declare("gc.after_claim", "uploads are claimed durably, and their objects are still there")
AFTER_OBJECT = declare("gc.after_object", "objects are deleted, and nothing says so yet")

COMMIT_TIMEOUT = "commit_timeout"
UNREFERENCED = "unreferenced"
PAGE = 1000
CLAIM_BATCH = 100
FAILURE_BATCH = 10
FAILURE_ID_BYTES = 6
"""With so many of its upload's a failure is told from others."""
TRY_AGAIN_AFTER_S = 300
MOST_ATTEMPTS = 3
DEAD_LETTER_S = 14 * 86_400
AGAIN_AFTER_S = 86_400
"""A request of a writer that was stalled may arrive after its object was deleted: so it is deleted again."""
FORGET_AFTER_S = 7 * 86_400
"""After so long no request can be under way any more."""
MOST_MISSING = 3
"""So many objects that were committed may be gone before we look; more, and it is another bucket."""


class UploadRow(NamedTuple):
    """An upload that may be claimed, or that is: what deleting its object asks."""

    tenant: TenantId
    id: UploadId
    object_key: str
    size: int
    claimed_from: str
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

    @classmethod
    def of(cls, tenant: TenantId, upload: UploadId, reason: str | None, attempts: int, *rest: Any) -> Failure:
        """What the row of an upload says."""
        kind = "commit" if reason == COMMIT_FAILED else "delete"
        state = "dead" if attempts >= MOST_ATTEMPTS else "waiting"
        return cls(int.from_bytes(upload[:FAILURE_ID_BYTES]), tenant, upload, kind, state, attempts, *rest)


Refuse = Callable[[UploadRow, str], None]
"""Told of each upload whose row cannot be right, and by which nothing is deleted."""


class UploadCollector:
    """Works without the collector's lease: of two who claim or delete the same, both may."""

    def __init__(self, engine: Engine, clock: DatabaseClock, objects: ObjectStore | None, settings: Settings) -> None:
        self._engine = engine
        self._clock = clock
        self.objects = objects
        self._settings = settings

    def candidates(self, tenants: Sequence[TenantId], refuse: Refuse) -> Iterator[list[UploadRow]]:
        """By the page: intents of these tenants whose commit has not come for so long, and their ready uploads in which
        no block lies."""
        if self.objects is None:
            return
        chosen = set(tenants)
        for page in self._pages("abandoned_uploads", before=self._before_us()):
            yield [each for each in _sound(page, refuse) if each.tenant in chosen]
        for tenant in tenants:
            # A row begins with its tenant.
            for rows in self._engine.pages("ready_uploads", {"tenant": tenant, "after": b""}, limit=PAGE):
                found = [UploadRow(*row[:-1]) for row in rows if not row[-1]]
                for start in range(0, len(found), CLAIM_BATCH):
                    yield _sound(found[start : start + CLAIM_BATCH], refuse)

    def _pages(self, statement: str, **which: int) -> Iterator[list[UploadRow]]:
        for page in self._engine.pages(statement, {"after_tenant": -1, "after_id": b""}, limit=CLAIM_BATCH, **which):
            yield [UploadRow(*row) for row in page]

    def claim(self, candidates: Sequence[UploadRow]) -> int:
        """Claim those that still are what they were; how many."""
        if not candidates:
            return 0
        hit(BEFORE_CLAIM)
        before = self._before_us()

        def move(tx: Transaction) -> int:
            now = self._clock(tx)
            claimed = 0
            # One statement for each: every one of them looks at the database as it is then.
            for each in candidates:
                which = {"tenant": each.tenant, "id": each.id, "object_key": each.object_key}
                state = {"state": each.claimed_from, "before": before if each.abandoned else ANY_AGE}
                claimed += tx.execute("claim_upload", **which, **state, now=now, reason=each.reason, error=None)
            return claimed

        # Durable, as all claims are before their objects are deleted.
        claimed = self._engine.write(move, durable=True)
        if claimed:
            hit(AFTER_CLAIM)
        return claimed

    def _before_us(self) -> int:
        return self._clock(self._engine) - int(self._settings.gc_upload_age_s * SECOND_US)

    def delete(self, done: Collection, tick: Callable[[], None], refuse: Refuse) -> None:
        """Delete the objects of all claimed uploads, whoever claimed them. Unavailable if so many committed ones are
        not there that this must be the wrong place to look."""
        if self.objects is None:
            return
        now = self._clock(self._engine)
        looked_for = missing = 0
        delay_us = int(self._settings.gc_object_delay_s * SECOND_US)
        since = {"claimed_before": now - delay_us, "deleted_before": now - AGAIN_AFTER_S * SECOND_US}
        for claimed in self._pages("claimed_uploads", **since):
            page = _sound(claimed, refuse)
            # Those that a commit made count, nobody has deleted as far as is known, and that are not there.
            committed = [each for each in page if each.claimed_from == "ready" and each.deleted_at_us is None]
            absent = frozenset(each.id for each in committed if self.objects.head(each.object_key) is None)
            looked_for += len(committed)
            missing += len(absent)
            if missing > MOST_MISSING and missing * 2 > looked_for:
                raise Unavailable(
                    f"{missing} of {looked_for} committed objects are not where objects should be",
                    hint="check the objects URL: this may be another bucket",
                )
            for upload in self._delete_objects(self.objects, page, done.number, absent=absent):
                if upload.deleted_at_us is None:
                    done.objects += 1
                    done.object_bytes += upload.size
            tick()

    def count_failures(self) -> tuple[int, int]:
        """How many wait, and how many are dead."""
        waiting, dead = self._engine.all("failure_counts", most=MOST_ATTEMPTS)[0]
        return int(waiting), int(dead)

    def retry(self, failure: int | None = None, *, dead_for_s: int | None = None) -> int:
        """Give what is dead, for so long at least, all its attempts again: one failure, or every one; how many."""
        if failure is not None and failure >> 8 * FAILURE_ID_BYTES:
            return 0  # No failure is called that.
        first = b"" if failure is None else failure.to_bytes(FAILURE_ID_BYTES)
        which = {"first": first, "last": first.ljust(UPLOAD_ID_BYTES, b"\xff")}

        def move(tx: Transaction) -> int:
            now = self._clock(tx)
            before = ANY_AGE if dead_for_s is None else now - dead_for_s * SECOND_US
            return tx.execute("retry_uploads", now=now, before=before, most=MOST_ATTEMPTS, **which)

        return self._engine.write(move)

    def work_failures(self, number: int = 0, tick: Callable[[], None] = lambda: None) -> int:
        """Delete the objects of uploads that failed and may be tried again now; how many are done with."""
        if self.objects is None:
            return 0
        if self.count_failures()[1]:
            # People had the time to look at them.
            self.retry(dead_for_s=DEAD_LETTER_S)

        def refuse(upload: UploadRow, problem: str) -> None:
            hint = "restore the row of this upload from a backup, then retry"
            self._fail(upload, str(Corrupt(problem, hint=hint)), counted=True)

        settled = 0
        while batch := self._take_failed():
            settled += len(self._delete_objects(self.objects, _sound(batch, refuse), number, counted=True))
            tick()
        return settled

    def _take_failed(self) -> list[UploadRow]:
        """A batch of the uploads that failed and may be tried again now, which are ours for a while."""
        which = {"most": MOST_ATTEMPTS, "limit": FAILURE_BATCH, "now": self._clock(self._engine)}
        if not (found := self._engine.rows(UploadRow, "failed_uploads", **which)):
            return []
        return self._engine.write(lambda tx: [each for each in sorted(found) if self._try(tx, each, None)])

    def _try(self, tx: Transaction, upload: UploadRow, error: str | None, *, counted: bool = False) -> bool:
        """Count an attempt to delete its object, unless it is `counted` already: until the next one may begin it is
        ours, however we end. Afterwards, `error` says why it did not work. False if somebody else was faster."""
        tried = tx.execute(
            "try_upload",
            tenant=upload.tenant,
            id=upload.id,
            attempts=upload.attempts + counted,
            tried=upload.attempts + 1,
            due=self._clock(tx) + TRY_AGAIN_AFTER_S * SECOND_US,
            error=error and error[:LONGEST_ERROR],
        )
        return tried == 1

    def _delete_objects(
        self,
        objects: ObjectStore,
        page: Sequence[UploadRow],
        number: int,
        *,
        absent: frozenset[bytes] = frozenset(),
        counted: bool = False,
    ) -> list[UploadRow]:
        """Delete the objects of all these, some of which were `absent` before, and write down what became of each; of
        which it worked. `counted`: the attempt was already."""
        if not page:
            return []
        problems: list[str | None] = [None] * len(page)
        try:
            objects.delete_many([upload.object_key for upload in page])
        except NotOwner:
            raise
        except AnalemmaError:
            problems = [_delete(objects, upload) for upload in page]
        hit(AFTER_OBJECT)
        for upload, problem in zip(page, problems, strict=True):
            if problem is not None:
                self._fail(upload, problem, counted=counted)
            else:
                self._note(upload, number, missing=upload.id in absent)
        return [upload for upload, problem in zip(page, problems, strict=True) if problem is None]

    def _fail(self, upload: UploadRow, error: str, *, counted: bool) -> None:
        self._engine.write(lambda tx: self._try(tx, upload, error, counted=counted))

    def _note(self, upload: UploadRow, number: int, *, missing: bool) -> None:
        """Write down that the object is gone."""
        # A writer that never committed may still be writing, and what was not there may be somewhere else: such rows
        # stay for a while.
        certain = upload.claimed_from == "ready" and not missing and upload.deleted_at_us is None
        which = {"tenant": upload.tenant, "id": upload.id}

        def move(tx: Transaction) -> None:
            now = self._clock(tx)
            if certain or upload.claimed_at_us <= now - FORGET_AFTER_S * SECOND_US:
                noted = tx.execute("forget_upload", **which)
            else:
                noted = tx.execute("note_deleted_object", **which, now=now)
            if noted and upload.deleted_at_us is None:
                entry = Audit(number, now, upload.tenant, upload.id, upload.object_key, upload.size, upload.reason)
                tx.execute("add_audit", **asdict(entry))

        self._engine.write(move)


def _delete(objects: ObjectStore, upload: UploadRow) -> str | None:
    """Delete its object; why that did not work, if it did not."""
    try:
        objects.delete(upload.object_key)
    except NotOwner:
        raise
    except AnalemmaError as exc:
        # Whoever may not delete may perhaps write: then the bucket's rules can do the rest. Nothing undoes a claim, so
        # the tag never becomes wrong; and nothing depends on it, so that it could not be set is nothing to tell.
        with suppress(AnalemmaError):
            objects.tag(upload.object_key, dict([ORPHAN_TAG]))
        return str(exc)
    return None


def _sound(page: Sequence[UploadRow], refuse: Refuse) -> list[UploadRow]:
    """Those by whose rows something may be deleted: blocks are read by the upload's id, so that alone names the object,
    and blocks of any tenant keep it."""
    sound = []
    for upload in page:
        name = f"upload {upload.id.hex()} of tenant {upload.tenant}"
        if len(upload.id) != UPLOAD_ID_BYTES or upload.object_key != pack_key(upload.id):
            refuse(upload, f"{name} names another upload's object, {upload.object_key}")
        elif upload.in_use:
            refuse(upload, f"{name} would let its object go, and blocks lie in it")
        else:
            sound.append(upload)
    return sound
