"""A tar stream as entries: POSIX, pax and GNU headers, read strictly and in bounded memory. What no archive of a volume
holds, such as devices, is refused here; what paths may do is the extractor's business."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from analemma.archives.entries import Entry, EntryKind, Extents, check_extents, hostile, shown
from analemma.archives.tar_writing import ATTRIBUTE, BLOCK, END_COMMENT
from analemma.errors import AnalemmaError, DataLost

CHECKSUM_MISMATCH = "CHECKSUM_MISMATCH"
LARGEST_RECORDS = 16 << 20
"""Names and attributes of one entry together; ours are far below."""
LARGEST_MAP = 64 << 20
READ_BYTES = 1 << 20

_KINDS: dict[bytes, EntryKind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "directory",
}
_DEVICES = {b"3": "a character device", b"4": "a block device", b"6": "a pipe"}
_END = re.compile(rf"{END_COMMENT}((?: [a-z]+=\d+)+)")


def truncated(what: str) -> AnalemmaError:
    """What whoever restores an archive is told that ends too early or is not a tar."""
    return DataLost(f"the archive is damaged: {what}", hint="restore it from a second copy", reason=CHECKSUM_MISMATCH)


@dataclass(slots=True)
class Member:
    """An entry whose data is read before the next entry is."""

    entry: Entry
    stored: int
    """Bytes of data that are in the stream."""


class TarReader:
    """Reads entries one after the other. `end` holds the counts that stood at the end, once that was reached."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        """`read(n)` gives at most n bytes, and nothing at the end."""
        self.end: dict[str, int] | None = None
        self._read_some = read
        self._left = 0
        """Of the current member's data, its padding included."""
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        records: dict[bytes, bytes] = {}
        while True:
            self._skip_data()
            head = self._read(BLOCK, "in the middle of a header")
            if not any(head):
                self._finish()
                return
            _check(head)
            kind, size = head[156:157], _natural(head[124:136])
            if kind in (b"x", b"g", b"L", b"K"):
                if size > LARGEST_RECORDS:
                    raise hostile(f"{size} bytes of names and attributes for one file")
                body = self._read(size + -size % BLOCK, "in the middle of a header")[:size]
                if kind == b"x":
                    records.update(_records(body))
                elif kind != b"g":
                    records[b"path" if kind == b"L" else b"linkpath"] = body.rstrip(b"\0")
                continue
            member = self._member(head, kind, size, records)
            if not records.get(b"comment", b"").startswith(END_COMMENT.encode()):
                yield member
            elif self.end is None:
                self.end = _counts(records)
            else:
                raise truncated("it has two ends")
            records = {}

    def data(self) -> Iterator[bytes]:
        """The current member's data."""
        while self._left > self._padding:
            chunk = self._some(min(self._left - self._padding, READ_BYTES))
            self._left -= len(chunk)
            yield chunk

    def _member(self, head: bytes, kind: bytes, size: int, records: dict[bytes, bytes]) -> Member:
        if kind in _DEVICES:
            raise hostile(f"it holds {_DEVICES[kind]}")
        if kind not in _KINDS:
            raise hostile(f"it holds an entry of the unknown type {kind!r}")
        path = records.get(b"GNU.sparse.name") or records.get(b"path") or _header_name(head)
        size = _decimal(records[b"size"]) if b"size" in records else size
        entry_kind = _KINDS[kind]
        if entry_kind == "file" and path.endswith(b"/"):
            entry_kind = "directory"
        stored = size if entry_kind == "file" else 0
        self._padding = -stored % BLOCK
        self._left = stored + self._padding
        extents: Extents | None = None
        if b"GNU.sparse.major" in records:
            size = _decimal(records.get(b"GNU.sparse.realsize", b"0"))
            before = self._left
            extents = self._sparse_map(size)
            stored -= before - self._left
            if stored != sum(length for _, length in extents):
                raise hostile("the map of a sparse file does not fit its data")
        entry = Entry(
            path=_relative(path),
            kind=entry_kind,
            mode=_number(head[100:108]) & 0o7777,
            uid=_decimal(records[b"uid"]) if b"uid" in records else _natural(head[108:116]),
            gid=_decimal(records[b"gid"]) if b"gid" in records else _natural(head[116:124]),
            mtime_ns=_nanoseconds(records[b"mtime"]) if b"mtime" in records else _number(head[136:148]) * 1_000_000_000,
            size=size if entry_kind == "file" else 0,
            target=_target(entry_kind, records.get(b"linkpath") or head[157:257].split(b"\0", 1)[0]),
            xattrs=tuple((_attribute_name(key), value) for key, value in records.items() if key.startswith(ATTRIBUTE)),
            extents=extents,
        )
        return Member(entry, stored)

    def _sparse_map(self, size: int) -> Extents:
        """The map at the front of a sparse file's data; what it takes is no longer in `_left`."""
        taken = bytearray()

        def numbers() -> Iterator[int]:
            start = 0
            while True:
                end = taken.find(b"\n", start)
                if end < 0:
                    if len(taken) > LARGEST_MAP or self._left < BLOCK:
                        raise hostile("the map of a sparse file has no end")
                    taken.extend(self._read(BLOCK, "in a sparse file"))
                    self._left -= BLOCK
                    continue
                yield _decimal(bytes(taken[start:end]))
                start = end + 1

        source = numbers()
        count = next(source)
        if count > LARGEST_MAP:
            raise hostile("the map of a sparse file is too long")
        found = [(next(source), next(source)) for _ in range(count)]
        return check_extents([extent for extent in found if extent[1]], size)

    def _finish(self) -> None:
        if any(self._read(BLOCK, "before its second empty block")):
            raise truncated("there is data after its end")
        # What comes after the end is padding; it is read so that all of the object goes through its checksum.
        while rest := self._read_some(READ_BYTES):
            if any(rest):
                raise truncated("there is data after its end")

    def _skip_data(self) -> None:
        while self._left:
            self._left -= len(self._some(min(self._left, READ_BYTES)))

    def _some(self, most: int) -> bytes:
        chunk = self._read_some(most)
        if not chunk:
            raise truncated("it ends in the middle of a file")
        return chunk

    def _read(self, length: int, where: str) -> bytes:
        data = self._read_some(length)
        while len(data) < length:
            more = self._read_some(length - len(data))
            if not more:
                raise truncated(f"it ends {where}")
            data += more
        return data


