"""Reading tars: what other programs write is understood, what is damaged raises our errors only."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path

import pytest

from analemma.errors import AnalemmaError, DataLost
from tests.api.archives.planted_archives import TAR_ZST, archived, member, plant, tar_of
from tests.depth import count
from tests.stores import local


def test_what_tarfile_writes_in_any_format_is_restored(tmp_path: Path) -> None:
    long_name = "directory/" * 20 + "file"
    for number, format in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        name = long_name if format != tarfile.USTAR_FORMAT else long_name[-144:]
        target = "t" * (50 if format == tarfile.USTAR_FORMAT else 200)
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.mode = 700, 1_700_000_000, 0o640
            tar.addfile(info, io.BytesIO(b"x" * 700))
            link = tarfile.TarInfo("l")
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        volume = tmp_path / str(number) / "volume"
        with local(tmp_path / str(number)).open() as app:
            plant(app, buffer.getvalue())
            app.archives.adopt("evil", owner_id="ann", volume=volume, op_id="op1")
            app.archives.restore("evil")
        facts = (volume / name).stat()
        assert (volume / name).read_bytes() == b"x" * 700
        assert (facts.st_mode & 0o7777, facts.st_mtime_ns) == (0o640, 1_700_000_000 * 10**9)
        assert os.readlink(volume / "l") == target


def test_damaged_tars_raise_our_errors_only(tmp_path: Path) -> None:
    data, counts = archived(tmp_path / "whole", {"f": b"abc", "n" * 120: b"123456789"})
    with local(tmp_path).open() as app:
        for seed in range(count(test=60, deep=600)):
            chance = random.Random(seed)
            broken = bytearray(data)
            for _ in range(chance.randint(1, 6)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            cut = bytes(broken[: chance.randint(1, len(broken))])
            plant(app, cut, format=seed % 2 * TAR_ZST, counts=counts, tenant=f"tenant{seed}")
            archives = app.tenant(f"tenant{seed}").archives
            try:
                archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
                archives.restore("evil")
            except AnalemmaError:
                pass
            if any(each.id == "evil" for each in archives.list()):
                archives.delete("evil", discard=True)


def test_owners_that_headers_cannot_hold_are_kept(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "file").write_text("x")
    os.chown(volume / "file", 3_000_000, 2**31)
    os.utime(volume / "file", ns=(1, 2**33 * 10**9 + 7))
    with local(tmp_path).open() as app:
        app.archives.create("ws1", owner_id="ann", volume=volume)
        app.archives.archive("ws1")
        app.archives.restore("ws1")
    facts = (volume / "file").stat()
    assert (facts.st_uid, facts.st_gid, facts.st_mtime_ns) == (3_000_000, 2**31, 2**33 * 10**9 + 7)


def test_a_header_that_takes_less_than_nothing_is_refused(tmp_path: Path) -> None:
    head = bytearray(tar_of(member("f", data=b"abc"))[:512])
    head[124:136] = b"\xff" + (-512).to_bytes(11, "big", signed=True)
    head[156:157] = b"x"
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    with local(tmp_path).open() as app:
        plant(app, bytes(head) + bytes(2048))
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        with pytest.raises(DataLost, match="negative"):
            app.archives.restore("evil")
