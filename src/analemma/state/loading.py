"""Reading state and its history."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from analemma.canon.identity import BlockId
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.tree import Operation
from analemma.catalog.port import ManifestRow, Verdict
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.arguments import (
    branch_key,
    check_name,
    check_segment,
    check_unicode,
    check_verdict,
    check_version,
)
from analemma.state.kernel_base import MAIN, KernelBase, field_path, place
from analemma.state.versions import Version, version_of

BLAME_PAGE = 200
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Loading(KernelBase):
    """Reads state; changes nothing."""

    def load_latest_state(
        self, *, workflow_id: str, owner_id: str, execution_id: str | None = None, branch: str = MAIN
    ) -> dict[str, Any]:
        """The newest state of a branch, or of one execution on it; NotFound if there is none."""
        key = branch_key(owner_id, workflow_id, branch)
        if execution_id is not None:
            execution = check_name(execution_id, "execution")
            rows = self._catalog.history(self._tenant, key, execution=execution, limit=1)
            if not rows:
                raise NotFound(f"{place(key)} has no version of execution {execution_id!r}")
            return self._read_state(rows[0].id)
        return self._read_state(self._head(key).manifest)

    def load_state(self, manifest_id: str, *, owner_id: str | None = None) -> dict[str, Any]:
        """The whole state of one version."""
        return self._read_state(self._row(manifest_id, owner_id).id)

    def load_fields(self, manifest_id: str, fields: Sequence[str], *, owner_id: str | None = None) -> dict[str, Any]:
        """Some fields (names or JSON pointers) of one version, reading only the blocks they need; those that are not
        there are left out."""
        if isinstance(fields, str):
            raise Invalid("fields is one string", hint="pass a list of names or pointers")
        row = self._row(manifest_id, owner_id)
        paths = {name: _path(name) for name in fields}
        root = self._read_manifest(row.id).root.id
        found = self._guarded(row.id, lambda: self._trees.get_many(root, paths.values()))
        return {name: found[path] for name, path in paths.items() if path in found}

    def history(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        execution_id: str | None = None,
        segment_id: int | None = None,
        since: dt.datetime | None = None,
        until: dt.datetime | None = None,
        decision: Verdict | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> list[Version]:
        """The versions of a branch, newest first, or those of one execution, one segment, made from `since` on and
        before `until`, or whose newest decision is `decision`. `after` is the version at which the page before ended.
        Reads no state."""
        if type(limit) is not int or limit < 1:
            raise Invalid(f"a page of {limit!r} versions", hint="ask for at least one")
        if after is not None:
            check_version(after)
        if decision is not None:
            check_verdict(decision)
        key = branch_key(owner_id, workflow_id, branch)
        rows = self._catalog.history(
            self._tenant,
            key,
            before_version=after,
            execution=None if execution_id is None else check_name(execution_id, "execution"),
            segment=None if segment_id is None else check_segment(segment_id),
            since_us=_microseconds(since, "since"),
            until_us=_microseconds(until, "until"),
            decision=decision,
            limit=limit,
        )
        if not rows:
            self._head(key)
        return [version_of(row) for row in rows]

    def diff(self, old_manifest_id: str, new_manifest_id: str, *, owner_id: str | None = None) -> list[dict[str, Any]]:
        """How one version becomes another, as RFC 6902 operations; what they share is not read."""
        old, new = self._row(old_manifest_id, owner_id), self._row(new_manifest_id, owner_id)
        roots = [self._read_manifest(row.id).root.id for row in (old, new)]
        changes = self._guarded(old.id, lambda: self._guarded(new.id, lambda: self._trees.diff(*roots)))
        return [_patch(change) for change in changes]

    def blame(self, *, workflow_id: str, owner_id: str, path: str, branch: str = MAIN) -> Version:
        """The version that last changed what stands at a path (a field name or a JSON pointer)."""
        key = branch_key(owner_id, workflow_id, branch)
        self._head(key)
        tokens = _path(path)
        newest: ManifestRow | None = None
        digest: bytes | None = None
        before: int | None = None
        while rows := self._catalog.history(self._tenant, key, before_version=before, limit=BLAME_PAGE):
            for row in rows:
                found = self._fingerprint_at(row.id, tokens)
                if newest is None and found is None:
                    raise NotFound(
                        f"{place(key)} has nothing at {format_pointer(tokens)}", pointer=format_pointer(tokens)
                    )
                if newest is not None and found != digest:
                    return version_of(newest)
                newest, digest, before = row, found, row.version
        assert newest is not None
        return version_of(newest)

    def _fingerprint_at(self, manifest: BlockId, path: Path) -> bytes | None:
        root = self._read_manifest(manifest).root.id
        return self._guarded(manifest, lambda: self._trees.fingerprint(root, path))

    def _read_state(self, manifest: BlockId) -> dict[str, Any]:
        state = self._guarded(manifest, lambda: self._trees.read(self._read_manifest(manifest).root.id))
        if type(state) is not dict:
            raise Corrupt(f"the state of manifest {manifest.hex()} is no dict", block=manifest.hex())
        return state


def _path(name: Any) -> Path:
    """A field's name or a JSON pointer, as someone asks for it."""
    check_unicode(name, "path")
    return field_path(name)


def _microseconds(moment: dt.datetime | None, what: str) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, dt.datetime) or moment.tzinfo is None:
        raise Invalid(f"`{what}` is no moment with a time zone", hint="pass a datetime with tzinfo, such as UTC")
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def _patch(change: Operation) -> dict[str, Any]:
    patch: dict[str, Any] = {"op": change.op, "path": format_pointer(change.path)}
    if change.op != "remove":
        patch["value"] = change.value
    return patch
