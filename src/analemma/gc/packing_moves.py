"""Moves blocks into packs. A pack is filled, stored and read back; only then do rows point there and give up their
bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from analemma.blocks.codec import decode_blocks
from analemma.blocks.packs import HEADER, Pack, PackEntry, PackWriter, StoredBlock, pack_key, verify_pack
from analemma.blocks.port import ObjectStore
from analemma.blocks.uploads import object_metadata, upload_pack
from analemma.canon.identity import BlockId
from analemma.catalog.packing import Origin, PackingCatalog, PackMove
from analemma.catalog.port import TenantId, Upload, UploadId
from analemma.clock import Clock, Entropy
from analemma.errors import Corrupt
from analemma.failpoints import declare, hit

AFTER_CHECK = declare("pack.after_check", "the pack was read back and is whole, and no block has moved")

MOST_BLOCKS = 10_000
"""In one pack. All of them move in one transaction, for which writers of the same database may have to wait."""
BATCH_BYTES = 4 << 20
BATCH_BLOCKS = 1000

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class PackingReport:
    """What was moved, or in a dry run would be."""

    blocks: int = 0
    bytes: int = 0
    """As stored: compressed."""
    packs: int = 0
    """Objects written; in a dry run, about how many."""
    emptied: int = 0
    """Packs in which nothing lies any more: the collector removes them."""
    freed_bytes: int = 0
    """Their size."""
    left: int = 0
    """Blocks that stay where they are, because somebody else moved or deleted them meanwhile."""
    waiting_bytes: int = 0
    """Cold, but too few for a pack of their own."""
    problems: tuple[str, ...] = ()
    """What could not be read, and was left alone."""
    dry_run: bool = False


Progress = Callable[[PackingReport], None]


class Intents(Protocol):
    """Of a catalog: where an upload is recorded before its first byte."""

    def open_upload(self, tenant: TenantId, upload: Upload) -> None: ...


class Tally:
    """The report of a run, as far as it has come."""

    def __init__(self, progress: Progress | None) -> None:
        self.report = PackingReport()
        self._progress = progress

    def add(self, **counts: int) -> None:
        """Count, and tell whoever follows."""
        sums = {name: getattr(self.report, name) + count for name, count in counts.items()}
        self.report = replace(self.report, **sums)
        if self._progress is not None:
            self._progress(self.report)

    def complain(self, problem: str) -> None:
        """Something is damaged or gone."""
        self.report = replace(self.report, problems=(*self.report.problems, problem))


class _Filling:
    """A pack in the making."""

    def __init__(self) -> None:
        self.writer = PackWriter()
        self.moves: dict[BlockId, PackMove] = {}

    @property
    def size(self) -> int:
        return self.writer.size - len(HEADER)


class PackFiller:
    """Takes blocks one after the other, and moves them by the pack."""

    def __init__(
        self,
        intents: Intents,
        packing: PackingCatalog,
        objects: ObjectStore,
        tenant: TenantId,
        *,
        target_bytes: int,
        clock: Clock,
        entropy: Entropy,
        tally: Tally,
    ) -> None:
        self._intents = intents
        self._packing = packing
        self._objects = objects
        self._tenant = tenant
        self._target_bytes = target_bytes
        self._clock = clock
        self._entropy = entropy
        self._tally = tally
        self._filling = {True: _Filling(), False: _Filling()}

    def add(self, block: StoredBlock, *, branching: bool, origin: Origin | None) -> None:
        """Move this block, whose bytes were checked against its id, with others of its kind. Those that link to others
        have packs of their own: whoever walks trees reads these and no others."""
        filling = self._filling[branching]
        entry = filling.writer.add(block)
        filling.moves[entry.id] = PackMove(entry.id, entry.codec, entry.offset, entry.length, origin)
        if filling.writer.size >= self._target_bytes or len(filling.moves) >= MOST_BLOCKS:
            self._move(branching)

    def flush(self, least_bytes: int = 0) -> int:
        """Move what waits, if it is no less than this; the bytes that still wait."""
        waiting = 0
        for branching, filling in self._filling.items():
            if filling.moves and filling.size >= least_bytes:
                self._move(branching)
            else:
                waiting += filling.size
        return waiting

    def _move(self, branching: bool) -> None:
        filling, self._filling[branching] = self._filling[branching], _Filling()
        pack, moves, size = filling.writer.finish(), list(filling.moves.values()), filling.size
        del filling  # It holds a copy of the pack.
        upload = self._store(pack)
        # One in which less than half would count from the beginning, because others move the same blocks, is not worth
        # having: it is left to the collector, and the few blocks to the next run.
        moved = self._packing.move_into_pack(self._tenant, upload, moves, at_least=(len(moves) + 1) // 2)
        if 0 < moved < len(moves):
            _, size = self._packing.pack_contents(self._tenant, upload)
        self._tally.add(blocks=moved, bytes=size if moved else 0, packs=1, left=len(moves) - moved)

    def _store(self, pack: Pack) -> UploadId:
        upload = UploadId(self._entropy.random_bytes(16))
        now_us = self._clock.now_us()
        intent = Upload(id=upload, state="temp", object_key=pack_key(upload), size=len(pack.data), created_at_us=now_us)
        key = upload_pack(
            self._objects,
            upload,
            pack,
            open_intent=lambda: self._intents.open_upload(self._tenant, intent),
            metadata=object_metadata(pack, workflow_id=None, execution_id=None, created_at_us=now_us),
        )
        self._check(key, pack)
        hit(AFTER_CHECK)
        return upload

    def _check(self, key: str, pack: Pack) -> None:
        """Read it back as a reader would: soon these are the only bytes there are."""
        data = self._objects.get(key)
        if verify_pack(data) != pack.entries:
            raise Corrupt(
                f"object {key} was stored but reads back as another pack", hint="check the object store", key=key
            )
        view = memoryview(data)
        for entries in in_batches(pack.entries, lambda entry: entry.length):
            decode_blocks([_stored(entry, view) for entry in entries])


def in_batches(items: Iterable[Item], length: Callable[[Item], int]) -> Iterator[list[Item]]:
    """The items in order, some at a time: few enough for memory, and for one statement."""
    batch: list[Item] = []
    size = 0
    for item in items:
        if batch and (size + length(item) > BATCH_BYTES or len(batch) >= BATCH_BLOCKS):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += length(item)
    if batch:
        yield batch


def _stored(entry: PackEntry, data: memoryview) -> tuple[BlockId, int, bytes, int]:
    return entry.id, entry.codec, bytes(data[entry.offset : entry.end]), entry.size
