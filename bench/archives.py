"""Archiving a workspace: the first time, again after a small change, and back; beside `tar | zstd`, restic and borg on
the same files in the same run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import analemma
from analemma.settings import Settings
from bench.archive_collecting import growth
from bench.harness import Row, temporary_folder

MB = 1_000_000
QUICK_MB = 100
FULL_MB = 1000
CHANGED = 0.01
WORDS = [f"word{number:04}" for number in range(3000)]
FLOOR = "tar | zstd -3"
MEMORY = Path("/dev/shm")
TRUSTING = "ours, blocks, archive_verify_age_s of a day"
"""What the restore has read is not read back again."""


def run(quick: bool) -> Iterator[Row]:
    """Every row: on the disk, and where there is one also in memory."""
    yield from growth((10_000,) if quick else (10_000, 100_000, 1_000_000))
    size_mb = QUICK_MB if quick else FULL_MB
    with temporary_folder() as folder:
        yield from compare(folder, size_mb, "on disk")
    if MEMORY.is_dir():
        with temporary_folder(MEMORY) as folder:
            yield from compare(folder, size_mb, "in memory")


def compare(folder: Path, size_mb: int, place: str) -> Iterator[Row]:
    """All of them on the same files, one after the other."""
    tree = folder / "tree"
    files = build(tree, size_mb * MB)
    yield Row(f"{place}: {size_mb} MB in {files:,} files", None, "", skipped="what is archived")
    floors = [tar_and_zstd(tree, folder / "floor")]
    measured: dict[str, Measured] = {}
    for name, measure in CONTENDERS.items():
        if name in ("restic", "borg") and shutil.which(name) is None:
            yield Row.skip(f"{place}: {name}", "not installed (apt install restic borgbackup)")
            continue
        measured[name] = measure(tree, folder / name.replace(" ", "-"))
        # Again between the others: what else the machine does changes from minute to minute.
        floors.append(tar_and_zstd(tree, folder / "floor"))
    floor = mean(floors)
    yield Row(f"{place}: {FLOOR}", floor.first.wall_s, "s")
    yield Row(f"{place}: sync after it", floor.sync.wall_s, "s")
    yield Row(f"{place}: rm -rf of the files", floor.remove.wall_s, "s")
    everything = floor.first + floor.sync + floor.remove
    # How the first archive is made and restored is the same whatever the second one reads.
    firsts = {name: found for name, found in measured.items() if name != TRUSTING}
    for name, found in firsts.items():
        limit = 1.3 if _ours(name) else None
        yield from _compared(f"{place}: first archive, {name}", found.first, floor.first, FLOOR, limit)
        if _ours(name):
            same = f"{FLOOR}; sync; rm -rf"
            yield from _compared(f"{place}: first archive, {name}, volume removed", found.first, everything, same, None)
    for name, found in firsts.items():
        limit = 1.3 if _ours(name) else None
        yield from _compared(f"{place}: restore, {name}", found.back, floor.back, "zstd -d | tar x", limit)
        if _ours(name):
            flushed = floor.back + floor.back_sync
            yield from _compared(f"{place}: restore, {name}, flushed", found.back, flushed, "the same; sync", None)
    peer = measured.get("restic")
    if peer is not None:
        yield from _again(place, measured, peer)


def _again(place: str, measured: dict[str, Measured], peer: Measured) -> Iterator[Row]:
    removed = peer.again + peer.remove
    checked = removed + peer.check
    for name, found in measured.items():
        title = f"{place}: archive after a 1 % change, {name}"
        limit = 1.0 if name.startswith("ours, blocks") else None
        yield from _compared(title, found.again, peer.again, "restic", limit)
        if name == TRUSTING:
            yield from _compared(f"{title}, volume removed", found.again, removed, "restic; rm -rf", None)
        elif limit is not None:
            against = "restic; restic check --read-data; rm -rf"
            yield from _compared(f"{title}, all read back", found.again, checked, against, None)
        ratio = found.again_bytes / max(peer.again_bytes, 1)
        row = Row(f"{place}: bytes written for it, {name}", found.again_bytes / MB, "MB", ratio, "restic")
        if limit is not None:
            row = Row.at_most(row.name, row.value or 0, "MB", ratio=ratio, against="restic", limit=limit)
        yield row


@dataclass(frozen=True, slots=True)
class Took:
    """What something took: of the clock, and of all processors."""

    wall_s: float = 0.0
    processor_s: float = 0.0

    def __add__(self, other: Took) -> Took:
        return Took(self.wall_s + other.wall_s, self.processor_s + other.processor_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one of them took."""

    first: Took
    back: Took
    again: Took = Took()
    again_bytes: int = 0
    sync: Took = Took()
    """After the archive, and after the restore: what others leave to the kernel."""
    back_sync: Took = Took()
    remove: Took = Took()
    """Of the files: what only ours does."""
    check: Took = Took()
    """Reading all of it back."""


def mean(measured: Sequence[Measured]) -> Measured:
    """What something took on average."""

    def of(pick: Callable[[Measured], Took]) -> Took:
        total = sum((pick(each) for each in measured), Took())
        return Took(total.wall_s / len(measured), total.processor_s / len(measured))

    return Measured(
        first=of(lambda each: each.first),
        back=of(lambda each: each.back),
        sync=of(lambda each: each.sync),
        back_sync=of(lambda each: each.back_sync),
        remove=of(lambda each: each.remove),
    )


