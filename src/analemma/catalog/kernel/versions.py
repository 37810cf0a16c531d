"""The rows of versions and of what is said of them: heads, history, journals, branches, workflows, tags and pins, what
expired, policies. `SqlCatalog` names these functions as its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from analemma.canon.identity import ID_BYTES, BlockId
from analemma.catalog.engine.db import Row, Statements
from analemma.catalog.names import check_part
from analemma.catalog.port import BranchKey, Head, JournalRow, Pin, Ref, RefKind, Shown, Tag, TenantId, Verdict, Version
from analemma.clock import moment
from analemma.errors import Corrupt

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

NEWEST = (1 << 63) - 1
PAGE = 1000
"""Rows that are read at once by who goes through all of them."""
OWNER_WIDE = ""
"""Stands for the workflow in the row of a policy for all workflows of an owner; no workflow is called that."""

_new_tuple = tuple.__new__

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
class BranchStart:
    """How a branch began."""

    first: BlockId
    parent: BlockId | None
    """The version it was forked from, whether or not that is still there."""
    created_at_us: int


class NamedVersion(NamedTuple):
    """A version that a row beside the branch's own names, as a checkpoint of a thread: the row keeps it."""

    name: str
    namespace: str
    parent: str | None
    manifest: BlockId
    elsewhere: bool
    """Whether a row of another branch gives the same version another name."""
    twice: bool
    """Whether another row of this branch names it."""


class ExpiredRow(NamedTuple):
    """A version that was removed by retention."""

    manifest: BlockId
    key: BranchKey
    version: int
    expired_at_us: int


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Which versions to keep; one rule that keeps a version is enough, and without any rule all are kept."""

    keep_last: int | None = None
    keep_newer_than_s: int | None = None
    keep_hourly: int | None = None
    keep_daily: int | None = None
    keep_weekly: int | None = None


class PolicyRow(NamedTuple):
    """Whose versions a policy is for."""

    owner: str
    workflow: str | None
    """None: every workflow of the owner that has no policy of its own."""
    policy: RetentionPolicy


def head(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> Head | None:
    """Where the branch stands."""
    return read_head(catalog.engine, tenant, key)


def read_head(source: Statements, tenant: TenantId, key: BranchKey) -> Head | None:
    """The same, as a transaction sees it."""
    row = source.one("head", tenant=tenant, owner=key.owner, workflow=key.workflow, branch=key.branch)
    return None if row is None else Head(key, stored_id(row[0], key), *row[1:])


def head_and_pending(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> tuple[Head | None, bool]:
    """The same, and whether deltas are pending there (see `catalog.kernel.pending`); one round trip for both."""
    ((manifest, version, journal_seq, journal_tip, pending),) = catalog.engine.all(
        "head_and_pending", tenant=tenant, owner=key.owner, workflow=key.workflow, branch=key.branch
    )
    head = None if manifest is None else Head(key, stored_id(manifest, key), version, journal_seq, journal_tip)
    return head, bool(pending)


def manifest(catalog: SqlCatalog, tenant: TenantId, manifest: BlockId) -> Version | None:
    """The row of one manifest."""
    row = catalog.engine.one("manifest", tenant=tenant, id=manifest)
    return None if row is None else manifest_row(row)


def versions_between(
    catalog: SqlCatalog, tenant: TenantId, low: BlockId, high: BlockId, *, owner: str | None = None, limit: int = 2
) -> list[Version]:
    """The first versions, of one owner or of all, whose ids are from `low` to `high`, in the order of their ids."""
    rows = catalog.engine.all("versions_between", tenant=tenant, low=low, high=high, owner=owner, limit=limit)
    return [manifest_row(row) for row in rows]


def history(
    catalog: SqlCatalog,
    tenant: TenantId,
    key: BranchKey,
    *,
    before_version: int | None = None,
    execution: str | None = None,
    segment: int | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    decision: Verdict | None = None,
    limit: int = 100,
) -> list[Version]:
    """Newest first, below `before_version`; of one execution or segment, from a time on and before another, with
    this as the newest decision, where these are named."""
    asked: dict[str, Any] = {
        **branch_columns(tenant, key),
        "before_version": NEWEST if before_version is None else before_version,
        "limit": limit,
    }
    if any(chosen is not None for chosen in (segment, since_us, until_us, decision)):
        since, until = since_us or 0, NEWEST if until_us is None else until_us
        asked |= {"execution": execution, "segment": segment, "since": since, "until": until}
        if decision is not None:
            rows = catalog.engine.all("history_decided", **asked, decision=decision)
        else:
            rows = catalog.engine.all("history_filtered", **asked)
    elif execution is not None:
        rows = catalog.engine.all("history_of_execution", **asked, execution=execution)
    else:
        rows = catalog.engine.all("history", **asked)
    # All of one branch: a long log need not make its key again for each row.
    return [_new_tuple(Version, (row[0], key, *row[4:], False)) for row in rows]


def every_version(
    catalog: SqlCatalog, tenant: TenantId, key: BranchKey, decision: Verdict | None = None
) -> Iterator[Version]:
    """The versions of a branch, newest first; of those whose newest decision this is, if one is named."""
    before = None
    while page := history(catalog, tenant, key, before_version=before, decision=decision, limit=PAGE):
        yield from page
        before = page[-1].version


def versions_after(
    catalog: SqlCatalog, tenant: TenantId, key: BranchKey, *, after_version: int, limit: int = 100
) -> list[Version]:
    """Oldest first, above `after_version`."""
    rows = catalog.engine.all(
        "versions_after",
        **branch_columns(tenant, key),
        after_version=after_version,
        limit=limit,
    )
    return [manifest_row(row) for row in rows]


def children(catalog: SqlCatalog, tenant: TenantId, parent: Version) -> list[Version]:
    """The next version on the branch, and the first versions of branches that began here; those still there."""
    rows = catalog.engine.all(
        "children",
        **branch_columns(tenant, parent.key),
        next_version=parent.version + 1,
        id=parent.id,
    )
    return sorted((manifest_row(row) for row in rows), key=lambda row: (row.created_at_us, row.key))


def journal(
    catalog: SqlCatalog, tenant: TenantId, key: BranchKey, *, after_seq: int = 0, limit: int = 1000
) -> list[JournalRow]:
    """Oldest first, above `after_seq`."""
    return catalog.engine.rows(
        JournalRow,
        "journal",
        **branch_columns(tenant, key),
        after_seq=after_seq,
        limit=limit,
    )


def last_record(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> JournalRow | None:
    """The end of a branch's journal: of one that was deleted, the tombstone."""
    return catalog.engine.row(JournalRow, "last_record", **branch_columns(tenant, key))


