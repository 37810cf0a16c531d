"""Which archives are whose: a listing, written to disk as units, then merged with one snapshot of the catalog. All
three streams (units, what is protected, marks) come in the order of keys, so memory grows with none of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Protocol

from analemma.archives.bloom import SALT_BYTES, CountingBloomFilter
from analemma.archives.collecting_reports import SAMPLE, ArchiveCounts
from analemma.archives.names import parse_key
from analemma.blocks.port import ObjectInfo
from analemma.catalog.archive_marks import ArchiveSnapshot, Mark, Protected
from analemma.clock import Entropy
from analemma.errors import Unavailable

IN_MEMORY_BYTES = 1 << 20
BATCH = 200
TELL_EVERY = 5000


class Spool:
    """Lines that are written once and read in the same order, on disk if there are many."""

    def __init__(self) -> None:
        self._file: IO[str] = tempfile.SpooledTemporaryFile(  # noqa: SIM115  Closed by `close`.
            IN_MEMORY_BYTES, mode="w+", encoding="ascii", newline="\n", prefix="analemma-"
        )
        self.count = 0

    def add(self, line: str) -> None:
        with _translating():
            self._file.write(line + "\n")
        self.count += 1

    def __iter__(self) -> Iterator[str]:
        with _translating():
            self._file.seek(0)
        for line in self._file:
            yield line[:-1]

    def batches(self, size: int = BATCH) -> Iterator[list[str]]:
        """So many lines at a time."""
        batch: list[str] = []
        for line in self:
            batch.append(line)
            if len(batch) == size:
                yield batch
                batch = []
        if batch:
            yield batch

    def close(self) -> None:
        """Give the disk back."""
        self._file.close()


@contextmanager
def _translating() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise Unavailable(
            f"cannot write a list of archives to a temporary file: {exc}",
            hint="make room for it, or set TMPDIR to another directory",
        ) from exc


@dataclass(slots=True)
class Listing:
    """What lies in the object store: `unit bytes`, in order."""

    units: Spool = field(default_factory=Spool)
    keys: int = 0
    foreign: int = 0


def list_units(found: Iterable[ObjectInfo], tenant: str, tick: Callable[[int], None]) -> Listing:
    """Read a whole listing. Keys that do not parse belong to no unit."""
    listing = Listing()
    current, size = "", 0
    try:
        for info in found:
            key = parse_key(tenant, info.key)
            if key is None:
                listing.foreign += 1
                continue
            unit = f"{key.workspace}/{key.op_id}/"
            if unit != current:
                if unit < current:
                    # A merge would take what is out of order for an orphan.
                    raise Unavailable(f"the listing has {unit} after {current}", hint="keys must be listed in order")
                if current:
                    listing.units.add(f"{current} {size}")
                current, size = unit, 0
            size += info.size
            listing.keys += 1
            if (listing.keys + listing.foreign) % TELL_EVERY == 0:
                tick(listing.keys)
        if current:
            listing.units.add(f"{current} {size}")
    except BaseException:
        listing.units.close()
        raise
    return listing


class Protection(Protocol):
    """Says whether a unit is needed. Asked in the order of units."""

    protected: int
    """How many are, as far as it was asked."""
    kept: int
    missing: int

    def covers(self, unit: str) -> bool:
        """Whether it may be needed; False nominates it."""

    def finish(self) -> None:
        """Nothing more will be asked."""


class MergedProtection:
    """Exact: reads the catalog's stream alongside."""

    def __init__(self, stream: Iterator[Protected], listed_at_us: int) -> None:
        self.protected = self.kept = self.missing = 0
        self._stream = stream
        self._listed_at_us = listed_at_us
        self._head: Protected | None = None
        self._last = ""
        self._advance()

    def covers(self, unit: str) -> bool:
        while self._head is not None and self._head.unit < unit:
            self._pass_by()
        if self._head is None or self._head.unit != unit:
            return False
        self.kept += self._settled(self._head)
        self._advance()
        return True

    def finish(self) -> None:
        while self._head is not None:
            self._pass_by()

    def _pass_by(self) -> None:
        assert self._head is not None
        if self._settled(self._head):
            self.kept += 1
            self.missing += 1
        self._advance()

    def _settled(self, protected: Protected) -> bool:
        """Whether all of it must have been there when the listing began."""
        return protected.kept and protected.updated_at_us < self._listed_at_us

    def _advance(self) -> None:
        self._head = next(self._stream, None)
        if self._head is not None:
            if self._head.unit <= self._last:
                raise Unavailable(
                    f"the catalog has {self._head.unit} after {self._last}", hint="check the database's collation"
                )
            self._last = self._head.unit
            self.protected += 1


