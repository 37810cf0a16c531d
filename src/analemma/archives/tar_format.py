"""Format 1: one compressed tar, streamed from the volume to the object store and back, with no copy in between."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, cast

import zstandard

from analemma.archives.entries import Entry, data_length
from analemma.archives.extracting import Extractor
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
MOST_THREADS = 4
LARGEST_WINDOW = 128 << 20
"""Memory that decompressing may take, whatever the stream asks for."""


@dataclass(slots=True)
class Written:
    """What went into the object, known when its stream has ended."""

    size: int = 0
    sha256: str = ""
    tar_size: int = 0
    tar_sha256: str = ""


def write_tar(
    objects: ObjectStore, key: str, walk: Walk, job: Job, *, level: int, outside_links: OutsideLinks
) -> Written:
    """Stream a volume into one object. If anything goes wrong, nothing appears under the key."""
    written = Written()
    with (
        closing(read_ahead(_tar(walk, job, outside_links, written))) as pieces,
        closing(_compressed(pieces, written, level)) as stream,
    ):
        objects.put_stream(key, stream)
    return written


def verify_object(objects: ObjectStore, key: str, *, size: int | None, sha256: str | None, job: Job) -> None:
    """Read the object back: DataLost unless it is what was written."""
    job.begin("verifying", size)
    info = objects.head(key)
    if info is None:
        raise not_found(key)
    if size is not None and info.size != size:
        raise damaged(f"archive {key} has {info.size} bytes instead of {size}")
    if sha256 is not None:
        reader = _Chunks(objects, key, job)
        while reader.read(BUFFER_BYTES):
            pass
        reader.check(size, sha256)


def read_tar(objects: ObjectStore, key: str, meta: Meta, extractor: Extractor, job: Job) -> None:
    """Extract an archive; DataLost unless every byte of it is what was written, and as many files as there were."""
    job.begin("writing", meta.size)
    source = _Chunks(objects, key, job)
    try:
        with closing(read_ahead(_decompressed(source, meta))) as pieces:
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
        with closing(read_ahead(_decompressed(_Chunks(objects, key, job), meta))) as pieces:
            for _ in TarReader(PieceReader(pieces).read):
                job.advance(files=1)
    except (zlib.error, EOFError, gzip.BadGzipFile) as exc:
        raise truncated("it cannot be decompressed") from exc


def _tar(walk: Walk, job: Job, outside_links: OutsideLinks, written: Written) -> Generator[bytes]:
    """The tar, hashed."""
    plain = hashlib.sha256()
    for piece in _tar_pieces(walk, job, outside_links):
        plain.update(piece)
        written.tar_size += len(piece)
        yield piece
    written.tar_sha256 = plain.hexdigest()


def _tar_pieces(walk: Walk, job: Job, outside_links: OutsideLinks) -> Iterator[bytes]:
    """Pieces of about a megabyte: fewer, larger steps for what comes after."""
    buffer = bytearray()
    root: Entry | None = None
    for found in walk:
        entry = found.entry
        root = root or entry
        if entry.kind == "symlink":
            check_archived_link(entry, outside_links)
        buffer += entry_header(entry)
        if entry.kind == "file":
            for chunk in found.read():
                job.advance(bytes=len(chunk))
                if len(chunk) == BUFFER_BYTES:
                    yield bytes(buffer)
                    yield chunk
                    buffer.clear()
                else:
                    buffer += chunk
            buffer += padding(data_length(entry))
        job.advance(files=1)
        if len(buffer) >= BUFFER_BYTES:
            yield bytes(buffer)
            buffer.clear()
    assert root is not None
    buffer += end_of_archive(walk.totals, root)
    yield bytes(buffer)


def _compressed(pieces: Iterator[bytes], written: Written, level: int) -> Generator[bytes]:
    # One processor reads and hashes; threads of zstd's own cost a third more in all, and pay off from the third on.
    spare = min((os.cpu_count() or 1) - 1, MOST_THREADS)
    threads = spare if spare > 1 else 0
    compressor = zstandard.ZstdCompressor(level=level, threads=threads, write_checksum=True).compressobj()
    stored = hashlib.sha256()
    for piece in pieces:
        if data := compressor.compress(piece):
            stored.update(data)
            written.size += len(data)
            yield data
    data = compressor.flush()
    stored.update(data)
    written.size += len(data)
    written.sha256 = stored.hexdigest()
    yield data


class _Chunks(io.RawIOBase):
    """An object as a file that is read once, hashed on the way."""

    def __init__(self, objects: ObjectStore, key: str, job: Job) -> None:
        super().__init__()
        self._key = key
        self._job = job
        self._source = objects.open_read(key)
        self._held = memoryview(b"")
        self._hash = hashlib.sha256()
        self._size = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while not self._held:
            try:
                chunk = next(self._source, None)
            except NotFound:
                raise not_found(self._key) from None
            except Corrupt as exc:
                raise damaged(exc.message) from exc
            if chunk is None:
                return b""
            self._hash.update(chunk)
            self._size += len(chunk)
            self._job.advance(bytes=len(chunk))
            self._held = memoryview(chunk)
        taken = self._held if size < 0 else self._held[:size]
        self._held = self._held[len(taken) :]
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
        read = decompressor.stream_reader(cast("IO[bytes]", source), read_size=BUFFER_BYTES).read
    while piece := read(BUFFER_BYTES):
        yield piece
    source.drain()
