"""Directories to archive, and an independent look at what is in one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
from pathlib import Path
from typing import Any

from analemma import App, Archives

ODD_NAMES = (
    "ünïcode ☃".encode(),
    b"not-utf8-\xff\xfe",
    b"with\nnewline",
    b"a" * 255,
    b" leading",
    b"-dash",
    b"back\\slash",
)


def fill(root: Path) -> None:
    """One of everything that a round trip has to keep."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "docs" / "empty").mkdir(parents=True)
    (root / "docs" / "note.txt").write_text("hello\n" * 10)
    (root / "zero").write_bytes(b"")
    (root / "random.bin").write_bytes(hashlib.shake_128(b"seed").digest(300_000))
    for number, name in enumerate(ODD_NAMES):
        path = os.path.join(os.fsencode(root), name)
        with open(path, "wb") as file:
            file.write(b"%d" % number)
    deep = root
    for number in range(12):
        deep = deep / f"directory-with-a-rather-long-name-{number}"
    deep.mkdir(parents=True)
    (deep / "bottom").write_text("down here")
    (root / "link").symlink_to("docs/note.txt")
    (root / "dangling").symlink_to("nowhere/at/all")
    (root / "docs" / "up").symlink_to("../zero")
    (root / "long-link").symlink_to("docs/" + "x" * 150)
    os.link(root / "docs" / "note.txt", root / "second-name")
    with (root / "sparse").open("wb") as file:
        file.truncate(4_000_000)
        file.seek(2_000_000)
        file.write(b"island")
    with (root / "all-hole").open("wb") as file:
        file.truncate(200_000)
    with contextlib.suppress(OSError):
        os.setxattr(root / "zero", "user.colour", b"blue\x00\xff")
        os.setxattr(root / "docs", "user.kind", b"folder")
        os.setxattr(root / "docs", "user.100%3D=", b"odd")
    os.chmod(root / "docs" / "note.txt", 0o640)
    os.chmod(root / "random.bin", 0o4755)
    os.chmod(root / "docs" / "empty", 0o1770)
    os.utime(root / "zero", ns=(1, 1_234_567_890_123_456_789))
    os.utime(root / "random.bin", ns=(1, -5_000_000_001))
    os.utime(root / "docs" / "empty", ns=(1, 999_999_999))
    os.utime(root / "link", ns=(1, 123_456_789_012), follow_symlinks=False)


def add_special_files(root: Path) -> socket.socket:
    """What is not archived; keep the socket open for as long as it is needed."""
    os.mkfifo(root / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(root)  # A socket's path is short.
    try:
        listening.bind("socket")
    finally:
        os.chdir(here)
    return listening


def look(root: str | Path) -> dict[str, Any]:
    """Everything that can be seen of a directory, found without the code under test."""
    found: dict[str, Any] = {}
    inodes: dict[int, str] = {}
    base = os.fsencode(root)
    for folder, folders, files in os.walk(base):
        for path in [folder] if folder == base else []:
            found["."] = _facts(path)
        for name in sorted(folders + files):
            path = os.path.join(folder, name)
            key = repr(os.path.relpath(path, base))
            facts = os.lstat(path)
            if stat.S_ISSOCK(facts.st_mode) or stat.S_ISFIFO(facts.st_mode):
                continue
            found[key] = _facts(path)
            if stat.S_ISREG(facts.st_mode) and facts.st_nlink > 1:
                first = inodes.setdefault(facts.st_ino, key)
                found[key] = (*found[key], "same as " + first)
    return found


def _facts(path: bytes) -> tuple[Any, ...]:
    facts = os.lstat(path)
    content: Any = None
    if stat.S_ISREG(facts.st_mode):
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    elif stat.S_ISLNK(facts.st_mode):
        content = os.readlink(path)
    attributes: tuple[tuple[str, bytes], ...] = ()
    if not stat.S_ISLNK(facts.st_mode):
        attributes = tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
    size = facts.st_size if stat.S_ISREG(facts.st_mode) else None
    return (facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns, size, content, attributes)


def workspace_of(app: App, root: Path, name: str = "ws1") -> tuple[Archives, Any]:
    """A WARM workspace with one of everything in it."""
    fill(root)
    archives = app.archives
    return archives, archives.create(name, owner_id="ann", volume=root)


def object_keys(app: App, prefix: str = "tenants") -> list[str]:
    """What lies in the object store."""
    assert app.objects is not None
    return [info.key for info in app.objects.list(prefix)]
