"""A database that came here step by step has the same schema as a new one, wherever it began."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import psycopg
import pytest

import analemma
from analemma.errors import Corrupt, Invalid, NotFound, Unavailable
from tests.api.state.pending import left_behind
from tests.formats.older_schema import ARCHIVE, FILES
from tests.ports.entry_points.catalog import BASELINE, OLDER, POSTGRES, SQLITE, checksum_of, older_migrations
from tests.raw_rows import change, is_sqlite, select, table
from tests.servers import PostgresServer
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
BOTH = pytest.mark.both_stores("each database was migrated by scripts of its own")


def test_the_archive_has_the_older_scripts() -> None:
    with ZipFile(ARCHIVE) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            file.name: file.read_bytes() for file in FILES
        }
    for sql in (SQLITE, POSTGRES):
        scripts = older_migrations(sql)
        assert [each.number for each in scripts] == [*range(1, BASELINE + 1)]
        assert checksum_of({each.number: each.checksum for each in scripts}) == OLDER[sql.database]
        # They were written for one database each: no rule of translation has a hold on them.
        assert all(sql.script(each.text).strip() == each.text.strip() for each in scripts)


@pytest.fixture(params=["sqlite", "postgres"])
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A place where there is nothing yet."""
    if request.param == "sqlite":
        (tmp_path / "older").mkdir()
        return Store(str(tmp_path / "older"))
    return Store(request.getfixturevalue("postgres_url"), str(tmp_path / "objects"))


def migrate_by_hand(store: Store, last: int) -> None:
    """Bring it to where a release of that time did."""
    sql = SQLITE if is_sqlite(store) else POSTGRES
    columns = "number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, applied_at bigint NOT NULL"
    script = f"CREATE TABLE migration ({columns});\n"
    for each in older_migrations(sql)[:last]:
        values = f"({each.number}, '{each.name}', '{each.checksum}', 1)"
        script += f"{each.text}\nINSERT INTO migration VALUES {values};\n"
    if is_sqlite(store):
        with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database:
            database.executescript(script)
    else:
        with psycopg.connect(store.url) as connection:
            connection.execute(script.encode())


def schema(store: Store, server: PostgresServer | None) -> Any:
    """All there is to know of its schema, and the rows that it begins with."""
    rows = [table(store, "gc"), [{**row, "id": ""} for row in table(store, "store")]]
    if server is not None:
        return server.schema_of(store.url), rows
    found = {}
    with closing(sqlite3.connect(Path(store.url) / "catalog.db")) as database:
        for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_master").fetchall():
            columns = database.execute(f"PRAGMA table_xinfo({name})").fetchall() if kind == "table" else []
            found[kind, name] = parts(sql), columns
    return found, rows


def parts(sql: str | None) -> list[str]:
    """What a definition is made of, in any order: a column that was added stands behind the constraints."""
    text = " ".join(re.sub(r"--[^\n]*", "", sql or "").replace('"', "").split())
    head, opened, rest = text.partition("(")
    found, depth = [""], 0
    for char in rest:
        depth += (char == "(") - (char == ")")
        if depth < 0 or (char == "," and depth == 0):
            depth = max(depth, 0)
            found.append("")
        else:
            found[-1] += char
    return [head.strip() + opened, *sorted(part.replace("( ", "(").replace(" )", ")").strip() for part in found)]


def numbers() -> list[Any]:
    """Each database where it began; on a server, some of them."""
    sqlite = [pytest.param("sqlite", last, id=f"sqlite-{last}") for last in range(1, BASELINE + 1)]
    return [*sqlite, *(pytest.param("postgres", last, id=f"postgres-{last}") for last in (1, 12, 20, BASELINE))]


