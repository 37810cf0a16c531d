"""The versions of a branch, going back and branching off: listing, comparing, checking and following what is on the
branch and what that was forked from, and which version changed something last (`blame`); new versions on old roots,
which copy nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from analemma.canon.nodes import BlockId, parse_block_id
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.trees import Edited, Operation
from analemma.catalog.kernel.versions import NEWEST, ExpiredRow, branch_columns, version_of
from analemma.catalog.port import BranchKey, JournalRow, Verdict, Version
from analemma.errors import Conflict, Corrupt, Expired, HeadMoved, Invalid, NotFound
from analemma.state.arguments import (
    CURRENT_HEAD,
    MAIN,
    branch_key,
    check_name,
    check_new_branch,
    check_segment,
    check_verdict,
    check_version,
    place,
)
from analemma.state.commits import Proposal
from analemma.state.contents import path_of
from analemma.state.records import FORKED, ROLLED_BACK, Commit, manifest_links
from analemma.state.workflows import decision_of

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel
    from analemma.state.records import Receipt

    # Loaded by who verifies: every program has the verbs.
    from analemma.state.verify import Report

PAGE = 200
LARGEST_PAGE = 1000
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Stretch(NamedTuple):
    """Versions of one branch, below a number."""

    key: BranchKey
    before: int


def history(
    kernel: Kernel,
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
    key = branch_key(owner_id, workflow_id, branch)
    filters = _filters(execution_id, segment_id, since, until, decision)
    line = _line_after(kernel, key, after)
    if forks is False:
        line = takewhile(lambda stretch: stretch.key == key, line)
    elif not (forks or limit is None or isinstance(after, str)):
        line = takewhile(lambda stretch: stretch.key.workflow == key.workflow, line)
    page = LARGEST_PAGE if limit is None else min(limit, LARGEST_PAGE)
    versions = list(islice(_rows_of(kernel, line, page, **filters), limit))
    if not versions:
        kernel._commits.head(key)
    return versions


def walk(kernel: Kernel, key: BranchKey, **chosen: Any) -> Iterator[Version]:
    """The same versions, across forks, one after the other, chosen alike: whoever stops early has read no more than a
    page too many. NotFound at once if there is no such branch."""
    filters = _filters(**chosen)
    kernel._commits.head(key)
    return _rows_of(kernel, line_of(kernel, key), PAGE, **filters)


def _filters(
    execution_id: str | None,
    segment_id: int | None,
    since: dt.datetime | None,
    until: dt.datetime | None,
    decision: Verdict | None,
) -> dict[str, Any]:
    """What a catalog is asked for, once it is known to make sense."""
    if decision is not None:
        check_verdict(decision)
    return {
        "execution": None if execution_id is None else check_name(execution_id, "execution"),
        "segment": None if segment_id is None else check_segment(segment_id),
        "since_us": _microseconds(since, "since"),
        "until_us": _microseconds(until, "until"),
        "decision": decision,
    }


def diff(
    kernel: Kernel, old_manifest_id: str, new_manifest_id: str, *, owner_id: str | None = None
) -> list[dict[str, Any]]:
    """How one version becomes another, as RFC 6902 operations; what they share is not read."""
    old, new = kernel._row(old_manifest_id, owner_id), kernel._row(new_manifest_id, owner_id)
    return [patch_of(change) for change in changes_between(kernel, old, new)]


def changes_between(kernel: Kernel, old: Version, new: Version) -> list[Operation]:
    """The operations that turn the state of one version into that of another."""
    roots = [kernel._commits.manifest(row.id).root.id for row in (old, new)]
    return kernel._commits.guarded(old.id, lambda: kernel._commits.guarded(new.id, lambda: kernel._trees.diff(*roots)))


def blame(kernel: Kernel, *, workflow_id: str, owner_id: str, path: str, branch: str = MAIN) -> Version:
    """The version that last changed what stands at a path (a field name or a JSON pointer), on the branch or in
    what it was forked from. Where the versions before it have expired, any of them may have been the one: then
    `or_before` is True."""
    key = branch_key(owner_id, workflow_id, branch)
    kernel._commits.head(key)
    tokens = path_of(path)
    newest: Version | None = None
    digest: bytes | None = None
    for row in _rows_of(kernel, line_of(kernel, key), PAGE):
        if newest is not None and newest.parent != row.id:
            return newest._replace(or_before=True)
        try:
            found = _fingerprint_at(kernel, row.id, tokens)
        except Expired:
            if newest is None:
                raise
            return newest._replace(or_before=True)
        if newest is None and found is None:
            raise NotFound(f"{place(key)} has nothing at {format_pointer(tokens)}", pointer=format_pointer(tokens))
        if newest is not None and found != digest:
            return newest
        newest, digest = row, found
    assert newest is not None
    return newest._replace(or_before=newest.parent is not None)


def line_of(kernel: Kernel, key: BranchKey) -> Iterator[Stretch]:
    """What led to a branch: its own versions, those of the branch that it was forked from up to there, and so on,
    as far as that is known."""
    before = NEWEST
    while True:
        yield Stretch(key, before)
        start = kernel._catalog.branch_start(kernel._tenant, key)
        if start is None or start.parent is None:
            return
        # One that expired is no version any more, but still says where to look for those before it.
        parent = place_of(kernel, start.parent)
        if parent is None:
            return
        key, before = parent.key, parent.version + 1


def _line_after(kernel: Kernel, key: BranchKey, after: int | str | None) -> Iterator[Stretch]:
    """The same, below a version of this id, which may have expired meanwhile, or of this number. Numbers fall from
    branch to branch of one workflow; in one that was forked they start again, so that they say nothing of what is
    behind that."""
    line = line_of(kernel, key)
    if isinstance(after, str):
        found = place_of(kernel, parse_block_id(after))
        for stretch in line:
            if found is not None and found.key == stretch.key and found.version < stretch.before:
                yield stretch._replace(before=found.version)
                yield from line
                return
        raise NotFound(
            f"manifest {after} is not in the history of {place(key)}",
            hint="pass the manifest_id of the last version of the page before",
            manifest=after,
        )
    below = NEWEST if after is None else check_version(after)
    for stretch in line:
        if stretch.key.workflow != key.workflow:
            below = NEWEST
        yield stretch._replace(before=min(stretch.before, below))


def place_of(kernel: Kernel, manifest: BlockId) -> Version | ExpiredRow | None:
    """Where a version stands or, once it has expired, stood."""
    return kernel._catalog.manifest(kernel._tenant, manifest) or kernel._catalog.expired(kernel._tenant, manifest)


def find_between(kernel: Kernel, low: BlockId, high: BlockId, owner: str | None) -> list[Version]:
    """The first two versions, of one owner or of all, whose ids are from one to another."""
    asked = {"tenant": kernel._tenant, "low": low, "high": high, "owner": owner, "limit": 2}
    return kernel._context.engine.rows(version_of, "versions_between", **asked)


def _rows_of(kernel: Kernel, line: Iterable[Stretch], page: int, **filters: Any) -> Iterator[Version]:
    """The versions of these stretches, newest first; read by the page."""
    for key, before in line:
        while rows := kernel._catalog.history(kernel._tenant, key, before_version=before, limit=page, **filters):
            yield from rows
            if rows[-1].parent is None:
                return
            if len(rows) < page:
                break
            before = rows[-1].version


def _fingerprint_at(kernel: Kernel, manifest: BlockId, path: Path) -> bytes | None:
    root = kernel._commits.manifest(manifest).root.id
    return kernel._commits.guarded(manifest, lambda: kernel._trees.fingerprint(root, path))


def _microseconds(moment: dt.datetime | None, what: str) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, dt.datetime) or moment.tzinfo is None:
        raise Invalid(f"`{what}` is no moment with a time zone", hint="pass a datetime with tzinfo, such as UTC")
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


def patch_of(change: Operation) -> dict[str, Any]:
    """An operation as RFC 6902 writes it."""
    patch: dict[str, Any] = {"op": change.op, "path": format_pointer(change.path)}
    if change.op != "remove":
        patch["value"] = change.value
    return patch


WATCHED = 100
"""Versions that a look at a branch reads."""
LONGEST_SLEEP_S = 3600.0
"""Whoever looks more seldom looks in vain now and then: no machine can be told to sleep for ever."""


def watch(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    since: int | None = None,
    timeout_s: float | None = None,
    poll_s: float = 0.2,
) -> Iterator[Version]:
    """Every version after `since`, in order and once each, then whatever is committed next; ends after `timeout_s`
    without any.

    Without `since`, it begins with the first version after this call. To go on after a break, pass the last version
    seen. The branch need not exist yet. Versions that expired are left out."""
    if not _is_time(poll_s) or poll_s == 0 or not (timeout_s is None or _is_time(timeout_s)):
        raise Invalid(f"cannot wait {timeout_s!r} s, looking every {poll_s!r} s", hint="times are positive")
    if since is not None and (type(since) is not int or abs(since) >= 2**62):
        raise Invalid(f"not a version: {since!r}", hint="pass the last version seen, or 0")
    key = branch_key(owner_id, workflow_id, branch)
    if since is None:
        # Here, and not in the generator, which begins only when it is first asked for something.
        head = kernel._catalog.head(kernel._tenant, key)
        since = 0 if head is None else head.version
    return _follow(kernel, key, since, timeout_s, poll_s)


def _follow(kernel: Kernel, key: BranchKey, seen: int, timeout_s: float | None, poll_s: float) -> Iterator[Version]:
    quiet_since = kernel._clock.monotonic()
    while True:
        # Versions of a branch appear in their order, since each is committed on the one before: so nothing can turn
        # up later below what was seen.
        asked = {**branch_columns(kernel._tenant, key), "after_version": seen, "limit": WATCHED}
        rows = kernel._context.engine.rows(version_of, "versions_after", **asked)
        for row in rows:
            yield row
            seen = row.version
        now = kernel._clock.monotonic()
        if rows:
            quiet_since = now
            continue
        wait = poll_s if timeout_s is None else min(poll_s, quiet_since + timeout_s - now)
        if wait <= 0:
            return
        kernel._clock.sleep(min(wait, LONGEST_SLEEP_S))


def _is_time(seconds: object) -> bool:
    """Whether one can wait so long: infinity is a time, NaN is none."""
    return isinstance(seconds, int | float) and type(seconds) is not bool and seconds >= 0


def verify_manifest_integrity(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> bool:
    """Whether one version is whole: its manifest, its columns, and every block of its state, each hashed again."""
    from analemma.state.verify import verify_version

    row = kernel._row(manifest_id, owner_id)
    return verify_version(kernel._catalog, kernel._tenant, kernel._blocks, row.id).ok


def verify(
    kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str = MAIN, expect: Receipt | None = None
) -> Report:
    """Check a branch: its journal from the beginning, its head, and every version down to the last block.

    With `expect`, a receipt that was kept elsewhere, also that the store still shows what it is for.
    """
    from analemma.state.verify import verify_branch

    key = branch_key(owner_id, workflow_id, branch)
    kernel._commits.head(key)
    return verify_branch(kernel._catalog, kernel._tenant, kernel._blocks, key, expect)


@dataclass(frozen=True, slots=True)
class Rollback:
    """What rolling back would change."""

    version: int
    manifest_id: str
    previous_manifest_id: str
    """The newest version, whose state would be replaced."""
    changes: list[dict[str, Any]]


@overload
def rollback_to_version(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    version: int,
    branch: str = MAIN,
    preview: Literal[False] = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit: ...


@overload
def rollback_to_version(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    version: int,
    branch: str = MAIN,
    preview: Literal[True],
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Rollback: ...


def rollback_to_version(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    version: int,
    branch: str = MAIN,
    preview: bool = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit | Rollback:
    """Make an earlier version's state the newest again, as a new version; with `preview`, only say what that would
    change.

    Costs what the preview costs, whatever the size of the state, and history is kept: rolling back can itself be
    rolled back. What differs from the newest version is read and verified first, with `deep` all of the earlier
    one; Corrupt, with nothing changed, if any of it is damaged. With `previous_manifest_id`, such as a preview's,
    the head must still be that manifest, or HeadMoved is raised and nothing changes."""
    key = branch_key(owner_id, workflow_id, branch)
    act = plan_rollback if preview else roll_back
    target = kernel._version_row(key, version)
    return act(kernel, key, target, previous_manifest_id=previous_manifest_id, deep=deep)


def plan_rollback(
    kernel: Kernel, key: BranchKey, target: Version, *, previous_manifest_id: str | None, deep: bool
) -> Rollback:
    """What going back to a version, of any branch, would change."""
    expected = None if previous_manifest_id is None else parse_block_id(previous_manifest_id)
    _check_whole(kernel, key, target, deep=deep)
    head = kernel._commits.head(key)
    if expected not in (None, head.manifest):
        message = f"{place(key)} has moved on: it is at version {head.version}"
        raise HeadMoved(message, hint="reload and retry", key=key, expected=expected, found=head)
    changes = kernel.diff(head.manifest.hex(), target.id.hex())
    return Rollback(target.version, target.id.hex(), head.manifest.hex(), changes)


def roll_back(
    kernel: Kernel, key: BranchKey, target: Version, *, previous_manifest_id: str | None, deep: bool = False
) -> Commit:
    """Make the state of a version, of any branch, the newest of a branch."""
    expected = CURRENT_HEAD if previous_manifest_id is None else parse_block_id(previous_manifest_id)
    _check_whole(kernel, key, target, deep=deep)
    message = f"roll back to version {target.version}"
    facts: dict[str, Any] = {"version": target.version}
    if target.key != key:
        message += f" of {place(target.key)}"
        facts["from"] = target.manifest_id
    taken = _taken_over(kernel, target, key, kind=ROLLED_BACK, message=message, facts=facts)
    return kernel._commits.commit_next(key, expected, lambda head: taken._replace(expected=head))


def _taken_over(kernel: Kernel, source: Version, key: BranchKey, **more: Any) -> Proposal:
    """A version of a branch that takes over all of another version."""
    manifest = kernel._commits.manifest(source.id)
    return Proposal(
        key,
        Edited(manifest.root, ()),
        None,
        bases=(source.id,),
        config=manifest.config,
        segments=manifest.segments,
        rows=partial(kernel._catalog.carried_rows, kernel._tenant, source, key, at_us=kernel._clock.now_us()),
        **more,
    )


def _check_whole(kernel: Kernel, key: BranchKey, target: Version, *, deep: bool) -> None:
    """Raise Corrupt if a version is damaged: only where it differs from the newest of the branch, unless `deep`, as
    what that has too is no worse afterwards, and there may be gigabytes of it."""
    from analemma.state.verify import verify_version

    beside: list[BlockId] = []
    if not deep:
        head = kernel._commits.head(key)
        # That it cannot be read may be why somebody goes back.
        with suppress(Corrupt, Expired):
            beside = manifest_links(kernel._commits.manifest(head.manifest))
    found = verify_version(kernel._catalog, kernel._tenant, kernel._blocks, target.id, beside=beside)
    if found.problems:
        # Expired since we found it, perhaps: then that is what there is to say.
        kernel._row(target.id.hex(), None)
        raise Corrupt(
            f"version {target.version} of {place(target.key)} cannot be rolled back to: {found.problems[0]}",
            hint="restore the block from a second copy, or roll back to another version",
            version=target.version,
        )


def fork(
    kernel: Kernel,
    manifest_id: str,
    *,
    owner_id: str,
    workflow_id: str | None = None,
    branch: str | None = None,
    message: str | None = None,
) -> Commit:
    """Start a new workflow (at version 1), or a new branch of the same one (counting on), from any version. Copies
    nothing. A branch for which checkpoints were accepted exists: they are applied, and then it is a Conflict."""
    source = kernel._row(manifest_id, owner_id)
    if (workflow_id is None) == (branch is None):
        raise Invalid("a fork makes a new workflow or a new branch", hint="pass workflow_id or branch, not both")
    key = branch_key(
        owner_id, source.key.workflow if workflow_id is None else workflow_id, MAIN if branch is None else branch
    )
    if kernel._commits.head_after_pending(key) is not None:
        raise _exists(key)
    check_new_branch(key.branch)
    version, facts = 1 if workflow_id is not None else source.version + 1, {"from": source.id.hex()}
    begun = {"parent": source.id, "version": version, "message": message, "kind": FORKED, "facts": facts}
    try:
        return kernel._commits.commit(_taken_over(kernel, source, key, **begun))
    except HeadMoved as exc:
        raise _exists(key) from exc


def _exists(key: BranchKey) -> Conflict:
    return Conflict(f"{place(key)} exists already", hint="choose another name")


def last_safe_manifest(kernel: Kernel, *, workflow_id: str, owner_id: str, branch: str = MAIN) -> Version:
    """The newest version whose newest decision is `approved`; NotFound if there is none. Costs the same however
    many versions and decisions there are."""
    key = branch_key(owner_id, workflow_id, branch)
    with kernel._catalog.snapshot() as seen:
        rows = seen.history(kernel._tenant, key, decision="approved", limit=1)
        # The row only finds the version. What counts is the journal's record, whose hash is checked.
        asked = branch_columns(kernel._tenant, key)
        records = seen.engine.rows(JournalRow, "decisions", **asked, manifest=rows[0].id) if rows else []
    if not rows:
        kernel._commits.head(key)
        raise NotFound(f"{place(key)} has no approved version", hint="record a decision with decide()")
    if not records or decision_of(records[-1]).decision != "approved":
        raise Corrupt(
            f"version {rows[0].version} of {place(key)} is listed as approved, and its journal says otherwise",
            hint="run verify",
            manifest=rows[0].id.hex(),
        )
    return rows[0]


@overload
def rollback_to_last_safe(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    preview: Literal[False] = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit: ...


@overload
def rollback_to_last_safe(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    preview: Literal[True],
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Rollback: ...


def rollback_to_last_safe(
    kernel: Kernel,
    *,
    workflow_id: str,
    owner_id: str,
    branch: str = MAIN,
    preview: bool = False,
    previous_manifest_id: str | None = None,
    deep: bool = False,
) -> Commit | Rollback:
    """Make the newest approved state the newest again, as a new version; with `preview`, only say what that would
    change. `previous_manifest_id` and `deep` as in `rollback_to_version`."""
    act = plan_rollback if preview else roll_back
    safe = kernel.last_safe_manifest(workflow_id=workflow_id, owner_id=owner_id, branch=branch)
    return act(kernel, safe.key, safe, previous_manifest_id=previous_manifest_id, deep=deep)
