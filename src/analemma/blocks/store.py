"""One tenant's blocks, wherever they lie: in the cache, in the catalog's rows, or in packs in the object store; and how
their canonical bytes are stored, by the codec numbers of block rows and pack entries.

0 is the bytes themselves. 1 is one zstd frame that states its content size, followed by the frame's CRC-32 (4 bytes,
big-endian): the block's SHA-256 proves the content, but a few bits of a frame can change without changing it, and
damage should be found before it grows. Numbers from 2 on are reserved for zstd with a dictionary."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING
from zlib import crc32

import zstandard

from analemma.blocks.packs import (
    MAX_BLOCK_BYTES,
    Pack,
    PackEntry,
    build_pack,
    object_metadata,
    pack_key,
    read_entries,
)
from analemma.blocks.port import ObjectStore
from analemma.canon.nodes import Block, BlockId, Promises, block_links, verify_block
from analemma.catalog.port import BlockRow, BranchKey, KernelCatalog, PreparedBlocks, TenantId, Upload, UploadId
from analemma.clock import Clock, Entropy
from analemma.errors import AnalemmaError, Corrupt, Invalid, Limit, NotFound, OutcomeUnknown, Unavailable
from analemma.failpoints import declare, hit
from analemma.machine import reader_count

if TYPE_CHECKING:
    from analemma.blocks.redis_tier import RedisTier

BEFORE_INTENT = declare("upload.before_intent", "a pack is built and nothing is recorded")
AFTER_INTENT = declare("upload.after_intent", "the intent is durable and no byte is written")
AFTER_OBJECT = declare("upload.after_object", "the object is durable and no commit names it")

_new_tuple = tuple.__new__

DEFAULT_CAPACITY_BYTES = 64 << 20
_OVERHEAD_BYTES = 200
"""What an entry of the cache costs besides its body (key, object headers, a list node), so that tiny blocks count
too."""

RAW = 0
ZSTD = 1

ZSTD_LEVEL = 1
"""Measured on states of agents: half the time of level 3, and half a per cent more bytes."""
CRC_BYTES = 4
_SMALLEST_WORTH_TRYING = 64
"""Below this, a frame's own header eats what compression saves."""
_SMALLEST_WITH_LINKS = 384
"""The same for a block with links: it holds hashes, mostly. Of manifests and small roots none shrinks."""
_LARGEST_RATIO = 0.95
"""A block that shrinks less than this stays raw: every read would pay for decompression and storage gains nothing."""

READ_FROM_BODY = b""
"""In a row's `links`: the block has links, and its bytes tell which."""


@dataclass(slots=True)
class Carried:
    """What the attempts of one save have uploaded so far: an attempt that lost its race must not upload it all
    again."""

    rows: dict[BlockId, BlockRow] = field(default_factory=dict)
    uploads: list[UploadId] = field(default_factory=list)


