"""Reading ahead: what makes the pieces of a stream runs in a thread of its own, while whoever uses them does. Hashing,
compression and files all let go of the interpreter, so the two really run at the same time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from typing import TypeVar

PIECES_AHEAD = 8
_PATIENCE_S = 0.1

Piece = TypeVar("Piece")


def read_ahead(source: Generator[Piece], pieces: int = PIECES_AHEAD) -> Generator[Piece]:
    """The same pieces, and the same exception at the same place. Closing it stops and closes the source."""
    waiting: queue.Queue[Piece | BaseException | None] = queue.Queue(pieces)
    stopped = threading.Event()

    def offer(item: Piece | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=_PATIENCE_S)
                return
            except queue.Full:
                pass

    def fill() -> None:
        try:
            for piece in source:
                offer(piece)
                if stopped.is_set():
                    break
            offer(None)
        except BaseException as exc:
            offer(exc)
        finally:
            source.close()

    filling = threading.Thread(target=fill, name="archive-read-ahead", daemon=True)
    filling.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        filling.join()


class PieceReader:
    """Pieces as a file to read from."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""
        self._offset = 0

    def read(self, size: int) -> bytes:
        """At most so many bytes, and none at the end."""
        while self._offset >= len(self._held):
            held = next(self._pieces, None)
            if held is None:
                return b""
            self._held, self._offset = held, 0
        start = self._offset
        self._offset = start + size
        if start == 0 and size >= len(self._held):
            return self._held
        return self._held[start : start + size]