def journals(catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str) -> list[str]:
    """The branches of a workflow that have a journal, also those that were deleted."""
    return [row[0] for row in catalog.engine.all("journals", tenant=tenant, owner=owner, workflow=workflow)]


def named_versions(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> Iterator[NamedVersion]:
    """The versions that rows name as checkpoints of this branch, by name."""
    asked = {"tenant": tenant, "owner": key.owner, "thread": key.workflow, "branch": key.branch}
    for page in catalog.engine.pages("named_versions", {"after": ""}, **asked, limit=PAGE):
        yield from (NamedVersion._make((*row[:4], bool(row[4]), bool(row[5]))) for row in page)


def workflow(catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str) -> Workflow | None:
    """One workflow; each exists from the first commit on its first branch."""
    row = catalog.engine.one("workflow", tenant=tenant, owner=owner, workflow=workflow)
    return None if row is None else Workflow(owner, *row)


def workflows(
    catalog: SqlCatalog,
    tenant: TenantId,
    owner: str,
    *,
    name_prefix: str = "",
    status: WorkflowStatus | None = None,
    after: str = "",
    limit: int = 100,
) -> list[Workflow]:
    """An owner's workflows with an id above `after`, in the order of the ids' bytes."""
    rows = catalog.engine.all(
        "workflows", tenant=tenant, owner=owner, name_prefix=name_prefix, status=status, after=after, limit=limit
    )
    return [Workflow(owner, *row) for row in rows]


def workflow_ids(catalog: SqlCatalog, tenant: TenantId, owner: str) -> Iterator[str]:
    """The ids of all of an owner's workflows, in the order of their bytes."""
    asked = {"tenant": tenant, "owner": owner, "name_prefix": "", "status": None}
    for page in catalog.engine.pages("workflows", {"after": ""}, **asked, limit=PAGE):
        yield from (row[0] for row in page)


def set_workflow(
    catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str, *, name: str | None, status: WorkflowStatus | None
) -> bool:
    """Change what is not None; False if there is no such workflow."""
    if name is not None:
        check_part(name, "name")
    touched = catalog.engine.execute(
        "set_workflow",
        tenant=tenant,
        owner=owner,
        workflow=workflow,
        name=name,
        status=status,
        now=catalog.clock.now_us(),
    )
    return touched == 1


def branches(catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str) -> list[Branch]:
    """A workflow's branches, oldest first."""
    return catalog.engine.rows(Branch, "branches", tenant=tenant, owner=owner, workflow=workflow)


def branch_start(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> BranchStart | None:
    """How one branch began."""
    return catalog.engine.row(BranchStart, "branch", **branch_columns(tenant, key))


def refs(
    catalog: SqlCatalog,
    tenant: TenantId,
    owner: str,
    workflow: str,
    *,
    kind: RefKind | None = None,
    name: str | None = None,
) -> list[Ref]:
    """A workflow's tags and pins, oldest first; of one kind or of one name, where these are named."""
    rows = catalog.engine.all("refs", tenant=tenant, owner=owner, workflow=workflow, kind=kind, name=name)
    return [_ref(row) for row in rows]


def _ref(row: Row) -> Ref:
    kind, name, owner, workflow, branch, manifest, *rest = row
    return (Tag if kind == "tag" else Pin)(name, BranchKey(owner, workflow, branch), BlockId(manifest), *rest)


def decisions(catalog: SqlCatalog, tenant: TenantId, key: BranchKey, manifest: BlockId) -> list[JournalRow]:
    """The records of kind `decided` on one version, in the journal of its branch, oldest first."""
    return catalog.engine.rows(
        JournalRow,
        "decisions",
        **branch_columns(tenant, key),
        manifest=manifest,
    )


def running_executions(catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str) -> list[str]:
    """Executions whose runs are not over: versions that they made do not expire."""
    rows = catalog.engine.all("running_executions", tenant=tenant, owner=owner, workflow=workflow)
    return [row[0] for row in rows]


def resumable_heads(catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str) -> list[BlockId]:
    """What runs that failed stand on: these do not expire either, so that the runs can be resumed."""
    rows = catalog.engine.all("resumable_heads", tenant=tenant, owner=owner, workflow=workflow)
    return [BlockId(row[0]) for row in rows]


def expired(catalog: SqlCatalog, tenant: TenantId, manifest: BlockId) -> ExpiredRow | None:
    """What is known of a version that expired."""
    row = catalog.engine.one("expired", tenant=tenant, manifest=manifest)
    return None if row is None else expired_row(row)


def expired_version(catalog: SqlCatalog, tenant: TenantId, key: BranchKey, version: int) -> ExpiredRow | None:
    """The same, by its number."""
    row = catalog.engine.one(
        "expired_version",
        **branch_columns(tenant, key),
        version=version,
    )
    return None if row is None else expired_row(row)


def expired_versions(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> Iterator[ExpiredRow]:
    """What expired on a branch, oldest first."""
    behind = {"after_version": 0}
    for page in catalog.engine.pages("expired_versions", behind, **branch_columns(tenant, key), limit=PAGE):
        yield from (ExpiredRow(BlockId(row[1]), key, row[0], row[2]) for row in page)


def retention(catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str | None) -> RetentionPolicy | None:
    """The policy that applies to a workflow: its own, or else its owner's. None: that of the owner."""
    return catalog.engine.row(RetentionPolicy, "retention", tenant=tenant, owner=owner, workflow=workflow or OWNER_WIDE)


def set_retention(
    catalog: SqlCatalog, tenant: TenantId, owner: str, workflow: str | None, policy: RetentionPolicy
) -> None:
    """Set a workflow's policy; None: that of the owner, for workflows without their own."""
    check_part(owner, "owner")
    if workflow is not None:
        check_part(workflow, "workflow")
    catalog.engine.execute(
        "set_retention",
        tenant=tenant,
        owner=owner,
        workflow=workflow or OWNER_WIDE,
        keep_last=policy.keep_last,
        keep_newer_than_s=policy.keep_newer_than_s,
        keep_hourly=policy.keep_hourly,
        keep_daily=policy.keep_daily,
        keep_weekly=policy.keep_weekly,
    )


def retention_policies(catalog: SqlCatalog, tenant: TenantId) -> Iterator[PolicyRow]:
    """Every policy of a tenant, in some order that does not change."""
    behind = {"after_owner": "", "after_workflow": OWNER_WIDE}
    for page in catalog.engine.pages("retention_policies", behind, tenant=tenant, limit=PAGE):
        yield from (PolicyRow(row[0], row[1] or None, RetentionPolicy(*row[2:])) for row in page)


def manifest_row(row: Row) -> Version:
    """A row of `manifest` or `history`."""
    key = BranchKey(*row[1:4])
    return Version(stored_id(row[0], key), key, *row[4:])


def expired_row(row: Row) -> ExpiredRow:
    """A row of `expired`, `expired_version` or `expired_versions`."""
    manifest, owner, workflow, branch, version, expired_at = row
    return ExpiredRow(BlockId(manifest), BranchKey(owner, workflow, branch), version, expired_at)


def branch_columns(tenant: TenantId, key: BranchKey) -> dict[str, Any]:
    """What names a branch in every statement."""
    return {"tenant": tenant, "owner": key.owner, "workflow": key.workflow, "branch": key.branch}


def stored_id(data: bytes, branch: tuple[str, str, str]) -> BlockId:
    """The id of a version in a row of this branch; Corrupt if it is none, so that nobody goes on with it."""
    if len(data) != ID_BYTES:
        raise Corrupt(
            "a row of {}/{}@{} has an id of {} bytes instead of {}".format(*branch, len(data), ID_BYTES),
            hint="run verify, and restore the catalog from a backup",
        )
    return BlockId(data)
