"""Collecting archives that no workspace needs: list, look, mark; and in a later pass claim and delete.

    1. the lease                                             AFTER_LEASE (catalog/archive_marks)
    2. all keys are listed, as units                         AFTER_LIST
    3. one snapshot of the catalog, taken after that         AFTER_LOOK
    4. marks on what is nobody's                             AFTER_MARK (catalog/archive_marks)
    5. what was nobody's long enough, and in an earlier pass, is claimed under its workspace's lock   AFTER_CLAIM
    6. markers are deleted, then data                        AFTER_MARKERS, AFTER_OBJECTS
    7. the marks of what is gone                             AFTER_FORGET

Nothing but 5 decides. From then on the unit is nobody's for ever, so 6 needs no lock and may be repeated by anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from analemma.archives.collecting_reports import (
    ArchiveCounts,
    ArchiveGcPlan,
    ArchiveGcReport,
    as_report,
    judge,
)
from analemma.archives.collecting_survey import (
    FilteredProtection,
    Listing,
    MergedProtection,
    Protection,
    Survey,
    list_units,
    survey,
)
from analemma.archives.names import FOREIGN_DATA, META, archives_prefix, parse_key, unit_prefix
from analemma.archives.parts import Parts
from analemma.blocks.ownership import NotOwner
from analemma.catalog.archives.archive_marks import ArchivePass, ArchiveSnapshot, protected_units
from analemma.catalog.leases import SECOND_US, LeaseLost, database_clock
from analemma.errors import AnalemmaError, Invalid, Unavailable
from analemma.failpoints import declare, hit

AFTER_LIST = declare("archive_gc.after_list", "all archives are listed, and the catalog is not read")
AFTER_LOOK = declare("archive_gc.after_look", "it is known which archives are nobody's, and nothing is marked")
AFTER_MARKERS = declare(
    "archive_gc.after_markers", "the markers of claimed archives are deleted, and their data is there"
)
AFTER_OBJECTS = declare(
    "archive_gc.after_objects", "all objects of claimed archives are deleted, and their marks are there"
)
AFTER_FORGET = declare("archive_gc.after_forget", "a batch of archives and their marks are gone")

Progress = Callable[[str, int], None]
Stop = Callable[[], bool]

MOST_FAILURES = 100
"""After so many archives that could not be deleted, the rest waits for the next pass."""
RENEWALS_PER_LEASE = 3
LONGEST_DELAY_S = 1e10
"""Some 300 years, of which the database's clock can still be told the beginning."""
HEARD_AGAIN_US = 60 * SECOND_US
"""A change may have been under way for so long when the snapshot was taken, and not be in it."""
_MARKERS = frozenset({META, f"{FOREIGN_DATA}.meta"})


class Stopped(Exception):
    """Somebody asked the run to end early."""


