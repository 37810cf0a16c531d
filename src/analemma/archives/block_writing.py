"""Format 2, writing: the volume as blocks, of which only those that are new are stored. Files that are as the last
restore left them are not even read. Whether all blocks are whole is for whoever asked to find out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256

import orjson

from analemma.archives.block_reading import BLOCKS_AHEAD, Shared
from analemma.archives.change_cache import read_cache
from analemma.archives.entries import Entry, data_length
from analemma.archives.index_blocks import (
    DIRECTORY,
    INDEX,
    INLINE_BYTES,
    TIMES_NS,
    Chunk,
    Content,
    Wire,
    chunk_block,
    directory_blocks,
    directory_content,
    entry_wire,
    file_content,
    index_block,
    read_block,
    read_links,
    wire_name,
)
from analemma.archives.jobs import Job
from analemma.archives.links import check_archived_link
from analemma.archives.metas import BLOCKS, Meta
from analemma.archives.names import INDEX as INDEX_NAME
from analemma.archives.operations import Held
from analemma.archives.parts import Parts
from analemma.archives.walking import FileVersion, Found, Walk
from analemma.blocks.packs import pack_key
from analemma.canon.build import text_cuts
from analemma.canon.nodes import Block, BlockId
from analemma.catalog.archives.workspaces import SessionId
from analemma.catalog.leases import SECOND_US
from analemma.catalog.port import BranchKey, UploadId
from analemma.errors import AnalemmaError, Corrupt

BATCH_BYTES = 16 << 20
"""Blocks are compressed and uploaded so many bytes at a time."""
BATCH_BLOCKS = 4096
READ_AHEAD_BYTES = 4 << 20


@dataclass(slots=True)
class _Frame:
    """A directory that is being walked."""

    entry: Entry
    wires: list[Wire]
    before: dict[bytes, Wire]
    """Its entries in the archive that the volume was restored from."""
    ahead: dict[BlockId, bytes] = field(default_factory=dict)
    """Blocks of directories in it, as they were in that archive."""


class BlockWriter:
    """Writes one volume, in a session of its own that the commit closes."""

    def __init__(self, parts: Parts, held: Held, job: Job, *, force: bool, repair: bool = False) -> None:
        """With `force` every file is read. With `repair` so is every block that is stored already, and one that is
        damaged is stored anew."""
        self.session = SessionId(parts.entropy.random_bytes(16))
        self._parts = parts
        self._held = held
        self._job = job
        self._known: dict[bytes, FileVersion] = {}
        self._verified_at_us = 0
        self._read: set[bytes] = set()
        self._base: BlockId | None = None
        self._frames: list[_Frame] = []
        if not force:
            self._use_base()
        self._batches = _Batches(parts, held, self.session, repair)

    def write(self, op_id: str) -> tuple[Meta, bytes]:
        """Store all blocks; the marker, and the bytes of the index object that it will stand for."""
        self._parts.rows.open_session(self.session)
        limits = self._parts.limits
        walk = Walk(self._held.volume.path, unchanged=self._is_unchanged, limits=limits, times_ns=TIMES_NS)
        try:
            root = self._walk(walk)
            self._batches.finish()
        except BaseException:
            self._batches.abandon()
            raise
        counts = walk.totals.counts()
        data = orjson.dumps({"root": root.hex(), "counts": counts}, option=orjson.OPT_SORT_KEYS)
        meta = Meta(
            format=BLOCKS,
            workspace=self._held.row.id,
            op_id=op_id,
            data=INDEX_NAME,
            size=len(data),
            sha256=sha256(data).hexdigest(),
            counts=counts,
            fingerprint=walk.fingerprint(),
            root=root.hex(),
            stored=self._batches.stored + len(data),
            created_at=datetime.fromtimestamp(self._parts.clock.now_us() / 1_000_000, UTC).isoformat(),
            skipped=walk.totals.skipped,
            notes=tuple(walk.totals.notes),
        )
        return meta, data

    def shared(self) -> Shared | None:
        """Files whose blocks are those of the archive before, if that was read from the store not too long ago."""
        most_us = self._parts.settings.archive_verify_age_s * SECOND_US
        age_us = self._parts.clock.now_us() - self._verified_at_us
        if self._base is None or not 0 <= age_us < most_us:
            return None
        return _SharedFiles(self._parts, self._read)

    def _use_base(self) -> None:
        """Find the archive that the volume was restored from. It is the workspace's own, so nobody collects it before
        the commit; what is linked from it needs no writing."""
        row, path = self._held.row, self._held.volume.cache
        if row.archive_op is None or path is None:
            return
        unit = self._parts.rows.unit(row.id, row.archive_op)
        if unit is not None and unit.state == "kept" and unit.facts is not None and unit.facts.root is not None:
            self._known, self._verified_at_us = read_cache(path, row.archive_op)
            self._base = unit.facts.root if self._known else None

    def _is_unchanged(self, path: bytes, version: FileVersion) -> bool:
        if self._known.get(path) != version:
            return False
        above, _, name = path.rpartition(b"/")
        frame = next((each for each in reversed(self._frames) if each.entry.path == above), None)
        before = None if frame is None else frame.before.get(name)
        # It was restored from the archive of which these are the entries, so it is among them.
        return before is not None and before[1] == 0 and (before[5], before[6]) == (version.mtime_ns, version.size)

    def _walk(self, walk: Walk) -> BlockId:
        frames = self._frames = []
        for found in walk:
            entry = found.entry
            while frames and not _is_in(entry.path, frames[-1].entry.path):
                self._close(frames)
            if entry.kind == "directory":
                frames.append(_Frame(entry, [], self._entries_before(frames, entry)))
            else:
                frames[-1].wires.append(self._wire(found, frames[-1]))
            self._job.advance(files=1)
        while len(frames) > 1:
            self._close(frames)
        root = index_block(self._directory(frames[0]))
        self._batches.add(root)
        return root.id

    def _close(self, frames: list[_Frame]) -> None:
        frame = frames.pop()
        frames[-1].wires.append(self._directory(frame))

    def _directory(self, frame: _Frame) -> Wire:
        # The walk meets what is in a directory before what comes after it, so names are not quite in order here.
        blocks = directory_blocks(sorted(frame.wires, key=wire_name))
        for block in blocks:
            self._batches.add(block)
        return entry_wire(frame.entry, directory_content(blocks))

    def _entries_before(self, frames: list[_Frame], entry: Entry) -> dict[bytes, Wire]:
        if self._base is None:
            return {}
        try:
            return self._read_before(self._base, frames, entry)
        except Corrupt:
            # The archive before is damaged: from here on every file is read.
            self._base = None
            return {}

    def _read_before(self, base: BlockId, frames: list[_Frame], entry: Entry) -> dict[bytes, Wire]:
        if not frames:
            [wire] = read_block(base, self._fetch([base])[base], INDEX)
        else:
            found = frames[-1].before.get(entry.path.rpartition(b"/")[2])
            if found is None or found[1] != 1:
                return {}
            wire = found
        blocks = read_links(wire[7])
        fetched = self._fetch(blocks) if not frames else self._fetch_ahead(frames, wire_name(wire), blocks)
        return {wire_name(each): each for block in blocks for each in read_block(block, fetched[block], DIRECTORY)}

    def _fetch_ahead(self, frames: list[_Frame], name: bytes, blocks: list[BlockId]) -> dict[BlockId, bytes]:
        """The blocks of a directory, with those of the next ones beside it: a request for each would take most of the
        time."""
        above = frames[-1]
        if any(block not in above.ahead for block in blocks):
            # Each directory on the way holds its own, so the deeper, the fewer: together twice as many at most.
            most = BLOCKS_AHEAD >> (len(frames) - 1)
            wanted = dict.fromkeys(blocks)
            for other, wire in above.before.items():
                if len(wanted) >= most:
                    break
                if other > name and wire[1] == 1:
                    wanted.update(dict.fromkeys(read_links(wire[7])[:most]))
            above.ahead = self._fetch([*wanted])
        return above.ahead

    def _wire(self, found: Found, frame: _Frame) -> Wire:
        entry = found.entry
        if entry.kind == "symlink":
            check_archived_link(entry, self._parts.settings.archive_outside_links)
        if entry.kind != "file":
            return entry_wire(entry, b"\0" + entry.target)
        if found.file < 0:
            self._job.advance(bytes=entry.size)
            # Its attributes and its map are those of before, too: its ctime says so.
            before = frame.before[entry.path.rpartition(b"/")[2]]
            return [*entry_wire(entry, before[7])[:8], *before[8:]]
        return entry_wire(entry, self._content(found))

    def _content(self, found: Found) -> Content:
        if self._base is not None:
            self._read.add(found.entry.path)
        if data_length(found.entry) <= INLINE_BYTES:
            data = b"".join(found.read())
            self._job.advance(bytes=len(data))
            return b"\0" + data
        chunks: list[Chunk] = []
        for piece in self._cut(found.read()):
            block = chunk_block(piece)
            self._batches.add(block)
            chunks.append(Chunk(block.id, len(piece)))
        return file_content(chunks, self._batches.add)

    def _cut(self, source: Iterator[bytes]) -> Iterator[bytes]:
        """A file in content-defined pieces, in bounded memory. The last piece of what has been read may go on."""
        held: list[bytes] = []
        length = 0
        for data in source:
            self._job.advance(bytes=len(data))
            held.append(data)
            length += len(data)
            if length >= READ_AHEAD_BYTES:
                joined = b"".join(held)
                *ends, _ = text_cuts(joined)
                yield from _pieces(joined, ends)
                held = [joined[ends[-1] :]] if ends else [joined]
                length = len(held[0])
        if held:
            joined = held[0] if len(held) == 1 else b"".join(held)
            yield from _pieces(joined, text_cuts(joined))

    def _fetch(self, blocks: list[BlockId]) -> dict[BlockId, bytes]:
        return self._parts.blocks.fetch(blocks)


class _SharedFiles:
    """All files but those that were read."""

    def __init__(self, parts: Parts, read: set[bytes]) -> None:
        self._parts = parts
        self._read = read
        self._sizes: dict[UploadId, int] = {}

    def covers(self, path: bytes) -> bool:
        return path not in self._read

    def missing(self, blocks: Sequence[BlockId]) -> set[BlockId]:
        rows = self._parts.engine.all("present_blocks", tenant=self._parts.tenant, ids=blocks)
        places = {block: (upload, end) for block, upload, end in rows}
        return {block for block in blocks if block not in places or not self._is_there(*places[block])}

    def _is_there(self, upload: UploadId | None, end: int) -> bool:
        """Whether the object in which a block lies reaches to its end."""
        if upload is None:
            return True
        if upload not in self._sizes:
            info = self._parts.archive_objects.head(pack_key(upload))
            self._sizes[upload] = -1 if info is None else info.size
        return end <= self._sizes[upload]


class _Batches:
    """Blocks on their way into the store: many together, while the next are being read."""

    def __init__(self, parts: Parts, held: Held, session: SessionId, repair: bool) -> None:
        self.stored = 0
        """Bytes that were written, without what was there already."""
        self._parts = parts
        self._key = BranchKey(held.row.owner, held.row.id)
        self._session = session
        self._repair = repair
        self._seen: set[BlockId] = set()
        self._waiting: list[Block] = []
        self._bytes = 0
        self._worker = ThreadPoolExecutor(1, "archive-blocks")
        self._under_way: Future[None] | None = None

    def add(self, block: Block) -> None:
        """One more; what this session has written stays, so it is written once."""
        if block.id in self._seen:
            return
        self._seen.add(block.id)
        self._waiting.append(block)
        self._bytes += len(block.data)
        if self._bytes >= BATCH_BYTES or len(self._waiting) >= BATCH_BLOCKS:
            self._send()

    def finish(self) -> None:
        """Write the rest, and wait for all of it."""
        if self._waiting:
            self._send()
        self._settle()
        self._worker.shutdown()

    def abandon(self) -> None:
        """Wait for what is under way; whatever was written is garbage."""
        self._worker.shutdown(cancel_futures=True)

    def _send(self) -> None:
        self._settle()
        batch, self._waiting, self._bytes = self._waiting, [], 0
        self._under_way = self._worker.submit(self._write, batch)

    def _settle(self) -> None:
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def _write(self, batch: list[Block]) -> None:
        # Each was named by its bytes a moment ago, and none counts before all of them were read back.
        prepared = self._parts.blocks.prepare(batch, self._key, None, read_back=True)
        again = self._damaged(batch) if self._repair else set()
        try:
            self.stored += self._parts.rows.write_blocks(self._session, prepared.rows, prepared.uploads, again=again)
        except AnalemmaError as exc:
            self._parts.blocks.give_up(prepared.uploads, exc)
            raise

    def _damaged(self, batch: list[Block]) -> set[BlockId]:
        return self._parts.blocks.unsound([block.id for block in batch])[0]


def _pieces(data: bytes, ends: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for end in ends:
        yield data[start:end]
        start = end


def _is_in(path: bytes, directory: bytes) -> bool:
    return not directory or path.startswith(directory + b"/")
