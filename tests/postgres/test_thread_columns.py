"""The tables of threads."""

from __future__ import annotations

from tests.raw_rows import connect
from tests.stores import Store


def test_names_are_ordered_by_their_bytes_whatever_the_language_of_the_database(postgres_url: str) -> None:
    with Store(postgres_url).open():
        pass
    with connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT attrelid::regclass::text, attname, collname FROM pg_attribute JOIN pg_collation c"
            " ON c.oid = attcollation WHERE attrelid IN ('thread_checkpoint'::regclass, 'thread_write'::regclass)"
        ).fetchall()
    found = {(table, column): collation for table, column, collation in rows}
    ordered = ("owner", "thread", "branch", "checkpoint")
    wanted = [("thread_checkpoint", name) for name in ordered]
    wanted += [("thread_write", name) for name in (*ordered, "task", "task_path")]
    assert {each: found[each] for each in wanted} == dict.fromkeys(wanted, "C")