class FilteredProtection:
    """By a counting Bloom filter of one snapshot, kept current by what changed since."""

    def __init__(self, snapshot: ArchiveSnapshot, entropy: Entropy) -> None:
        self.protected = self.kept = self.missing = 0
        capacity = 2 * snapshot.protected_workspaces()
        self.filter = CountingBloomFilter(capacity, salt=entropy.random_bytes(SALT_BYTES))
        for each in snapshot.protected():
            self.filter.add(each.unit)
            self.protected += 1

    def covers(self, unit: str) -> bool:
        return unit in self.filter

    def heard(self, changed: Iterable[Protected]) -> None:
        """Workspaces need these now. To hear of one twice does no harm: it is protected, if need be, for a cycle."""
        for each in changed:
            if each.unit not in self.filter:
                self.filter.add(each.unit)

    def finish(self) -> None:
        pass


@dataclass(slots=True)
class Survey:
    """Units, sorted by what becomes of them. A proposal: whatever acts looks again."""

    counts: ArchiveCounts
    now_us: int
    mark: Spool = field(default_factory=Spool)
    clear: Spool = field(default_factory=Spool)
    delete: Spool = field(default_factory=Spool)
    delete_bytes: int = 0
    waiting: int = 0
    sample: list[str] = field(default_factory=list)

    def close(self) -> None:
        """Give the disk back."""
        for spool in (self.mark, self.clear, self.delete):
            spool.close()


def survey(
    listing: Listing,
    snapshot: ArchiveSnapshot,
    protection: Protection,
    *,
    number: int,
    delay_us: int,
    unknown_too: bool = False,
    tick: Callable[[int], None],
) -> Survey:
    """Go through units, what protects them and marks, side by side.

    An archive is in the catalog before its first byte is written. So one that is not there is another store's, or was
    made after the backup that this catalog comes from: it is counted and, unless `unknown_too`, left alone."""
    found = Survey(ArchiveCounts(keys=listing.keys, foreign=listing.foreign), snapshot.now_us)
    marks = snapshot.marks()
    mark: Mark | None = next(marks, None)
    needed = orphans = unknown = 0
    batch: list[tuple[str, int, Mark | None]] = []

    def sort_out() -> int:
        """What becomes of those that nobody needs; how many of them are not known."""
        known = snapshot.known([unit for unit, _, _ in batch]) if batch else set()
        for unit, size, own in batch:
            if unit not in known and not unknown_too:
                if own is not None:
                    found.clear.add(unit)
            elif own is None or own.first_orphan_detected_us > snapshot.now_us:
                # Also of a time that has not come: then a clock was wrong, and counting begins now.
                found.mark.add(unit)
            elif own.number < number and own.first_orphan_detected_us <= snapshot.now_us - delay_us:
                found.delete.add(unit)
                found.delete_bytes += size
                if len(found.sample) < SAMPLE:
                    found.sample.append(unit)
            else:
                found.waiting += 1
        count = len(batch) - len(known)
        batch.clear()
        return count

    try:
        for place, line in enumerate(listing.units):
            if place % TELL_EVERY == 0:
                tick(place)
            unit, _, size = line.partition(" ")
            while mark is not None and mark.unit < unit:
                found.clear.add(mark.unit)
                mark = next(marks, None)
            own, mark = (mark, next(marks, None)) if mark is not None and mark.unit == unit else (None, mark)
            if protection.covers(unit):
                needed += 1
                if own is not None:
                    found.clear.add(unit)
                continue
            orphans += 1
            batch.append((unit, int(size), own))
            if len(batch) == BATCH:
                unknown += sort_out()
        while mark is not None:
            found.clear.add(mark.unit)
            mark = next(marks, None)
        protection.finish()
        unknown += sort_out()
    except BaseException:
        found.close()
        raise
    found.counts = replace(
        found.counts,
        units=listing.units.count,
        needed=needed,
        orphans=orphans,
        unknown=unknown,
        missing=protection.missing,
        protected=protection.protected,
        kept=protection.kept,
    )
    return found
