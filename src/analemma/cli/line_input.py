"""Reads JSON lines of any length and content, and knows how far it came: the input of bulk commands.

Nothing that a line holds stops the reading; whether a line that cannot be used stops the command is the command's."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from analemma.canon.canonical_json import parse_json
from analemma.cli.json_input import STANDARD_INPUT, standard_input
from analemma.errors import Invalid, Unavailable

LONGEST_LINE_BYTES: Final = 16 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_FORMAT: Final = 1
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Position:
    """How far an input was read: so many lines, of so many bytes, which had this hash."""

    lines: int = 0
    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is not blank: an object, or why it is none."""

    number: int
    """Counted from 1, blank ones included."""
    value: dict[str, Any] | None
    problem: str | None
    size: int


class LineReader:
    """The lines of a stream. `position` is what comes after the last line that was given out, or skipped as blank."""

    def __init__(self, stream: BinaryIO, *, longest_bytes: int = LONGEST_LINE_BYTES) -> None:
        self._stream = stream
        self._longest_bytes = longest_bytes
        self._lines = 0
        self._bytes = 0
        self._hash = hashlib.sha256()
        self._is_within_line = False

    @property
    def position(self) -> Position:
        """How far it was read."""
        return Position(self._lines, self._bytes, self._hash.hexdigest())

    def skip(self, position: Position, source: str) -> None:
        """Go on where an earlier run stopped; Invalid if the input is not the one that it read."""
        left, last = position.bytes, b""
        while left:
            try:
                found = self._stream.read(min(left, _CHUNK_BYTES))
            except OSError as exc:
                raise Unavailable(f"cannot read {source}: {exc.strerror}") from exc
            if not found:
                break
            self._hash.update(found)
            left -= len(found)
            last = found[-1:]
        if left or self._hash.hexdigest() != position.sha256:
            raise Invalid(
                f"{source} is not what was read before: its first {position.lines} lines changed",
                hint="give the same input, or remove the cursor file to begin again",
            )
        self._lines, self._bytes = position.lines, position.bytes
        # The last line had no end yet: what comes first now belongs to it.
        self._is_within_line = last not in (b"", b"\n")

    def __iter__(self) -> Iterator[Line]:
        while True:
            goes_on = self._is_within_line
            data = self._take()
            if data is None:
                return
            number, text = self._lines, data
            if number == 1:
                text = text.removeprefix(_BYTE_ORDER_MARK)
            if len(data) > self._longest_bytes and not data.endswith(b"\n"):
                size = len(data) + self._skip_rest()
                yield Line(number, None, f"it is longer than {self._longest_bytes} bytes", size)
            elif text.strip():
                longer = "it was shorter when it was read before"
                yield Line(number, None, longer, len(data)) if goes_on else _line(number, text)

    def _take(self) -> bytes | None:
        data = self._stream.readline(self._longest_bytes + 1)
        if not data:
            return None
        self._lines += 0 if self._is_within_line else 1
        self._is_within_line = False
        self._count(data)
        return data

    def _skip_rest(self) -> int:
        """The rest of a line that is too long to be read at once."""
        size = 0
        while True:
            data = self._stream.readline(_CHUNK_BYTES)
            self._count(data)
            size += len(data)
            if not data or data.endswith(b"\n"):
                return size

    def _count(self, data: bytes) -> None:
        self._bytes += len(data)
        self._hash.update(data)


def _line(number: int, data: bytes) -> Line:
    try:
        value = parse_json(data.strip())
    except Invalid as exc:
        return Line(number, None, exc.message, len(data))
    if type(value) is not dict:
        return Line(number, None, "it is not a JSON object", len(data))
    return Line(number, value, None, len(data))


@contextmanager
def open_lines(file: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """A file, or standard input, and its size where that is known."""
    if file == STANDARD_INPUT:
        yield standard_input(), None
        return
    try:
        stream = open(file, "rb")  # noqa: SIM115
    except OSError as exc:
        raise Invalid(f"cannot read {file}: {exc.strerror}", file=file) from exc
    except ValueError as exc:
        raise Invalid(f"cannot read {file!r}: {exc}") from exc
    with stream:
        # Pipes and devices have none.
        yield stream, os.fstat(stream.fileno()).st_size or None


def _position(lines: Any, size: Any, sha256: Any) -> Position:
    """What a cursor file says, if it can be true."""
    if not all(type(count) is int and count >= 0 for count in (lines, size)) or lines > size:
        raise ValueError("not so many lines, or bytes")
    if type(sha256) is not str or not _SHA256.fullmatch(sha256):
        raise ValueError("not a hash")
    return Position(lines, size, sha256)


class CursorFile:
    """Keeps how far an input came, so that a run that was stopped can go on: replaced whole, after every batch."""

    def __init__(self, path: str, *, about: dict[str, str | bool]) -> None:
        """`about`: what the run does; a cursor of another one is refused."""
        self._path = Path(path)
        self._about = about

    def read(self) -> Position | None:
        """Where the last run stopped; None if there was none."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise Invalid(
                f"cannot read the cursor file {self._path}: {exc}", hint="check its permissions, or name another"
            ) from exc
        try:
            found = parse_json(data)
            if found.pop("format") != _FORMAT:
                raise ValueError("another format")
            position = _position(found.pop("lines"), found.pop("bytes"), found.pop("sha256"))
        except (Invalid, KeyError, AttributeError, TypeError, ValueError) as exc:
            raise Invalid(f"{self._path} is no cursor file", hint="name another file, or remove it") from exc
        if found != self._about:
            different = ", ".join(sorted(name for name in self._about if found.get(name) != self._about[name]))
            raise Invalid(
                f"{self._path} is the cursor of another run: {different or 'it'} differs",
                hint="name another file, or remove it to begin again",
            )
        return position

    def write(self, position: Position) -> None:
        """Everything up to here is in the store."""
        fields = {
            "format": _FORMAT,
            "lines": position.lines,
            "bytes": position.bytes,
            "sha256": position.sha256,
            **self._about,
        }
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}.new")
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                file.write(json.dumps(fields, indent=2) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self._path)
        except OSError as exc:
            raise Unavailable(
                f"cannot write the cursor file {self._path}: {exc.strerror}", hint="name a file that can be written"
            ) from exc
