"""Tags, which name versions, and pins, which keep them. Both are told in the journal of the version's branch."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from analemma.catalog.names import check_texts
from analemma.catalog.port import PinRow, TagRow
from analemma.clock import moment
from analemma.errors import Conflict, Invalid, NotFound
from analemma.state.arguments import branch_key, check_unicode
from analemma.state.kernel_base import MAIN
from analemma.state.recording import Note, Recording, check_text
from analemma.state.records import PINNED, TAGGED, UNPINNED, UNTAGGED

TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}")
# What would be taken for a version or for a manifest where either may be typed.
NUMBER_OR_ID = re.compile(r"[0-9]+|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Tag:
    """A name for one version, unique in its workflow."""

    name: str
    manifest_id: str
    version: int
    branch: str
    message: str | None
    created_at: dt.datetime


@dataclass(frozen=True, slots=True)
class Pin:
    """A version that must not expire."""

    manifest_id: str
    version: int
    branch: str
    reason: str | None
    created_at: dt.datetime


class Marking(Recording):
    """Names and keeps versions."""

    def tag(
        self, manifest_id: str, name: str, *, owner_id: str, message: str | None = None, force: bool = False
    ) -> Tag:
        """Name a version. A tagged version never expires. A name that is on another version is moved only with
        `force`; without it, that is a Conflict."""
        check_tag(name)
        check_text(message, "message")
        row = self._row(manifest_id, owner_id)
        key = row.key

        def propose(_: int) -> Note | None:
            there = self._catalog.tag(self._tenant, key.owner, key.workflow, name)
            if there is not None and not force:
                if there.manifest == row.id:
                    return None
                raise Conflict(
                    f"the tag {name} is on version {there.version} of branch {there.key.branch}",
                    hint="pass force=True to move it",
                    tag=name,
                    manifest=there.manifest.hex(),
                )
            moved_from = None if there is None else there.manifest
            facts = {"tag": name, "message": message, "moved_from": None if moved_from is None else moved_from.hex()}
            details = {"name": name, "message": message}
            if moved_from is None:
                return Note(TAGGED, row.id, facts, "add_tag", details)
            return Note(TAGGED, row.id, facts, "move_tag", {**details, "moved_from": moved_from})

        self._record(key, propose)
        return self._tag(key.owner, key.workflow, name)

    def untag(self, name: str, *, workflow_id: str, owner_id: str) -> None:
        """Remove a tag; NotFound if there is none."""
        branch_key(owner_id, workflow_id, MAIN)
        check_unicode(name, "tag")
        check_texts((name,))
        there = self._tag_row(owner_id, workflow_id, name)

        def propose(_: int) -> Note:
            if self._tag_row(owner_id, workflow_id, name).manifest != there.manifest:
                raise Conflict(f"the tag {name} was moved meanwhile", hint="look where it is now", tag=name)
            return Note(UNTAGGED, there.manifest, {"tag": name}, "drop_tag", {"name": name})

        self._record(there.key, propose)

    def tags(self, *, workflow_id: str, owner_id: str) -> list[Tag]:
        """Every tag of a workflow, on whatever branch, oldest first."""
        branch_key(owner_id, workflow_id, MAIN)
        return [_tag(row) for row in self._catalog.tags(self._tenant, owner_id, workflow_id)]

    def pin(self, manifest_id: str, *, owner_id: str, reason: str | None = None) -> Pin:
        """Keep a version from expiring. Pinning again replaces the reason."""
        check_text(reason, "reason")
        row = self._row(manifest_id, owner_id)
        pin: PinRow | None = None

        def propose(now_us: int) -> Note:
            nonlocal pin
            pin = PinRow(row.key, row.id, row.version, reason, now_us)
            return Note(PINNED, row.id, {"reason": reason}, "put_pin", {"reason": reason})

        self._record(row.key, propose)
        assert pin is not None
        return _pin(pin)

    def unpin(self, manifest_id: str, *, owner_id: str) -> None:
        """Let a version expire again; NotFound if it is not pinned."""
        row = self._row(manifest_id, owner_id)
        note = Note(UNPINNED, row.id, {}, "drop_pin")
        try:
            self._record(row.key, lambda _: note, again_on_conflict=False)
        except Conflict as exc:
            if any(pin.manifest == row.id for pin in self._catalog.pins(self._tenant, row.key.owner, row.key.workflow)):
                raise
            raise NotFound(f"version {row.version} is not pinned", manifest=manifest_id) from exc

    def pins(self, *, workflow_id: str, owner_id: str) -> list[Pin]:
        """Every pinned version of a workflow, oldest pin first."""
        branch_key(owner_id, workflow_id, MAIN)
        return [_pin(row) for row in self._catalog.pins(self._tenant, owner_id, workflow_id)]

    def _tag(self, owner: str, workflow: str, name: str) -> Tag:
        return _tag(self._tag_row(owner, workflow, name))

    def _tag_row(self, owner: str, workflow: str, name: str) -> TagRow:
        row = self._catalog.tag(self._tenant, owner, workflow, name)
        if row is None:
            raise NotFound(f"workflow {owner}/{workflow} has no tag {name!r}", tag=name)
        return row


def check_tag(name: str) -> None:
    """Raise Invalid unless it can name a version, and only that."""
    check_unicode(name, "tag")
    if TAG.fullmatch(name) is None or NUMBER_OR_ID.fullmatch(name) is not None:
        raise Invalid(
            f"not a tag: {name!r}",
            hint="use up to 128 letters, digits, '.', '_', '/', '+' and '-', not digits only, no manifest id",
        )


def _tag(row: TagRow) -> Tag:
    return Tag(row.name, row.manifest.hex(), row.version, row.key.branch, row.message, moment(row.created_at_us))


def _pin(row: PinRow) -> Pin:
    return Pin(row.manifest.hex(), row.version, row.key.branch, row.reason, moment(row.created_at_us))
