"""The stream of an archive as zstd frames, compressed side by side: pieces of some megabytes, each a frame of its own.
One after the other they are what `zstd -d` reads as one file."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import zstandard

from analemma.archives.pipelines import read_ahead

FRAME_BYTES = 2 << 20
"""The window of the usual level: larger ones leave a processor's cache and are slower, smaller ones compress worse."""
STATE_BYTES = 32 << 20
"""How far apart the states of the checksum are kept."""
MOST_THREADS = 4
_FRAMES_AHEAD = 8


@dataclass(slots=True)
class Written:
    """What went into the object, known when its stream has ended."""

    size: int = 0
    sha256: str = ""
    tar_size: int = 0
    states: list[tuple[int, Any]] = field(default_factory=list)
    """Some offsets, and the checksum of all that lies before each: by these, parts of the object can be checked side by
    side, and all of them together are the checksum of the whole."""


class Frame:
    """Room for one piece, to be filled from the front."""

    def __init__(self) -> None:
        self._view = memoryview(bytearray(FRAME_BYTES))
        self.used = 0

    def room(self) -> memoryview:
        """What is left of it."""
        return self._view[self.used :]

    def data(self) -> memoryview:
        """What is in it."""
        return self._view[: self.used]


class Fill(Protocol):
    """Makes a stream: fills a frame after the other, and hands each over when it is full."""

    def __call__(self, frames: FrameWriter, /) -> Iterator[Frame]: ...


class FrameWriter:
    """Where a stream goes that is made of small and large pieces. What is full comes out of `put` and `advance`."""

    def __init__(self, free: queue.SimpleQueue[Frame]) -> None:
        self.size = 0
        self._free = free
        self._frame = free.get()

    def room(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        return self._frame.room()

    def advance(self, count: int) -> Iterator[Frame]:
        """So many bytes were put there."""
        self.size += count
        self._frame.used += count
        if self._frame.used == FRAME_BYTES:
            yield self._frame
            self._frame = self._free.get()

    def put(self, data: bytes) -> Iterator[Frame]:
        """Add some bytes."""
        offset = 0
        while offset < len(data):
            room = self.room()
            count = min(len(room), len(data) - offset)
            room[:count] = data[offset : offset + count]
            yield from self.advance(count)
            offset += count

    def rest(self) -> Iterator[Frame]:
        """What was begun last."""
        if self._frame.used:
            yield self._frame


def compressed(fill: Fill, written: Written, level: int) -> Generator[bytes]:
    """The stream that `fill` makes, compressed. Reading, compressing and checksum each have a thread."""
    threads = min(os.cpu_count() or 1, MOST_THREADS)
    free: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    for _ in range(threads + 4):
        free.put(Frame())
    kept = threading.local()

    def compress(frame: Frame) -> bytes:
        if not hasattr(kept, "compressor"):
            kept.compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
        try:
            data: bytes = kept.compressor.compress(frame.data())
        finally:
            frame.used = 0
            free.put(frame)
        return data

    with ThreadPoolExecutor(threads, "archive-compress") as workers:

        def submitted() -> Generator[Future[bytes]]:
            frames = FrameWriter(free)
            for frame in fill(frames):
                yield workers.submit(compress, frame)
            written.tar_size = frames.size

        with closing(read_ahead(submitted(), _FRAMES_AHEAD)) as pieces:
            yield from _hashed((piece.result() for piece in pieces), written)


def _hashed(pieces: Iterator[bytes], written: Written) -> Iterator[bytes]:
    stored = hashlib.sha256()
    written.states.append((0, stored.copy()))
    for piece in pieces:
        stored.update(piece)
        written.size += len(piece)
        if written.size - written.states[-1][0] >= STATE_BYTES:
            written.states.append((written.size, stored.copy()))
        yield piece
    written.sha256 = stored.hexdigest()
    if written.states[-1][0] != written.size:
        written.states.append((written.size, stored))
