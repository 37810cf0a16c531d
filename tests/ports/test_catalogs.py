"""The same suite on every catalog we ship."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from analemma import BlockId
from analemma.catalog.opening import open_catalog
from analemma.catalog.port import KernelCatalog, TenantId, UploadId
from analemma.catalog.sqlite_catalog import SqliteCatalog
from analemma.testing.catalogs import KernelCatalogSuite


class SqliteBackdoor(KernelCatalogSuite):
    def connection(self, catalog: KernelCatalog) -> sqlite3.Connection:
        assert isinstance(catalog, SqliteCatalog)
        return catalog.engine._connection

    def doom(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> None:
        self.connection(catalog).execute("INSERT INTO doom (tenant, id, pass) VALUES (?, ?, 1)", (tenant, block))

    def is_doomed(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> bool:
        query = "SELECT pass FROM doom WHERE tenant = ? AND id = ?"
        return bool(self.connection(catalog).execute(query, (tenant, block)).fetchall())

    def collect_upload(self, catalog: KernelCatalog, tenant: TenantId, upload: UploadId) -> None:
        query = "UPDATE upload SET state = 'deleting' WHERE tenant = ? AND id = ? AND state = 'temp'"
        self.connection(catalog).execute(query, (tenant, upload))

    def deliveries(self, catalog: KernelCatalog, tenant: TenantId) -> list[tuple[str, int, str]]:
        query = "SELECT aggregateid, seq, id FROM outbox WHERE tenant = ? ORDER BY aggregateid, seq"
        return self.connection(catalog).execute(query, (tenant,)).fetchall()


class TestSqliteFile(SqliteBackdoor):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[KernelCatalog]:
        catalog = open_catalog(tmp_path / "store")
        yield catalog
        catalog.close()


class TestSqliteMemory(SqliteBackdoor):
    @pytest.fixture
    def catalog(self) -> Iterator[KernelCatalog]:
        catalog = open_catalog("sqlite:///:memory:")
        yield catalog
        catalog.close()


class TestPostgres(KernelCatalogSuite):
    options: dict[str, Any] = {}  # noqa: RUF012

    @pytest.fixture
    def catalog(self, migrated_url: str) -> Iterator[KernelCatalog]:
        self.url = migrated_url
        catalog = open_catalog(migrated_url, **self.options)
        yield catalog
        catalog.close()

    def doom(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute("UPDATE block SET doomed = 1 WHERE tenant = %s AND id = %s", (tenant, block))

    def is_doomed(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> bool:
        query = "SELECT doomed IS NOT NULL FROM block WHERE tenant = %s AND id = %s"
        with psycopg.connect(self.url) as connection:
            return bool(connection.execute(query, (tenant, block)).fetchall()[0][0])

    def collect_upload(self, catalog: KernelCatalog, tenant: TenantId, upload: UploadId) -> None:
        query = "UPDATE upload SET state = 'deleting' WHERE tenant = %s AND id = %s AND state = 'temp'"
        with psycopg.connect(self.url) as connection:
            connection.execute(query, (tenant, upload))

    def deliveries(self, catalog: KernelCatalog, tenant: TenantId) -> list[tuple[str, int, str]]:
        query = 'SELECT aggregateid, seq, id FROM outbox WHERE tenant = %s ORDER BY aggregateid COLLATE "C", seq'
        with psycopg.connect(self.url) as connection:
            return connection.execute(query, (tenant,)).fetchall()


class TestPostgresBehindPgBouncer(TestPostgres):
    options: dict[str, Any] = {"pgbouncer": True}  # noqa: RUF012