class Lru:
    """Verified bodies kept near: in this process, and behind that, if there is one, in a Redis that others share. Least
    recently used ones leave first; bounded by bytes; safe to share between threads.

    Blocks never change, so it needs no invalidation. It answers reads only: that a block was seen here says nothing
    about whether it is still stored, and no writer may skip a block because of it."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES, far: RedisTier | None = None) -> None:
        self._capacity_bytes = capacity_bytes
        self._far = far
        self._bytes = 0
        self._bodies: OrderedDict[tuple[int, BlockId], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get_many(self, tenant: int, ids: Sequence[BlockId]) -> dict[BlockId, bytes]:
        """Those of the blocks that are here, already verified."""
        found: dict[BlockId, bytes] = {}
        bodies = self._bodies
        with self._lock:
            for block in ids:
                key = (tenant, block)
                body = bodies.get(key)
                if body is not None:
                    # guard: cache.used
                    bodies.move_to_end(key)
                    found[block] = body
        if self._far is not None and (missing := [block for block in dict.fromkeys(ids) if block not in found]):
            brought = self._far.get_many(tenant, missing)
            self._keep(tenant, brought)
            found |= brought
        return found

    def put_many(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        """Remember bodies that the caller has verified."""
        self._keep(tenant, bodies)
        if self._far is not None:
            self._far.put_many(tenant, bodies)

    def close(self) -> None:
        """Forget everything, and give back what the far tier has; safe to call twice."""
        with self._lock:
            self._bodies.clear()
            self._bytes = 0
        if self._far is not None:
            self._far.close()

    def _keep(self, tenant: int, bodies: Mapping[BlockId, bytes]) -> None:
        # One body that alone would flush half the cache is not worth the others.
        heaviest = self._capacity_bytes // 2
        kept = self._bodies
        with self._lock:
            for block, body in bodies.items():
                weight = len(body) + _OVERHEAD_BYTES
                if weight > heaviest:
                    continue
                key = (tenant, block)
                if key in kept:
                    kept.move_to_end(key)
                    continue
                kept[key] = body
                self._bytes += weight
            # guard: cache.bytes
            while self._bytes > self._capacity_bytes:
                _, dropped = self._bodies.popitem(last=False)
                self._bytes -= len(dropped) + _OVERHEAD_BYTES


class BlockStore:
    """Reads verify every block; writes are only prepared here, the commit makes them count."""

    def __init__(
        self,
        catalog: KernelCatalog,
        tenant: TenantId,
        *,
        objects: ObjectStore | None,
        cache: Lru,
        pack_threshold_bytes: int,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._objects = objects
        self._cache = cache
        self._pack_threshold_bytes = pack_threshold_bytes
        self._clock = clock
        self._entropy = entropy
        self._most_at_once = reader_count()
        self._turns = threading.BoundedSemaphore(self._most_at_once)

    def fetch(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        """The verified bytes of all of these; Corrupt, naming the block, if one is gone or damaged."""
        found = self._cache.get_many(self._tenant, blocks)
        missing = [block for block in blocks if block not in found]
        if missing:
            fresh = self.read_uncached(missing)
            self._cache.put_many(self._tenant, fresh)
            found.update(fresh)
        return found

    def audit(
        self, blocks: Sequence[BlockId], uploads: set[UploadId] | None = None, promises: Promises | None = None
    ) -> tuple[dict[BlockId, Block], list[str]]:
        """Those that are whole, as `read_uncached`, and what is wrong with each of the others, and with what links say
        of them, among all that were audited with the same `promises`.

        With `uploads`, those that were looked at before, also whether the uploads that they lie in are told of rightly.
        """
        read, failed = self._read_each(blocks, AnalemmaError)
        problems = [str(error) for error in failed.values()]
        rows = self._catalog.read_blocks(self._tenant, list(read)) if read else {}
        promises = promises or Promises()
        found: dict[BlockId, Block] = {}
        for block, data in read.items():
            links: Sequence[BlockId] = ()
            try:
                links = promises.check(block, data)  # guard: block.links
            except Corrupt as exc:
                problems.append(str(exc) if "block" in exc.facts else f"block {block.hex()}: {exc}")
                with suppress(Corrupt):
                    links = block_links(data)
            row = rows.get(block)
            if row is not None and (row.links is None) != (not links):
                problems.append(f"block {block.hex()} has a row that is wrong about its links")
            found[block] = Block(block, data, tuple(links))
        if uploads is not None:
            for row in rows.values():
                if row.upload is not None and row.upload not in uploads:
                    uploads.add(row.upload)
                    problems += self._audit_upload(row.upload, row.id)
        return found, problems

    def _audit_upload(self, upload: UploadId, block: BlockId) -> list[str]:
        """What is wrong with the upload in which this block lies: by its row alone the collector would let it go."""
        known = self._catalog.upload(self._tenant, upload)
        key = pack_key(upload)
        info = None if self._objects is None else self._objects.head(key)
        if known is None:
            problem = "has no row"
        elif known.state != "ready":
            problem = f"is {known.state} instead of ready"
        elif known.object_key != key:
            problem = f"names another object, {known.object_key}"
        elif info is not None and info.size != known.size:
            problem = f"has an object of {info.size} bytes instead of {known.size}"
        else:
            return []
        # Packing moves blocks, and what they leave is collected: only what is still there contradicts its upload.
        row = self._catalog.read_blocks(self._tenant, [block]).get(block)
        if row is None or row.upload != upload:
            return []
        return [f"upload {upload.hex()}, in which block {block.hex()} lies, {problem}"]

    def unsound(self, blocks: Sequence[BlockId]) -> tuple[set[BlockId], set[BlockId]]:
        """Those that are stored and are not what their names say, and those that are not stored at all; the store
        itself is read. One that cannot be reached now is neither: that is raised."""
        failed = self._read_each(blocks, Corrupt)[1]
        stored = self._catalog.read_blocks(self._tenant, list(failed)).keys() if failed else set()
        return failed.keys() & stored, failed.keys() - stored

    def _read_each(
        self, blocks: Sequence[BlockId], told: type[AnalemmaError]
    ) -> tuple[dict[BlockId, bytes], dict[BlockId, AnalemmaError]]:
        """The bytes of those that can be read, and what happens with each of the others, if that is to be told."""
        try:
            return self.read_uncached(blocks), {}
        except told as exc:
            if len(blocks) == 1:
                return {}, {blocks[0]: exc}
        middle = len(blocks) // 2
        found, failed = self._read_each(blocks[:middle], told)
        more, worse = self._read_each(blocks[middle:], told)
        return found | more, failed | worse

    def remember(self, blocks: Iterable[Block]) -> None:
        """Keep blocks that were just committed near: the next change starts from them."""
        self._cache.put_many(self._tenant, {block.id: block.data for block in blocks})

    def give_up(self, uploads: Sequence[UploadId], error: Exception) -> None:
        """Have uploads collected whose commit failed. They would be found without this, a day later; so if it does not
        work, that is nothing to tell the caller, who has an error already."""
        if uploads:
            with suppress(AnalemmaError):
                self._catalog.claim_failed(self._tenant, [(each, pack_key(each)) for each in uploads], str(error))

    def prepare(
        self,
        blocks: Sequence[Block],
        key: BranchKey,
        execution: str | None,
        carried: Carried | None = None,
        *,
        read_back: bool = False,
    ) -> PreparedBlocks:
        """Compress the blocks; put them inline, or into one uploaded pack when they are many or large.

        Their ids are checked here, unless the caller will `read_back` all of them before anything counts on them."""
        carried = carried or Carried()
        known = carried.rows
        again = [known[block.id] for block in blocks if block.id in known] if known else []
        new = [block for block in blocks if block.id not in known] if known else blocks
        rows, total = inline_rows(new, read_back=read_back)
        if self._objects is not None and total > self._pack_threshold_bytes:
            rows = self._pack(rows, key, execution, carried)
        return PreparedBlocks((*again, *rows), tuple(carried.uploads))

    def _pack(self, rows: list[BlockRow], key: BranchKey, execution: str | None, carried: Carried) -> list[BlockRow]:
        # What is stored already would only lie dead in the pack. It stays in the commit all the same, inline: the
        # commit alone can tell whether the stored row is still there.
        present = self._catalog.read_blocks(self._tenant, [row.id for row in rows])
        packed = [row for row in rows if row.id not in present]
        if sum([len(row.body or b"") for row in packed]) <= self._pack_threshold_bytes:
            return rows
        pack = build_pack((row.id, row.codec, row.body or b"", row.size) for row in packed)
        upload = self.store_pack(pack, key, execution)
        carried.uploads.append(upload)
        for row, entry in zip(packed, pack.entries, strict=True):
            carried.rows[row.id] = row._replace(body=None, upload=upload, offset=entry.offset, length=entry.length)
        return [carried.rows.get(row.id, row) for row in rows]

    def store_pack(self, pack: Pack, key: BranchKey | None = None, execution: str | None = None) -> UploadId:
        """Record the intent, and put a pack into the object store, durably; of which workflow it is said to be. It
        counts for nothing until a commit finishes its upload.

        If this raises or the process dies, the state is the old one and the intent, if recorded, names what the
        collector must look for."""
        assert self._objects is not None
        upload = UploadId(self._entropy.random_bytes(16))
        name, now_us = pack_key(upload), self._clock.now_us()
        owner, workflow = (None, None) if key is None else (key.owner, key.workflow)
        metadata = object_metadata(pack, workflow_id=workflow, execution_id=execution, created_at_us=now_us)
        intent = Upload(upload, "temp", name, len(pack.data), now_us, owner, workflow, execution)
        try:
            hit(BEFORE_INTENT)
            # Intent first: bytes without an intent could only be found again by listing the store.
            self._catalog.open_upload(self._tenant, intent)
            hit(AFTER_INTENT)
            try:
                self._objects.put(name, pack.data, metadata=metadata, if_absent=True)
            except OutcomeUnknown as exc:
                # Whether the object is there does not matter: without its commit it counts for nothing, and the intent
                # names it.
                raise Unavailable(exc.message, hint="the save changed nothing; try again", **exc.facts) from exc
            info = self._objects.head(name)
            if info is None or info.size != len(pack.data):
                found = "nothing" if info is None else f"{info.size} bytes"
                raise Corrupt(
                    f"object {name} was stored but reads back as {found} instead of {len(pack.data)} bytes",
                    hint="check the object store; the save changed nothing",
                    key=name,
                )
            hit(AFTER_OBJECT)
        except AnalemmaError as exc:
            self.give_up([upload], exc)
            raise
        return upload

    def read_uncached(self, blocks: Sequence[BlockId]) -> dict[BlockId, bytes]:
        """As `fetch`, from the store itself: what a verifier must ask."""
        found: dict[BlockId, bytes] = {}
        # Packing moves blocks between rows and objects; one that is not where its row said is looked up once more.
        for _ in range(2):
            missing = [block for block in blocks if block not in found]
            if not missing:
                break
            rows = self._catalog.read_blocks(self._tenant, missing)
            packs: dict[UploadId, list[BlockRow]] = {}
            inline: list[BlockRow] = []
            for row in rows.values():
                if row.body is not None:
                    inline.append(row)
                elif row.upload is not None:
                    packs.setdefault(row.upload, []).append(row)
            found |= decode_blocks(inline)
            found |= self._read_packs(packs)
        for block in blocks:
            if block not in found:
                raise Corrupt(
                    f"block {block.hex()} is missing from the store",
                    hint="run verify, and restore it from a second copy",
                    block=block.hex(),
                    missing=True,
                )
        return found

    def _read_packs(self, packs: Mapping[UploadId, Sequence[BlockRow]]) -> dict[BlockId, bytes]:
        """What lies in these packs; several are read at a time, since each read waits for an answer of its own."""
        if len(packs) < 2:
            return dict(chain.from_iterable(self._read_pack(*pack).items() for pack in packs.items()))
        from concurrent.futures import ThreadPoolExecutor  # Takes a while to load, and most programs never come here.

        most = min(len(packs), self._most_at_once)
        with ThreadPoolExecutor(most, thread_name_prefix="analemma-packs") as executor:
            read = executor.map(self._read_pack, packs.keys(), packs.values())
            return dict(chain.from_iterable(part.items() for part in read))

    def _read_pack(self, upload: UploadId, rows: Sequence[BlockRow]) -> dict[BlockId, bytes]:
        if self._objects is None:
            raise Invalid(
                f"block {rows[0].id.hex()} lies in an object, but this store was opened without an object store",
                hint="open it again, with the objects that it has by now",
                block=rows[0].id.hex(),
            )
        try:
            # Whoever else reads in several threads has this many between them.
            with self._turns:
                brought = with_bytes(self._objects, upload, rows)
        except NotFound:
            return {}
        return decode_blocks(brought)


def with_bytes(objects: ObjectStore, upload: UploadId, rows: Sequence[BlockRow]) -> list[BlockRow]:
    """These rows of one pack, each with its bytes as stored, not checked yet."""
    entries = [PackEntry(row.id, row.codec, row.offset or 0, row.length or 0, row.size) for row in rows]
    stored = read_entries(objects, pack_key(upload), entries)
    return [row._replace(body=stored[row.id]) for row in rows]


def inline_rows(blocks: Iterable[Block], *, read_back: bool = False) -> tuple[list[BlockRow], int]:
    """Rows with their bytes, and how many bytes these are; with `read_back`, somebody else compares them with their
    names."""
    rows: list[BlockRow] = []
    total = 0
    for block, data, links in {block.id: block for block in blocks}.values():
        if len(data) > MAX_BLOCK_BYTES:
            # Every reader would take it for damage, and a collector would stop at it.
            raise Limit(
                f"a block of {len(data)} bytes, and the largest may have {MAX_BLOCK_BYTES}",
                hint="store it in several",
                bytes=len(data),
            )
        codec, body = compress(data if read_back else verify_block(block, data), linked=bool(links))
        total += len(body)
        linked = READ_FROM_BODY if links else None
        # Not BlockRow(...): that takes longer than all else here but hashing and compressing.
        rows.append(_new_tuple(BlockRow, (block, len(data), codec, body, None, None, None, linked)))
    return rows, total


class _Codecs(threading.local):
    """zstandard's objects hold large tables and are not thread-safe: one pair per thread, made once."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True, write_checksum=False)
        self.decompressor = zstandard.ZstdDecompressor()


