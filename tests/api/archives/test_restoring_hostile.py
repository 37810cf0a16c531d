"""Restoring what others made: archives that reach outside, that hold more than they say, or that were cut off."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from analemma.errors import DataLost, Denied, Limit
from tests.api.archives.planted_archives import TAR_GZ, TAR_ZST, archived, member, plant, tar_of
from tests.stores import Store, local

HOSTILE: dict[str, bytes] = {
    "absolute": tar_of(member("/etc/evil", data=b"x")),
    "dotdot": tar_of(member("../evil", data=b"x")),
    "dotdot inside": tar_of(member("a/../../evil", data=b"x")),
    "dotdot directory": tar_of(member("..", tarfile.DIRTYPE)),
    "empty name in the middle": tar_of(member("a//b", data=b"x")),
    "absolute symlink": tar_of(member("link", tarfile.SYMTYPE, target="/etc")),
    "symlink up": tar_of(member("link", tarfile.SYMTYPE, target="../..")),
    "symlink up behind a name": tar_of(
        member("d", tarfile.SYMTYPE, target="."), member("e", tarfile.SYMTYPE, target="d/d/../../..")
    ),
    "through a symlink": tar_of(
        member("in", tarfile.DIRTYPE),
        member("link", tarfile.SYMTYPE, target="in"),
        member("link/evil", data=b"x"),
    ),
    "hardlink up": tar_of(member("link", tarfile.LNKTYPE, target="../../etc/passwd")),
    "absolute hardlink": tar_of(member("link", tarfile.LNKTYPE, target="/etc/passwd")),
    "hardlink to a symlink": tar_of(member("s", tarfile.SYMTYPE, target="f"), member("h", tarfile.LNKTYPE, target="s")),
    "hardlink through a symlink": tar_of(
        member("in", tarfile.DIRTYPE),
        member("in/f", data=b"x"),
        member("s", tarfile.SYMTYPE, target="in"),
        member("h", tarfile.LNKTYPE, target="s/f"),
    ),
    "hardlink to nothing": tar_of(member("h", tarfile.LNKTYPE, target="nothing")),
    "hardlink to a directory": tar_of(member("d", tarfile.DIRTYPE), member("h", tarfile.LNKTYPE, target="d")),
    "character device": tar_of(member("null", tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "block device": tar_of(member("disk", tarfile.BLKTYPE, devmajor=8, devminor=0)),
    "pipe": tar_of(member("pipe", tarfile.FIFOTYPE)),
    "unknown type": tar_of(member("odd", b"Z")),
    "twice": tar_of(member("f", data=b"first"), member("f", data=b"second")),
    "file over directory": tar_of(member("d", tarfile.DIRTYPE), member("d", data=b"x")),
    "file in a file": tar_of(member("f", data=b"x"), member("f/g", data=b"y")),
    "volume is a file": tar_of(member(".", data=b"x")),
    "name with NUL": tar_of(member("a", pax_headers={"path": "a\0b"}, data=b"x")),
    "target with NUL": tar_of(member("a", tarfile.SYMTYPE, pax_headers={"linkpath": "a\0b"})),
    "time that never comes": tar_of(member("a", pax_headers={"mtime": "9" * 20}, data=b"x")),
    "time before all time": tar_of(member("a", tarfile.SYMTYPE, target="b", pax_headers={"mtime": "-" + "9" * 20})),
    "directory of such a time": tar_of(member("a", tarfile.DIRTYPE, pax_headers={"mtime": "9" * 20})),
    "deeper than any volume": tar_of(member("a/" * 3000 + "b", data=b"x")),
}


HOLE = member(
    "GNUSparseFile.0/hole",
    data=b"0\n".ljust(512, b"\0"),
    pax_headers={
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "hole",
        "GNU.sparse.realsize": str(2**62),
    },
)


def outside(tmp_path: Path) -> set[str]:
    return {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if "store" not in path.parts}


@pytest.mark.parametrize("format", [TAR_GZ, TAR_ZST])
def test_hostile_archives_are_refused(format: int, tmp_path: Path) -> None:
    volume = tmp_path / "deep" / "er" / "volume"
    volume.parent.mkdir(parents=True)
    beside = {f"deep/er/.analemma-volume{name}" for name in ("", "/lock", "/owner")}
    wrong: list[tuple[str, object]] = []
    counts = {"files": 9, "directories": 9, "links": 9, "bytes": 99}
    with local(tmp_path).open() as app:
        for number, (what, data) in enumerate(HOSTILE.items()):
            plant(app, data, format=format, counts=counts, tenant=f"tenant{number}")
            archives = app.tenant(f"tenant{number}").archives
            archives.adopt("evil", owner_id="ann", volume=volume, op_id="op1")
            before = outside(tmp_path)
            try:
                archives.restore("evil")
                wrong.append((what, "was restored"))
            except (Denied, DataLost):
                pass
            if left := outside(tmp_path) - before - beside:
                wrong.append((what, left))
            workspace = archives.get("evil")
            if workspace.operation != "NONE" or workspace.status not in ("COLD", "ERROR"):
                wrong.append((what, workspace))
            archives.delete("evil", discard=True)
    assert wrong == []


def test_what_is_not_hostile_is_restored(tmp_path: Path) -> None:
    data = tar_of(
        member("./a/b/c", data=b"in directories that are not named"),
        member("a/link", tarfile.SYMTYPE, target="b/c"),
        member("again", tarfile.LNKTYPE, target="./a/b/c"),
    )
    with local(tmp_path).open() as app:
        plant(app, data)
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        app.archives.restore("evil")
        assert (tmp_path / "volume" / "a" / "link").read_bytes() == b"in directories that are not named"
        assert os.path.samefile(tmp_path / "volume" / "again", tmp_path / "volume" / "a" / "b" / "c")


@pytest.mark.parametrize(
    ("data", "counts"),
    [
        (tar_of(member("bomb", data=bytes(5_000_000))), {"files": 1, "bytes": 100}),
        (tar_of(*[member(f"{number}") for number in range(50)]), {"files": 3}),
        (tar_of(HOLE), {"files": 1, "bytes": 10**9}),
    ],
    ids=["more bytes", "more files", "a hole of exabytes"],
)
def test_more_than_was_announced_is_refused(data: bytes, counts: dict[str, int], tmp_path: Path) -> None:
    with local(tmp_path).open() as app:
        plant(app, data, format=TAR_ZST, counts=counts)
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        with pytest.raises(Limit):
            app.archives.restore("evil")
        assert not (tmp_path / "volume").exists()


def test_a_bomb_of_zeros_takes_no_more_than_the_limit(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open(archive_limit_bytes=1_000_000) as app:
        plant(app, tar_of(member("bomb", data=bytes(60_000_000))))
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "volume", op_id="op1")
        with pytest.raises(Limit):
            app.archives.restore("evil")


def test_a_tar_that_was_cut_off_with_a_valid_checksum_is_found_out(tmp_path: Path) -> None:
    data, counts = archived(tmp_path / "whole", {"file": b"abc"})
    cut: dict[str, bytes] = {
        "no end": data[: data.index(b"analemma end") // 512 * 512 - 512] + bytes(1024),
        "in a header": data[:700],
        "in a file": data[: 512 + 512 + 512 + 100],
        "one block of the end": data[:-512],
        "nothing": b"",
    }
    for number, (what, short) in enumerate(cut.items()):
        with local(tmp_path / str(number)).open() as app:
            plant(app, short, format=TAR_ZST, counts=counts)
            app.archives.adopt("evil", owner_id="ann", volume=tmp_path / str(number) / "volume", op_id="op1")
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(DataLost) as lost:
                app.archives.restore("evil")
            assert lost.value.reason == "CHECKSUM_MISMATCH", what
            assert app.archives.get("evil").status == "ERROR"
            assert not (tmp_path / str(number) / "volume").exists()
            assert len(os.listdir("/proc/self/fd")) <= before


def test_counts_that_do_not_fit_are_found_out(tmp_path: Path) -> None:
    data, counts = archived(tmp_path / "one", {"file": b"abc"})
    others, _ = archived(tmp_path / "seven", {f"file {number}": b"" for number in range(7)})
    first, second = (each.index(b"analemma end") // 512 * 512 - 512 for each in (data, others))
    with local(tmp_path / "right").open() as app:
        plant(app, data[:first] + data[first:], format=TAR_ZST, counts=counts)
        app.archives.adopt("evil", owner_id="ann", volume=tmp_path / "right" / "volume", op_id="op1")
        app.archives.restore("evil")
    wrong_end = data[:first] + others[second:]
    for number, (planted, told) in enumerate([(wrong_end, counts), (data, counts | {"files": 2})]):
        with local(tmp_path / str(number)).open() as app:
            plant(app, planted, format=TAR_ZST, counts=told)
            app.archives.adopt("evil", owner_id="ann", volume=tmp_path / str(number) / "volume", op_id="op1")
            with pytest.raises(DataLost):
                app.archives.restore("evil")
