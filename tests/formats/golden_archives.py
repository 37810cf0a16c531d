"""A volume whose archives are pinned. `python -m tests.formats.golden_archives FOLDER` writes one of format 1, as it is
kept in `tests/formats/archives`; those are only ever added to."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.stores import Store, local

WORKSPACE = "golden"
TIMES = {
    "": 1_700_000_000_000_000_001,
    "folder": 999,
    "folder/deep": 1_000_000_000,
    "plain": 1_700_000_000_000_000_000,
    "before 1970": -1_500_000_000,
    "schön": 1,
    "holes": 0,
    "long": 1_234_567_890_123_456_789,
}
ODD_NAME = b"n\xff" * 60


def fill(root: Path) -> None:
    """One of everything that an archive keeps."""
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "plain").write_bytes(b"plain")
    (root / "before 1970").write_bytes(b"old")
    (root / "schön").symlink_to("plain")
    os.link(root / "plain", root / "zz again")
    (root / "long").write_bytes(bytes(range(256)) * 40)
    with (root / "holes").open("wb") as file:
        file.truncate(1_000_000)
        file.seek(900_000)
        file.write(b"island")
    odd = os.path.join(os.fsencode(root), ODD_NAME)
    with open(odd, "wb") as file:
        file.write(b"no text")
    with contextlib.suppress(OSError):
        os.setxattr(root / "plain", "user.a=b%", b"\x00\xff")
    os.chmod(root, 0o755)
    os.chmod(root / "plain", 0o644)
    os.chmod(root / "before 1970", 0o4755)
    os.chmod(root / "long", 0o600)
    os.chmod(root / "holes", 0o640)
    os.chmod(odd, 0o644)
    os.chmod(root / "folder", 0o1777)
    os.chmod(root / "folder" / "deep", 0o700)
    os.utime(odd, ns=(1, 5))
    for name, time in reversed(TIMES.items()):
        os.utime(root / name, ns=(1, time), follow_symlinks=False)


def look(root: Path) -> dict[str, Any]:
    """Everything that can be seen of a volume but who has it."""
    found: dict[str, Any] = {}
    names = [b"", *[os.fsencode(os.path.relpath(path, root)) for path in sorted(root.rglob("*"))]]
    for name in names:
        path = os.path.join(os.fsencode(root), name) if name else os.fsencode(root)
        facts = os.lstat(path)
        content: Any = None
        if os.path.islink(path):
            content = os.readlink(path)
        elif os.path.isfile(path):
            content = Path(os.fsdecode(path)).read_bytes()
        found[name.decode("utf-8", "backslashreplace")] = (facts.st_mode, facts.st_mtime_ns, facts.st_nlink, content)
    return found


def archive(store: Store, root: Path, format: Any) -> dict[str, bytes]:
    """Archive a volume; the objects that stand for it, by their names."""
    with store.open() as app:
        app.archives.create(WORKSPACE, owner_id="ann", volume=root)
        fill(root)
        app.archives.archive(WORKSPACE, format=format)
    folder = Path(store.url) / "objects" / "tenants" / "default" / "archives" / WORKSPACE
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        made = archive(local(Path(scratch)), Path(scratch) / "volume", "tar")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in made.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
