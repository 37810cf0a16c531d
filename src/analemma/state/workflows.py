"""Workflows as a whole: listing them, naming them, their branches, and what grew out of a version."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from analemma.catalog.kernel.versions import Branch, Workflow, WorkflowStatus
from analemma.catalog.names import check_texts
from analemma.catalog.port import BranchKey, Version
from analemma.errors import Invalid, NotFound
from analemma.state.arguments import MAIN, branch_key, check_name, check_unicode, place

if TYPE_CHECKING:
    from analemma.state.kernel import Kernel

MOST_PER_PAGE = 1000


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
    rows = kernel._catalog.workflows(
        kernel._tenant,
        owner_id,
        name_prefix=name_prefix or "",
        status=status,
        after="" if cursor is None else _read_cursor(cursor),
        limit=limit + 1,
    )
    page = rows[:limit]
    more = _cursor(page[-1].workflow_id) if len(rows) > limit else None
    return WorkflowPage(tuple(page), more)


def get_workflow(kernel: Kernel, *, workflow_id: str, owner_id: str) -> Workflow:
    """One workflow and where it stands; NotFound if there is no such workflow."""
    branch_key(owner_id, workflow_id, MAIN)
    row = kernel._catalog.workflow(kernel._tenant, owner_id, workflow_id)
    if row is None:
        raise NotFound(f"there is no {place(BranchKey(owner_id, workflow_id))}", hint="save something there first")
    return row


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
    kernel._catalog.set_workflow(kernel._tenant, owner_id, workflow_id, name=name, status=status)
    return kernel.get_workflow(workflow_id=workflow_id, owner_id=owner_id)


def branches(kernel: Kernel, *, workflow_id: str, owner_id: str) -> list[Branch]:
    """A workflow's branches, oldest first; NotFound if there is no such workflow."""
    branch_key(owner_id, workflow_id, MAIN)
    rows = kernel._catalog.branches(kernel._tenant, owner_id, workflow_id)
    if not rows:
        raise NotFound(f"there is no {place(BranchKey(owner_id, workflow_id))}")
    return rows


def children(kernel: Kernel, manifest_id: str, *, owner_id: str | None = None) -> list[Version]:
    """The versions made from this one: the next on its branch, and the first of each fork; with `owner_id`, only
    that owner's."""
    row = kernel._row(manifest_id, owner_id)
    found = kernel._catalog.children(kernel._tenant, row)
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
