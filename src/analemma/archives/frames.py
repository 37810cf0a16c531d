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
_QUICK_LEVEL = 1
_SAMPLED_LEVELS = range(2, 4)
"""Whoever asks for more than the usual level wants few bytes, whatever that takes."""
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_WORTH_TRYING = 0.98
"""The usual level takes twice as long as the quickest. A frame gets it if that makes its sample so much smaller."""


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
    """Where a stream goes that is made of small and large pieces. What is full comes out of `put` and `advance`, and
    belongs to somebody else from then on."""

    def __init__(self, free: queue.SimpleQueue[Frame]) -> None:
        self.size = 0
        self._free = free
        self._frame: Frame | None = None

    def room(self) -> memoryview:
        """Where the next bytes belong; never empty. Waits until a frame is free."""
        if self._frame is None:
            self._frame = self._free.get()
        return self._frame.room()

    def advance(self, count: int) -> Frame | None:
        """So many bytes were put there: the frame, if it is full by now."""
        frame = self._frame
        assert frame is not None
        self.size += count
        frame.used += count
        if frame.used < FRAME_BYTES:
            return None
        self._frame = None
        return frame

    def put(self, data: bytes) -> Iterator[Frame]:
        """Add some bytes."""
        offset = 0
        while offset < len(data):
            room = self.room()
            count = min(len(room), len(data) - offset)
            room[:count] = data[offset : offset + count]
            full = self.advance(count)
            if full is not None:
                yield full
            offset += count

    def rest(self) -> Iterator[Frame]:
        """What was begun last."""
        if self._frame is not None and self._frame.used:
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
            kept.compressor = _Compressor(level)
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


class _Compressor:
    """One thread's. What hardly shrinks, as pictures and archives do, is not tried hard."""

    def __init__(self, level: int) -> None:
        self._usual = zstandard.ZstdCompressor(level=level, write_checksum=True)
        self._quick = zstandard.ZstdCompressor(level=_QUICK_LEVEL, write_checksum=True)
        self._samples = level in _SAMPLED_LEVELS

    def compress(self, data: memoryview) -> bytes:
        """One frame."""
        worth_trying = not self._samples or self._is_worth_trying(data)
        return (self._usual if worth_trying else self._quick).compress(data)

    def _is_worth_trying(self, data: memoryview) -> bool:
        step = len(data) // _SAMPLES
        if step < _SAMPLE_BYTES:
            return True
        sample = b"".join([data[start : start + _SAMPLE_BYTES] for start in range(0, step * _SAMPLES, step)])
        quick = len(self._quick.compress(sample))
        return quick < len(sample) and len(self._usual.compress(sample)) < quick * _WORTH_TRYING


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
