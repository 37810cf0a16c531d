"""The part of the SQL catalog beside commits: workflows, tags, pins, decisions, retention and what expired."""

from __future__ import annotations

from analemma.canon.identity import BlockId
from analemma.catalog.engine.db import Engine
from analemma.catalog.kernel.records import (
    append_record,
    branch_columns,
    check_record,
    expired_row,
    manifest_row,
    pin_row,
    tag_row,
)
from analemma.catalog.names import check_part
from analemma.catalog.port import (
    Branch,
    BranchKey,
    BranchStart,
    ExpiredRow,
    JournalRow,
    Pin,
    PolicyRow,
    RecordRequest,
    RetentionPolicy,
    Tag,
    TenantId,
    Version,
    Workflow,
    WorkflowStatus,
)
from analemma.clock import Clock

NEWEST = (1 << 63) - 1
OWNER_WIDE = ""
"""Stands for the workflow in the row of a policy for all workflows of an owner; no workflow is called that."""


class SqlRecords:
    """Implements its part of `KernelCatalog`. `engine` is open to layers that write in the same transactions."""

    engine: Engine
    clock: Clock

    def append(self, request: RecordRequest) -> None:
        check_record(request)
        append_record(self.engine, request)

    def versions_after(
        self, tenant: TenantId, key: BranchKey, *, after_version: int, limit: int = 100
    ) -> list[Version]:
        rows = self.engine.all(
            "versions_after",
            **branch_columns(tenant, key),
            after_version=after_version,
            limit=limit,
        )
        return [manifest_row(row) for row in rows]

    def children(self, tenant: TenantId, parent: Version) -> list[Version]:
        rows = self.engine.all(
            "children",
            **branch_columns(tenant, parent.key),
            next_version=parent.version + 1,
            id=parent.id,
        )
        return sorted((manifest_row(row) for row in rows), key=lambda row: (row.created_at_us, row.key))

    def workflow(self, tenant: TenantId, owner: str, workflow: str) -> Workflow | None:
        row = self.engine.one("workflow", tenant=tenant, owner=owner, workflow=workflow)
        return None if row is None else Workflow(owner, *row)

    def workflows(
        self,
        tenant: TenantId,
        owner: str,
        *,
        name_prefix: str = "",
        status: WorkflowStatus | None = None,
        after: str = "",
        limit: int = 100,
    ) -> list[Workflow]:
        rows = self.engine.all(
            "workflows", tenant=tenant, owner=owner, name_prefix=name_prefix, status=status, after=after, limit=limit
        )
        return [Workflow(owner, *row) for row in rows]

    def set_workflow(
        self, tenant: TenantId, owner: str, workflow: str, *, name: str | None, status: WorkflowStatus | None
    ) -> bool:
        if name is not None:
            check_part(name, "name")
        touched = self.engine.execute(
            "set_workflow",
            tenant=tenant,
            owner=owner,
            workflow=workflow,
            name=name,
            status=status,
            now=self.clock.now_us(),
        )
        return touched == 1

    def branches(self, tenant: TenantId, owner: str, workflow: str) -> list[Branch]:
        return self.engine.rows(Branch, "branches", tenant=tenant, owner=owner, workflow=workflow)

    def branch_start(self, tenant: TenantId, key: BranchKey) -> BranchStart | None:
        return self.engine.row(BranchStart, "branch", **branch_columns(tenant, key))

    def tag(self, tenant: TenantId, owner: str, workflow: str, name: str) -> Tag | None:
        row = self.engine.one("tag", tenant=tenant, owner=owner, workflow=workflow, name=name)
        return None if row is None else tag_row(row)

    def tags(self, tenant: TenantId, owner: str, workflow: str) -> list[Tag]:
        return [tag_row(row) for row in self.engine.all("tags", tenant=tenant, owner=owner, workflow=workflow)]

    def pins(self, tenant: TenantId, owner: str, workflow: str) -> list[Pin]:
        return [pin_row(row) for row in self.engine.all("pins", tenant=tenant, owner=owner, workflow=workflow)]

    def running_executions(self, tenant: TenantId, owner: str, workflow: str) -> list[str]:
        rows = self.engine.all("running_executions", tenant=tenant, owner=owner, workflow=workflow)
        return [row[0] for row in rows]

    def resumable_heads(self, tenant: TenantId, owner: str, workflow: str) -> list[BlockId]:
        rows = self.engine.all("resumable_heads", tenant=tenant, owner=owner, workflow=workflow)
        return [BlockId(row[0]) for row in rows]

    def decisions(self, tenant: TenantId, key: BranchKey, manifest: BlockId) -> list[JournalRow]:
        return self.engine.rows(
            JournalRow,
            "decisions",
            **branch_columns(tenant, key),
            manifest=manifest,
        )

    def expired(self, tenant: TenantId, manifest: BlockId) -> ExpiredRow | None:
        row = self.engine.one("expired", tenant=tenant, manifest=manifest)
        return None if row is None else expired_row(row)

    def expired_version(self, tenant: TenantId, key: BranchKey, version: int) -> ExpiredRow | None:
        row = self.engine.one(
            "expired_version",
            **branch_columns(tenant, key),
            version=version,
        )
        return None if row is None else expired_row(row)

    def expired_versions(
        self, tenant: TenantId, key: BranchKey, *, after_version: int = 0, limit: int = 1000
    ) -> list[ExpiredRow]:
        rows = self.engine.all(
            "expired_versions",
            **branch_columns(tenant, key),
            after_version=after_version,
            limit=limit,
        )
        return [expired_row(row) for row in rows]

    def retention(self, tenant: TenantId, owner: str, workflow: str | None) -> RetentionPolicy | None:
        return self.engine.row(
            RetentionPolicy, "retention", tenant=tenant, owner=owner, workflow=workflow or OWNER_WIDE
        )

    def set_retention(self, tenant: TenantId, owner: str, workflow: str | None, policy: RetentionPolicy) -> None:
        check_part(owner, "owner")
        if workflow is not None:
            check_part(workflow, "workflow")
        self.engine.execute(
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

    def retention_policies(
        self, tenant: TenantId, *, after: tuple[str, str | None] | None = None, limit: int = 100
    ) -> list[PolicyRow]:
        owner, workflow = after or ("", None)
        rows = self.engine.all(
            "retention_policies",
            tenant=tenant,
            after_owner=owner,
            after_workflow=workflow or OWNER_WIDE,
            limit=limit,
        )
        return [PolicyRow(row[0], row[1] or None, RetentionPolicy(*row[2:])) for row in rows]
