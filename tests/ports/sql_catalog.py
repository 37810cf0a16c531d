"""What the SQL catalogs do beside their port, on either database: branches, snapshots, expiry."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from analemma import BlockId, BranchKey
from analemma.errors import Expired
from analemma.testing.commits import KEY, after, make_expiry, make_line, make_request
from tests.ports.entry_points.catalog import (
    BranchStart,
    Head,
    RecordRequest,
    SqlCatalog,
    TenantId,
)


class SqlCatalogSuite:
    """Beside `KernelCatalogSuite`, which has the fixtures."""

    def test_a_commit_that_fails_begins_no_workflow(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, bases=(BlockId(bytes(32)),)))
        for statement in ("workflow", "branches"):
            assert catalog.engine.all(statement, tenant=tenant, owner=KEY.owner, workflow=KEY.workflow) == []

    def test_branches_know_where_they_began(self, catalog: SqlCatalog, tenant: TenantId) -> None:
        (first,) = make_line(catalog, tenant, 1)
        other = make_request(tenant, None, key=KEY._replace(branch="idea"), bases=(first.manifest.id,))
        fork = replace(other, manifest=other.manifest._replace(parent=first.manifest.id))
        catalog.commit(fork)
        assert catalog.branch_start(tenant, fork.head.key) == BranchStart(
            fork.manifest.id, first.manifest.id, fork.manifest.created_at_us
        )
        assert catalog.branch_start(tenant, BranchKey("ann", "nothing")) is None

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
        assert catalog.stats(tenant).blocks == before
        with pytest.raises(Expired):
            catalog.commit(make_request(tenant, None, key=KEY._replace(branch="idea"), bases=(first.manifest.id,)))


def _append(catalog: SqlCatalog, request: RecordRequest) -> Head:
    catalog.append(request)
    return after(request)