class ArchiveCollector:
    """Collects one tenant's archives. One run at a time, whichever process it is in."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._engine = parts.engine
        self._settings = parts.settings

    def plan(self, delay_s: float | None = None, *, progress: Progress | None = None) -> ArchiveGcPlan:
        """What a run would do now. Changes nothing, and may be made while others collect."""
        delay_s = self._delay(delay_s)
        tell = progress or _silent
        with self._listing(tell) as (listing, listed_at_us), self._snapshot() as snapshot:
            found = survey(
                listing,
                snapshot,
                self._protection(snapshot, listed_at_us),
                number=snapshot.lease.number + 1,
                delay_us=int(delay_s * SECOND_US),
                tick=lambda count: tell("looking", count),
            )
            found.close()
            return ArchiveGcPlan(
                store_id=self._parts.store_id,
                tenant=self._parts.tenant_name,
                made_at_us=snapshot.now_us,
                delay_s=delay_s,
                counts=found.counts,
                to_mark=found.mark.count,
                to_clear=found.clear.count,
                to_delete=found.delete.count,
                delete_bytes=found.delete_bytes,
                waiting=found.waiting,
                sample=tuple(found.sample),
                problem=judge(found.counts, last_needed=snapshot.lease.needed, limits=self._settings),
            )

    def run(
        self,
        delay_s: float | None = None,
        dry_run: bool = False,
        *,
        force: bool = False,
        progress: Progress | None = None,
        stop: Stop | None = None,
    ) -> ArchiveGcReport:
        """Mark what is nobody's, and delete what has been so for the delay and was marked by an earlier run.

        `force` goes on where the numbers look wrong, and takes archives too that the catalog never heard of. Conflict
        while another collects. What fails before anything was marked raises; what fails later is in the report."""
        if dry_run:
            return as_report(self.plan(delay_s, progress=progress))
        delay_s = self._delay(delay_s)
        self._parts.archive_objects  # noqa: B018  Invalid without one, before anything is begun.
        begun = ArchivePass.take(
            self._engine,
            self._parts.holder,
            self._settings.gc_lease_s,
            store_id=self._parts.store_id,
            clock=database_clock,
            tenant=self._parts.tenant,
        )
        return _Run(self, begun, int(delay_s * SECOND_US), force, progress or _silent, stop or (lambda: False)).go()

    def is_due(self, interval_s: float) -> bool:
        """Whether no run has begun for so long. One that was begun in the future was by a clock that was wrong."""
        lease = ArchivePass.look(self._engine, tenant=self._parts.tenant)
        now = database_clock(self._engine)
        return not now - int(interval_s * SECOND_US) < lease.started_at_us <= now

    @contextmanager
    def _listing(self, tell: Progress) -> Iterator[tuple[Listing, int]]:
        """Everything there is, and the database's time before that was asked."""
        listed_at_us = database_clock(self._engine)
        found = self._parts.archive_objects.list(archives_prefix(self._parts.tenant_name))
        listing = list_units(found, self._parts.tenant_name, lambda count: tell("listing", count))
        try:
            yield listing, listed_at_us
        finally:
            listing.units.close()

    @contextmanager
    def _snapshot(self) -> Iterator[ArchiveSnapshot]:
        """One moment of the catalog, for as long as the block lasts."""
        with self._engine.snapshot(long=True) as tx:
            yield ArchiveSnapshot(tx, self._parts.tenant)

    def _protection(self, snapshot: ArchiveSnapshot, listed_at_us: int) -> Protection:
        if self._settings.archive_gc_filter == "bloom":
            return FilteredProtection(snapshot, self._parts.entropy, listed_at_us)
        return MergedProtection(snapshot.protected(), listed_at_us)

    def _delay(self, delay_s: float | None) -> float:
        chosen = self._settings.archive_gc_delay_s if delay_s is None else delay_s
        if not 0 <= chosen <= LONGEST_DELAY_S:
            raise Invalid(f"a delay of {chosen} s is none", hint="0 is the shortest")
        # A clone of the catalog may be the one that collects.
        return chosen if self._parts.ownership is None else max(chosen, self._settings.gc_object_delay_s)


