"""Which archives are whose: a listing, written to disk as units, then merged with one snapshot of the catalog. All
three streams (units, what is protected, marks) come in the order of keys, so memory grows with none of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import IO, Protocol

from analemma.archives.bloom import SALT_BYTES, CountingBloomFilter
from analemma.archives.collecting_reports import SAMPLE, ArchiveCounts
from analemma.archives.names import parse_key
from analemma.blocks.port import ObjectInfo
from analemma.catalog.archives.archive_marks import ArchiveSnapshot, Mark, Protected
from analemma.clock import Entropy
from analemma.errors import Unavailable

IN_MEMORY_BYTES = 1 << 20
BATCH = 200
TELL_EVERY = 5000
LOOKED_FOR = 1000
"""So many archives that workspaces have are looked for by name where there is only a filter."""


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
        self.kept += is_settled(self._head, self._listed_at_us)
        self._advance()
        return True

    def finish(self) -> None:
        while self._head is not None:
            self._pass_by()

    def _pass_by(self) -> None:
        assert self._head is not None
        if is_settled(self._head, self._listed_at_us):
            self.kept += 1
            self.missing += 1
        self._advance()

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
    """By a counting Bloom filter of one snapshot, kept current by what changed since. How many archives are missing, a
    filter cannot tell: that is estimated from some that are looked for by name."""

    def __init__(self, snapshot: ArchiveSnapshot, entropy: Entropy, listed_at_us: int) -> None:
        self.protected = self.kept = self.missing = 0
        capacity = 2 * snapshot.protected_workspaces()
        salt = entropy.random_bytes(SALT_BYTES)  # guard: unit.salted
        self.filter = CountingBloomFilter(capacity, salt=salt)
        chance = Random(salt)
        sample: list[str] = []
        for each in snapshot.protected():
            self.filter.add(each.unit)
            self.protected += 1
            if is_settled(each, listed_at_us):
                self.kept += 1
                # Each has the same chance to be among them, however many there are.
                place = chance.randrange(self.kept)
                if len(sample) < LOOKED_FOR:
                    sample.append(each.unit)
                elif place < LOOKED_FOR:
                    sample[place] = each.unit
        self._looked_for = len(sample)
        self._not_seen = set(sample)

    def covers(self, unit: str) -> bool:
        self._not_seen.discard(unit)
        return unit in self.filter

    def heard(self, changed: Iterable[Protected]) -> None:
        """Workspaces need these now. To hear of one twice does no harm: it is protected, if need be, for a cycle."""
        for each in changed:
            if each.unit not in self.filter:
                self.filter.add(each.unit)

    def finish(self) -> None:
        if self._looked_for:
            self.missing = round(self.kept * len(self._not_seen) / self._looked_for)


def is_settled(protected: Protected, listed_at_us: int) -> bool:
    """Whether all of it must have been there when the listing began."""
    return protected.kept and protected.updated_at_us < listed_at_us


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

    unlisted: list[Mark] = []

    def pass_by(own: Mark) -> None:
        """A mark of which there is no object."""
        unlisted.append(own)
        if len(unlisted) == BATCH:
            sort_out_unlisted()

    def sort_out_unlisted() -> None:
        """Where a row says that there is an archive, that is to be claimed too: its blocks wait for it."""
        left = snapshot.kept([own.unit for own in unlisted]) if unlisted else set()
        for own in unlisted:
            if own.unit not in left:
                found.clear.add(own.unit)
            elif is_due(own):
                found.delete.add(own.unit)
                if len(found.sample) < SAMPLE:
                    found.sample.append(own.unit)
            else:
                found.waiting += 1
        unlisted.clear()

    def is_due(own: Mark) -> bool:
        return own.number < number and own.first_orphan_detected_us <= snapshot.now_us - delay_us

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
            elif is_due(own):
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
                pass_by(mark)
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
            pass_by(mark)
            mark = next(marks, None)
        protection.finish()
        sort_out_unlisted()
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
