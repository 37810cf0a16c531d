"""The same suite on every catalog we ship."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from analemma import BlockId, Settings
from analemma.testing.catalogs import KernelCatalogSuite
from tests.ports.entry_points.catalog import KernelCatalog, SqliteEngine, TenantId, UploadId, open_catalog
from tests.ports.sql_catalog import SqlCatalogSuite
from tests.raw_rows import connect


class SqliteBackdoor(SqlCatalogSuite, KernelCatalogSuite):
    file: Path

    def rows(self, query: str, *values: Any) -> list[Any]:
        """By another connection to the file."""
        with closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            return connection.execute(query, values).fetchall()

    def doom(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> None:
        self.rows("INSERT INTO doom (tenant, id, pass) VALUES (?, ?, 1)", tenant, block)

    def is_doomed(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> bool:
        return bool(self.rows("SELECT pass FROM doom WHERE tenant = ? AND id = ?", tenant, block))

    def collect_upload(self, catalog: KernelCatalog, tenant: TenantId, upload: UploadId) -> None:
        self.rows("UPDATE upload SET state = 'deleting' WHERE tenant = ? AND id = ? AND state = 'temp'", tenant, upload)

    def deliveries(self, catalog: KernelCatalog, tenant: TenantId) -> list[tuple[str, int, str]]:
        return self.rows("SELECT aggregateid, seq, id FROM outbox WHERE tenant = ? ORDER BY aggregateid, seq", tenant)


class TestSqliteFile(SqliteBackdoor):
    @pytest.fixture
    def catalog(self, migrated_directory: Path) -> Iterator[KernelCatalog]:
        self.file = migrated_directory / "catalog.db"
        catalog = open_catalog(migrated_directory)
        yield catalog
        catalog.close()


@pytest.mark.deep("a file as any other, in memory")
class TestSqliteMemory(SqliteBackdoor):
    @pytest.fixture
    def catalog(self) -> Iterator[KernelCatalog]:
        catalog = open_catalog("sqlite:///:memory:")
        assert isinstance(catalog.engine, SqliteEngine)
        self.file = Path(catalog.engine.path)
        yield catalog
        catalog.close()


class TestPostgres(SqlCatalogSuite, KernelCatalogSuite):
    settings = Settings()

    @pytest.fixture
    def catalog(self, migrated_url: str) -> Iterator[KernelCatalog]:
        self.url = migrated_url
        catalog = open_catalog(migrated_url, self.settings)
        yield catalog
        catalog.close()

    def rows(self, query: str, *values: Any) -> list[Any]:
        with connect(self.url) as connection:
            cursor = connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def doom(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> None:
        self.rows("UPDATE block SET doomed = 1 WHERE tenant = %s AND id = %s", tenant, block)

    def is_doomed(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> bool:
        return bool(
            self.rows("SELECT doomed IS NOT NULL FROM block WHERE tenant = %s AND id = %s", tenant, block)[0][0]
        )

    def collect_upload(self, catalog: KernelCatalog, tenant: TenantId, upload: UploadId) -> None:
        query = "UPDATE upload SET state = 'deleting' WHERE tenant = %s AND id = %s AND state = 'temp'"
        self.rows(query, tenant, upload)

    def deliveries(self, catalog: KernelCatalog, tenant: TenantId) -> list[tuple[str, int, str]]:
        query = 'SELECT aggregateid, seq, id FROM outbox WHERE tenant = %s ORDER BY aggregateid COLLATE "C", seq'
        return self.rows(query, tenant)


@pytest.mark.deep("the same statements, neither prepared nor with settings of a session")
class TestPostgresBehindPgBouncer(TestPostgres):
    settings = Settings(postgres_prepare=False)