def _counts(records: dict[bytes, bytes]) -> dict[str, int]:
    match = _END.fullmatch(records[b"comment"].decode("utf-8", "replace"))
    if match is None:
        raise truncated("its end cannot be read")
    return {name: int(count) for name, _, count in (part.partition("=") for part in match[1].split())}


def _check(head: bytes) -> None:
    expected = _number(head[148:156])
    # Some old programs added up signed bytes.
    plain = sum(head) - sum(head[148:156]) + 8 * 32
    if expected != plain and expected != plain - 256 * sum(1 for byte in head[:148] + head[156:] if byte > 127):
        raise truncated("a header's checksum is wrong")


def _number(text: bytes) -> int:
    if text[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(text[1:], "big", signed=text[0] == 0xFF)
    digits = text.split(b"\0", 1)[0].strip()
    try:
        return int(digits or b"0", 8)
    except ValueError:
        raise truncated("a header holds no number where one belongs") from None


def _natural(text: bytes) -> int:
    number = _number(text)
    if number < 0:
        raise truncated("a header holds a negative number where none belongs")
    return number


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise truncated("a header holds no number where one belongs")
    return int(text)


def _nanoseconds(text: bytes) -> int:
    match = re.fullmatch(rb"(-?)(\d{1,20})(?:\.(\d{0,30}))?", text)
    if match is None:
        raise truncated("a header holds no time where one belongs")
    sign, seconds, fraction = match.groups()
    whole = int(seconds) * 1_000_000_000 + int((fraction or b"")[:9].ljust(9, b"0"))
    return -whole if sign else whole


def _records(body: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    start = 0
    while start < len(body):
        space = body.find(b" ", start, start + 20)
        length = body[start:space] if space > 0 else b""
        end = start + int(length) if length.isdigit() else 0
        record = body[space + 1 : end]
        if not (space < end <= len(body)) or not record.endswith(b"\n") or b"=" not in record:
            raise truncated("a header's records are malformed")
        key, _, value = record[:-1].partition(b"=")
        found[key] = value
        start = end
    return found


def _attribute_name(key: bytes) -> str:
    name = key.removeprefix(ATTRIBUTE).replace(b"%3D", b"=").replace(b"%25", b"%")
    return name.decode("utf-8", "surrogateescape")


def _header_name(head: bytes) -> bytes:
    name = head[:100].split(b"\0", 1)[0]
    # The prefix is POSIX's; GNU tar keeps other things there, under another magic.
    prefix = head[345:500].split(b"\0", 1)[0] if head[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _relative(path: bytes) -> bytes:
    if path.startswith(b"/"):
        raise hostile(f"path {shown(path)} is absolute")
    while path.startswith(b"./"):
        path = path[2:].lstrip(b"/")
    path = path.rstrip(b"/")
    return b"" if path == b"." else path


def _target(kind: EntryKind, target: bytes) -> bytes:
    return _relative(target) if kind == "hardlink" else target
