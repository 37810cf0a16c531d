"""Blocks in rows and packs: where they go, what they cost, and that damage is always found."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

import analemma
from analemma import App, BlockId, BranchKey, Operation, Proposal
from analemma.errors import Corrupt, HeadMoved, Invalid, Unavailable
from tests.crash.commit_worker import large_value
from tests.internals import KEY, commit_change, commit_value, root_of, state_of
from tests.stores import Store


def run_sql(store: Store, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Reach around the catalog, as damage does."""
    if store.url.startswith("postgresql"):
        with psycopg.connect(store.url, autocommit=True) as connection:
            # Damage asks no foreign key for leave.
            connection.execute("SET session_replication_role = replica")
            cursor = connection.execute(statement.replace("?", "%s"), parameters)
            return cursor.fetchall() if cursor.description else []
    connection_ = sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None)
    try:
        return connection_.execute(statement, parameters).fetchall()
    finally:
        connection_.close()


def object_files(store: Store) -> list[Path]:
    folder = Path(store.objects) if store.objects else Path(store.url) / "objects"
    return [path for path in folder.rglob("packs/*/*") if path.is_file()]


def test_an_ordinary_commit_touches_no_object_store(store: Store) -> None:
    with store.open() as app:
        commit_value(app.default, {"n": 1, "text": "x" * 5000})
        assert object_files(store) == [] and app.stats().uploads == 0


def test_a_large_commit_uploads_one_object(store: Store) -> None:
    with store.open() as app:
        outcome = commit_value(app.default, large_value(1))
        assert len(outcome.object_keys) == 1 and len(object_files(store)) == 1
        # Beside objects that another catalog could be opened with, too, stands whose they are.
        assert app.object_metrics.snapshot()["put_object"].count == (1 if app.ownership is None else 2)
    with store.open() as app:
        assert state_of(app.default) == large_value(1)
        assert app.default.verify(KEY).ok


def test_a_large_commit_of_stored_blocks_uploads_nothing(store: Store) -> None:
    with store.open() as app:
        commit_value(app.default, large_value(1))
        before = app.stats()
        outcome = commit_value(app.default, large_value(1), BranchKey("ann", "copy"))
        assert outcome.object_keys == () and len(object_files(store)) == 1
        # Only the manifest is new: everything below it is shared.
        assert app.stats().blocks == before.blocks + 1


def test_equal_blocks_of_two_tenants_are_stored_twice(store: Store) -> None:
    with store.open() as app:
        for name in ("one", "two"):
            commit_value(app.tenant(name), {"text": "shared " * 1000})
        assert app.stats("one").blocks == app.stats("two").blocks == app.stats().blocks // 2
        assert app.stats().tenants == 2
        assert app.tenant("three").head(KEY) is None


def test_without_an_object_store_everything_lies_in_the_catalog(postgres_url: str) -> None:
    store = Store(postgres_url)
    with store.open() as app:
        commit_value(app.default, large_value(1))
    with store.open() as app:
        assert state_of(app.default) == large_value(1)


