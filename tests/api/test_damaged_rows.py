"""Rows of which one column is damaged: every verb that reads answers rightly, or says that the store is damaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import analemma
from analemma.errors import Conflict, Corrupt, Denied, Expired, NotFound
from analemma.langgraph import AnalemmaSaver, AnalemmaStore
from tests.actors import Actor
from tests.raw_rows import change, is_sqlite, select
from tests.stores import Store

AT: dict[str, Any] = {"workflow_id": "w", "owner_id": "ann"}
PACKED: dict[str, Any] = {"workflow_id": "packed", "owner_id": "ann"}
LATER: dict[str, Any] = {"workflow_id": "later", "owner_id": "ann"}
EVENT: dict[str, Any] = {"owner_id": "ann", "workflow_id": "w", "execution_id": "x"}
THREAD: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
LARGE = "".join(map(str, range(60_000)))
STATE = {"n": 3, "text": LARGE[:9000]}
NO_TEXT = b"\xff\xfe"
"""Stored as text, it is not valid Unicode."""
MOST_ROWS = 3
"""Ids differ from run to run, and so do the rows that come first; a few of them are of every kind."""


class Made:
    """What a store holds, and what its verbs answer."""

    def __init__(self, store: Store) -> None:
        self.store = store
        with store.open(pack_threshold_bytes=65536) as app:
            kernel = app.kernel
            self.first = kernel.save_state_delta({"n": 1, "text": STATE["text"]}, idempotency_key="k", **AT).manifest_id
            self.second = kernel.save_state_delta(
                {"n": 2}, message="two", execution_id="x", segment_id=1, **AT
            ).manifest_id
            kernel.tag(self.first, "one", owner_id="ann", message="first")
            kernel.pin(self.second, owner_id="ann", reason="mine")
            kernel.decide(self.second, "approved", actor="bob", score=0.5, reason="good")
            kernel.set_retention(keep_last=100, **AT)
            kernel.fork(self.first, owner_id="ann", branch="side")
            kernel.save_state_delta({"n": 3}, **AT)
            kernel.save_state_delta({"large": LARGE}, **PACKED)
            self.ticket = str(kernel.checkpoint_async({"n": 1}, **LATER))
            kernel.wait_for(self.ticket)
            refused = kernel.checkpoint_async({}, deleted=["none"], **LATER)
            self.refused = str(refused)
            self.payload = app.payloads.dehydrate({"large": LARGE, "n": 1}, return_delta=False, **EVENT)
            saver = AnalemmaSaver(app, owner="lg")
            put(saver, "0001")
            put(saver, "0002")
            saver.put_writes(
                {"configurable": {**THREAD["configurable"], "checkpoint_id": "0002"}}, [("x", "w")], "task"
            )
            AnalemmaStore(app).put(("a", "b"), "key", {"v": 1})
            self.states = {name: verb(app, self) for name, verb in STATES.items()}


def put(saver: AnalemmaSaver, checkpoint: str) -> None:
    value: Any = {
        "v": 1,
        "id": checkpoint,
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": {"x": checkpoint},
        "channel_versions": {"x": checkpoint},
        "versions_seen": {},
        "updated_channels": None,
    }
    saver.put(THREAD, value, {"source": "loop", "step": 1, "parents": {}}, {"x": checkpoint})


Verb = Callable[[analemma.App, Made], Any]

STATES: dict[str, Verb] = {
    "load_latest_state": lambda app, made: app.kernel.load_latest_state(**AT),
    "load_state": lambda app, made: app.kernel.load_state(made.first, owner_id="ann"),
    "load lazily": lambda app, made: dict(app.kernel.load_latest_state(lazy=True, **AT)),
    "load a pack": lambda app, made: app.kernel.load_latest_state(**PACKED),
    "load a ticket": lambda app, made: app.kernel.load_state_with_consistency(made.ticket),
    "hydrate": lambda app, made: dict(app.payloads.hydrate(made.payload)),
}
"""Verbs that answer with states: rightly, or not at all."""

WORKFLOWS: dict[str, Verb] = {
    "get_manifest": lambda app, made: app.kernel.get_manifest(made.second),
    "history": lambda app, made: app.kernel.history(**AT),
    "history of a fork": lambda app, made: app.kernel.history(branch="side", **AT),
    "branches": lambda app, made: app.kernel.branches(**AT),
    "children": lambda app, made: app.kernel.children(made.first),
    "blame": lambda app, made: app.kernel.blame(path="/n", **AT),
    "diff": lambda app, made: app.kernel.diff(made.first, made.second),
    "tags": lambda app, made: app.kernel.tags(**AT),
    "pins": lambda app, made: app.kernel.pins(**AT),
    "decisions": lambda app, made: app.kernel.decisions(made.second),
    "last_safe": lambda app, made: app.kernel.last_safe_manifest(**AT),
    "retention": lambda app, made: app.kernel.get_retention(**AT),
    "expire_all": lambda app, made: app.kernel.expire_all(dry_run=True),
    "workflows": lambda app, made: app.kernel.list_workflows(owner_id="ann"),
    "workflow": lambda app, made: app.kernel.get_workflow(**AT),
    "ticket": lambda app, made: app.kernel.ticket(made.ticket),
    "ticket that failed": lambda app, made: app.kernel.ticket(made.refused),
    "rollback": lambda app, made: app.kernel.rollback_to_version(version=1, preview=True, deep=True, **AT),
    "merge": lambda app, made: app.kernel.merge(source="side", preview=True, **AT),
    "verify": lambda app, made: app.kernel.verify(**AT),
    "verify a pack": lambda app, made: app.kernel.verify(**PACKED),
    "verify integrity": lambda app, made: app.kernel.verify_manifest_integrity(made.second),
    "watch": lambda app, made: list(app.kernel.watch(since=0, timeout_s=0, **AT)),
    "gc plan": lambda app, made: app.gc.plan(),
    "stats": lambda app, made: app.stats(),
}
THREADS: dict[str, Verb] = {
    "checkpoint": lambda app, made: AnalemmaSaver(app, owner="lg").get_tuple(THREAD),
    "checkpoints": lambda app, made: list(AnalemmaSaver(app, owner="lg").list(THREAD)),
    "summaries": lambda app, made: list(AnalemmaSaver(app, owner="lg").history(THREAD)),
    "verify a thread": lambda app, made: app.kernel.verify(workflow_id="t", owner_id="lg"),
}
ITEMS: dict[str, Verb] = {
    "item": lambda app, made: AnalemmaStore(app).get(("a", "b"), "key"),
    "search items": lambda app, made: AnalemmaStore(app).search(("a",)),
    "namespaces": lambda app, made: AnalemmaStore(app).list_namespaces(),
}
TABLES: dict[str, dict[str, Verb]] = {
    "block": {**STATES, **WORKFLOWS, **THREADS},
    "branch": WORKFLOWS,
    "decision": WORKFLOWS,
    "head": {**STATES, **WORKFLOWS, **THREADS},
    "item": ITEMS,
    "item_space": ITEMS,
    "journal": WORKFLOWS,
    "manifest": {**STATES, **WORKFLOWS, **THREADS},
    "payload": STATES,
    "pending": {name: {**STATES, **WORKFLOWS}[name] for name in ("load a ticket", "ticket", "ticket that failed")},
    "ref": WORKFLOWS,
    "retention": WORKFLOWS,
    "thread_checkpoint": THREADS,
    "thread_write": THREADS,
    "upload": {**STATES, **WORKFLOWS},
    "workflow": WORKFLOWS,
}
FITTING = (Corrupt, NotFound, Denied, Expired)


@pytest.fixture(scope="module")
def made(module_store: Store) -> Made:
    return Made(module_store)


def columns(store: Store, table: str) -> tuple[list[str], list[str]]:
    """All columns of a table, and those of its key."""
    if is_sqlite(store):
        found = select(store, "SELECT name, pk FROM pragma_table_info(?)", (table,))
        return [row[0] for row in found], [row[0] for row in found if row[1]]
    keys = select(
        store,
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
        " WHERE i.indrelid = CAST(? AS text)::regclass AND i.indisprimary",
        (table,),
    )
    names = select(store, "SELECT column_name FROM information_schema.columns WHERE table_name = ?", (table,))
    return [row[0] for row in names], [row[0] for row in keys]


def damages(store: Store, value: Any) -> list[Any]:
    """What a column might hold instead."""
    strange: list[Any] = []
    if isinstance(value, (bytes, memoryview)):
        data = bytes(value)
        strange = [b"", data[:-1], bytes([data[0] ^ 1]) + data[1:] if data else b"\1", "text", 7]
    elif isinstance(value, str):
        strange = ["?", "", NO_TEXT, 7]
    elif isinstance(value, int):
        strange = [77, -1, 2**62, "text", b"x"]
    if is_sqlite(store):
        return strange
    # PostgreSQL knows its types; and each damage takes longer to do, so the plainest are left out.
    return [each for each in strange if type(each) is type(value) and each not in (NO_TEXT, b"", "", -1)]


def damage(made: Made, table: str) -> Iterator[tuple[str, str]]:
    """Each damage in turn, with its column, undone before the next."""
    store = made.store
    names, keys = columns(store, table)
    where = " AND ".join(f"{key} = ?" for key in keys)
    rows = select(store, f"SELECT {', '.join(names)} FROM {table} ORDER BY {', '.join(keys)}")  # noqa: S608
    cases = [
        (column, row, other)
        for number, column in enumerate(names)
        for row in rows[:MOST_ROWS]
        for other in damages(store, row[number])
        if column != "tenant"
    ]
    for column, row, other in cases:
        value, place = row[names.index(column)], [row[names.index(key)] for key in keys]
        new = "CAST(? AS TEXT)" if other == NO_TEXT else "?"
        set_column = f"UPDATE {table} SET {column} = "  # noqa: S608
        try:
            touched = change(store, f"{set_column}{new} WHERE {where}", (other, *place))
        except (sqlite3.IntegrityError, psycopg.errors.CheckViolation, psycopg.errors.NumericValueOutOfRange):
            continue  # a column cannot hold that
        assert touched == 1
        yield column, f"{table}.{column} {value!r:.40} -> {other!r:.40}"
        there = where
        if column in keys:
            place[keys.index(column)] = other
            there = where.replace(f"{column} = ?", f"{column} = {new}")
        assert change(store, f"{set_column}? WHERE {there}", (value, *place)) == 1


@pytest.mark.parametrize("table", TABLES)
def test_a_damaged_column_is_told_as_damage(made: Made, table: str) -> None:
    wrong: list[str] = []
    count = 0
    app, open_for = made.store.open(cache_bytes=0), ""
    try:
        for column, what in damage(made, table):
            count += 1
            if column != open_for:
                # What is remembered of the column before is not what this one damages.
                app.close()
                app, open_for = made.store.open(cache_bytes=0), column
            for name, verb in TABLES[table].items():
                try:
                    answer = verb(app, made)
                except FITTING:
                    continue
                except Exception as exc:
                    wrong.append(f"{what}: {name}: {type(exc).__name__}: {exc!s:.150}")
                    continue
                if name in STATES and answer != made.states[name]:
                    wrong.append(f"{what}: {name} answered {answer!r:.100}")
    finally:
        app.close()
    assert count > 3
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("column", ["fingerprint", "manifest", "receipt"])
def test_a_request_that_is_sent_again_is_answered_by_what_it_was_or_not_at_all(made: Made, column: str) -> None:
    for changed, what in damage(made, "idempotency"):
        if changed != column:
            continue
        with made.store.open(cache_bytes=0) as app:
            try:
                again = app.kernel.save_state_delta({"n": 1, "text": STATE["text"]}, idempotency_key="k", **AT)
            except (Corrupt, Conflict, NotFound):
                pass
            else:
                assert again.manifest_id == made.first, what


def accept(url: str, objects: str | None) -> None:
    with Store(url, objects).open() as app:
        app.kernel.checkpoint_async({"n": 1}, workflow_id="accepted", owner_id="ann")


def test_a_damaged_delta_that_was_accepted_is_told_as_damage(store: Store) -> None:
    with Actor(accept, store.url, store.objects, at="ledger.after_insert", then="kill") as actor:
        actor.wait()
    names = [name for name in columns(store, "pending")[0] if name != "seq"]
    [row] = select(store, f"SELECT {', '.join(names)} FROM pending")  # noqa: S608
    insert = f"INSERT INTO pending ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    wrong: list[str] = []
    with store.open() as app:
        for column in ("codec", "size", "digest", "body", "created_at"):
            for other in damages(store, row[names.index(column)]):
                change(store, "DELETE FROM pending")
                try:
                    change(store, insert, [other if name == column else row[names.index(name)] for name in names])
                except psycopg.errors.NumericValueOutOfRange:
                    continue  # a column cannot hold that
                try:
                    state = app.kernel.load_latest_state(workflow_id="accepted", owner_id="ann")
                except FITTING:
                    continue
                except Exception as exc:
                    wrong.append(f"{column} -> {other!r:.40}: {type(exc).__name__}: {exc!s:.150}")
                    continue
                if state != {"n": 1}:
                    wrong.append(f"{column} -> {other!r:.40}: {state}")
        change(store, "DELETE FROM pending")
    assert not wrong, "\n".join(wrong)
