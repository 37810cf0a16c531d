"""Workflows and what is said of their versions: listing and naming them, their branches, what grew out of a version; in
the journal of a branch tags, which name a version, pins, which keep it, and decisions. How a version is named where one
is asked for (`HEAD~2`) is in `store/revisions.py`."""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from analemma.canon.nodes import BlockId, parse_block_id
from analemma.catalog.kernel.versions import branch_columns, version_of
from analemma.catalog.names import check_part, check_texts
from analemma.catalog.port import BranchKey, JournalRow, Pin, Shown, Tag, Verdict, Version
from analemma.clock import moment
from analemma.errors import Conflict, Invalid, NotFound
from analemma.state.arguments import (
    MAIN,
    branch_key,
    check_name,
    check_text,
    check_unicode,
    check_verdict,
    is_other_revision,
    place,
)
from analemma.state.records import DECIDED, PINNED, TAGGED, UNPINNED, UNTAGGED, Note, read_record

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

MOST_PER_PAGE = 1000

WorkflowStatus = Literal["RUNNING", "COMPLETED", "FAILED", "IDLE"]


@dataclass(frozen=True, slots=True)
class Workflow(Shown):
    """A workflow, and where it stands: on its main branch, or else on the first by name."""

    FIELDS = (
        *("workflow_id", "owner_id", "name", "status", "manifest_id", "branch"),
        *("version", "segment_id", "created_at", "updated_at"),
    )
    owner_id: str
    workflow_id: str
    name: str
    """Its id, until it is given another."""
    status: WorkflowStatus
    created_at_us: int
    renamed_at_us: int
    """When name or status last changed."""
    manifest: BlockId
    branch: str
    version: int
    segment_id: int | None
    committed_at_us: int

    @property
    def updated_at(self) -> dt.datetime:
        """When its state, its name or its status last changed."""
        return moment(max(self.renamed_at_us, self.committed_at_us))


@dataclass(frozen=True, slots=True)
class Branch(Shown):
    """Where a branch began, and where it stands."""

    FIELDS = ("name", "manifest_id", "version", "parent_id", "created_at", "updated_at")
    name: str
    parent: BlockId | None
    created_at_us: int
    manifest: BlockId
    version: int
    committed_at_us: int

    @property
    def parent_id(self) -> str | None:
        """The version it was forked from, whether or not that is still there."""
        return None if self.parent is None else self.parent.hex()

    @property
    def updated_at(self) -> dt.datetime:
        """When its state last changed."""
        return moment(self.committed_at_us)


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """Some of an owner's workflows, by id."""

    items: tuple[Workflow, ...]
    cursor: str | None
    """Where the next page begins; None: this was the last."""


