"""Reading state and its history."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, NamedTuple

from analemma.canon.identity import BlockId, parse_block_id
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.trees import Operation
from analemma.catalog.port import BranchKey, ExpiredRow, ManifestRow, Verdict
from analemma.errors import Corrupt, Expired, Invalid, NotFound
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

PAGE = 200
LARGEST_PAGE = 1000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class _Stretch(NamedTuple):
    """Versions of one branch: all of them, or those below a number."""

    key: BranchKey
    before: int | None

    def has(self, version: int) -> bool:
        """Whether a version of the branch is in it."""
        return self.before is None or version < self.before

    def below(self, version: int | None) -> _Stretch:
        """What of it is below a version too."""
        return _Stretch(self.key, min([each for each in (self.before, version) if each is not None], default=None))


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
        limit: int | None = None,
        after: int | str | None = None,
        forks: bool | None = None,
    ) -> list[Version]:
        """The versions of a branch, newest first, and on into those that it was forked from; or of these the ones of
        one execution, one segment, made from `since` on and before `until`, or whose newest decision is `decision`.
        Reads no state.

        All of them, or a page of `limit`; `after` is the version at which the page before ended: its manifest id, or
        its number in this workflow. Numbers start again in a workflow that was forked, so a page ends where the
        workflow began, unless `after` is an id or `forks` is True. With `forks=False`, only what was committed on the
        branch itself."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise Invalid(f"a page of {limit!r} versions", hint="ask for at least one")
        if decision is not None:
            check_verdict(decision)
        key = branch_key(owner_id, workflow_id, branch)
        filters = {
            "execution": None if execution_id is None else check_name(execution_id, "execution"),
            "segment": None if segment_id is None else check_segment(segment_id),
            "since_us": _microseconds(since, "since"),
            "until_us": _microseconds(until, "until"),
            "decision": decision,
        }
        line: Iterator[_Stretch] = (
            self._line_after_number(key, after) if not isinstance(after, str) else self._line_after_manifest(key, after)
        )
        if forks is False:
            line = takewhile(lambda stretch: stretch.key == key, line)
        elif not (forks or limit is None or isinstance(after, str)):
            line = takewhile(lambda stretch: stretch.key.workflow == key.workflow, line)
        page = LARGEST_PAGE if limit is None else min(limit, LARGEST_PAGE)
        versions = [version_of(row) for row in islice(self._rows_of(line, page, **filters), limit)]
        if not versions:
            self._head(key)
        return versions

    def diff(self, old_manifest_id: str, new_manifest_id: str, *, owner_id: str | None = None) -> list[dict[str, Any]]:
        """How one version becomes another, as RFC 6902 operations; what they share is not read."""
        old, new = self._row(old_manifest_id, owner_id), self._row(new_manifest_id, owner_id)
        roots = [self._read_manifest(row.id).root.id for row in (old, new)]
        changes = self._guarded(old.id, lambda: self._guarded(new.id, lambda: self._trees.diff(*roots)))
        return [_patch(change) for change in changes]

    def blame(self, *, workflow_id: str, owner_id: str, path: str, branch: str = MAIN) -> Version:
        """The version that last changed what stands at a path (a field name or a JSON pointer), on the branch or in
        what it was forked from. Where the versions before it have expired, any of them may have been the one: then
        `or_before` is True."""
        key = branch_key(owner_id, workflow_id, branch)
        self._head(key)
        tokens = _path(path)
        newest: ManifestRow | None = None
        digest: bytes | None = None
        for row in self._rows_of(self._line(key), PAGE):
            if newest is not None and newest.parent != row.id:
                return version_of(newest, or_before=True)
            try:
                found = self._fingerprint_at(row.id, tokens)
            except Expired:
                if newest is None:
                    raise
                return version_of(newest, or_before=True)
            if newest is None and found is None:
                raise NotFound(f"{place(key)} has nothing at {format_pointer(tokens)}", pointer=format_pointer(tokens))
            if newest is not None and found != digest:
                return version_of(newest)
            newest, digest = row, found
        assert newest is not None
        return version_of(newest, or_before=newest.parent is not None)

    def _line(self, key: BranchKey) -> Iterator[_Stretch]:
        """What led to a branch: its own versions, those of the branch that it was forked from up to there, and so on,
        as far as that is known."""
        before = None
        while True:
            yield _Stretch(key, before)
            start = self._catalog.branch_start(self._tenant, key)
            if start is None or start.parent is None:
                return
            # One that expired is no version any more, but still says where to look for those before it.
            parent = self._place_of(start.parent)
            if parent is None:
                return
            key, before = parent.key, parent.version + 1

    def _line_after_number(self, key: BranchKey, after: int | None) -> Iterator[_Stretch]:
        """The same, below a version of this number. Numbers fall from branch to branch of one workflow; in one that was
        forked they start again, so that they say nothing of what is behind that."""
        if after is not None:
            check_version(after)
        numbered = True
        for stretch in self._line(key):
            numbered = numbered and stretch.key.workflow == key.workflow
            yield stretch.below(after) if numbered else stretch

    def _line_after_manifest(self, key: BranchKey, after: str) -> Iterator[_Stretch]:
        """The same, below a version, which may have expired meanwhile."""
        found = self._place_of(parse_block_id(after))
        begun = False
        for stretch in self._line(key):
            if begun:
                yield stretch
            elif found is not None and found.key == stretch.key and stretch.has(found.version):
                begun = True
                yield stretch.below(found.version)
        if not begun:
            raise NotFound(
                f"manifest {after} is not in the history of {place(key)}",
                hint="pass the manifest_id of the last version of the page before",
                manifest=after,
            )

    def _place_of(self, manifest: BlockId) -> ManifestRow | ExpiredRow | None:
        return self._catalog.manifest(self._tenant, manifest) or self._catalog.expired(self._tenant, manifest)

    def _rows_of(self, line: Iterable[_Stretch], page: int, **filters: Any) -> Iterator[ManifestRow]:
        """The versions of these stretches, newest first; read by the page."""
        for key, before in line:
            while rows := self._catalog.history(self._tenant, key, before_version=before, limit=page, **filters):
                yield from rows
                if rows[-1].parent is None:
                    return
                if len(rows) < page:
                    break
                before = rows[-1].version

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
