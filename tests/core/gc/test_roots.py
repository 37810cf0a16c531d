"""Every table that could keep a block alive is read by every snapshot, or is known not to."""

from __future__ import annotations

from tests.core.entry_points.gc import ROOTS
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
ROOT_COLUMNS = {column.name for column in ROOTS}
SQLITE_ONLY = {"doom.id"}
KEYS_SQLITE = """
    SELECT tables.name || '.' || keys."from" FROM sqlite_master AS tables
    JOIN pragma_foreign_key_list(tables.name) AS keys ON keys."table" = 'block' WHERE tables.type = 'table'
"""
KEYS_POSTGRES = """
    SELECT conrelid::regclass::text FROM pg_constraint WHERE contype = 'f' AND confrelid = 'block'::regclass
"""

NO_ROOTS: dict[str, str] = {
    "block.id": "what is collected",
    "block.body": "the block itself",
    "block.links": "leads where the block does",
    "block.upload": "names an object",
    "doom.id": "names a block that is about to go",
    "upload.id": "names an object",
    "manifest.parent": "a parent is named, not kept",
    "manifest.root": "repeats what the manifest's block says",
    "head.manifest": "names a manifest, which is a root",
    "head.journal_tip": "a hash of a record",
    "journal.manifest": "tells of a manifest that was; records outlive versions",
    "journal.body": "a record; it names what it tells of and keeps nothing",
    "journal.hash": "a hash of a record",
    "idempotency.fingerprint": "a hash of a request",
    "deploy.fingerprint": "a hash of a request",
    "idempotency.manifest": "names a version, which may expire",
    "idempotency.receipt": "names a version, which may expire",
    "outbox.payload": "an event's own bytes",
    "branch.first_manifest": "names a version, which may expire",
    "branch.parent": "names a version, which may expire",
    "ref.manifest": "names a manifest, which is a root and which the key keeps from expiring",
    "expired.manifest": "names a version that is gone",
    "decision.manifest": "names a manifest, and goes with it",
    "payload.id": "random",
    "pending.secret": "random",
    "pending.fingerprint": "a hash of a request",
    "pending.receipt": "names a version, which may expire",
    "pending.digest": "a hash of the delta",
    "pending.body": "a delta with all its blocks in it",
    "session.id": "random; what a session wrote is kept by its number",
    "thread_checkpoint.metadata": "a checkpoint's own bytes",
    "thread_write.digest": "a hash of the write",
    "thread_write.body": "a task's own bytes",
    "removal.body": "tells of branches that an earlier release removed",
    "removal.hash": "a hash of the record",
    "gc_audit.upload": "names an object that is gone",
    "item_space.namespace": "the labels of a namespace",
    "item.value": "a value itself, as JSON",
    "item.vectors": "numbers",
    "contract.body": "a contract's own document",
    "entity.newest_hash": "a hash of a document",
    "raw.hash": "a hash of the document",
    "slice.hash": "a hash of the slice",
    "state_source.first_manifest": "names a version, which may expire",
    "run.document": "a hash of a document; the run's versions lead to it",
    "run.born": "names a version, which does not expire before the run is over",
    "run.head": "names a version, which does not expire before the run is over",
    "run.fingerprint": "a hash of a request",
    "run_segment.input": "names a version, which may expire once the run is over",
    "run_segment.output": "names a version, which may expire once the run is over",
    "effect.body": "a small result itself, behind its hash",
    "state_source.taken": "a hash of what was taken of a state",
}
"""Columns of bytes that keep nothing, and why."""


def query(store: Store, sqlite: str, postgres: str) -> set[str]:
    with store.open():
        pass
    return {str(row[0]) for row in select(store, sqlite if is_sqlite(store) else postgres)}


def test_every_column_of_bytes_is_a_root_or_is_known_not_to_be(store: Store) -> None:
    columns = query(store, SQLITE, POSTGRES)
    assert columns - ROOT_COLUMNS - set(NO_ROOTS) == set(), "add these to gc/mark.py as roots, or here with a reason"
    elsewhere = SQLITE_ONLY if store.url.startswith("postgresql") else set()
    assert (ROOT_COLUMNS | set(NO_ROOTS)) - columns == elsewhere, "these are gone"
    assert not ROOT_COLUMNS & set(NO_ROOTS)


def test_no_table_refers_to_blocks_by_a_key_without_being_a_root(store: Store) -> None:
    assert query(store, KEYS_SQLITE, KEYS_POSTGRES) <= ROOT_COLUMNS


def test_every_root_column_is_read_by_a_statement(store: Store) -> None:
    with store.open() as app:
        for column in ROOTS:
            assert app.catalog.engine.all(column.statement, tenant=app.default.id, after=column.start, limit=1) == []


def test_every_reason_is_one() -> None:
    assert [column for column, reason in NO_ROOTS.items() if len(reason) <= 5] == []
