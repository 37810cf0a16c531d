"""Which version is meant: one grammar of revisions, wherever a version is expected.

`HEAD`, `draft@3`, a version's number, a tag, a branch, the first digits of an id, `@{2026-11-01}`; `~2` behind any of
them goes back by that many versions. The first meaning that there is counts, in this order."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Protocol

from analemma.canon.nodes import BlockId
from analemma.catalog.port import BranchKey, Version
from analemma.errors import AnalemmaError, Invalid, NotFound
from analemma.state.arguments import MAIN, branch_key, check_unicode, check_version, expired, place
from analemma.state.history import find_between, line_of, place_of
from analemma.state.workflows import find_tag

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

HEAD = "HEAD"
ID_DIGITS = 64
_BEHIND = re.compile(r"(?:~[0-9]{0,18})+$")
_NUMBER = re.compile(r"[0-9]+")
_NUMBER_ON = re.compile(r"(.+)@([0-9]+)", re.DOTALL)
_MOMENT_ON = re.compile(r"(.*)@\{(.*)\}", re.DOTALL)
_PREFIX = re.compile(r"[0-9a-f]{6,64}")
_INSTANT = dt.timedelta(microseconds=1)


class Identified(Protocol):
    """What knows which version it is about: a commit, a version, a tag, a bag."""

    @property
    def manifest_id(self) -> str | None: ...


Revision = str | int | Identified
"""What names a version: text of the grammar, a number, or an answer of an earlier call."""


def find_version(
    kernel: Kernel, revision: Revision, *, owner: str | None = None, workflow: str | None = None, branch: str = MAIN
) -> Version:
    """The version that a revision names, seen from a branch; NotFound, Expired, or Invalid where two are meant. Without
    owner and workflow it can only be an id, or how one begins."""
    if isinstance(revision, int) and type(revision) is not bool:
        revision = str(check_version(revision))
    if not isinstance(revision, str):
        named = getattr(revision, "manifest_id", None)
        if not isinstance(named, str):
            raise Invalid(f"not a revision: {revision!r}"[:200], hint="pass a number, a name, or what a save gave")
        return kernel._row(named, owner)
    check_unicode(revision, "revision")
    behind = _BEHIND.search(revision)
    text = revision if behind is None else revision[: behind.start()]
    key = None if owner is None or workflow is None else branch_key(owner, workflow, branch)
    found = _find(kernel, text, key, owner)
    if behind is None:
        return found
    return _before(kernel, found, sum(int(steps or "1") for steps in behind[0].split("~")[1:]))


def find_own_version(kernel: Kernel, revision: Revision, key: BranchKey) -> Version:
    """The same, of the workflow itself and no other; on whatever branch."""
    found = find_version(kernel, revision, owner=key.owner, workflow=key.workflow, branch=key.branch)
    if found.key.workflow != key.workflow:
        raise Invalid(f"{found.manifest_id} is a version of {place(found.key)}", hint="name one of this workflow")
    return found


def _find(kernel: Kernel, text: str, key: BranchKey | None, owner: str | None) -> Version:
    if len(text) == ID_DIGITS and _PREFIX.fullmatch(text):
        return kernel._row(text, owner)
    found = None if key is None else _find_named(kernel, text, key)
    if found is None and _PREFIX.fullmatch(text):
        found = _beginning(kernel, text, owner)
    if found is not None:
        return found
    if key is not None:
        raise _nothing(kernel, text, key)
    if _PREFIX.fullmatch(text):
        raise NotFound(f"no id of a version begins with {text}", hint="give more of it, or owner and workflow")
    raise Invalid(f"it is not said of which workflow {text!r} is a version", hint="give owner and workflow, or an id")


def _find_named(kernel: Kernel, text: str, key: BranchKey) -> Version | None:
    """What a text means in a workflow; None if it means nothing there."""
    if text == HEAD:
        return _newest(kernel, key)
    if (on := _MOMENT_ON.fullmatch(text)) is not None:
        return _at_moment(kernel, key if on[1] in ("", HEAD) else key._replace(branch=on[1]), on[2])
    if (on := _NUMBER_ON.fullmatch(text)) is not None:
        other = key if on[1] == HEAD else key._replace(branch=on[1])
        found = _numbered(kernel, other, on[2])
        if found is None:
            raise _nothing(kernel, on[2], other)
        return found
    if _NUMBER.fullmatch(text):
        return _numbered(kernel, key, text)
    if not text or "~" in text:
        raise Invalid(f"not a revision: {text!r}", hint="such as HEAD~2, 3, draft@3, @{2026-11-01}, a tag or a branch")
    tag = find_tag(kernel, key.owner, key.workflow, text)
    if tag is not None:
        return kernel._row(tag.manifest_id, key.owner)
    head = kernel._catalog.head(kernel._tenant, key._replace(branch=text))
    return None if head is None else kernel._row(head.manifest.hex(), key.owner)


def _newest(kernel: Kernel, key: BranchKey) -> Version:
    rows = kernel._catalog.history(kernel._tenant, key, limit=1)
    return rows[0] if rows else kernel._row(kernel._commits.head(key).manifest.hex(), key.owner)


def _numbered(kernel: Kernel, key: BranchKey, text: str) -> Version | None:
    """The version of a number on a branch, or on what it was forked from in this workflow."""
    kernel._commits.head(key)
    number = int(text[:20])
    if not 0 < number < 10**18:
        return None
    for stretch in line_of(kernel, key):
        if stretch.key.workflow != key.workflow:
            return None
        if number < stretch.before:
            rows = kernel._catalog.history(kernel._tenant, stretch.key, before_version=number + 1, limit=1)
            if rows and rows[0].version == number:
                return rows[0]
            gone = kernel._catalog.expired_version(kernel._tenant, stretch.key, number)
            if gone is not None:
                raise expired(gone)
    return None


def _at_moment(kernel: Kernel, key: BranchKey, text: str) -> Version:
    """What was newest on a branch at a time."""
    try:
        moment = dt.datetime.fromisoformat(text.strip())
    except ValueError as exc:
        raise Invalid(f"not a time: {text!r}", hint="such as @{2026-11-01} or @{2026-11-01T12:00}, in UTC") from exc
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
    if moment < dt.datetime.max.replace(tzinfo=dt.UTC):
        moment += _INSTANT
    page = kernel.history(
        workflow_id=key.workflow, owner_id=key.owner, branch=key.branch, until=moment, limit=1, forks=True
    )
    if not page:
        raise NotFound(f"{place(key)} had no version at {text}", hint="it began later, or those before have expired")
    return page[0]


def _beginning(kernel: Kernel, digits: str, owner: str | None) -> Version | None:
    """The version whose id begins with these digits; Invalid if there are two."""
    low, high = (BlockId(bytes.fromhex(digits.ljust(ID_DIGITS, fill))) for fill in "0f")
    found = find_between(kernel, low, high, owner)
    if len(found) > 1:
        both = " and ".join(f"{row.manifest_id} (version {row.version} of {place(row.key)})" for row in found)
        raise Invalid(
            f"two versions have ids that begin with {digits}: {both}",
            hint="give more digits",
            manifests=[row.manifest_id for row in found],
        )
    return found[0] if found else None


def _before(kernel: Kernel, row: Version, steps: int) -> Version:
    """The version that is so many before another, by first parents: on a branch they count without gaps, so that each
    branch on the way costs the same, however many versions it has."""
    key, version, left = row.key, row.version, steps
    while True:
        start = kernel._catalog.branch_start(kernel._tenant, key)
        first = None if start is None else place_of(kernel, start.first)
        oldest = version if first is None else first.version
        if left <= version - oldest:
            return kernel._version_row(key, version - left)
        left -= version - oldest + 1
        parent = None if start is None or start.parent is None else place_of(kernel, start.parent)
        if parent is None:
            raise NotFound(
                f"there are no {steps} versions before version {row.version} of {place(row.key)}",
                hint=f"its first is {oldest} of {place(key)}",
                steps=steps,
            )
        key, version = parent.key, parent.version


def _nothing(kernel: Kernel, text: str, key: BranchKey) -> AnalemmaError:
    """What whoever names a version is told that a workflow has not."""
    newest = kernel._commits.head(key).version
    workflow = f"workflow {key.owner}/{key.workflow}"
    if _NUMBER.fullmatch(text):
        hint = f"the newest on branch {key.branch} is {newest}"
        return NotFound(f"{workflow} has no version {text}", hint=hint, version=int(text[:18]))
    hint = "HEAD, a number, and at least 6 digits of an id name versions, too"
    return NotFound(f"{workflow} has no tag or branch {text!r}", hint=hint, revision=text)
