"""Where a volume may be: apart from every other workspace's, and from the store itself."""

from __future__ import annotations

import os
from urllib.parse import unquote

from analemma.archives.parts import Parts
from analemma.archives.walking import BOOKKEEPING
from analemma.catalog.archives.workspaces import VolumeRow
from analemma.errors import Conflict


def store_paths(url: str, objects: str | None, file: str | None) -> tuple[str, ...]:
    """The directories of this machine in which a store keeps its catalog and its objects, and its database file."""
    found: list[str] = []
    if file is not None:
        found.append(file)
        if "://" not in url:
            found.append(url)
    scheme, separator, rest = (objects or "memory://").partition("://")
    if not separator:
        found.append(scheme)
    elif scheme == "file":
        found.append(unquote(rest))
    return tuple(os.path.realpath(each) for each in found)


def check_apart(parts: Parts, path: str, workspace: str | None = None, *, cold: bool = False) -> None:
    """Conflict if a directory is, contains or lies in the volume of another workspace, of any tenant, or what the store
    itself lies in. With `cold`, also the places of volumes that are archived."""
    for place in parts.store_paths:
        if is_within(path, place) or is_within(place, path):
            raise Conflict(f"{path} and the store at {place} lie inside each other", hint="use another directory")
    for each in parts.engine.rows(VolumeRow, "volumes_around", path=path):
        if (each.tenant, each.workspace) == (parts.tenant, workspace) or not (each.has_volume or cold):
            continue
        if each.volume == path:
            raise Conflict(
                f"the volume {path} belongs to workspace {each.workspace}", hint="give each workspace its own volume"
            )
        inner, outer = (path, each.volume) if is_within(path, each.volume) else (each.volume, path)
        raise Conflict(
            f"{inner} lies inside the volume {outer}; one of them is that of workspace {each.workspace}",
            hint="volumes must not lie inside others",
        )


def check_no_bookkeeping(path: str) -> None:
    """Conflict if a directory holds the bookkeeping of a volume, which another store may know."""
    # A list of our own: a volume may be deeper than Python's stack.
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue  # Gone, or not for us to look into.
        for name in folders:
            if name.startswith(BOOKKEEPING):
                raise Conflict(
                    f"{ascii(os.path.join(folder, name))[1:-1]} belongs to another workspace",
                    hint="volumes must not lie inside each other; if nobody uses it, remove it",
                )
            waiting.append(os.path.join(folder, name))


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a directory or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