def test_blocks_in_objects_say_which_object_store_is_missing(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        commit_value(app.default, large_value(1))
    elsewhere = str(tmp_path / "elsewhere")
    with pytest.raises(Invalid, match="elsewhere"):
        analemma.open(store.url, objects=elsewhere)
    # Not so if somebody says that they were copied, and they were not: then it is told as far as a marker tells it.
    told = (Corrupt, "missing") if store.objects is None else (Unavailable, "no owner.json")
    with (
        analemma.open(store.url, objects=elsewhere, objects_moved=True) as app,
        pytest.raises(told[0], match=told[1]),
    ):
        state_of(app.default)


def test_a_commit_on_a_moved_head_changes_nothing(store: Store) -> None:
    with store.open() as app:
        tenant = app.default
        commit_value(tenant, {"n": 1})
        seen = tenant.head(KEY)
        assert seen is not None
        commit_change(tenant, Operation("put", ("n",), 2))
        before = app.stats()
        tree = tenant.trees.edit(root_of(tenant, seen.manifest), [Operation("put", ("n",), 3)])
        with pytest.raises(HeadMoved):
            tenant.committer.commit(Proposal(KEY, tree, seen))
        with pytest.raises(HeadMoved):
            tenant.committer.commit(Proposal(KEY, tree, None))
        assert app.stats() == before
        assert state_of(tenant) == {"n": 2}


def flipped(data: bytes, position: int) -> bytes:
    damaged = bytearray(data)
    damaged[position] ^= 1 << (position % 8)
    return bytes(damaged)


def check_damaged(app: App, block: BlockId) -> None:
    with pytest.raises(Corrupt) as caught:
        app.default.blocks.read_uncached([block])
    assert caught.value.block == block.hex()


def test_a_flipped_byte_in_any_row_is_found_and_names_the_block(store: Store) -> None:
    pick = random.Random(5)
    with store.open() as app:
        words = ["alpha", "beta", "gamma", "delta"]
        messages = [{"text": " ".join(pick.choices(words, k=60))} for _ in range(30)]
        commit_value(app.default, {"messages": messages, "raw": pick.randbytes(100), "n": 1})
        rows = run_sql(store, "SELECT id, body FROM block WHERE body IS NOT NULL")
        assert len(rows) >= 3
        for block, body in rows:
            block, body = bytes(block), bytes(body)
            step = max(1, len(body) // 60)
            for position in range(0, len(body), step):
                run_sql(store, "UPDATE block SET body = ? WHERE id = ?", flipped(body, position), block)
                check_damaged(app, BlockId(block))
            run_sql(store, "UPDATE block SET body = ? WHERE id = ?", body[:-1], block)
            check_damaged(app, BlockId(block))
            run_sql(store, "UPDATE block SET body = ? WHERE id = ?", body, block)
        assert app.default.verify(KEY).ok


def test_a_flipped_byte_in_a_pack_is_found_and_names_the_block(store: Store) -> None:
    with store.open() as app:
        commit_value(app.default, large_value(1))
        rows = run_sql(store, "SELECT id, object_offset, object_length FROM block WHERE upload IS NOT NULL")
        (pack,) = object_files(store)
        data = pack.read_bytes()
        assert len(rows) > 20
        for block, offset, length in rows:
            for position in (0, length // 2, length - 1):
                pack.write_bytes(flipped(data, offset + position))
                check_damaged(app, BlockId(bytes(block)))
        pack.write_bytes(data)
        assert app.default.verify(KEY).ok
        pack.write_bytes(data[: len(data) // 2])
        report = app.default.verify(KEY)
        assert not report.ok
        pack.unlink()
        assert not app.default.verify(KEY).ok


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE manifest SET version = 7",
        "UPDATE manifest SET message = 'forged'",
        "UPDATE manifest SET created_at = created_at + 1",
        "UPDATE head SET version = 9",
        "UPDATE head SET journal_seq = 1",
        "UPDATE journal SET kind = 'forged' WHERE seq = 1",
        "UPDATE journal SET created_at = created_at + 1 WHERE seq = 2",
        "DELETE FROM journal WHERE seq = 1",
        "DELETE FROM journal WHERE seq = 2",
        "DELETE FROM block WHERE id IN (SELECT root FROM manifest WHERE version = 2)",
    ],
)
def test_inconsistent_rows_are_found(damage: str, store: Store) -> None:
    with store.open() as app:
        commit_value(app.default, {"n": 1})
        commit_change(app.default, Operation("put", ("n",), 2))
        assert app.default.verify(KEY).ok
        if damage.startswith("UPDATE manifest SET version"):
            run_sql(store, "DELETE FROM manifest WHERE version = 1")
        run_sql(store, damage)
        assert not app.default.verify(KEY).ok


def test_a_refused_value_stores_nothing(store: Store) -> None:
    with store.open() as app:
        tenant = app.default
        before = app.stats()
        with pytest.raises(Invalid):
            commit_value(tenant, {"big": "x" * 100_000, "bad": float("nan")})
        assert app.stats() == before


def test_an_ordinary_commit_costs_few_statements(store: Store) -> None:
    with store.open() as app:
        tenant = app.default
        commit_value(tenant, {"n": 0, "list": [f"item {number}" for number in range(5000)]})
        head = tenant.head(KEY)
        assert head is not None
        tree = tenant.trees.edit(root_of(tenant, head.manifest), [Operation("add", ("list", "-"), "one more")])
        before = app.catalog.engine.statements.copy()
        tenant.committer.commit(Proposal(KEY, tree, head))
        spent = app.catalog.engine.statements - before
        assert sum(spent.values()) <= (1 if store.url.startswith("postgresql") else 12), spent