class _Run:
    """One pass, from lease to report."""

    def __init__(
        self, collector: ArchiveCollector, begun: ArchivePass, delay_us: int, force: bool, tell: Progress, stop: Stop
    ) -> None:
        self._collector = collector
        self._parts = collector._parts
        self._pass = begun
        self._delay_us = delay_us
        self._force = force
        self._tell = tell
        self._stop = stop
        self._renewed = self._parts.clock.monotonic()
        self._protection: Protection | None = None
        self._counts = ArchiveCounts()
        self._waiting = self._marked = self._cleared = 0
        self._claimed = self._refused = self._deleted = self._objects = self._bytes = self._failed = 0
        self._problem: tuple[str, str] | None = None

    def go(self) -> ArchiveGcReport:
        """Everything that is to be done, and what came of it."""
        stopped = looked = False
        try:
            if self._parts.ownership is not None:
                self._parts.ownership.take_turn()
            with ExitStack() as spools:
                found = self._look(spools)
                looked = True
                if self._problem is None:
                    self._act(found)
        except Stopped:
            stopped = True
        except LeaseLost as exc:
            self._problem = (str(exc), exc.kind)
        except AnalemmaError as exc:
            if not looked:
                self._finish_quietly()
                raise
            self._problem = (str(exc), exc.kind)
        except BaseException:
            self._finish_quietly()
            raise
        self._pass.finish(self._counts.protected if self._problem is None and not stopped else None)
        return ArchiveGcReport(
            number=self._pass.number,
            tenant=self._parts.tenant_name,
            counts=self._counts,
            marked=self._marked,
            cleared=self._cleared,
            waiting=self._waiting,
            claimed=self._claimed,
            refused=self._refused,
            deleted=self._deleted,
            objects=self._objects,
            bytes=self._bytes,
            failed=self._failed,
            problem=None if self._problem is None else self._problem[0],
            kind=None if self._problem is None else self._problem[1],
            stopped=stopped,
        )

    def _look(self, spools: ExitStack) -> Survey:
        """List first, then the catalog: whatever was committed before the snapshot is protected by it, and what was
        written after the listing is not looked at."""
        collector = self._collector
        with collector._listing(self._tick) as (listing, listed_at_us):
            hit(AFTER_LIST)
            self._renew()
            with collector._snapshot() as snapshot:
                self._protection = collector._protection(snapshot, listed_at_us)
                found = survey(
                    listing,
                    snapshot,
                    self._protection,
                    number=self._pass.number,
                    delay_us=self._delay_us,
                    unknown_too=self._force,
                    tick=lambda count: self._tick("looking", count),
                )
                spools.callback(found.close)
                last_needed = snapshot.lease.needed
        self._counts, self._waiting = found.counts, found.waiting
        reason = judge(found.counts, last_needed=last_needed, limits=collector._settings)
        if reason is not None and not self._force:
            self._problem = (f"{reason} (if that is right, run it with force)", "limit")
        hit(AFTER_LOOK)
        return found

    def _act(self, found: Survey) -> None:
        for batch in found.mark.batches():
            self._marked += self._pass.mark(batch)
            self._tick("marking", self._marked)
        # Whatever was listed has its mark by now. What has a row and no mark was removed by hand, or is nobody's only
        # since the snapshot; either way it may be marked, and a later pass finds out.
        self._marked += self._pass.mark_unlisted()
        for batch in found.clear.batches():
            self._cleared += self._pass.clear(batch)
            self._tick("sparing", self._cleared)
        if isinstance(self._protection, FilteredProtection):
            # Only to spare others the lock: what is claimed is looked at again under it.
            since_us = found.now_us - HEARD_AGAIN_US
            self._protection.heard(protected_units(self._collector._engine, self._parts.tenant, since_us=since_us))
        for batch in found.delete.batches():
            self._collect(batch)
            self._tick("deleting", self._deleted)

    def _collect(self, batch: list[str]) -> None:
        chosen = batch
        if isinstance(self._protection, FilteredProtection):
            chosen = [unit for unit in batch if unit not in self._protection.filter]
        claimed = self._pass.claim(self._parts.rows, chosen, self._delay_us, unknown=self._force) if chosen else []
        self._claimed += len(claimed)
        self._refused += len(batch) - len(claimed)
        try:
            gone = self._delete(claimed)
        except NotOwner:
            raise
        except AnalemmaError:
            # One that cannot be deleted must not keep the others.
            gone = self._delete_one_by_one(claimed)
        hit(AFTER_OBJECTS)
        self._deleted += len(gone)
        if gone:
            self._pass.clear(gone)
            hit(AFTER_FORGET)

    def _delete(self, units: list[str]) -> list[str]:
        """Delete all that these units have by now, which may be more than was listed; without its marker an archive
        does not exist, so that goes first."""
        objects = self._parts.archive_objects
        markers: list[str] = []
        data: list[str] = []
        size = 0
        for unit in units:
            workspace, op_id, _ = unit.split("/")
            for info in objects.list(unit_prefix(self._parts.tenant_name, workspace, op_id)):
                key = parse_key(self._parts.tenant_name, info.key)
                if key is not None and (key.workspace, key.op_id) == (workspace, op_id):
                    (markers if key.name in _MARKERS else data).append(info.key)
                    size += info.size
        objects.delete_many(markers)
        hit(AFTER_MARKERS)
        objects.delete_many(data)
        self._objects += len(markers) + len(data)
        self._bytes += size
        return units

    def _delete_one_by_one(self, units: list[str]) -> list[str]:
        gone: list[str] = []
        for unit in units:
            try:
                gone += self._delete([unit])
            except AnalemmaError as exc:
                self._failed += 1
                self._problem = (f"{unit} could not be deleted: {exc}", exc.kind)
                if self._failed >= MOST_FAILURES:
                    raise Unavailable(
                        f"{self._failed} archives could not be deleted, such as {unit}: {exc}",
                        hint="the next run tries again",
                    ) from exc
        return gone

    def _tick(self, stage: str, count: int) -> None:
        """Between any two steps: tell how far it is, keep the lease, and stop when asked to."""
        self._tell(stage, count)
        if self._stop():
            raise Stopped
        # guard: unit.long
        if self._parts.clock.monotonic() - self._renewed >= self._collector._settings.gc_lease_s / RENEWALS_PER_LEASE:
            self._renew()

    def _renew(self) -> None:
        self._pass.renew()
        self._renewed = self._parts.clock.monotonic()

    def _finish_quietly(self) -> None:
        """Give the lease back on the way out of an error, which matters more than what happens here."""
        try:
            self._pass.finish(None)
        except AnalemmaError:
            pass


def _silent(stage: str, count: int) -> None:
    """Tell nobody."""
