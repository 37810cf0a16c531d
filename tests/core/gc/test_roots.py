"""Every table that could keep a block alive is read by every snapshot, or is known not to."""

from __future__ import annotations

from tests.core.entry_points.gc import NO_ROOTS, ROOT_COLUMNS, ROOTS
from tests.raw_rows import is_sqlite, select
from tests.stores import Store

SQLITE = """
    SELECT tables.name || '.' || columns.name FROM sqlite_master AS tables
    JOIN pragma_table_info(tables.name) AS columns ON lower(columns.type) = 'blob'
    WHERE tables.type = 'table'
"""
POSTGRES = """
    SELECT table_name || '.' || column_name FROM information_schema.columns
    WHERE table_schema = current_schema() AND data_type = 'bytea'
"""
SQLITE_ONLY = {"doom.id"}
KEYS_SQLITE = """
    SELECT tables.name || '.' || keys."from" FROM sqlite_master AS tables
    JOIN pragma_foreign_key_list(tables.name) AS keys ON keys."table" = 'block' WHERE tables.type = 'table'
"""
KEYS_POSTGRES = """
    SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND confrelid = 'block'::regclass
"""


def query(store: Store, sqlite: str, postgres: str) -> set[str]:
    with store.open():
        pass
    return {str(row[0]) for row in select(store, sqlite if is_sqlite(store) else postgres)}


def test_every_column_of_bytes_is_a_root_or_is_known_not_to_be(store: Store) -> None:
    columns = query(store, SQLITE, POSTGRES)
    assert columns - set(ROOT_COLUMNS) - set(NO_ROOTS) == set(), "add these to gc/roots.py, as roots or with a reason"
    elsewhere = SQLITE_ONLY if store.url.startswith("postgresql") else set()
    assert (set(ROOT_COLUMNS) | set(NO_ROOTS)) - columns == elsewhere, "these are gone"
    assert not set(ROOT_COLUMNS) & set(NO_ROOTS)


def test_no_table_refers_to_blocks_by_a_key_without_being_a_root(store: Store) -> None:
    assert query(store, KEYS_SQLITE, KEYS_POSTGRES) <= set(ROOT_COLUMNS)


def test_every_root_column_is_read_by_a_statement(store: Store) -> None:
    assert {column.partition(".")[0] for column in ROOT_COLUMNS} == {table.table for table in ROOTS}
    with store.open() as app:
        for table in ROOTS:
            assert app.catalog.engine.all(table.statement, tenant=app.default.id, after=table.start, limit=1) == []


def test_every_reason_is_one() -> None:
    assert [column for column, reason in NO_ROOTS.items() if len(reason) <= 5] == []
