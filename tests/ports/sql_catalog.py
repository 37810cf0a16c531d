"""What the SQL catalogs do beside their port, on either database: workflows, branches, decisions, expiry, policies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from analemma import BlockId, BranchKey
from analemma.errors import Expired
from analemma.testing.commits import KEY, after, make_expiry, make_line, make_record, make_request
from tests.ports.entry_points.catalog import (
    BranchStart,
    Head,
    PolicyRow,
    RecordRequest,
    RetentionPolicy,
    SqlCatalog,
    TenantId,
)


class SqlCatalogSuite:
    """Beside `KernelCatalogSuite`, which has the fixtures."""

    def test_a_workflow_begins_with_its_first_commit(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        assert catalog.workflow(tenant, KEY.owner, KEY.workflow) is None
        first, second = make_line(catalog, tenant, 2)
        found = catalog.workflow(tenant, KEY.owner, KEY.workflow)
        assert found is not None and [found] == catalog.workflows(tenant, KEY.owner)
        assert (found.workflow_id, found.name, found.status) == (KEY.workflow, KEY.workflow, "IDLE")
        assert (found.manifest, found.branch, found.version, found.segment_id) == (second.manifest.id, "main", 2, 3)
        assert (found.created_at_us, found.committed_at_us) == (
            first.manifest.created_at_us,
            second.manifest.created_at_us,
        )

    def test_a_commit_that_fails_begins_no_workflow(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, bases=(BlockId(bytes(32)),)))
        assert catalog.workflows(tenant, KEY.owner) == []
        assert catalog.branches(tenant, KEY.owner, KEY.workflow) == []

    def test_workflows_are_paged_by_id(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        names = ["Z", "a", "b c", "é", "🐿"]
        for name in reversed(names):
            catalog.commit(make_request(tenant, None, key=BranchKey("ann", name)))
        catalog.commit(make_request(tenant, None, key=BranchKey("bob", "c")))
        catalog.commit(make_request(catalog.tenant("other"), None, key=BranchKey("ann", "c")))
        assert [row.workflow_id for row in catalog.workflows(tenant, "ann")] == names
        assert [row.workflow_id for row in catalog.workflows(tenant, "ann", after="a", limit=2)] == names[2:4]
        assert catalog.set_workflow(tenant, "ann", "é", name="Zoo", status="FAILED")
        assert [row.workflow_id for row in catalog.workflows(tenant, "ann", name_prefix="Z")] == ["Z", "é"]
        assert [row.name for row in catalog.workflows(tenant, "ann", status="FAILED")] == ["Zoo"]
        assert not catalog.set_workflow(tenant, "ann", "nothing", name="x", status=None)

    def test_branches_know_where_they_began(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        (first,) = make_line(catalog, tenant, 1)
        other = make_request(tenant, None, key=KEY._replace(branch="idea"), bases=(first.manifest.id,))
        fork = replace(other, manifest=other.manifest._replace(parent=first.manifest.id))
        catalog.commit(fork)
        assert [(row.name, row.parent, row.manifest) for row in catalog.branches(tenant, KEY.owner, KEY.workflow)] == [
            ("idea", first.manifest.id, fork.manifest.id),
            ("main", None, first.manifest.id),
        ]
        assert catalog.children(tenant, first.manifest) == [fork.manifest]
        assert catalog.branch_start(tenant, fork.head.key) == BranchStart(
            fork.manifest.id, first.manifest.id, fork.manifest.created_at_us
        )
        assert catalog.branch_start(tenant, BranchKey("ann", "nothing")) is None
        second = make_request(tenant, first.head)
        catalog.commit(second)
        assert catalog.children(tenant, first.manifest) == [fork.manifest, second.manifest]
        assert catalog.children(tenant, second.manifest) == []

    def test_versions_are_paged_oldest_first(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        rows = [request.manifest for request in make_line(catalog, tenant, 5)]
        assert catalog.versions_after(tenant, KEY, after_version=0) == rows
        assert catalog.versions_after(tenant, KEY, after_version=2, limit=2) == rows[2:4]
        assert catalog.versions_after(tenant, KEY, after_version=5) == []

    def test_versions_are_found_by_how_their_ids_begin(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        rows = sorted((request.manifest for request in make_line(catalog, tenant, 5)), key=lambda row: row.id)
        lowest, highest = BlockId(bytes(32)), BlockId(b"\xff" * 32)
        assert catalog.versions_between(tenant, lowest, highest, limit=4) == rows[:4]
        assert catalog.versions_between(tenant, rows[1].id, rows[3].id, limit=4) == rows[1:4]
        assert catalog.versions_between(tenant, lowest, highest, owner=KEY.owner, limit=9) == rows
        assert catalog.versions_between(tenant, lowest, highest, owner="bob") == []
        assert catalog.versions_between(catalog.tenant("other"), lowest, highest) == []

    def test_a_snapshot_shows_nothing_that_came_later(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        (first,) = make_line(catalog, tenant, 1)
        with ThreadPoolExecutor(1) as pool, catalog.snapshot() as seen:
            assert seen.head(tenant, KEY) == first.head
            committing = pool.submit(catalog.commit, make_request(tenant, first.head))
            wait([committing], timeout=0.2)  # A store in memory has one connection: there it waits for the block's end.
            assert seen.head(tenant, KEY) == first.head
            assert [row.version for row in seen.history(tenant, KEY)] == [1]
            assert [row.seq for row in seen.journal(tenant, KEY)] == [1]
        committing.result()
        assert [row.version for row in catalog.history(tenant, KEY)] == [2, 1]

    def test_nothing_runs_where_nothing_was_begun(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        make_line(catalog, tenant, 1)
        assert catalog.running_executions(tenant, KEY.owner, KEY.workflow) == []
        assert catalog.resumable_heads(tenant, KEY.owner, KEY.workflow) == []

    def test_decisions_are_found_by_version(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        first, second, third = make_line(catalog, tenant, 3)
        head, records = third.head, []
        for request in (third, first, third):
            decided = make_record(tenant, head, kind="decided", manifest=request.manifest.id)
            head = _append(catalog, decided)
            records.append(decided.record)
        head = _append(catalog, make_record(tenant, head, kind="noted", manifest=third.manifest.id))
        assert catalog.decisions(tenant, KEY, third.manifest.id) == [records[0], records[2]]
        assert catalog.decisions(tenant, KEY, second.manifest.id) == []
        assert catalog.decisions(tenant, BranchKey("bob", "other"), third.manifest.id) == []

    def test_expired_versions_are_remembered(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        first, second, third = make_line(catalog, tenant, 3)
        before = catalog.stats(tenant).blocks
        request = make_expiry(tenant, third.head, first, second)
        _append(catalog, request)
        assert [row.version for row in catalog.history(tenant, KEY)] == [3]
        assert catalog.manifest(tenant, first.manifest.id) is None
        gone = catalog.expired(tenant, second.manifest.id)
        assert gone is not None and gone == catalog.expired_version(tenant, KEY, 2)
        assert (gone.manifest, gone.key, gone.version) == (second.manifest.id, KEY, 2)
        assert gone.expired_at_us == request.record.created_at_us
        assert catalog.expired(tenant, third.manifest.id) is None
        assert catalog.expired_version(catalog.tenant("other"), KEY, 2) is None
        assert [row.version for row in catalog.expired_versions(tenant, KEY)] == [1, 2]
        assert list(catalog.expired_versions(tenant, KEY))[1:] == [gone]
        assert catalog.stats(tenant).blocks == before
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, key=KEY._replace(branch="idea"), bases=(first.manifest.id,)))

    def test_the_policy_of_a_workflow_comes_before_its_owners(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        assert catalog.retention(tenant, "ann", "report") is None
        catalog.set_retention(tenant, "ann", None, RetentionPolicy(keep_last=3))
        assert catalog.retention(tenant, "ann", "report") == RetentionPolicy(keep_last=3)
        for policy in (RetentionPolicy(1, 2, 3, 4, 5), RetentionPolicy(keep_weekly=1)):
            catalog.set_retention(tenant, "ann", "report", policy)
            assert catalog.retention(tenant, "ann", "report") == policy
        assert catalog.retention(tenant, "ann", None) == RetentionPolicy(keep_last=3)
        assert catalog.retention(tenant, "bob", "report") is None

    def test_every_policy_of_a_tenant_is_listed(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        assert list(catalog.retention_policies(tenant)) == []
        made = [
            PolicyRow(owner, workflow, RetentionPolicy(keep_last=number))
            for number, (owner, workflow) in enumerate([("ann", None), ("ann", "b"), ("ann", "é"), ("bob", "a")], 1)
        ]
        for row in made:
            catalog.set_retention(tenant, row.owner, row.workflow, row.policy)
        catalog.set_retention(catalog.tenant("other"), "ann", None, RetentionPolicy())
        listed = list(catalog.retention_policies(tenant))
        assert sorted(listed, key=lambda row: row.policy.keep_last or 0) == made

    def test_a_branch_that_is_no_thread_has_no_named_versions(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        catalog.commit(make_request(tenant, None))
        assert list(catalog.named_versions(tenant, KEY)) == []


def _append(catalog: SqlCatalog, request: RecordRequest) -> Head:
    catalog.append(request)
    return after(request)
