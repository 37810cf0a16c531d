"""Files that are not read again because they look as the last restore left them: every way in which that could be
wrong, also where the settings trust what the restore has read."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma import App, Archives
from tests.api.archives.volumes import look
from tests.raw_rows import change
from tests.stores import Store, local

DAY_S = 86_400


def grow(root: Path, files: int = 12, size: int = 150_000) -> None:
    chance = random.Random(7)
    for number in range(files):
        folder = root / f"part-{number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"data-{number}").write_bytes(chance.randbytes(size))


def restored(app: App, root: Path) -> Archives:
    """A workspace that came back from an archive."""
    grow(root)
    app.archives.create("ws1", owner_id="ann", volume=root)
    app.archives.archive("ws1")
    app.archives.restore("ws1")
    return app.archives


def check_round_trip(archives: Archives, root: Path) -> None:
    before = look(root)
    archives.archive("ws1")
    archives.restore("ws1")
    assert look(root) == before


def give_its_time_back(root: Path) -> None:
    path = root / "part-1" / "data-1"
    facts = path.stat()
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def replace_by_another(root: Path) -> None:
    path = root / "part-1" / "data-1"
    facts = path.stat()
    (root / "other").write_bytes(random.Random(8).randbytes(facts.st_size))
    os.utime(root / "other", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    os.replace(root / "other", path)


def swap_two(root: Path) -> None:
    one, two = root / "part-0" / "data-0", root / "part-0" / "data-4"
    os.utime(two, ns=(1, one.stat().st_mtime_ns))
    os.rename(one, root / "aside")
    os.rename(two, one)
    os.rename(root / "aside", two)


@pytest.mark.parametrize("change", [give_its_time_back, replace_by_another, swap_two])
def test_a_file_that_only_looks_unchanged_is_read(change: Callable[[Path], None], tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks", archive_verify_age_s=DAY_S) as app:
        archives = restored(app, root)
        change(root)
        check_round_trip(archives, root)


def lose_some_blocks(store: Store, app: App) -> None:
    some = "SELECT id FROM block WHERE size BETWEEN 50000 AND 500000 AND links IS NULL LIMIT 2"
    assert change(store, f"DELETE FROM block WHERE id IN ({some})") == 2  # noqa: S608


def lose_an_object(store: Store, app: App) -> None:
    assert app.objects is not None
    for info in [*app.objects.list("packs")]:
        app.objects.delete(info.key)


def tear_an_object(store: Store, app: App) -> None:
    assert app.objects is not None
    for info in [*app.objects.list("packs")]:
        whole = app.objects.get(info.key)
        app.objects.delete(info.key)
        app.objects.put(info.key, whole[: len(whole) // 2])


@pytest.mark.parametrize("lose", [lose_some_blocks, lose_an_object, tear_an_object])
def test_what_is_shared_is_there_or_stored_anew(
    lose: Callable[[Store, App], None], store: Store, tmp_path: Path
) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks", archive_verify_age_s=DAY_S) as app:
        archives = restored(app, root)
        lose(store, app)
        check_round_trip(archives, root)


@pytest.mark.parametrize("off_s", [-2 * 3600, 2 * DAY_S])
def test_by_a_clock_that_was_set_everything_is_read(
    off_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks", archive_verify_age_s=DAY_S) as app:
        archives = restored(app, root)
        assert app.objects is not None
        for info in [*app.objects.list("packs")]:
            whole = bytearray(app.objects.get(info.key))
            whole[len(whole) // 2] ^= 1
            app.objects.delete(info.key)
            app.objects.put(info.key, bytes(whole))
        before = look(root)
        with monkeypatch.context() as patched:
            right = time.time_ns
            patched.setattr(time, "time_ns", lambda: right() + off_s * 10**9)
            archives.archive("ws1")
        archives.restore("ws1")
        assert look(root) == before


def test_where_times_are_whole_seconds_everything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard: what is written to within the second of its restore looks as it was restored, so nothing is taken to."""
    moments: dict[int, int] = {}

    def in_seconds(look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def stat(*arguments: Any, **more: Any) -> os.stat_result:
            facts = look(*arguments, **more)
            whole = {
                name: getattr(facts, name) // 10**9 * 10**9 for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns")
            }
            # All that happens to a file happens within one second.
            whole["st_ctime_ns"] = moments.setdefault(facts.st_ino, whole["st_ctime_ns"])
            others = {name: getattr(facts, name) for name in ("st_blksize", "st_blocks", "st_rdev")}
            return os.stat_result(tuple(facts), {**others, **whole})

        return stat

    root = tmp_path / "volume"
    with local(tmp_path).open(archive_format="blocks") as app:
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", in_seconds(os.stat))
            patched.setattr(os, "fstat", in_seconds(os.fstat))
            archives = restored(app, root)
            give_its_time_back(root)
            before = look(root)
            archives.archive("ws1")
        archives.restore("ws1")
        # But for fractions of seconds: of each name, what is in it.
        seen, wanted = ({name: facts[5] for name, facts in each.items()} for each in (look(root), before))
        assert seen == wanted


class Spoiling:
    """An object store that spoils the first pack on its way."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spoilt = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def put(self, key: str, data: bytes, **more: Any) -> None:
        if key.startswith("packs/") and not self.spoilt:
            self.spoilt = len(data)
            data = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
        self._inner.put(key, data, **more)


def test_a_block_that_is_spoilt_on_its_way_is_found_when_it_is_read_back(store: Store, tmp_path: Path) -> None:
    root = tmp_path / "volume"
    with store.open(archive_format="blocks") as app:
        grow(root)
        objects: Any = Spoiling(app.objects)
        app.objects = objects
        app.archives.create("ws1", owner_id="ann", volume=root)
        check_round_trip(app.archives, root)
        assert objects.spoilt > 100_000
