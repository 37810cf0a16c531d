"""Format 1: one compressed tar, streamed from the volume to the object store and back, with no copy in between."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import IO, Any, cast

import zstandard

from analemma.archives.entries import Entry, data_length
from analemma.archives.extracting import Extractor
from analemma.archives.frames import MOST_THREADS, Frame, FrameWriter, Written, compressed
from analemma.archives.jobs import Job
from analemma.archives.links import OutsideLinks, check_archived_link
from analemma.archives.metas import FOREIGN_TAR_GZ, Meta, damaged, not_found
from analemma.archives.pipelines import PieceReader, read_ahead
from analemma.archives.tar_reading import TarReader, truncated
from analemma.archives.tar_writing import end_of_archive, entry_header, padding
from analemma.archives.walking import Walk
from analemma.blocks.port import ObjectStore
from analemma.errors import Corrupt, NotFound

BUFFER_BYTES = 1 << 20
RANGE_BYTES = 8 << 20
"""What is read back is asked for so many bytes at a time."""
LARGEST_WINDOW = 128 << 20
"""Memory that decompressing may take, whatever the stream asks for."""


def write_tar(
    objects: ObjectStore, key: str, walk: Walk, job: Job, *, level: int, outside_links: OutsideLinks
) -> Written:
    """Stream a volume into one object. If anything goes wrong, nothing appears under the key."""
    written = Written()
    with closing(compressed(partial(_tar, walk, job, outside_links), written, level)) as stream:
        objects.put_stream(key, stream)
    return written


def verify_written(objects: ObjectStore, key: str, written: Written, job: Job) -> None:
    """Read back what was just written: DataLost unless every byte is the same. Part by part, so that several
    processors and connections do it together: each part goes on from the checksum of what comes before it, and must
    arrive at the checksum of what ends with it."""
    job.begin("verifying", written.size)
    check_size(objects, key, written.size)

    def check(part: tuple[tuple[int, Any], tuple[int, Any]]) -> None:
        (start, before), (end, after) = part
        found = before.copy()
        try:
            for offset in range(start, end, RANGE_BYTES):
                data = objects.get_range(key, offset, min(RANGE_BYTES, end - offset))
                found.update(data)
                job.advance(bytes=len(data))
        except NotFound:
            raise not_found(key) from None
        except Corrupt as exc:
            raise damaged(exc.message) from exc
        if found.digest() != after.digest():
            raise damaged(f"archive {key} does not match its SHA-256")

    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_THREADS), "archive-verify") as workers:
        running = [workers.submit(check, part) for part in pairwise(written.states)]
        try:
            for each in running:
                each.result()
        finally:
            workers.shutdown(cancel_futures=True)


def verify_object(objects: ObjectStore, key: str, *, size: int | None, sha256: str | None, job: Job) -> None:
    """Read the object back: DataLost unless it is what was written."""
    job.begin("verifying", size)
    check_size(objects, key, size)
    if sha256 is not None:
        with closing(_Chunks(objects, key, job)) as source:
            source.drain()
        source.check(size, sha256)


def check_size(objects: ObjectStore, key: str, size: int | None) -> None:
    """DataLost unless there is an object of this size."""
    info = objects.head(key)
    if info is None:
        raise not_found(key)
    if size is not None and info.size != size:
        raise damaged(f"archive {key} has {info.size} bytes instead of {size}")


def read_tar(objects: ObjectStore, key: str, meta: Meta, extractor: Extractor, job: Job) -> None:
    """Extract an archive; DataLost unless every byte of it is what was written, and as many files as there were."""
    job.begin("writing", meta.size)
    try:
        with (
            closing(_Chunks(objects, key, job)) as source,
            closing(read_ahead(_decompressed(source, meta))) as pieces,
        ):
            reader = TarReader(PieceReader(pieces).read)
            for member in reader:
                extractor.add(member.entry, reader.data() if member.stored else ())
                job.advance(files=1)
    except (zstandard.ZstdError, zlib.error, EOFError, gzip.BadGzipFile) as exc:
        raise truncated("it cannot be decompressed") from exc
    source.check(meta.size, meta.sha256)
    counts = extractor.totals.counts()
    if meta.format != FOREIGN_TAR_GZ and reader.end is None:
        raise truncated("it has no end")
    for expected in (reader.end, meta.counts or None):
        if expected is not None and expected != counts:
            raise truncated(f"it holds {counts}, and was made of {expected}")


def check_foreign_tar(objects: ObjectStore, key: str, meta: Meta, job: Job) -> None:
    """Read an archive of another program to its end: all that can be done where its marker gives no checksum."""
    job.begin("verifying", meta.size)
    try:
        with (
            closing(_Chunks(objects, key, job)) as source,
            closing(read_ahead(_decompressed(source, meta))) as pieces,
        ):
            for _ in TarReader(PieceReader(pieces).read):
                job.advance(files=1)
    except (zlib.error, EOFError, gzip.BadGzipFile) as exc:
        raise truncated("it cannot be decompressed") from exc


def _tar(walk: Walk, job: Job, outside_links: OutsideLinks, frames: FrameWriter) -> Iterator[Frame]:
    root: Entry | None = None
    gap = b""
    for found in walk:
        entry = found.entry
        root = root or entry
        if entry.kind == "symlink":
            check_archived_link(entry, outside_links)
        yield from frames.put(gap + entry_header(entry))
        gap = b""
        untold = 0
        if entry.kind == "file":
            for count in found.read_into(frames.room):
                full = frames.advance(count)
                if full is not None:
                    yield full
                    job.advance(bytes=untold)
                    untold = 0
                untold += count
            gap = padding(data_length(entry))
        job.advance(bytes=untold, files=1)
    assert root is not None
    yield from frames.put(gap + end_of_archive(walk.totals, root))
    yield from frames.rest()


class _Chunks(io.RawIOBase):
    """An object as a file that is read once, hashed on the way by a thread of its own."""

    def __init__(self, objects: ObjectStore, key: str, job: Job) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._job = job
        self._source = read_ahead(self._hashed())
        self._held: bytes | memoryview = b""
        self._hash = hashlib.sha256()
        self._size = 0

    def close(self) -> None:
        """Stop reading."""
        self._source.close()
        super().close()

    def _hashed(self) -> Generator[bytes]:
        try:
            for chunk in self._objects.open_read(self._key):
                self._hash.update(chunk)
                self._size += len(chunk)
                self._job.advance(bytes=len(chunk))
                yield chunk
        except NotFound:
            raise not_found(self._key) from None
        except Corrupt as exc:
            raise damaged(exc.message) from exc

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._held:
            chunk = next(self._source, None)
            if chunk is None:
                return b""
            self._held = chunk
        held = self._held
        if type(held) is bytes and (size < 0 or size >= len(held)):
            self._held = b""
            return held  # All of it, and so without a copy.
        view = memoryview(held)
        taken = view if size < 0 else view[:size]
        self._held = view[len(taken) :]
        return bytes(taken)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Read what the decompressor left: all of the object goes through the checksum."""
        while self.read(BUFFER_BYTES):
            pass

    def check(self, size: int | None, sha256: str | None) -> None:
        """DataLost unless all that was read is this."""
        if size is not None and self._size != size:
            raise damaged(f"archive {self._key} has {self._size} bytes instead of {size}")
        if sha256 is not None and self._hash.hexdigest() != sha256:
            raise damaged(f"archive {self._key} does not match its SHA-256")


def _decompressed(source: _Chunks, meta: Meta) -> Generator[bytes]:
    read: Callable[[int], bytes]
    if meta.format == FOREIGN_TAR_GZ:
        read = gzip.GzipFile(fileobj=io.BufferedReader(source, BUFFER_BYTES)).read
    else:
        decompressor = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW)
        read = decompressor.stream_reader(
            cast("IO[bytes]", source), read_size=BUFFER_BYTES, read_across_frames=True
        ).read
    while piece := read(BUFFER_BYTES):
        yield piece
    source.drain()
