"""Where two versions come from: the nearest ancestor they share, found over manifest rows and journal records alone."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Literal

from analemma.canon.identity import BlockId, parse_block_id
from analemma.catalog.port import BranchKey, KernelCatalog, ManifestRow, TenantId
from analemma.state.records import MERGED, read_record

PAGE = 200
MOST_VERSIONS = 100_000
"""How many versions are looked at before two lines count as unrelated."""

_OURS, _THEIRS, _BOTH = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Ancestor:
    """The version two lines share, or why there is none to read."""

    row: ManifestRow | None
    reason: Literal["found", "none", "expired", "too_far"]


@dataclass(slots=True)
class _Merges:
    """What is known so far of the merges into one branch, reading its journal backwards."""

    unread: int
    """The highest sequence number that was not read yet."""
    seen: set[BlockId] = field(default_factory=set)
    sources: dict[BlockId, BlockId] = field(default_factory=dict)


class Ancestry:
    """Walks back from versions; rows are read by the page, and once."""

    def __init__(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._rows: dict[BlockId, ManifestRow | None] = {}
        self._merges: dict[BranchKey, _Merges] = {}

    def nearest_common(self, ours: BlockId, theirs: BlockId) -> Ancestor:
        """The newest version from which both come, by parents and by what was merged into them."""
        marks: dict[BlockId, int] = {}
        heap: list[tuple[int, int, BlockId]] = []
        expired = False
        visited = 0

        def reach(manifest: BlockId, mark: int) -> bool:
            row = self._row(manifest)
            before = marks.get(manifest, 0)
            if row is not None and before | mark != before:
                marks[manifest] = before | mark
                # Newest first, so that a long line is not walked past the place where the other one left it.
                heapq.heappush(heap, (-row.created_at_us, -row.version, manifest))
            return row is not None

        reach(ours, _OURS)
        reach(theirs, _THEIRS)
        while heap:
            manifest = heapq.heappop(heap)[2]
            row, mark = self._row(manifest), marks[manifest]
            if mark == _BOTH:
                return Ancestor(row, "found")
            visited += 1
            if visited > MOST_VERSIONS:
                return Ancestor(None, "too_far")
            if row is None:
                continue
            for parent in (row.parent, self._merged_into(row)):
                if parent is not None and not reach(parent, mark):
                    expired = True
        return Ancestor(None, "expired" if expired else "none")

    def _row(self, manifest: BlockId) -> ManifestRow | None:
        if manifest not in self._rows:
            row = self._rows[manifest] = self._catalog.manifest(self._tenant, manifest)
            if row is not None:
                older = self._catalog.history(self._tenant, row.key, before_version=row.version, limit=PAGE)
                self._rows.update({each.id: each for each in older})
        return self._rows[manifest]

    def _merged_into(self, row: ManifestRow) -> BlockId | None:
        """The version that was merged into this one's parent to make it, if it is a merge."""
        known = self._merges.get(row.key)
        if known is None:
            head = self._catalog.head(self._tenant, row.key)
            known = self._merges[row.key] = _Merges(0 if head is None else head.journal_seq)
        while known.unread and row.id not in known.seen:
            start = max(0, known.unread - PAGE)
            records = self._catalog.journal(self._tenant, row.key, after_seq=start, limit=known.unread - start)
            known.unread = start
            for record in records:
                told = read_record(record)
                # Tags and decisions name a manifest too, but only a move of the head has a version.
                if record.manifest is not None and told["version"] is not None:
                    known.seen.add(record.manifest)
                    if record.kind == MERGED:
                        known.sources[record.manifest] = parse_block_id(told["facts"]["from"])
        return known.sources.get(row.id)
