"""Workflows as a whole: listing them, naming them, their branches, and what grew out of a version."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from analemma.canon.identity import BlockId
from analemma.catalog.kernel.versions import branch_columns, version_of
from analemma.catalog.names import check_texts
from analemma.catalog.port import BranchKey, Shown, Version
from analemma.clock import moment
from analemma.errors import Invalid, NotFound
from analemma.state.arguments import MAIN, branch_key, check_name, check_unicode, place

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
