"""Removing what a workspace has: its volume, and when it is purged its archives and its rows too."""

from __future__ import annotations

from analemma.archives.mounts import check_mounts
from analemma.archives.names import META, parse_key, workspace_prefix
from analemma.archives.operations import Held
from analemma.archives.parts import Parts
from analemma.archives.places import check_apart, check_no_bookkeeping
from analemma.archives.running import undo
from analemma.errors import NotFound
from analemma.failpoints import declare, hit

AFTER_ASIDE = declare("remove.after_aside", "the volume of a workspace is moved aside, and its row does not say so")
AFTER_VOLUME = declare("remove.after_volume", "the volume of a workspace is removed, and the operation is not over")
AFTER_MARKERS = declare("remove.after_markers", "the markers of a purged workspace are deleted, and its data is there")
AFTER_OBJECTS = declare("remove.after_objects", "all objects of a purged workspace are deleted, and its rows are there")

DISCARD, PURGE = "discard", "purge"
_MARKS = {DISCARD: "discard:volume gone", PURGE: "purge:volume gone"}
WITHOUT_VOLUME = frozenset(_MARKS.values())
"""The intents of those whose volume was moved away: what lies at its place by now is not theirs."""

_NAME = "removed"
"""Under which a volume is moved aside: the same for whoever comes after, who must not move another."""
_BATCH = 1000


class Remover:
    """Takes apart a held workspace. Every step may be done again."""

    def __init__(self, parts: Parts, held: Held) -> None:
        self._parts = parts
        self._held = held

    def volume(self) -> None:
        """Remove the volume, if there is one that is the workspace's: a COLD or deleted one has none, and what lies
        there then is somebody else's. So is what lies there once the volume was moved away."""
        row, volume = self._held.row, self._held.volume
        if row.intent not in WITHOUT_VOLUME:
            if row.status in ("PENDING", "WARM", "ERROR") and volume.aside(_NAME) is None and volume.exists():
                try:
                    self._check()
                except BaseException as exc:
                    undo(self._held, row.status, exc)  # Nothing was touched.
                    raise
                volume.move_aside(_NAME)
            hit(AFTER_ASIDE)
            self._held.change(lambda _, row, now: row._replace(intent=_MARKS[row.intent or ""]))
        volume.delete_aside(_NAME)
        hit(AFTER_VOLUME)

    def _check(self) -> None:
        """That the volume is the workspace's, and nothing in it is another's."""
        row = self._held.row
        self._held.volume.check_owner(self._parts.volume_owner(row.id))
        check_apart(self._parts, row.volume, row.id)
        check_no_bookkeeping(self._held.volume.path)
        check_mounts(self._held.volume.path)

    def purge(self) -> None:
        """Remove everything: what names comes before what is named."""
        self.volume()
        row = self._held.row
        if self._parts.objects is not None:
            keys = self._keys(row.id)
            # Listed before this is asked: what another has stored since under the same name is not among them.
            if self._is_ended():  # guard: workspace.purged.volume
                return
            # Without its marker an archive does not exist; so no reader meets half of one.
            self._delete([key for key in keys if key.endswith(f"/{META}")])
            hit(AFTER_MARKERS)
            self._delete(keys)
        hit(AFTER_OBJECTS)
        if self._is_ended():
            return
        self._held.volume.release(self._parts.volume_owner(row.id))
        self._parts.rows.drop(row.id, self._held.fence)

    def _is_ended(self) -> bool:
        """Whether another has taken the purge over and ended it; LostOperation if it is another's and goes on, or if
        there is a workspace of this name again."""
        try:
            self._held.confirm()
        except NotFound:
            return True
        return False

    def _keys(self, workspace: str) -> list[str]:
        listed = self._parts.archive_objects.list(workspace_prefix(self._parts.tenant_name, workspace))
        return [info.key for info in listed if parse_key(self._parts.tenant_name, info.key) is not None]

    def _delete(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _BATCH):
            self._held.check()
            self._parts.archive_objects.delete_many(keys[start : start + _BATCH])
