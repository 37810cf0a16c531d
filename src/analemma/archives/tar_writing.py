"""Entries as a tar stream: POSIX headers, with pax records for what they cannot say (times in nanoseconds, long or odd
names, attributes), sparse files as GNU tar writes them, and at the end a comment with the counts.

Python's own tarfile takes five times as long for a header, and keeps no nanoseconds."""

from __future__ import annotations

from functools import lru_cache

from analemma.archives.entries import Entry, Totals, data_length

BLOCK = 512
END_COMMENT = "analemma end"
LARGEST_OCTAL = 0o77777777777
"""Sizes beyond this need a pax record."""
LARGEST_ID = 0o7777777
ROOT_NAME = b"."
ATTRIBUTE = b"SCHILY.xattr."

_TYPES = {"file": b"0", "hardlink": b"1", "symlink": b"2", "directory": b"5"}
_SPARSE_FOLDER = b"GNUSparseFile.0/"
_END_OF_ARCHIVE = bytes(2 * BLOCK)


def entry_header(entry: Entry, *, comment: bytes | None = None) -> bytes:
    """Everything that stands before an entry's data."""
    path = entry.path or ROOT_NAME
    records: list[tuple[bytes, bytes]] = [] if comment is None else [(b"comment", comment)]
    stored = data_length(entry) if entry.kind == "file" else 0
    sparse_map = b""
    name = path + b"/" if entry.kind == "directory" else path
    if entry.extents is not None:
        sparse_map = _sparse_map(entry)
        stored += len(sparse_map)
        records += [
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", path),
            (b"GNU.sparse.realsize", b"%d" % entry.size),
        ]
        name = _SPARSE_FOLDER + path[-80:].rpartition(b"/")[2]
    elif len(name) > 100 or not _is_plain(name):
        records.append((b"path", name))
        name = name[:100]
    target = entry.target
    if len(target) > 100 or not _is_plain(target):
        records.append((b"linkpath", target))
        target = target[:100]
    seconds, nanoseconds = divmod(entry.mtime_ns, 1_000_000_000)
    if nanoseconds or not 0 <= seconds <= LARGEST_OCTAL:
        records.append((b"mtime", _decimal(entry.mtime_ns)))
        seconds = min(max(seconds, 0), LARGEST_OCTAL)
    for key, number in ((b"uid", entry.uid), (b"gid", entry.gid)):
        if number > LARGEST_ID:
            records.append((key, b"%d" % number))
    if stored > LARGEST_OCTAL:
        records.append((b"size", b"%d" % stored))
    records += [(_attribute_key(name), value) for name, value in entry.xattrs]
    head = _header(
        name,
        entry.mode,
        min(entry.uid, LARGEST_ID),
        min(entry.gid, LARGEST_ID),
        min(stored, LARGEST_OCTAL),
        seconds,
        _TYPES[entry.kind],
        target,
    )
    return (_pax(b"x", records) if records else b"") + head + sparse_map


def padding(length: int) -> bytes:
    """What fills up the last block of so many bytes of data."""
    return bytes(-length % BLOCK)


def end_of_archive(totals: Totals, root: Entry) -> bytes:
    """The counts, and the end: a stream that was cut off has neither.

    The counts are a comment on the volume's own directory, which is named once more: whatever else reads the tar takes
    no harm from that."""
    counts = " ".join(f"{name}={count}" for name, count in totals.counts().items())
    return entry_header(root, comment=f"{END_COMMENT} {counts}".encode()) + _END_OF_ARCHIVE


def _sparse_map(entry: Entry) -> bytes:
    # GNU's format 1.0: the map stands before the data, in decimal lines, and ends with where the file does.
    extents = [*(entry.extents or ()), (entry.size, 0)]
    lines = [len(extents), *(number for extent in extents for number in extent)]
    text = b"".join(b"%d\n" % number for number in lines)
    return text + padding(len(text))


def _header(
    name: bytes, mode: int, uid: int, gid: int, size: int, seconds: int, kind: bytes, target: bytes = b""
) -> bytes:
    head = (
        name.ljust(100, b"\0")
        + b"%07o\0%07o\0%07o\0%011o\0%011o\0        " % (mode, uid, gid, size, seconds)
        + kind
        + target.ljust(100, b"\0")
        + b"ustar\x0000"
    )
    return (head[:148] + b"%06o\0 " % sum(head) + head[156:]).ljust(BLOCK, b"\0")


def _pax(kind: bytes, records: list[tuple[bytes, bytes]]) -> bytes:
    if any(not _is_text(value) for key, value in records if not key.startswith(b"SCHILY.")):
        # Names are bytes to a file system; this says so, and is what GNU tar and Python's tarfile understand.
        records = [(b"hdrcharset", b"BINARY"), *records]
    body = b"".join(_record(key, value) for key, value in records)
    return _pax_header(kind, len(body)) + body + padding(len(body))


@lru_cache(maxsize=256)
def _pax_header(kind: bytes, length: int) -> bytes:
    # Most entries need records for nothing but the fractions of their time, and so the very same header.
    return _header(b"././@PaxHeader", 0o644, 0, 0, length, 0, kind)


def _record(key: bytes, value: bytes) -> bytes:
    # The length counts its own digits.
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %b=%b\n" % (length, key, value)


def _attribute_key(name: str) -> bytes:
    # A record ends its key at the first "=", so GNU tar writes it another way, and we do as it does.
    escaped = name.encode("utf-8", "surrogateescape").replace(b"%", b"%25").replace(b"=", b"%3D")
    return ATTRIBUTE + escaped


def _decimal(nanoseconds: int) -> bytes:
    sign = b"-" if nanoseconds < 0 else b""
    seconds, rest = divmod(abs(nanoseconds), 1_000_000_000)
    return b"%b%d.%09d" % (sign, seconds, rest)


def _is_plain(name: bytes) -> bool:
    return name.isascii() and b"\0" not in name


def _is_text(value: bytes) -> bool:
    if value.isascii():
        return True
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