def list_workflows(
    kernel: Kernel,
    *,
    owner_id: str,
    name_prefix: str | None = None,
    status: WorkflowStatus | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> WorkflowPage:
    """A page of an owner's workflows, in the order of their ids, which never change: following the cursor meets
    each workflow once, whatever is saved, renamed or begun meanwhile."""
    check_name(owner_id, "owner")
    if name_prefix is not None:
        check_unicode(name_prefix, "name")
        check_texts((name_prefix,))
    if type(limit) is not int or not 1 <= limit <= MOST_PER_PAGE:
        raise Invalid(f"a page of {limit!r} workflows", hint=f"ask for 1 to {MOST_PER_PAGE}")
    _check_status(status)
    rows = kernel._context.engine.all(
        "workflows",
        tenant=kernel._tenant,
        owner=owner_id,
        name_prefix=name_prefix or "",
        status=status,
        after="" if cursor is None else _read_cursor(cursor),
        limit=limit + 1,
    )
    page = tuple(Workflow(owner_id, *row) for row in rows[:limit])
    return WorkflowPage(page, _cursor(page[-1].workflow_id) if len(rows) > limit else None)


def get_workflow(kernel: Kernel, *, workflow_id: str, owner_id: str) -> Workflow:
    """One workflow and where it stands; NotFound if there is no such workflow."""
    branch_key(owner_id, workflow_id, MAIN)
    row = kernel._context.engine.one("workflow", tenant=kernel._tenant, owner=owner_id, workflow=workflow_id)
    if row is None:
        raise NotFound(f"there is no {place(BranchKey(owner_id, workflow_id))}", hint="save something there first")
    return Workflow(owner_id, *row)


def set_workflow(
    kernel: Kernel, *, workflow_id: str, owner_id: str, name: str | None = None, status: WorkflowStatus | None = None
) -> Workflow:
    """Give a workflow a name or a status (RUNNING, COMPLETED, FAILED, IDLE); what is None stays as it is."""
    _check_status(status)
    if name is not None:
        check_name(name, "name")
    found = kernel.get_workflow(workflow_id=workflow_id, owner_id=owner_id)
    if name is None and status is None:
        return found
    key = {"tenant": kernel._tenant, "owner": owner_id, "workflow": workflow_id}
    kernel._context.engine.execute("set_workflow", **key, name=name, status=status, now=kernel._clock.now_us())
    return kernel.get_workflow(workflow_id=workflow_id, owner_id=owner_id)


def branches(kernel: Kernel, *, workflow_id: str, owner_id: str) -> list[Branch]:
    """A workflow's branches, oldest first; NotFound if there is no such workflow."""
    branch_key(owner_id, workflow_id, MAIN)
    rows = branches_of(kernel, owner_id, workflow_id)
    if not rows:
        raise NotFound(f"there is no {place(BranchKey(owner_id, workflow_id))}")
    return rows


def branches_of(kernel: Kernel, owner: str, workflow: str) -> list[Branch]:
    """The same; none if there is no such workflow."""
    return kernel._context.engine.rows(Branch, "branches", tenant=kernel._tenant, owner=owner, workflow=workflow)


def children(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> list[Version]:
    """The versions made from this one: the next on its branch, and the first of each fork; with `owner_id`, only
    that owner's."""
    row = kernel._row(manifest_id, owner_id)
    asked = {**branch_columns(kernel._tenant, row.key), "next_version": row.version + 1, "id": row.id}
    found = kernel._context.engine.rows(version_of, "children", **asked)
    found.sort(key=lambda child: (child.created_at_us, child.key))
    return [child for child in found if owner_id in (None, child.key.owner)]


def _check_status(status: str | None) -> None:
    if status is not None and status not in get_args(WorkflowStatus):
        raise Invalid(f"not a status: {status!r}", hint=f"use {', '.join(get_args(WorkflowStatus))}")


def _cursor(workflow: str) -> str:
    return base64.urlsafe_b64encode(workflow.encode()).decode()


def _read_cursor(cursor: str) -> str:
    check_unicode(cursor, "cursor")
    try:
        return check_name(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode(), "cursor")
    except ValueError as exc:
        raise Invalid(f"not a cursor: {cursor!r}", hint="pass the cursor of the page before") from exc


TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,127}")


def tag(
    kernel: Kernel, manifest_id: str, name: str, *, owner_id: str, message: str | None = None, force: bool = False
) -> Tag:
    """Name a version. A tagged version never expires. A name that is on another version is moved only with
    `force`; without it, that is a Conflict."""
    check_tag(name)
    check_text(message, "message")
    row = kernel._row(manifest_id, owner_id)
    key = row.key

    def propose() -> Note | None:
        there = find_tag(kernel, key.owner, key.workflow, name)
        if there is not None and not force:
            if there.manifest == row.id:
                return None
            raise Conflict(
                f"the tag {name} is on version {there.version} of branch {there.key.branch}",
                hint="pass force=True to move it",
                tag=name,
                manifest=there.manifest.hex(),
            )
        facts = {"tag": name, "message": message, "moved_from": None if there is None else there.manifest_id}
        left = [] if there is None else [there.manifest]
        return Note(TAGGED, row.id, facts, "put_ref", {"ref_kind": "tag", "name": name, "text": message, "left": left})

    record = kernel._commits.record(key, propose)
    if record is None:
        return _tag_row(kernel, key.owner, key.workflow, name)
    return Tag(name, key, row.id, row.version, message, record.created_at_us)


def untag(kernel: Kernel, name: str, *, workflow_id: str, owner_id: str) -> None:
    """Remove a tag; NotFound if there is none."""
    branch_key(owner_id, workflow_id, MAIN)
    check_unicode(name, "tag")
    check_texts((name,))
    there = _tag_row(kernel, owner_id, workflow_id, name)

    def propose() -> Note:
        if _tag_row(kernel, owner_id, workflow_id, name).manifest != there.manifest:
            raise Conflict(f"the tag {name} was moved meanwhile", hint="look where it is now", tag=name)
        details = {"ref_kind": "tag", "name": name, "left": [there.manifest]}
        return Note(UNTAGGED, there.manifest, {"tag": name}, "drop_ref", details)

    kernel._commits.record(there.key, propose)


def tags(kernel: Kernel, *, workflow_id: str, owner_id: str) -> list[Tag]:
    """Every tag of a workflow, on whatever branch, oldest first."""
    branch_key(owner_id, workflow_id, MAIN)
    found = kernel._catalog.refs(kernel._tenant, owner_id, workflow_id, kind="tag")
    return [each for each in found if isinstance(each, Tag)]


def pin(kernel: Kernel, manifest_id: str, *, owner_id: str, reason: str | None = None) -> Pin:
    """Keep a version from expiring. Pinning again replaces the reason."""
    check_text(reason, "reason")
    row = kernel._row(manifest_id, owner_id)
    details: dict[str, Any] = {"ref_kind": "pin", "name": row.manifest_id, "text": reason, "left": []}
    note = Note(PINNED, row.id, {"reason": reason}, "put_ref", details)
    record = kernel._commits.record(row.key, lambda: note)
    assert record is not None
    return Pin(row.manifest_id, row.key, row.id, row.version, reason, record.created_at_us)


def unpin(kernel: Kernel, manifest_id: str, *, owner_id: str) -> None:
    """Let a version expire again; NotFound if it is not pinned."""
    row = kernel._row(manifest_id, owner_id)
    name = row.manifest_id
    note = Note(UNPINNED, row.id, {}, "drop_ref", {"ref_kind": "pin", "name": name, "left": [row.id]})
    try:
        kernel._commits.record(row.key, lambda: note, again_on_conflict=False)
    except Conflict as exc:
        if kernel._catalog.refs(kernel._tenant, row.key.owner, row.key.workflow, kind="pin", name=name):
            raise
        raise NotFound(f"version {row.version} is not pinned", manifest=manifest_id) from exc


def pins(kernel: Kernel, *, workflow_id: str, owner_id: str) -> list[Pin]:
    """Every pinned version of a workflow, oldest pin first."""
    branch_key(owner_id, workflow_id, MAIN)
    found = kernel._catalog.refs(kernel._tenant, owner_id, workflow_id, kind="pin")
    return [each for each in found if isinstance(each, Pin)]


def find_tag(kernel: Kernel, owner: str, workflow: str, name: str) -> Tag | None:
    """The tag of a name, if there is one."""
    found = kernel._catalog.refs(kernel._tenant, owner, workflow, kind="tag", name=name)
    return next((each for each in found if isinstance(each, Tag)), None)


def _tag_row(kernel: Kernel, owner: str, workflow: str, name: str) -> Tag:
    row = find_tag(kernel, owner, workflow, name)
    if row is None:
        raise NotFound(f"workflow {owner}/{workflow} has no tag {name!r}", tag=name)
    return row


def check_tag(name: str) -> None:
    """Raise Invalid unless it can name a version, and only that."""
    check_unicode(name, "tag")
    if TAG.fullmatch(name) is None or is_other_revision(name):
        raise Invalid(
            f"not a tag: {name!r}",
            hint="use up to 128 letters, digits, '.', '_', '/', '+' and '-', not digits only, no manifest id, not HEAD",
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """What someone decided on a version. The newest decision on a version is the one that counts."""

    manifest_id: str
    decision: Verdict
    score: float | None
    reason: str | None
    actor: str
    decided_at: dt.datetime
    seq: int
    """Its place in the journal of the version's branch."""


def decide(
    kernel: Kernel,
    manifest_id: str,
    decision: Verdict,
    *,
    actor: str,
    score: float | None = None,
    reason: str | None = None,
    owner_id: str | None = None,
) -> Decision:
    """Record a decision on a version, in the journal of its branch. Earlier decisions stay on record."""
    check_verdict(decision)
    if score is not None:
        _check_score(score)
    check_part(actor, "actor")
    check_text(reason, "reason")
    row = kernel._row(manifest_id, owner_id)
    kept = None if score is None else float(score)
    facts = {"decision": decision, "score": kept, "reason": reason, "actor": actor}
    note = Note(DECIDED, row.id, facts, "put_decision", {"version": row.version, "decision": decision})
    record = kernel._commits.record(row.key, lambda: note)
    assert record is not None
    return decision_of(record)


def decisions(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> list[Decision]:
    """Every decision on a version, oldest first; also on one that has expired."""
    manifest = parse_block_id(manifest_id)
    gone = kernel._catalog.expired(kernel._tenant, manifest)
    row = gone if gone is not None and owner_id in (None, gone.key.owner) else kernel._row(manifest_id, owner_id)
    asked = branch_columns(kernel._tenant, row.key)
    records = kernel._context.engine.rows(JournalRow, "decisions", **asked, manifest=manifest)
    return [decision_of(each) for each in records]


def _check_score(score: Any) -> None:
    try:
        known = isinstance(score, int | float) and type(score) is not bool and math.isfinite(score)
    except OverflowError:
        known = False
    if not known:
        shown = f" {score}" if type(score) is float else ""
        raise Invalid(f"the score{shown} is not a number that can be kept", hint="leave it out if there is none")


def decision_of(row: JournalRow) -> Decision:
    facts: dict[str, Any] = read_record(row)["facts"]
    assert row.manifest is not None
    return Decision(
        manifest_id=row.manifest.hex(),
        decision=facts["decision"],
        score=facts["score"],
        reason=facts["reason"],
        actor=facts["actor"],
        decided_at=moment(row.created_at_us),
        seq=row.seq,
    )
