"""Archiving a workspace: the first time, again after a small change, and back; beside `tar | zstd`, restic and borg on
the same files in the same run."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
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


def run(quick: bool) -> Iterator[Row]:
    """Every row."""
    yield from growth((10_000,) if quick else (10_000, 100_000, 1_000_000))
    size_mb = QUICK_MB if quick else FULL_MB
    with temporary_folder() as folder:
        tree = folder / "tree"
        files = build(tree, size_mb * MB)
        title = f"{size_mb} MB in {files:,} files"
        floor = tar_and_zstd(tree, folder / "floor")
        yield Row(f"{FLOOR}, {title}", floor.first_s, "s")
        yield Row("rm -rf of the same files, which only our archives do too", floor.again_s, "s")
        measured: dict[str, Measured] = {}
        for name, measure in CONTENDERS.items():
            if shutil.which(name) is None and name in ("restic", "borg"):
                yield Row.skip(name, "not installed (apt install restic borgbackup)")
                continue
            measured[name] = measure(tree, folder / name.replace(" ", "-"))
        for name, found in measured.items():
            yield _compared(f"first archive, {name}", found.first_s, floor.first_s, FLOOR, 1.3 if _ours(name) else None)
        for name, found in measured.items():
            yield _compared(
                f"restore, {name}", found.restore_s, floor.restore_s, "zstd -d | tar x", 1.3 if _ours(name) else None
            )
        peer = measured.get("restic")
        for name, found in measured.items():
            limit = 1.0 if name == "ours, blocks" and peer is not None else None
            reference = peer or found
            yield _compared(f"archive after a 1 % change, {name}", found.again_s, reference.again_s, "restic", limit)
            ratio = found.again_bytes / max(reference.again_bytes, 1)
            row = Row(f"bytes written for it, {name}", found.again_bytes / MB, "MB", ratio, "restic")
            if limit is not None:
                row = Row.at_most(row.name, row.value or 0, "MB", ratio=ratio, against="restic", limit=limit)
            yield row


@dataclass(frozen=True, slots=True)
class Measured:
    """What one of them took."""

    first_s: float
    restore_s: float
    again_s: float = 0.0
    again_bytes: int = 0


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
    """The floor: no checks, no flush, no second look."""
    folder.mkdir()
    first = _timed(lambda: _shell(f"tar -C '{tree}' -cf - . | zstd -3 -q -o '{folder}/home.tar.zst'"))
    (folder / "out").mkdir()
    back = _timed(lambda: _shell(f"zstd -dcq '{folder}/home.tar.zst' | tar -C '{folder}/out' -xf -"))
    removed = _timed(lambda: _shell(f"rm -rf '{folder}/out'"))
    shutil.rmtree(folder)
    return Measured(first, back, removed)


def ours(format: Literal["tar", "blocks"]) -> Callable[[Path, Path], Measured]:
    """Archive and restore with all that this means: read back, flushed, the volume removed and swapped in."""

    def measure(tree: Path, folder: Path) -> Measured:
        volume = folder / "volume"
        shutil.copytree(tree, volume, symlinks=True)
        settings = Settings(archive_format=format)
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
    )


CONTENDERS: dict[str, Callable[[Path, Path], Measured]] = {
    "ours, tar": ours("tar"),
    "ours, blocks": ours("blocks"),
    "restic": restic,
    "borg": borg,
}


def _peer(tree: Path, folder: Path, init: str, backup: str, restore: str) -> Measured:
    folder.mkdir()
    shutil.copytree(tree, folder / "volume", symlinks=True)
    _shell(init)
    first = _timed(lambda: _shell(backup))
    back = _timed(lambda: _shell(restore))
    change(folder / "volume")
    before = _bytes(folder / "repository")
    again = _timed(lambda: _shell(backup))
    written = _bytes(folder / "repository") - before
    shutil.rmtree(folder)
    return Measured(first, back, again, written)


def _compared(name: str, value: float, other: float, against: str, limit: float | None) -> Row:
    ratio = value / other if other else 0.0
    if limit is None:
        return Row(name, value, "s", ratio, against)
    return Row.at_most(name, value, "s", ratio=ratio, against=against, limit=limit)


def _ours(name: str) -> bool:
    return name.startswith("ours")


def _timed(work: Callable[[], object]) -> float:
    # What others left to be written is not to be paid for here.
    os.sync()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _shell(command: str) -> None:
    subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True, capture_output=True)


def _bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
