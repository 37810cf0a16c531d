"""Format 2, reading: directories block by block, and the chunks of many files in one request."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from analemma.archives.entries import Entry, data_length
from analemma.archives.extracting import Extractor
from analemma.archives.index_blocks import (
    CHUNKS,
    DIRECTORY,
    INDEX,
    Chunk,
    Wire,
    chunk_data,
    read_block,
    read_chunks,
    read_entry,
    read_links,
)
from analemma.archives.jobs import Job
from analemma.archives.metas import Meta, damaged
from analemma.archives.tar_reading import truncated
from analemma.blocks.store import BlockStore
from analemma.canon.nodes import BlockId
from analemma.errors import Corrupt

BATCH_BYTES = 16 << 20
BLOCKS_AHEAD = 64
"""Blocks of directories that are read together."""
DEEPEST = 1024
_THREADS = min(os.cpu_count() or 1, 4)
_LOOK_TOGETHER = 4096

Fetch = Callable[[list[BlockId]], dict[BlockId, bytes]]


@dataclass(slots=True)
class _File:
    """A file that waits for its chunks."""

    entry: Entry
    chunks: list[Chunk]
    inline: bytes | None


def read_blocks(fetch: Fetch, meta: Meta, extractor: Extractor, job: Job) -> None:
    """Extract an archive; DataLost unless every block of it is what was written."""
    job.begin("writing", meta.counts.get("bytes"))
    reader = _Reader(fetch, extractor, job)
    try:
        reader.run(root_of(meta))
    except Corrupt as exc:
        raise damaged(f"the archive cannot be read: {exc.message}") from exc
    counts = extractor.totals.counts()
    if counts != meta.counts:
        raise truncated(f"it holds {counts}, and was made of {meta.counts}")


def check_index(data: bytes, meta: Meta) -> None:
    """DataLost unless the index object names what its marker does."""
    if orjson.loads(data) != {"root": meta.root, "counts": meta.counts}:
        raise damaged(f"the index of archive {meta.workspace}/{meta.op_id} is not its own")


class Shared(Protocol):
    """Blocks of files that were not read, because they are as the last restore left them."""

    def covers(self, path: bytes) -> bool:
        """Whether this file is one of them, and its blocks were read from the store lately."""

    def missing(self, blocks: Sequence[BlockId]) -> set[BlockId]:
        """Those that are not where the catalog says."""


def verify_blocks(blocks: BlockStore, meta: Meta, job: Job) -> None:
    """Read all blocks of an archive; DataLost unless each is what was written."""
    damage = find_damage(blocks, meta, job)
    if damage:
        raise damaged(f"the archive cannot be read: {shown_damage(damage)}")


def find_damage(blocks: BlockStore, meta: Meta, job: Job, shared: Shared | None = None) -> set[BlockId]:
    """Blocks of an archive that cannot be had from where they lie. Everything is read, but for what is `shared`: of
    that it is only looked whether it is there. Below a directory that cannot be read nothing is looked at."""
    job.begin("verifying", meta.counts.get("bytes"))
    with _Audit(blocks, job) as audit:
        try:
            for directory, wires in walk_index(blocks.read_uncached, root_of(meta)):
                for wire in wires:
                    entry = _entry(wire, directory)
                    chunks = _chunks(blocks.read_uncached, entry, wire)
                    if shared is not None and entry.kind == "file" and shared.covers(entry.path):
                        audit.look(chunks, shared)
                    else:
                        audit.read(chunks)
                    job.advance(files=1)
        except Corrupt as exc:
            # Of an object that ends early it is not said whose bytes are missing.
            named = exc.facts.get("block")
            audit.damage.add(root_of(meta) if named is None else BlockId(bytes.fromhex(str(named))))
        audit.finish(shared)
        return audit.damage


def shown_damage(damage: set[BlockId]) -> str:
    """Damaged blocks for people."""
    return f"{len(damage)} blocks are damaged or missing, such as {min(damage).hex()}"


class _Audit:
    """Reads chunks of many files together, a few requests at a time."""

    def __init__(self, blocks: BlockStore, job: Job) -> None:
        self.damage: set[BlockId] = set()
        self._blocks = blocks
        self._job = job
        self._workers = ThreadPoolExecutor(_THREADS, "archive-verify")
        self._under_way: deque[Future[set[BlockId]]] = deque()
        self._held: dict[BlockId, int] = {}
        self._bytes = 0
        self._looked: list[Chunk] = []

    def __enter__(self) -> _Audit:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.shutdown(cancel_futures=True)

    def read(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if chunk.id not in self._held:
                self._held[chunk.id] = chunk.length
                self._bytes += chunk.length
                if self._bytes >= BATCH_BYTES:
                    self._send()

    def look(self, chunks: list[Chunk], shared: Shared) -> None:
        self._looked += chunks
        if len(self._looked) >= _LOOK_TOGETHER:
            self._look(shared)

    def finish(self, shared: Shared | None) -> None:
        if shared is not None:
            self._look(shared)
        self._send()
        while self._under_way:
            self.damage |= self._under_way.popleft().result()

    def _look(self, shared: Shared) -> None:
        looked, self._looked = self._looked, []
        self.damage |= shared.missing([*dict.fromkeys(chunk.id for chunk in looked)])
        self._job.advance(bytes=sum(chunk.length for chunk in looked))

    def _send(self) -> None:
        held, self._held, self._bytes = self._held, {}, 0
        if held:
            self._under_way.append(self._workers.submit(self._damaged, held))
        while len(self._under_way) > _THREADS:
            self.damage |= self._under_way.popleft().result()

    def _damaged(self, held: dict[BlockId, int]) -> set[BlockId]:
        try:
            self._blocks.read_uncached([*held])
            found: Iterable[BlockId] = held
        except Corrupt:
            found = self._blocks.audit([*held])[0]
        self._job.advance(bytes=sum(held.values()))
        return held.keys() - set(found)


def root_of(meta: Meta) -> BlockId:
    """The block that leads to the whole archive."""
    assert meta.root is not None
    return BlockId(bytes.fromhex(meta.root))


def walk_index(fetch: Fetch, root: BlockId) -> Iterator[tuple[bytes, list[Wire]]]:
    """Every directory's path with some of its entries, the volume itself first; a directory comes before what is in
    it."""
    [wire] = read_block(root, fetch([root])[root], INDEX)
    yield b"", [wire]
    ahead: dict[BlockId, bytes] = {}
    stack: list[tuple[bytes, list[BlockId]]] = [(b"", _directory(wire))]
    while stack:
        path, links = stack.pop()
        if path.count(b"/") > DEEPEST:
            raise Corrupt("an archive's directories are too deep")
        below: list[tuple[bytes, list[BlockId]]] = []
        for link in links:
            if link not in ahead:
                ahead = _fetch_ahead(fetch, link, links, stack, ahead)
            wires = read_block(link, ahead[link], DIRECTORY)
            yield path, wires
            below += [(_entry(each, path).path, _directory(each)) for each in wires if each[1] == 1]
        stack += reversed(below)


def _fetch_ahead(
    fetch: Fetch,
    link: BlockId,
    links: list[BlockId],
    stack: list[tuple[bytes, list[BlockId]]],
    ahead: dict[BlockId, bytes],
) -> dict[BlockId, bytes]:
    """A block with those that are asked for next: a request for each directory would take most of the time. What is
    here already is not asked for again."""
    wanted = dict.fromkeys(links[links.index(link) :][:BLOCKS_AHEAD])
    for _, others in reversed(stack):
        if len(wanted) >= BLOCKS_AHEAD:
            break
        wanted.update(dict.fromkeys(others[:BLOCKS_AHEAD]))
    fetched = fetch([block for block in wanted if block not in ahead])
    return {block: fetched[block] if block in fetched else ahead[block] for block in wanted}


class _Reader:
    def __init__(self, fetch: Fetch, extractor: Extractor, job: Job) -> None:
        self._fetch = fetch
        self._extractor = extractor
        self._job = job
        self._waiting: list[_File] = []
        self._bytes = 0
        self._links: list[Entry] = []
        self._worker = ThreadPoolExecutor(1, "archive-fetch")
        self._under_way: deque[tuple[list[_File], Future[dict[BlockId, bytes]]]] = deque()

    def run(self, root: BlockId) -> None:
        try:
            for directory, wires in walk_index(self._fetch, root):
                for wire in wires:
                    self._add(_entry(wire, directory), wire)
            self._send()
            while self._under_way:
                self._write()
        finally:
            self._worker.shutdown(cancel_futures=True)
        # The file that a hard link is another name of may come after it here: directories are read one by one.
        for link in self._links:
            self._extractor.add(link)

    def _add(self, entry: Entry, wire: Wire) -> None:
        self._job.advance(files=1)
        if entry.kind == "hardlink":
            self._links.append(entry)
        elif entry.kind != "file":
            self._extractor.add(entry)
        elif type(wire[7]) is bytes:
            self._wait(_File(entry, [], wire[7][1:]), len(wire[7]))
        else:
            chunks = _chunks(self._fetch, entry, wire)
            size = data_length(entry)
            if size > BATCH_BYTES:
                self._extractor.add(entry, self._stream(chunks))
                return
            self._wait(_File(entry, chunks, None), size)

    def _wait(self, file: _File, size: int) -> None:
        self._waiting.append(file)
        self._bytes += size
        if self._bytes >= BATCH_BYTES:
            self._send()

    def _send(self) -> None:
        """Have the chunks of the files that wait read, while those before them are written."""
        files, self._waiting, self._bytes = self._waiting, [], 0
        wanted = dict.fromkeys(chunk.id for file in files for chunk in file.chunks)
        self._under_way.append((files, self._worker.submit(self._fetch, list(wanted))))
        if len(self._under_way) > 1:
            self._write()

    def _write(self) -> None:
        files, fetched = self._under_way.popleft()
        blocks = fetched.result()
        for file in files:
            data = [file.inline] if file.inline is not None else [_piece(chunk, blocks) for chunk in file.chunks]
            self._extractor.add(file.entry, data)
            self._job.advance(bytes=file.entry.size)

    def _stream(self, chunks: list[Chunk]) -> Iterator[bytes | memoryview]:
        for batch in _batches(chunks):
            blocks = self._fetch(list(dict.fromkeys(chunk.id for chunk in batch)))
            for chunk in batch:
                yield _piece(chunk, blocks)
                self._job.advance(bytes=chunk.length)


def _piece(chunk: Chunk, blocks: dict[BlockId, bytes]) -> bytes | memoryview:
    data = chunk_data(chunk.id, blocks[chunk.id], chunk.length)
    if len(data) != chunk.length:
        raise Corrupt(f"chunk {chunk.id.hex()} has another length than its file says", block=chunk.id.hex())
    return data


def _batches(chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    held: list[Chunk] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += chunk.length
        if size >= BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _chunks(fetch: Fetch, entry: Entry, wire: Wire) -> list[Chunk]:
    content: Any = wire[7]
    if entry.kind != "file" or type(content) is bytes:
        return []
    try:
        if type(content) is dict:
            lists = read_links(content["lists"])
            blocks = fetch(lists)
            chunks = [chunk for each in lists for chunk in read_chunks(read_block(each, blocks[each], CHUNKS))]
        else:
            chunks = read_chunks(content)
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"the index is malformed: {exc}") from exc
    if sum(chunk.length for chunk in chunks) != data_length(entry):
        raise Corrupt("the index is malformed: a file of another length than its chunks")
    return chunks


def _directory(wire: Wire) -> list[BlockId]:
    try:
        return read_links(wire[7])
    except (ValueError, TypeError) as exc:
        raise Corrupt(f"the index is malformed: {exc}") from exc


def _entry(wire: Wire, directory: bytes) -> Entry:
    try:
        return read_entry(wire, directory)
    except (ValueError, TypeError, IndexError, AttributeError) as exc:
        raise Corrupt(f"the index is malformed: {exc}") from exc
