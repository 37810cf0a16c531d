"""Volumes of a size that matters: many small files, one with holes of gigabytes, and directories inside directories."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from analemma.errors import Limit
from tests.api.archives.volumes import look
from tests.stores import local

GIGABYTE = 1 << 30


@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_a_sparse_file_of_gigabytes_costs_what_is_in_it(format: str, tmp_path: Path) -> None:
    """More of them than the header of a tar can say."""
    root = tmp_path / "volume"
    root.mkdir()
    with (root / "disk.img").open("wb") as file:
        file.truncate(9 * GIGABYTE)
        for offset in (0, GIGABYTE, 9 * GIGABYTE - 4096):
            file.seek(offset)
            file.write(b"data" * 1024)
    with local(tmp_path).open(archive_format=format) as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        unit = app.archives.archive("ws1")
        assert unit.bytes == 9 * GIGABYTE
        assert unit.size < 100_000
        app.archives.restore("ws1")
    facts = os.stat(root / "disk.img")
    assert facts.st_size == 9 * GIGABYTE
    assert facts.st_blocks * 512 < 1_000_000
    with (root / "disk.img").open("rb") as file:
        for offset in (0, GIGABYTE, 9 * GIGABYTE - 4096):
            file.seek(offset)
            assert file.read(4096) == b"data" * 1024
        file.seek(3 * GIGABYTE)
        assert file.read(4096) == bytes(4096)


@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_deep_directories_are_kept_and_bottomless_ones_refused(format: str, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    root.mkdir()
    here = os.getcwd()
    with local(tmp_path).open(archive_format=format) as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        os.chdir(root)
        try:
            for _ in range(400):
                os.mkdir("d")
                os.chdir("d")
            Path("bottom").write_text("here")
            os.chdir(here)
            before = look(root)
            app.archives.archive("ws1")
            app.archives.restore("ws1")
            assert look(root) == before
            os.chdir(root / "/".join(["d"] * 400))
            for _ in range(200):
                os.mkdir("d")
                os.chdir("d")
        finally:
            os.chdir(here)
        with pytest.raises(Limit):
            app.archives.archive("ws1")
        assert app.archives.get("ws1").status == "WARM"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ["tar", "blocks"])
def test_two_hundred_thousand_files_come_back(format: str, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    for number in range(200_000):
        if number % 1000 == 0:
            (root / f"folder-{number // 1000}").mkdir(parents=True)
        (root / f"folder-{number // 1000}" / f"file-{number}").write_bytes(b"%d" % number * (number % 50))
    before = look(root)
    with local(tmp_path).open(archive_format=format) as app:
        app.archives.create("ws1", owner_id="ann", volume=root)
        assert app.archives.archive("ws1").files == 200_000
        app.archives.restore("ws1")
        assert look(root) == before
        (root / "folder-7" / "file-7000").write_text("changed")
        before = look(root)
        app.archives.archive("ws1")
        app.archives.restore("ws1")
    assert look(root) == before
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 1_500_000