def build(root: Path, size: int) -> int:
    """A tree like a home directory: sources, binaries, a few large files; how many files."""
    chance = random.Random(42)
    files = left = 0
    left = size
    while left > 0:
        folder = root / f"project-{files // 200}" / f"module-{files // 20 % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        kind = chance.random()
        if kind < 0.9:
            data = " ".join(chance.choices(WORDS, k=chance.randint(100, 2500))).encode()
        elif kind < 0.995:
            data = chance.randbytes(chance.randint(50_000, 400_000)) + b" " * 100_000
        else:
            data = chance.randbytes(8 * MB)
        (folder / f"file-{files}").write_bytes(data)
        files += 1
        left -= len(data)
    return files


def change(root: Path) -> None:
    """Change one file in a hundred: replace text, and a few bytes in the middle of what is large."""
    chance = random.Random(43)
    for path in sorted(root.rglob("file-*")):
        if chance.random() < CHANGED:
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(chance.randbytes(64))


def tar_and_zstd(tree: Path, folder: Path) -> Measured:
    """The floor: no checks, no flush, no second look. The files go before they come back, as ours do: a file system
    that has just forgotten many is slower to make new ones."""
    folder.mkdir()
    volume, archive = folder / "volume", folder / "home.tar.zst"
    shutil.copytree(tree, volume, symlinks=True)
    first = _timed(lambda: _shell(f"tar -C '{volume}' -cf - . | zstd -3 -q -o '{archive}'"))
    flushed = _timed(os.sync, flush=False)
    removed = _timed(lambda: _shell(f"rm -rf '{volume}'"))
    volume.mkdir()
    back = _timed(lambda: _shell(f"zstd -dcq '{archive}' | tar -C '{volume}' -xf -"))
    back_flushed = _timed(os.sync, flush=False)
    shutil.rmtree(folder)
    return Measured(first, back, sync=flushed, back_sync=back_flushed, remove=removed)


def ours(format: Literal["tar", "blocks"], verify_age_s: float = 0) -> Callable[[Path, Path], Measured]:
    """Archive and restore with all that this means: read back, flushed, the volume removed and swapped in."""

    def measure(tree: Path, folder: Path) -> Measured:
        volume = folder / "volume"
        shutil.copytree(tree, volume, symlinks=True)
        settings = Settings(archive_format=format, archive_verify_age_s=verify_age_s)
        with closing(analemma.open(folder / "store", settings=settings)) as app:
            app.archives.create("home", owner_id="ann", volume=volume)
            first = _timed(lambda: app.archives.archive("home"))
            back = _timed(lambda: app.archives.restore("home"))
        change(volume)
        # Closed both times: the write-ahead log of a database is not what an archive takes.
        before = _bytes(folder / "store")
        with closing(analemma.open(folder / "store", settings=settings)) as app:
            again = _timed(lambda: app.archives.archive("home"))
        written = _bytes(folder / "store") - before
        shutil.rmtree(folder)
        return Measured(first, back, again, written)

    return measure


def restic(tree: Path, folder: Path) -> Measured:
    """restic, with a local repository."""
    command = f"RESTIC_PASSWORD=x restic -q -r '{folder}/repository'"
    return _peer(
        tree,
        folder,
        f"{command} init",
        f"cd '{folder}/volume' && {command} backup .",
        f"{command} restore latest --target '{folder}/out'",
        f"{command} check --read-data",
    )


def borg(tree: Path, folder: Path) -> Measured:
    """borg, without encryption, and compression like ours."""
    place = f"BORG_BASE_DIR='{folder}/borg' BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK=yes borg"
    return _peer(
        tree,
        folder,
        f"{place} init -e none '{folder}/repository'",
        f"cd '{folder}/volume' && {place} create -C zstd,3 '{folder}/repository'::$(date +%s%N) .",
        f"mkdir '{folder}/out' && cd '{folder}/out' && "
        f"{place} extract '{folder}/repository'::$({place} list --last 1 --short '{folder}/repository')",
        f"{place} check --verify-data '{folder}/repository'",
    )


CONTENDERS: dict[str, Callable[[Path, Path], Measured]] = {
    "ours, tar": ours("tar"),
    "ours, blocks": ours("blocks"),
    TRUSTING: ours("blocks", verify_age_s=86_400),
    "restic": restic,
    "borg": borg,
}


def _peer(tree: Path, folder: Path, init: str, backup: str, restore: str, check: str) -> Measured:
    folder.mkdir()
    volume = folder / "volume"
    shutil.copytree(tree, volume, symlinks=True)
    _shell(init)
    first = _timed(lambda: _shell(backup))
    back = _timed(lambda: _shell(restore))
    change(volume)
    before = _bytes(folder / "repository")
    again = _timed(lambda: _shell(backup))
    written = _bytes(folder / "repository") - before
    checked = _timed(lambda: _shell(check))
    removed = _timed(lambda: _shell(f"rm -rf '{volume}'"))
    shutil.rmtree(folder)
    return Measured(first, back, again, written, remove=removed, check=checked)


def _compared(name: str, value: Took, other: Took, against: str, limit: float | None) -> Iterator[Row]:
    """By the clock, and by what processors did: where others use the machine too, the second says more."""
    ratio = value.wall_s / other.wall_s if other.wall_s else 0.0
    if limit is None:
        yield Row(name, value.wall_s, "s", ratio, against)
    else:
        yield Row.at_most(name, value.wall_s, "s", ratio=ratio, against=against, limit=limit)
    if other.processor_s:
        yield Row(f"{name}, processors", value.processor_s, "s", value.processor_s / other.processor_s, against)


def _ours(name: str) -> bool:
    return name.startswith("ours")


def _timed(work: Callable[[], object], *, flush: bool = True) -> Took:
    if flush:
        # What others left to be written is not to be paid for here.
        os.sync()
    started, used = time.perf_counter(), _processor_s()
    work()
    return Took(time.perf_counter() - started, _processor_s() - used)


def _processor_s() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _shell(command: str) -> None:
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, capture_output=True)


def _bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
