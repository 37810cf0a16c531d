"""Reading tars: what tarfile writes is understood, what is damaged raises our errors only."""

from __future__ import annotations

import io
import tarfile

import pytest

from analemma.archives.entries import Entry
from analemma.archives.tar_reading import TarReader
from analemma.archives.tar_writing import entry_header
from analemma.errors import AnalemmaError, DataLost
from tests.core.archives.planted_archives import FILE, whole


def test_the_reader_takes_what_tarfile_writes_in_any_format() -> None:
    long_name = "directory/" * 20 + "file"
    for format in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        name = long_name if format != tarfile.USTAR_FORMAT else long_name[-150:]
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode, info.uid = 700, 1_700_000_000, 0o640, 1000
            tar.addfile(info, io.BytesIO(b"x" * 700))
            link = tarfile.TarInfo("l")
            link.type, link.linkname = tarfile.SYMTYPE, "t" * (50 if format == tarfile.USTAR_FORMAT else 200)
            tar.addfile(link)
        buffer.seek(0)
        reader = TarReader(buffer.read)
        found = [(each.entry, b"".join(reader.data())) for each in reader]
        assert [entry.path for entry, _ in found] == [name.encode(), b"l"]
        assert found[0][1] == b"x" * 700
        assert (found[0][0].mode, found[0][0].uid, found[0][0].mtime_ns) == (0o640, 1000, 1_700_000_000 * 10**9)
        assert found[1][0].target == link.linkname.encode()
        assert reader.end is None


@pytest.mark.parametrize("seed", range(6))
def test_damaged_tars_raise_our_errors_only(seed: int) -> None:
    import random

    chance = random.Random(seed)
    data = whole(
        (FILE, b"abc"),
        (Entry(b"n" * 120, "file", 0o644, 2**31, 0, 5, size=9, xattrs=(("user.a", b"\xff"),)), b"123456789"),
        (Entry(b"link", "symlink", 0o777, 0, 0, 1, target=b"f"), b""),
    )
    for _ in range(150):
        broken = bytearray(data)
        for _ in range(chance.randint(1, 6)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        source = io.BytesIO(bytes(broken[: chance.randint(1, len(broken))]))
        reader = TarReader(source.read)
        try:
            for _ in reader:
                for _ in reader.data():
                    pass
        except AnalemmaError:
            pass


def test_sizes_and_times_that_headers_cannot_hold_are_kept() -> None:
    entry = Entry(b"huge", "file", 0o600, 3_000_000, 2**31, 2**40 * 10**6 + 7, size=2**40)
    header = entry_header(entry)
    with tarfile.open(fileobj=io.BytesIO(header + bytes(1024)), mode="r|") as tar:
        info = tar.next()
    assert info is not None
    assert (info.size, info.uid, info.gid) == (2**40, 3_000_000, 2**31)
    member = next(iter(TarReader(io.BytesIO(header).read)))
    assert member.entry == entry


def test_a_header_that_takes_less_than_nothing_is_refused() -> None:
    head = bytearray(entry_header(FILE)[:512])
    head[124:136] = b"\xff" + (-512).to_bytes(11, "big", signed=True)
    head[156:157] = b"x"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    with pytest.raises(DataLost, match="negative"):
        list(TarReader(io.BytesIO(bytes(head) + bytes(2048)).read))
