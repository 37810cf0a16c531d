"""What the model takes for granted about PostgreSQL, asked of a real server with the real tables.

The model is only as good as its idea of a row lock. Each test is one sentence of `tests/models/database.py`, or the
reason for one rule, played with two connections."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from tests.raw_rows import connect

pytestmark = pytest.mark.deep("it asks the server, and no code of ours")

BLOCK, UPLOAD, MANIFEST = b"b" * 32, b"u" * 16, b"m" * 32

WRITE_BLOCK = """
    INSERT INTO block (tenant, id, size, codec, body) VALUES (1, %s, 1, 0, 'x')
    ON CONFLICT (tenant, id) DO UPDATE SET doomed = NULL WHERE block.doomed IS NOT NULL
"""
DOOM = "UPDATE block SET doomed = 1 WHERE doomed IS NULL"
DELETE_DOOMED = "DELETE FROM block WHERE doomed < 2"
HOLD_BASE = "SELECT id FROM manifest WHERE id = %s FOR KEY SHARE"
EXPIRE = "DELETE FROM manifest WHERE id = %s"


class Pair:
    """Two connections, and a third that watches them."""

    def __init__(self, url: str) -> None:
        self.first, self.second = connect(url), connect(url)
        self.watcher = connect(url, autocommit=True)
        self._pool = ThreadPoolExecutor(1)

    def start_waiting(self, statement: str, *parameters: object) -> Future[int]:
        """Run a statement on the second connection that has to wait for the first."""
        running = self._pool.submit(lambda: self.second.execute(statement.encode(), parameters).rowcount)
        waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
        for _ in range(500):
            if self.watcher.execute(waits, [self.second.info.backend_pid]).fetchone() == (True,):
                return running
            assert not running.done(), "it did not have to wait"
            time.sleep(0.01)
        raise AssertionError("it neither waits nor ends")

    def value(self, query: str) -> object:
        row = self.watcher.execute(query.encode()).fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        for connection in (self.first, self.second, self.watcher):
            connection.close()
        self._pool.shutdown()


@pytest.fixture
def pair(migrated_url: str) -> Iterator[Pair]:
    pair = Pair(migrated_url)
    pair.watcher.execute(WRITE_BLOCK, [BLOCK])
    yield pair
    pair.close()


def test_writing_a_block_locks_its_row_even_if_there_is_nothing_to_clear(pair: Pair) -> None:
    assert pair.first.execute(WRITE_BLOCK, [BLOCK]).rowcount == 0
    dooming = pair.start_waiting(DOOM)
    pair.first.commit()
    assert dooming.result(10) == 1


def test_doing_nothing_on_conflict_would_not_lock_it(pair: Pair) -> None:
    skip = "INSERT INTO block (tenant, id, size, codec, body) VALUES (1, %s, 1, 0, 'x') ON CONFLICT DO NOTHING"
    pair.first.execute(skip, [BLOCK])
    assert pair.second.execute(DOOM).rowcount == 1


def test_a_delete_that_waited_tests_the_doom_of_the_row_as_it_was_left(pair: Pair) -> None:
    pair.watcher.execute(DOOM)
    assert pair.first.execute(WRITE_BLOCK, [BLOCK]).rowcount == 1
    deleting = pair.start_waiting(DELETE_DOOMED)
    pair.first.commit()
    assert deleting.result(10) == 0


def test_a_delete_by_ids_chosen_before_would_delete_it(pair: Pair) -> None:
    pair.watcher.execute(DOOM)
    pair.first.execute(WRITE_BLOCK, [BLOCK])
    deleting = pair.start_waiting("DELETE FROM block WHERE id = %s", BLOCK)
    pair.first.commit()
    assert deleting.result(10) == 1


def test_writing_a_block_that_is_being_deleted_waits_and_inserts_it(pair: Pair) -> None:
    pair.watcher.execute(DOOM)
    assert pair.first.execute(DELETE_DOOMED).rowcount == 1
    writing = pair.start_waiting(WRITE_BLOCK, BLOCK)
    pair.first.commit()
    assert writing.result(10) == 1
    pair.second.commit()
    assert pair.value("SELECT count(*) FROM block WHERE doomed IS NULL") == 1


def test_expiry_waits_for_whoever_holds_the_base(pair: Pair) -> None:
    _add_manifest(pair)
    assert pair.first.execute(HOLD_BASE, [MANIFEST]).rowcount == 1
    expiring = pair.start_waiting(EXPIRE, MANIFEST)
    pair.first.commit()
    assert expiring.result(10) == 1


def test_whoever_waited_for_an_expiry_finds_no_base(pair: Pair) -> None:
    _add_manifest(pair)
    pair.first.execute(EXPIRE, [MANIFEST])
    holding = pair.start_waiting(HOLD_BASE, MANIFEST)
    pair.first.commit()
    assert holding.result(10) == 0


def test_a_key_share_lock_does_not_keep_a_root_that_ends_by_an_update(pair: Pair) -> None:
    pair.watcher.execute(
        "INSERT INTO upload (tenant, id, state, object_key, size, created_at) VALUES (%s, %s, 'temp', 'k', 1, 0)",
        [_tenant(pair), UPLOAD],
    )
    pair.first.execute("SELECT 1 FROM upload WHERE id = %s FOR KEY SHARE", [UPLOAD])
    assert pair.second.execute("UPDATE upload SET state = 'deleting' WHERE id = %s", [UPLOAD]).rowcount == 1


def test_who_waited_sees_the_other_transaction_in_its_next_snapshot(pair: Pair) -> None:
    _add_manifest(pair)
    pair.first.execute(WRITE_BLOCK, [BLOCK])
    pair.first.execute(EXPIRE, [MANIFEST])
    dooming = pair.start_waiting(DOOM)
    pair.first.commit()
    dooming.result(10)
    assert pair.second.execute("SELECT count(*) FROM manifest").fetchone() == (0,)


def test_a_snapshot_cannot_write_a_row_that_has_changed_since(pair: Pair) -> None:
    pair.second.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    pair.second.execute("SELECT count(*) FROM manifest")
    pair.watcher.execute("UPDATE store SET id = 'taken'")
    with pytest.raises(psycopg.errors.SerializationFailure):
        pair.second.execute("UPDATE store SET id = 'mine'")


@pytest.mark.parametrize(("states", "claimed"), [("('temp')", 0), ("('temp', 'ready')", 1)])
def test_a_claim_for_two_states_judges_a_new_state_by_old_block_rows(pair: Pair, states: str, claimed: int) -> None:
    tenant = _tenant(pair)
    pair.watcher.execute(
        "INSERT INTO upload (tenant, id, state, object_key, size, created_at) VALUES (%s, %s, 'temp', 'k', 1, 0)",
        [tenant, UPLOAD],
    )
    pair.first.execute("UPDATE upload SET state = 'ready' WHERE id = %s AND state = 'temp'", [UPLOAD])
    pair.first.execute(
        "INSERT INTO block (tenant, id, size, codec, upload, object_offset, object_length)"
        " VALUES (%s, 'c', 1, 0, %s, 0, 1)",
        [tenant, UPLOAD],
    )
    claiming = pair.start_waiting(
        f"UPDATE upload SET state = 'deleting' WHERE state IN {states}"  # noqa: S608
        " AND NOT EXISTS (SELECT FROM block WHERE block.tenant = upload.tenant AND block.upload = upload.id)"
    )
    pair.first.commit()
    assert claiming.result(10) == claimed


def _tenant(pair: Pair) -> object:
    return pair.value("INSERT INTO tenant (name) VALUES ('a tenant of this test') RETURNING id")


def _add_manifest(pair: Pair) -> None:
    pair.watcher.execute(
        "INSERT INTO manifest (tenant, id, owner, workflow, branch, version, root, created_at)"
        " VALUES (1, %s, 'o', 'w', 'b', 1, 'r', 0)",
        [MANIFEST],
    )
