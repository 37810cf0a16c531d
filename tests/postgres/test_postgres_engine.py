"""The PostgreSQL engine: retries, lost connections, timeouts, and bytes that travel as bytes."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from analemma import BranchKey
from analemma.catalog.arrays import Blobs
from analemma.catalog.engine import Transaction
from analemma.catalog.opening import open_catalog
from analemma.catalog.port import CommitRequest, Committed, Head, Idempotency
from analemma.catalog.postgres import PostgresEngine
from analemma.catalog.postgres_catalog import PostgresCatalog
from analemma.errors import Conflict, HeadMoved, Invalid, OutcomeUnknown, Timeout, Unavailable
from analemma.testing.commits import KEY, make_block, make_event, make_request
from tests.postgres.postgres_proxy import LossyProxy


@pytest.fixture
def catalog(postgres_url: str) -> Iterator[PostgresCatalog]:
    catalog = open_catalog(postgres_url)
    assert isinstance(catalog, PostgresCatalog)
    yield catalog
    catalog.close()


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[LossyProxy]:
    proxy = LossyProxy(postgres_url)
    yield proxy
    proxy.close()


@pytest.fixture
def distant(proxy: LossyProxy) -> Iterator[PostgresCatalog]:
    """A catalog that sees the server through the proxy."""
    engine = PostgresEngine(proxy.url, max_connections=1, connect_timeout_s=2)
    catalog = PostgresCatalog(engine)
    yield catalog
    catalog.close()


def disconnect_everyone(url: str) -> None:
    query = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(url) as connection:
        connection.execute(query)


def test_a_commit_is_one_statement(catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    first = make_request(tenant, None, [make_block()], events=(make_event("one"),))
    catalog.engine.statements.clear()
    catalog.commit(first)
    catalog.commit(make_request(tenant, first.head, [make_block()]))
    assert catalog.engine.statements == {"commit": 1, "commit_plain": 1}


def test_a_read_of_many_blocks_is_one_statement(catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    blocks = [make_block() for _ in range(300)]
    catalog.commit(make_request(tenant, None, blocks))
    catalog.engine.statements.clear()
    assert len(catalog.read_blocks(tenant, [block.id for block in blocks])) == 300
    assert catalog.engine.statements == {"read_blocks": 1}


def test_bodies_travel_as_bytes_not_as_hexadecimal(catalog: PostgresCatalog, tmp_path: Path) -> None:
    tenant = catalog.tenant("shop")
    first = make_request(tenant, None)
    catalog.commit(first)
    body = os.urandom(100_000)
    with catalog.engine.connection() as (connection, tx), open(tmp_path / "trace", "wb") as trace:
        connection.pgconn.trace(trace.fileno())
        catalog.commit_in(tx, make_request(tenant, first.head, [make_block(body)]))
        tx.all("read_blocks", tenant=tenant, ids=Blobs([make_block(body).id]))
        connection.pgconn.untrace()
    # A line of the trace: when, F or B (to or from the server), the length of the message, its kind.
    messages = re.findall(rb"\t[FB]\t(\d+)\t(Bind|DataRow)", (tmp_path / "trace").read_bytes())
    large = [(kind, int(size)) for size, kind in messages if int(size) > 50_000]
    assert [kind for kind, _ in large] == [b"Bind", b"DataRow"]
    assert all(100_000 < size < 102_000 for _, size in large)


def test_a_retried_write_runs_again_from_the_start(postgres_url: str, catalog: PostgresCatalog) -> None:
    for name in ("one", "two"):
        catalog.tenant(name)
    one = "SELECT 1 FROM tenant WHERE name = 'one' FOR UPDATE"
    two = "SELECT 1 FROM tenant WHERE name = 'two' FOR UPDATE"
    both_hold_one = threading.Barrier(2)
    first_is_done = threading.Event()
    attempts = []

    def move(first: str, second: str) -> None:
        again = False

        def lock_both(tx: Transaction) -> None:
            nonlocal again
            attempts.append(first)
            if again:
                # Sooner, it might take its first row before the other wakes up, and meet it once more.
                assert first_is_done.wait(30)
            tx.script(first)
            if not again:
                again = True
                both_hold_one.wait(10)
            tx.script(second)

        catalog.engine.write(lock_both)
        first_is_done.set()

    threads = [threading.Thread(target=move, args=pair) for pair in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(attempts) == 3


def test_a_read_outlives_a_restart_of_the_server(postgres_url: str, catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    request = make_request(tenant, None)
    catalog.commit(request)
    disconnect_everyone(postgres_url)
    assert catalog.head(tenant, KEY) == request.head


def test_a_write_outlives_a_restart_of_the_server(postgres_url: str, catalog: PostgresCatalog) -> None:
    catalog.tenant("shop")
    disconnect_everyone(postgres_url)
    assert catalog.tenant("other") != catalog.tenant("shop")


def test_a_commit_outlives_a_restart_of_the_server(postgres_url: str, catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    first = make_request(tenant, None)
    catalog.commit(first)
    disconnect_everyone(postgres_url)
    second = make_request(tenant, first.head, [make_block()])
    assert len(catalog.commit(second).stored) == 2
    assert catalog.head(tenant, KEY) == second.head


def test_a_commit_whose_answer_was_lost_is_found_to_have_happened(proxy: LossyProxy, distant: PostgresCatalog) -> None:
    tenant = distant.tenant("shop")
    first = make_request(tenant, None)
    distant.commit(first)
    second = make_request(tenant, first.head, [make_block()])
    proxy.lose_answer_to(second.journal[0].body)
    assert distant.commit(second).manifest == second.manifest.id
    assert proxy.lost == 1
    assert distant.head(tenant, KEY) == second.head
    assert [row.version for row in distant.history(tenant, KEY)] == [2, 1]


def test_a_refused_commit_whose_answer_was_lost_is_still_refused(proxy: LossyProxy, distant: PostgresCatalog) -> None:
    tenant = distant.tenant("shop")
    first, second = make_request(tenant, None), make_request(tenant, None)
    distant.commit(first)
    proxy.lose_answer_to(second.journal[0].body)
    with pytest.raises(HeadMoved):
        distant.commit(second)
    assert distant.head(tenant, KEY) == first.head


def test_a_commit_that_cannot_be_read_back_has_an_unknown_outcome(
    postgres_url: str, proxy: LossyProxy, distant: PostgresCatalog
) -> None:
    tenant = distant.tenant("shop")
    request = make_request(tenant, None)
    proxy.lose_answer_to(request.journal[0].body, then_refuse=True)
    with pytest.raises(OutcomeUnknown, match="read back"):
        distant.commit(request)
    near = open_catalog(postgres_url)
    assert near.head(tenant, KEY) == request.head
    near.close()


def test_a_transaction_whose_commit_went_unanswered_has_an_unknown_outcome(
    proxy: LossyProxy, distant: PostgresCatalog
) -> None:
    distant.tenant("shop")
    proxy.lose_answer_to(b"COMMIT\0")
    with pytest.raises(OutcomeUnknown):
        distant.engine.write(lambda tx: tx.execute("add_tenant", name="other"))


def test_a_transaction_that_broke_before_its_commit_is_unavailable(postgres_url: str, catalog: PostgresCatalog) -> None:
    def move(tx: Transaction) -> None:
        tx.execute("add_tenant", name="other")
        disconnect_everyone(postgres_url)
        tx.execute("add_tenant", name="another")

    with pytest.raises(Unavailable) as caught:
        catalog.engine.write(move)
    assert caught.value.kind == "unavailable"
    assert catalog.engine.one("find_tenant", name="other") is None


def test_a_transaction_that_postgres_rolled_back_is_not_reported_as_committed(catalog: PostgresCatalog) -> None:
    def swallow(tx: Transaction) -> str:
        tx.execute("add_tenant", name="kept")
        try:
            tx.script("SELECT 1 / 0")
        except Invalid:
            pass
        return "done"

    with pytest.raises(Invalid, match="division by zero"):
        catalog.engine.write(swallow)
    assert catalog.engine.one("find_tenant", name="kept") is None


def test_a_swallowed_request_to_retry_is_still_followed(catalog: PostgresCatalog) -> None:
    attempts = []

    def swallow(tx: Transaction) -> None:
        attempts.append(tx)
        if len(attempts) == 1:
            try:
                tx.script("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '40001'; END $$")
            except Unavailable:
                pass

    catalog.engine.write(swallow)
    assert len(attempts) == 2


def test_a_commit_that_times_out_while_it_is_settled_has_an_unknown_outcome(
    postgres_url: str, proxy: LossyProxy, distant: PostgresCatalog
) -> None:
    tenant = distant.tenant("shop")
    first = make_request(tenant, None)
    distant.commit(first)
    second = make_request(tenant, first.head)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        # The first attempt takes until we let it go on, and whoever waits for it is soon told to give up.
        connection.execute("SELECT pg_advisory_lock(1)")
        connection.execute(
            "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$"
        )
        connection.execute("CREATE TRIGGER dawdle BEFORE INSERT ON journal FOR EACH ROW EXECUTE FUNCTION dawdle()")
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET lock_timeout = '200ms'")
        proxy.lose_connection_at(second.journal[0].body)
        with pytest.raises(OutcomeUnknown, match="read back"):
            distant.commit(second)
        connection.execute("SELECT pg_advisory_unlock(1)")
    near = open_catalog(postgres_url)
    deadline = time.monotonic() + 60
    while near.head(tenant, KEY) != second.head and time.monotonic() < deadline:
        time.sleep(0.05)
    assert near.head(tenant, KEY) == second.head
    near.close()


def test_a_statement_that_takes_too_long_is_cut_off(postgres_url: str) -> None:
    engine = PostgresEngine(postgres_url, statement_timeout_s=0.2)
    with pytest.raises(Timeout, match="statement timeout"):
        engine.write(lambda tx: tx.script("SELECT pg_sleep(10)"))
    engine.close()


def test_a_transaction_that_nobody_goes_on_with_keeps_no_locks(postgres_url: str) -> None:
    """Whoever is frozen inside of one is told when it comes back; a snapshot locks nothing, and may take its time."""
    engine = PostgresEngine(postgres_url, statement_timeout_s=0.2)
    other = PostgresEngine(postgres_url, statement_timeout_s=10)
    engine.write(lambda tx: tx.script("CREATE TABLE one (n integer); INSERT INTO one VALUES (1)"))

    def freeze(tx: Transaction) -> None:
        tx.script("UPDATE one SET n = 2")
        # Waits for the lock, which nobody gives back.
        other.write(lambda tx: tx.script("UPDATE one SET n = n + 10"))
        tx.script("UPDATE one SET n = 3")

    with pytest.raises(Unavailable, match="try again"):
        engine.write(freeze)
    with engine.snapshot() as tx:
        tx.script("SELECT n FROM one")
        time.sleep(0.4)
        tx.script("DO $$ BEGIN ASSERT (SELECT n FROM one) = 11; END $$")
    engine.close()
    other.close()


def test_an_exhausted_pool_says_so(postgres_url: str) -> None:
    catalog = PostgresCatalog(PostgresEngine(postgres_url, max_connections=1, connect_timeout_s=0.3))
    with catalog.engine.transaction(), pytest.raises(Unavailable, match="pool"):
        catalog.engine.one("find_tenant", name="shop")
    catalog.close()


def test_a_taken_key_is_a_conflict(catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    row = dict.fromkeys(("owner", "workflow", "execution")) | {"object_key": "k", "size": 1, "created_at": 1}
    catalog.engine.execute("open_upload", tenant=tenant, id=b"u", state="temp", **row)
    with pytest.raises(Conflict):
        catalog.engine.execute("open_upload", tenant=tenant, id=b"u", state="temp", **row)


def test_a_commit_can_be_part_of_a_larger_transaction(catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    requests = [make_request(tenant, None, key=BranchKey("ann", name)) for name in ("one", "two")]

    def both(tx: Transaction) -> None:
        for request in requests:
            catalog.commit_in(tx, request)

    catalog.engine.write(both)
    with pytest.raises(HeadMoved):
        catalog.engine.write(both)
    heads: list[Head | None] = [catalog.head(tenant, request.head.key) for request in requests]
    assert heads == [request.head for request in requests]


def wait_for_a_lock_that_is_wanted(url: str) -> None:
    """Until some statement in this database waits for another to end."""
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(waiting).fetchone() is None:
            time.sleep(0.005)


def test_a_key_taken_during_a_larger_transaction_is_replayed(postgres_url: str, catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    asked = Idempotency("order-1", b"fingerprint", b"receipt")
    keys = [BranchKey("ann", "report", branch) for branch in ("one", "two")]
    requests = [make_request(tenant, None, key=key, idempotency=asked) for key in keys]
    start = threading.Barrier(2)
    attempts = []

    def work(request: CommitRequest) -> Committed:
        met = False

        def move(tx: Transaction) -> Committed:
            nonlocal met
            attempts.append(request)
            committed = catalog.commit_in(tx, request)
            if not met and not committed.replayed:
                met = True
                # The rival's statement begins now, before our transaction ends.
                start.wait(10)
                wait_for_a_lock_that_is_wanted(postgres_url)
            return committed

        if request is requests[1]:
            start.wait(10)
        return catalog.engine.write(move)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(work, requests)
    assert (first.replayed, second.replayed) == (False, True)
    assert first.manifest == second.manifest
    assert len(attempts) == 3


def test_lookups_by_id_use_the_right_index_even_while_the_tables_are_empty(
    postgres_url: str, catalog: PostgresCatalog
) -> None:
    # Such a plan may live as long as its connection; a wrong one reads every row of the tenant.
    with psycopg.connect(postgres_url) as connection:
        plan = str(connection.execute("EXPLAIN SELECT 1 FROM manifest WHERE tenant = 1 AND id = ''").fetchall())
        assert "manifest_pkey" in plan


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_child_opens_its_own_connections(catalog: PostgresCatalog) -> None:
    tenant = catalog.tenant("shop")
    request = make_request(tenant, None)
    catalog.commit(request)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            catalog.commit(make_request(tenant, request.head))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    head = catalog.head(tenant, KEY)
    assert head is not None and head.version == 2