@BOTH
@pytest.mark.parametrize(("older", "last"), numbers(), indirect=["older"])
def test_a_database_of_any_age_comes_to_the_schema_of_a_new_one(
    older: Store, last: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = None if is_sqlite(older) else request.getfixturevalue("postgres_server")
    new = Store(str(tmp_path / "new") if server is None else f"{server.create_database()}&schema=public")
    new.open().close()
    migrate_by_hand(older, last)
    older.open().close()
    assert schema(older, server) == schema(new, server)
    recorded = "SELECT number FROM migration WHERE number <= ? ORDER BY number"
    assert select(older, recorded, [BASELINE]) == [(number,) for number in range(1, BASELINE + 1)]
    assert select(new, recorded, [BASELINE]) == [(BASELINE,)]
    with older.open(), older.open() as app:
        app.kernel.save_state_delta({"n": 1}, **AT)
        assert app.kernel.load_latest_state(**AT) == {"n": 1}
    if server is not None:
        server.drop_database(new.url.partition("&schema=")[0])


@BOTH
@pytest.mark.parametrize("last", [BASELINE, BASELINE - 1])
def test_a_rewritten_older_script_is_refused(older: Store, last: int) -> None:
    migrate_by_hand(older, last)
    change(older, "UPDATE migration SET checksum = 'another' WHERE number = 3")
    with pytest.raises(Corrupt, match="migration 3 is not the one"):
        older.open()


@BOTH
def test_an_older_schema_is_left_alone_when_asked(older: Store) -> None:
    migrate_by_hand(older, BASELINE - 2)
    with pytest.raises(Unavailable, match=r"lacks \d migrations .*analemma migrate"):
        analemma.open(older.url, objects=older.objects, migrate=False)


@BOTH
def test_the_older_scripts_do_not_stand_for_the_baseline(store: Store) -> None:
    """The number of the baseline has two texts; a database has the one that it was built with."""
    sql = SQLITE if is_sqlite(store) else POSTGRES
    change(store, "UPDATE migration SET checksum = ? WHERE number = ?", [older_migrations(sql)[-1].checksum, BASELINE])
    with pytest.raises(Corrupt, match=f"migration {BASELINE} is not the one"):
        store.open()


UPLOADS = {
    # State, from which state it was claimed, kind and state of the request, attempts; whether a block lies in it.
    "waits": ("temp", None, "commit", "waiting", 0, False),
    "given_up": ("temp", None, "commit", "dead", 3, False),
    "committed": ("ready", None, "commit", "waiting", 0, False),
    "undeleted": ("deleting", "ready", "delete", "waiting", 1, False),
    "needed": ("temp", None, "commit", "waiting", 0, True),
}
"""Uploads of which something had failed when the failures had a table of their own."""


@BOTH
def test_what_waited_in_the_queue_of_failures_waits_in_its_own_row(older: Store) -> None:
    migrate_by_hand(older, BASELINE)
    change(older, "INSERT INTO tenant (name) VALUES ('default')")
    objects = Path(older.objects or Path(older.url) / "objects")
    keys = {}
    for number, (name, (state, origin, kind, request, attempts, needed)) in enumerate(UPLOADS.items(), 1):
        upload = bytes([number]) * 16
        keys[name] = f"packs/{upload.hex()[:2]}/{upload.hex()}"
        (objects / keys[name]).parent.mkdir(parents=True)
        (objects / keys[name]).write_bytes(b"pack")
        add = "INSERT INTO upload (tenant, id, state, object_key, size, created_at, claimed_from)"
        change(older, f"{add} VALUES (1, ?, ?, ?, 4, 1, ?)", [upload, state, keys[name], origin])
        add = "INSERT INTO gc_failure (tenant, upload, kind, state, attempts, visible_at, created_at, error)"
        change(older, f"{add} VALUES (1, ?, ?, ?, ?, 5, 2, ?)", [upload, kind, request, attempts, name])
        if needed:
            add = "INSERT INTO block (tenant, id, size, codec, upload, object_offset, object_length)"
            change(older, f"{add} VALUES (1, ?, 1, 0, ?, 8, 1)", [bytes(32), upload])
    with older.open() as app:
        failures = {
            each.error: (each.kind, each.state, each.attempts, each.visible_at_us) for each in app.gc.failures()
        }
        assert failures == {
            "waits": ("commit", "waiting", 0, 5),
            "given_up": ("commit", "dead", 3, 5),
            "undeleted": ("delete", "waiting", 1, 5),
        }
        status = app.gc.status()
        assert (status.waiting_failures, status.dead_failures) == (2, 1)
        # Those that were dead for so long are tried again as well.
        assert app.gc.work_failures() == 3 and app.gc.failures() == []
        reasons = {entry.object_key: entry.reason for entry in app.gc.audit()}
    assert reasons == {
        keys["waits"]: "commit_failed",
        keys["given_up"]: "commit_failed",
        keys["undeleted"]: "unreferenced",
    }
    assert {name for name, key in keys.items() if (objects / key).exists()} == {"committed", "needed"}
    left = "SELECT state FROM upload WHERE deleted_at IS NULL ORDER BY id"
    assert select(older, left) == [("ready",), ("temp",)]


LEDGER = "tenant, owner, workflow, branch, secret, created_at, codec, size, digest, stored, body"
TICKET = "seq, tenant, owner, workflow, branch, secret, settled_at"
OF_LEDGER = "seq, tenant, owner, workflow, branch, secret, 7"


@BOTH
def test_deltas_that_waited_in_the_ledger_are_pending_and_tickets_are_known(older: Store, tmp_path: Path) -> None:
    """They had two tables: a delta changed from one to the other when it was settled."""
    like = Store(str(tmp_path / "like"))
    deltas: list[dict[str, Any]] = [{"n": 1}, {"m": 2}, {"n": 3}, {"/no/where": 1}, {"n": 5}]
    with like.open() as app:
        tickets = [left_behind(app, like, delta, **AT) for delta in deltas]
        rows = table(like, "pending")
        app.checkpoints.drain()
    settled = {row["seq"]: row for row in table(like, "pending")}
    migrate_by_hand(older, BASELINE)
    change(older, "INSERT INTO tenant (name) VALUES ('default')")
    for row in rows:
        values = [row[name] for name in LEDGER.split(", ")]
        change(older, f"INSERT INTO ledger ({LEDGER}) VALUES ({', '.join('?' * len(values))})", values)  # noqa: S608
    add = f"INSERT INTO ticket ({TICKET}, receipt) SELECT {OF_LEDGER}, ? FROM ledger WHERE seq = 3"  # noqa: S608
    change(older, add, [settled[3]["receipt"]])
    columns = "codec, size, digest, body"
    add = (
        f"INSERT INTO ticket ({TICKET}, failure, {columns}) SELECT {OF_LEDGER}, ?, {columns} FROM ledger WHERE seq = 4"  # noqa: S608
    )
    change(older, add, [settled[4]["failure"]])
    # What became of the last was forgotten: its number is not given again.
    change(older, "DELETE FROM ledger WHERE seq > 2")
    with older.open() as app:
        kernel = app.kernel
        statuses = [kernel.ticket(ticket).status for ticket in tickets[:4]]
        assert statuses == ["pending", "pending", "committed", "failed"] and app.checkpoints.pending == 2
        with pytest.raises(NotFound):
            kernel.ticket(tickets[4])
        assert kernel.ticket(tickets[2]).version == 3
        with pytest.raises(Invalid, match="nothing at /no"):
            kernel.wait_for(tickets[3])
        assert select(older, "SELECT body IS NULL, stored FROM pending WHERE seq > 2 ORDER BY seq") == [
            (True, None),
            (False, len(rows[3]["body"])),
        ]
        assert kernel.save_state_delta({"k": 1}, **AT).version == 3
        assert kernel.load_state_with_consistency(tickets[1]) == {"n": 1, "m": 2}
        assert kernel.checkpoint_async({"n": 6}, wait_for_commit=True, **AT).seq > 5
        assert kernel.verify(**AT).problems == []
        assert app.checkpoints.forget(0) == 5
