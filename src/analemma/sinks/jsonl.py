"""A sink that appends lines of JSON to files: `{"docId", "shipSeq", "op", "body"}`, flushed to disk once per batch.

The files are logs: they hold every state that was shipped, in the order of shipping. `snapshot.read_snapshot` folds
one to the newest state of each document."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Final, Self

import orjson
from pydantic import Field

from analemma import failpoints
from analemma.clock import Clock
from analemma.errors import Invalid, Timeout
from analemma.sinks.batching import BatchingSink, Parcel
from analemma.sinks.port import SHIPPED, Health, Shipped, SinkDocument, retry
from analemma.sinks.settings import Route, SinkContext, SinkSettings, TemplateText, TimeoutS

WRITTEN: Final = failpoints.declare("jsonl.after_write", "lines are in the file and not yet flushed")
FLUSHED: Final = failpoints.declare("jsonl.after_flush", "lines are flushed, but the caller does not know")

LINE_BEGINS: Final = b'{"docId":'
_TAIL_BYTES: Final = 1 << 16
_MOST_OPEN_FILES: Final = 64
_PAUSE_S: Final = 0.002


class JsonlSettings(SinkSettings):
    """Settings of JSONL sinks."""

    path: TemplateText = Field(description="The file. Relative paths begin at `ship_base`.")
    lock_timeout_s: TimeoutS = Field(30, description="How long to wait for another process that writes to the file.")


class JsonlSink(BatchingSink):
    """Appends to one file, or to one per tenant or entity type."""

    settings_class = JsonlSettings

    def __init__(self, settings: JsonlSettings, context: SinkContext) -> None:
        super().__init__()
        self._route = Route(settings.path)
        self._base = context.base
        self._clock = context.clock
        self._lock_timeout_s = settings.lock_timeout_s
        self._lock = threading.Lock()
        self._files: dict[Path, LineFile] = {}

    @classmethod
    def open(cls, settings: JsonlSettings, context: SinkContext) -> Self:
        return cls(settings, context)

    def refuse(self, parcel: Parcel) -> str | None:
        return self._route.why_not(parcel.document)

    def fits(self, parcels: Sequence[Parcel]) -> bool:
        return self._route.is_one_place or super().fits(parcels)

    def identity(self, document: SinkDocument) -> Hashable:
        return self._route.identity(document)

    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        if self._route.is_one_place:
            lines = make_lines(parcels)
            with self._lock:
                return [self._append(self._base / self._route.template.text, lines)] * len(parcels)
        by_place: dict[str, list[int]] = {}
        for position, parcel in enumerate(parcels):
            by_place.setdefault(self._route.place(parcel.document), []).append(position)
        answers: list[Shipped] = [SHIPPED] * len(parcels)
        with self._lock:
            for place, positions in by_place.items():
                lines = make_lines([parcels[position] for position in positions])
                answer = self._append(self._base / place, lines)
                for position in positions:
                    answers[position] = answer
        return answers

    def check_health(self) -> Health:
        """Whether the folder of the files can be written to; the folder that would be made is not."""
        placeholders = self._route.template.placeholders
        path = self._base / self._route.template.render(dict.fromkeys(placeholders, "x"))
        folder = next(each for each in path.parents if each.exists())
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            return Health(False, f"{folder} is no folder that can be written to")
        if not placeholders and path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            return Health(False, f"{path} is no file that can be written to")
        return Health(True, f"{folder} can be written to")

    def release(self) -> None:
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def _append(self, path: Path, lines: bytes) -> Shipped:
        # Back at the end: the file that was not used for longest stands first.
        file = self._files.pop(path) if path in self._files else LineFile(path, self._clock)
        self._files[path] = file
        while len(self._files) > _MOST_OPEN_FILES:
            self._files.pop(next(iter(self._files))).close()
        try:
            file.append(lines, self._lock_timeout_s)
        except (Invalid, Timeout) as exc:
            return retry(exc.message, is_down=True)
        except OSError as exc:
            return retry(f"{path}: {exc.strerror or exc}", is_down=True)
        return SHIPPED


class LineFile:
    """A file that ends with a whole line whenever its lock is free, or is made to before anything is appended."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._descriptor = -1

    def append(self, lines: bytes, lock_timeout_s: float) -> None:
        """Add whole lines, and flush them. OSError: nobody knows whether they are there; no part of one stays."""
        try:
            with self._locked(lock_timeout_s) as descriptor:
                end = repair_tail(descriptor, str(self.path))
                try:
                    _write_all(descriptor, lines)
                    failpoints.hit(WRITTEN)
                    os.fsync(descriptor)
                except OSError:
                    # The disk is full, or fails: whatever got there of the lines goes. If that fails too, the next
                    # writer finds a torn line and repairs it.
                    with contextlib.suppress(OSError):
                        os.ftruncate(descriptor, end)
                    raise
        except BaseException:
            # Also gives back the lock, wherever it failed.
            self.close()
            raise
        failpoints.hit(FLUSHED)

    def close(self) -> None:
        """Give back the descriptor; it is opened again when it is needed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextlib.contextmanager
    def _locked(self, timeout_s: float) -> Iterator[int]:
        deadline = self._clock.monotonic() + timeout_s
        while True:
            if self._descriptor < 0:
                self._descriptor = _open_for_appending(self.path)
            descriptor = self._descriptor
            self._wait_for_lock(descriptor, deadline)
            if _is_still_there(descriptor, self.path):
                break
            # It was moved away, as log rotation does: go on with the file that has the name now.
            self.close()
        yield descriptor
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _wait_for_lock(self, descriptor: int, deadline: float) -> None:
        # It polls, because waiting for a lock cannot be given a deadline.
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if self._clock.monotonic() >= deadline:
                    raise Timeout(
                        f"another process keeps {self.path} locked", hint="give each sink a file of its own"
                    ) from None
                self._clock.sleep(_PAUSE_S)


def make_lines(parcels: Sequence[Parcel]) -> bytes:
    """Documents as they stand in the file. Put together in one go: most of the time goes into copying bodies."""
    parts: list[bytes] = []
    for document, body in parcels:
        operation = b'"delete"' if body is None else b'"upsert"'
        facts = (LINE_BEGINS, orjson.dumps(document.doc_id), document.ship_seq, operation)
        parts += (b'%b%b,"shipSeq":%d,"op":%b,"body":' % facts, b"null" if body is None else body, b"}\n")
    return b"".join(parts)


def repair_tail(descriptor: int, name: str) -> int:
    """Take away a last line that a crash cut off; where the file ends then. What was cut off was never acknowledged.

    Invalid if it does not look like a line of ours: then neither is the file, and nothing is taken away."""
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = _last_line_start(descriptor, size)
    beginning = os.pread(descriptor, min(len(LINE_BEGINS), size - start), start)
    # After a power failure the end of a file may be zeros: its size was on disk before its bytes.
    if not LINE_BEGINS.startswith(beginning.rstrip(b"\0")):
        raise Invalid(f"{name} does not end with a line of a sink", hint="name another file")
    os.ftruncate(descriptor, start)
    return start


def _last_line_start(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(end - _TAIL_BYTES, 0)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _open_for_appending(path: Path) -> int:
    made = [folder for folder in path.parents if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    # A name that a power failure takes away would take the lines along. Also if the file was there: whoever made it
    # may not have flushed its name yet.
    for folder in {path.parent, *made, *(each.parent for each in made)}:
        _flush_folder(folder)
    return descriptor


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        named = os.stat(path)
    except OSError as exc:
        if exc.errno == errno.ENOENT:
            return False
        raise
    held = os.fstat(descriptor)
    return (named.st_ino, named.st_dev) == (held.st_ino, held.st_dev)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
