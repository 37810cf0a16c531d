"""Migrations: all or nothing, once, and never on a database that is ahead of the program."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from analemma import BlockId, BranchKey
from analemma.catalog.engine import Engine
from analemma.catalog.migrations import checksum, migrate
from analemma.catalog.opening import FILE_NAME, open_catalog
from analemma.catalog.port import Head
from analemma.catalog.postgres import PostgresEngine
from analemma.catalog.sqlite import SqliteEngine
from analemma.catalog.statements import MigrationScript, load_migrations
from analemma.errors import AnalemmaError, Corrupt, Unavailable
from analemma.state.journal import next_record

FIRST = MigrationScript(
    1, "first", "CREATE TABLE tenant (id integer, name text); INSERT INTO tenant VALUES (1, 'a;b');"
)
SECOND = MigrationScript(2, "second", "INSERT INTO tenant VALUES (2, 'b');\nINSERT INTO tenant VALUES (3, 'c')")
BROKEN = MigrationScript(2, "second", "INSERT INTO tenant VALUES (2, 'b');\nINSERT INTO nowhere VALUES (3, 'c');")


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine: Engine
    if request.param == "sqlite":
        engine = SqliteEngine(tmp_path / FILE_NAME)
    else:
        engine = PostgresEngine(request.getfixturevalue("postgres_url"))
    yield engine
    engine.close()


def test_only_what_is_missing_is_applied(engine: Engine) -> None:
    assert migrate(engine, now_us=7, scripts=(FIRST,)) == ["0001_first"]
    assert migrate(engine, now_us=8, scripts=(FIRST, SECOND)) == ["0002_second"]
    assert migrate(engine, now_us=9, scripts=(FIRST, SECOND)) == []
    assert engine.one("find_tenant", name="a;b") == (1,)
    assert engine.one("find_tenant", name="c") == (3,)
    assert engine.all("applied_migrations") == [(1, "first", checksum(FIRST)), (2, "second", checksum(SECOND))]


def test_a_migration_that_fails_leaves_nothing(engine: Engine) -> None:
    with pytest.raises(AnalemmaError):
        migrate(engine, now_us=7, scripts=(FIRST, BROKEN))
    assert engine.one("migration_table_exists") is None
    assert migrate(engine, now_us=7, scripts=(FIRST, SECOND)) == ["0001_first", "0002_second"]


def test_a_schema_from_the_future_is_refused(engine: Engine) -> None:
    migrate(engine, now_us=7, scripts=(FIRST, SECOND))
    with pytest.raises(Unavailable, match="upgrade analemma") as caught:
        migrate(engine, now_us=8, scripts=(FIRST,))
    assert "\n" not in str(caught.value)


def test_a_rewritten_migration_is_refused(engine: Engine) -> None:
    migrate(engine, now_us=7, scripts=(FIRST,))
    with pytest.raises(Corrupt, match="release") as caught:
        migrate(engine, now_us=8, scripts=(replace(FIRST, sql="SELECT 1;"), SECOND))
    assert "\n" not in str(caught.value)
    assert engine.one("find_tenant", name="b") is None


def test_an_outdated_schema_is_refused_when_asked_to_leave_it(engine: Engine) -> None:
    with pytest.raises(Unavailable, match="analemma migrate"):
        migrate(engine, now_us=7, apply=False, scripts=(FIRST,))
    assert engine.one("migration_table_exists") is None


def test_postgres_is_left_alone_when_asked(postgres_url: str) -> None:
    with pytest.raises(Unavailable, match="analemma migrate"):
        open_catalog(postgres_url, migrate=False)
    open_catalog(postgres_url).close()
    open_catalog(postgres_url, migrate=False).close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_open_a_new_store_together_all_succeed(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = str(tmp_path / "store") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    script = (
        "import sys; from analemma.catalog.opening import open_catalog; sys.stdin.readline();"
        " catalog = open_catalog(sys.argv[1]); print(catalog.tenant('default')); catalog.close()"
    )
    workers = [
        subprocess.Popen([sys.executable, "-c", script, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    answers = [worker.communicate(timeout=60)[0] for worker in workers]
    assert answers == ["1\n"] * 6 or len(set(answers)) == 1


def test_threads_that_open_a_restored_file_together_all_succeed(tmp_path: Path) -> None:
    open_catalog(tmp_path).close()
    # A copy made by VACUUM INTO has no write-ahead log; whoever opens it first changes that.
    start = threading.Barrier(4)

    def look() -> int:
        start.wait(10)
        catalog = open_catalog(tmp_path)
        version = catalog.schema_version()
        start.wait(10)
        catalog.close()
        return version

    for _ in range(5):
        connection = sqlite3.connect(tmp_path / FILE_NAME)
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
        connection.close()
        with ThreadPoolExecutor(4) as pool:
            versions = [future.result() for future in [pool.submit(look) for _ in range(4)]]
        assert len(set(versions)) == 1


def test_the_shipped_schema_is_recorded(tmp_path: Path) -> None:
    open_catalog(tmp_path).close()
    connection = sqlite3.connect(tmp_path / FILE_NAME)
    recorded = connection.execute("SELECT number, name, checksum FROM migration ORDER BY number").fetchall()
    connection.close()
    assert recorded == [(script.number, script.name, checksum(script)) for script in load_migrations("sqlite")]


def test_two_schemas_of_one_postgres_database_do_not_meet(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE SCHEMA one")
        connection.execute("CREATE SCHEMA two")
    catalogs = [open_catalog(f"{postgres_url}&options=-c%20search_path%3D{name}") for name in ("one", "two")]
    tenants = [catalog.tenant("shop") for catalog in catalogs]
    assert tenants == [1, 1]
    for catalog in catalogs:
        catalog.close()


def test_branches_from_before_there_were_workflows_are_listed(engine: Engine) -> None:
    ground, workflows = load_migrations(engine.dialect)[:2]
    migrate(engine, now_us=7, scripts=(ground,))
    rows = [("trip", "main", 1, None), ("trip", "main", 2, b"1"), ("trip", "idea", 2, b"1"), ("copy", "main", 1, b"2")]
    values = ", ".join(
        f"(1, {_blob(f'{workflow}{branch}{version}')}, 'ann', '{workflow}', '{branch}', {version},"
        f" {'NULL' if parent is None else _blob('parent')}, {_blob('root')}, {10 * number})"
        for number, (workflow, branch, version, parent) in enumerate(rows, 1)
    )
    columns = "tenant, id, owner, workflow, branch, version, parent, root, created_at"
    head = f"1, 'ann', 'trip', 'main', {_blob('tripmain2')}, 2, 2, {_blob('tip')}"
    with engine.transaction(write=True) as tx:
        script = f"INSERT INTO manifest ({columns}) VALUES {values}; INSERT INTO head VALUES ({head});"  # noqa: S608
        tx.script(script if engine.dialect == "sqlite" else script.replace("AS blob", "AS bytea"))
    migrate(engine, now_us=8, scripts=(ground, workflows))
    found = engine.one("workflow", tenant=1, owner="ann", workflow="trip")
    assert found == ("trip", "trip", "IDLE", 10, 10, b"tripmain2", "main", 2, None, 20)
    assert engine.all("branches", tenant=1, owner="ann", workflow="trip") == [("main", None, 10, b"tripmain2", 2, 20)]
    place = {"tenant": 1, "owner": "ann", "workflow": "copy", "branch": "main", "next_version": 9}
    assert [row[0] for row in engine.all("children", **place, id=b"parent")] == [b"tripidea2", b"copymain1"]


def test_decisions_from_before_there_were_rows_for_them_are_found(engine: Engine) -> None:
    ground, workflows, decisions = load_migrations(engine.dialect)[:3]
    migrate(engine, now_us=7, scripts=(ground, workflows))
    key = BranchKey("ann", "trip")
    told = [
        (1, "approved", None),
        (1, "rejected", "the text hdecisionhapprovedeowner is no decision"),
        (2, "rejected", None),
        (2, "approved", "why"),
        (3, "escalated", None),
        (4, "pending", None),
    ]
    columns = "tenant, id, owner, workflow, branch, version, root, created_at"
    rows = ", ".join(f"(1, {_blob(f'{n:032}')}, 'ann', 'trip', 'main', {n}, {_blob('root')}, 1)" for n in range(1, 6))
    script = f"INSERT INTO manifest ({columns}) VALUES {rows};"  # noqa: S608
    with engine.transaction(write=True) as tx:
        tx.script(script if engine.dialect == "sqlite" else script.replace("AS blob", "AS bytea"))
        for seq, (version, decision, reason) in enumerate(told, 1):
            head = Head(key, BlockId(bytes(32)), 5, seq - 1, bytes(32))
            facts = {"decision": decision, "score": 0.5, "reason": reason, "actor": "eve"}
            manifest = BlockId(f"{version:032}".encode())
            record = next_record(key, head, kind="decided", manifest=manifest, at_us=7, facts=facts)
            tx.execute(
                "add_record",
                tenant=1,
                owner=key.owner,
                workflow=key.workflow,
                branch=key.branch,
                seq=record.seq,
                kind=record.kind,
                manifest=manifest,
                body=record.body,
                hash=record.hash,
                created_at=7,
            )
    migrate(engine, now_us=8, scripts=(ground, workflows, decisions))
    asked = {"tenant": 1, "owner": "ann", "workflow": "trip", "branch": "main", "before_version": 9, "limit": 9}
    asked |= {"execution": None, "segment": None, "since": 0, "until": 9}
    found = {
        decision: [row[4] for row in engine.all("history_decided", **asked, decision=decision)]
        for decision in ("approved", "rejected", "escalated", "pending")
    }
    assert found == {"approved": [2], "rejected": [1], "escalated": [3], "pending": [4]}


def test_dooms_from_before_they_had_a_table_keep_their_numbers(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / FILE_NAME)
    scripts = load_migrations("sqlite")
    before = tuple(script for script in scripts if script.number < 12)
    migrate(engine, now_us=7, scripts=before)
    blocks = [(1, bytes([number]) * 32, 1, 0, b"x", None, None, None, None) for number in range(1, 4)]
    spare = "UPDATE block SET doomed = NULL WHERE id = x'00'"
    with engine.transaction(write=True) as tx:
        tx.execute_many("add_blocks", blocks)
        tx.script("UPDATE block SET doomed = 5 WHERE substr(id, 1, 1) = x'02'")
        tx.script(spare)
    assert engine.one("gc_lease") == (0, None, 0)
    migrate(engine, now_us=8, scripts=tuple(script for script in scripts if script.number <= 13))
    assert engine.all("scan_doomed", tenant=1, after=b"", limit=9) == [(b"\2" * 32, 5)]
    assert engine.one("gc_lease") == (1, None, 0), "a pass of an earlier release is over"
    # A program of an earlier release must not spare blocks where nobody looks.
    with pytest.raises(AnalemmaError, match="doomed"), engine.transaction(write=True) as tx:
        tx.script(spare)
    engine.close()


def _blob(text: str) -> str:
    """Bytes, in words that both dialects understand once `blob` is put right."""
    return f"CAST('{text}' AS blob)"