_codecs = _Codecs()


def compress(data: bytes, *, linked: bool = False) -> tuple[int, bytes]:
    """The codec and the bytes to store; raw when zstd does not save at least 5 %, or cannot be expected to: `linked`
    says that the block links to others."""
    if len(data) < (_SMALLEST_WITH_LINKS if linked else _SMALLEST_WORTH_TRYING):
        return RAW, data
    frame = _codecs.compressor.compress(data)
    if len(frame) > len(data) * _LARGEST_RATIO:
        return RAW, data
    return ZSTD, frame + crc32(frame).to_bytes(CRC_BYTES, "big")


def decompress(codec: int, stored: bytes, size: int) -> bytes:
    """The `size` canonical bytes that were stored, never more: anything else is Corrupt."""
    if not 0 <= size <= MAX_BLOCK_BYTES:
        raise Corrupt(f"a block claims {size} bytes, and none is that large")
    if codec == RAW:
        data = stored
    elif codec == ZSTD:
        data = _inflate(stored, size)
    else:
        raise Corrupt(f"codec {codec} is unknown", hint="the store may come from a newer Analemma", codec=codec)
    if len(data) != size:
        raise Corrupt(f"a block holds {len(data)} bytes instead of {size}")
    return data


def decode_blocks(rows: Iterable[BlockRow]) -> dict[BlockId, bytes]:
    """The canonical bytes of many blocks, whose rows have them as stored."""
    return {block: decode_block(block, codec, body or b"", size) for block, size, codec, body, _, _, _, _ in rows}


def decode_block(block: BlockId, codec: int, stored: bytes, size: int) -> bytes:
    """The block's canonical bytes, decompressed and checked against its id; Corrupt names the block."""
    try:
        data = decompress(codec, stored, size)
    except Corrupt as exc:
        raise Corrupt(f"block {block.hex()}: {exc.message}", hint=exc.hint, block=block.hex()) from exc
    return verify_block(block, data)


def _inflate(stored: bytes, size: int) -> bytes:
    frame = stored[:-CRC_BYTES]
    if crc32(frame).to_bytes(CRC_BYTES, "big") != stored[-CRC_BYTES:]:
        raise Corrupt("its stored bytes do not match their CRC", hint="restore it from a second copy")
    try:
        # The frame's own claim is checked first: zstandard allocates what the frame says and ignores our bound.
        if zstandard.frame_content_size(frame) != size:
            raise Corrupt("a zstd frame states another size than its row")
        return _codecs.decompressor.decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise Corrupt(f"not a zstd frame: {exc}", hint="restore it from a second copy") from exc
