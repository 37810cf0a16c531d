"""Which symbolic links stay inside their volume, wherever that is."""

from __future__ import annotations

from typing import Literal

from analemma.archives.entries import Entry, hostile, shown
from analemma.errors import Invalid

OutsideLinks = Literal["refuse", "keep"]


def leaves_volume(entry: Entry) -> bool:
    """Whether a symbolic link may lead out of its volume, whatever else is in there.

    `..` counts only at the front: there it is relative to a real directory. Behind a name that may itself be a link, it
    could lead anywhere."""
    names = entry.target.split(b"/")
    up = 0
    while up < len(names) and names[up] == b"..":
        up += 1
    return entry.target.startswith(b"/") or up > entry.path.count(b"/") or b".." in names[up:] or not entry.target


def check_archived_link(entry: Entry, policy: OutsideLinks) -> None:
    """Raise Invalid for a link that restoring would refuse: better now than when the volume is gone."""
    if policy == "refuse" and leaves_volume(entry):
        raise Invalid(
            f"the link {shown(entry.path)} may lead out of the volume, to {shown(entry.target)}",
            hint="remove it, or set archive_outside_links to `keep`, also where it is restored",
        )


def check_restored_link(entry: Entry, policy: OutsideLinks) -> None:
    """Raise Denied for a link that may lead out of the volume."""
    if policy == "refuse" and leaves_volume(entry):
        raise hostile(f"the link {shown(entry.path)} leads out of the volume, to {shown(entry.target)}")
