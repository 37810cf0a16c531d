"""Restoring, step by step. What is restored is nowhere to be seen until it is all there.

    1. the operation is begun: the volume is not there, or empty   (operations.begin)
    2. the archive is extracted into staging, checked, and durable AFTER_EXTRACT
    3. the row says which staging is complete                      AFTER_MARK
    4. staging becomes the volume, by one rename                   AFTER_SWAP
    5. the operation is over                                       (operations.finish)

A worker that comes after 3 and finds no staging knows that 4 was done if the volume is that very directory; if it is
not, everything is extracted again. Before 3, what is in staging is thrown away."""

from __future__ import annotations

import os

from analemma.archives.change_cache import write_cache
from analemma.archives.jobs import Job
from analemma.archives.metas import BLOCKS, Meta
from analemma.archives.operations import Held
from analemma.archives.parts import Parts
from analemma.archives.places import check_apart
from analemma.archives.reading import current_archive, extract_archive, kept_facts
from analemma.archives.volumes import not_empty
from analemma.catalog.archives.workspaces import WorkspaceRow
from analemma.failpoints import declare, hit

AFTER_EXTRACT = declare("restore.after_extract", "an archive is extracted beside the volume's place")
AFTER_MARK = declare("restore.after_mark", "the row says that all of it is extracted")
AFTER_SWAP = declare("restore.after_swap", "the volume is there, and the row does not say so")

_TICK_US = 20_000
"""Longer than a tick of any kernel's clock."""

EXTRACTED = "extracted:"
"""How the intent of a restore begins that only has to be swapped in: then come the staging's name and identity."""

_COPY = "copy"


class Restorer:
    """Brings back the volume of a held workspace."""

    def __init__(self, parts: Parts, held: Held, job: Job) -> None:
        self._parts = parts
        self._held = held
        self._job = job
        self.claimed = False
        """Whether the place is the workspace's: what lies in staging is then its own."""

    @property
    def extracted(self) -> bool:
        """Whether everything is in staging, or was."""
        return (self._held.row.intent or "").startswith(EXTRACTED)

    def run(self) -> None:
        """All that is left to do, but for the end of the operation."""
        volume, owner = self._held.volume, self._parts.volume_owner(self._held.row.id)
        check_apart(self._parts, self._held.row.volume, self._held.row.id)
        volume.claim(owner, create=False)
        self.claimed = True
        if self.extracted and not self._is_there():
            # Neither in staging nor the volume: whatever lies there is something else.
            self._held.change(lambda _, row, now: row._replace(intent=None))
        if not self.extracted:
            self._extract()
        name, identity = self._mark()
        if volume.identity(name) == identity:
            # Whoever is not the last to hold the operation must not touch the place.
            self._held.confirm()  # guard: workspace.swapped
            volume.swap_in(name)
        hit(AFTER_SWAP)

    def _extract(self) -> None:
        volume, row = self._held.volume, self._held.row
        if not volume.is_empty():
            raise not_empty(volume.path)
        meta = current_archive(self._parts, row, kept_facts(self._parts, row))
        name = str(self._held.fence)
        staging = volume.prepare_staging(name)
        begun_us = self._parts.clock.now_us()
        extract_archive(self._parts, row, meta, staging, self._job)
        self._remember(meta, staging, begun_us)
        hit(AFTER_EXTRACT)
        mark = f"{EXTRACTED}{name}:{volume.identity(name)}"
        self._held.change(lambda _, row, now: row._replace(intent=mark))
        hit(AFTER_MARK)

    def _mark(self) -> tuple[str, str]:
        name, _, identity = (self._held.row.intent or "").removeprefix(EXTRACTED).partition(":")
        return name, identity

    def _is_there(self) -> bool:
        name, identity = self._mark()
        return identity in (self._held.volume.identity(name), self._held.volume.identity())

    def _remember(self, meta: Meta, staging: str, begun_us: int) -> None:
        cache = self._held.volume.cache
        if meta.format != BLOCKS or cache is None:
            return
        newest_us = write_cache(cache, meta.op_id, staging, verified_at_us=begun_us) // 1000
        # A file that is written to within the same tick of the kernel's clock would look as it was restored.
        wait_us = newest_us + _TICK_US - self._parts.clock.now_us()
        if 0 < wait_us <= _TICK_US:
            self._parts.clock.sleep(wait_us / 1_000_000)


def restore_copy(parts: Parts, row: WorkspaceRow, into: str | os.PathLike[str], job: Job) -> str:
    """Extract the archive of a workspace into a new directory; the workspace is left as it is."""
    volume = parts.volumes.open(parts.volumes.resolve(into))
    meta = current_archive(parts, row, kept_facts(parts, row))
    owner = f"copy of {parts.volume_owner(row.id)}"
    check_apart(parts, volume.path)
    volume.check_place()
    volume.make_place()
    with volume.lock():
        volume.claim(owner, create=False)
        try:
            if not volume.is_empty():
                raise not_empty(volume.path)
            extract_archive(parts, row, meta, volume.prepare_staging(_COPY), job)
            volume.swap_in(_COPY)
        finally:
            volume.release(owner)
    return volume.path
