"""doltlite in a process of its own: importing it replaces the process's SQLite. Verbs come in as JSON lines, and leave
with the seconds they took."""

from __future__ import annotations

import json
import sys
from typing import Any

import doltlite  # noqa: F401

# After doltlite, which replaces what this finds.
# isort: split
import sqlite3

from bench.contenders.base import Contender


class DoltliteTables(Contender):
    """Messages, fields and entries as rows; every version is one transaction, synced once."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._branches = 0

    def begin(self, state: dict[str, Any]) -> None:
        self._connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, role TEXT, content TEXT)")
        # Apart from each other: rows of one table share chunks, and what never changes would be written with the rest.
        self._connection.execute("CREATE TABLE fields (name TEXT PRIMARY KEY, value TEXT)")
        self._connection.execute("CREATE TABLE constants (name TEXT PRIMARY KEY, value TEXT)")
        self._connection.execute("INSERT INTO fields VALUES ('scratch', ?)", (state["scratch"],))
        self._connection.execute("INSERT INTO constants VALUES ('constant', ?)", (state["constant"],))
        self._commit("-A")

    def step(self, messages: list[dict[str, Any]], scratch: str) -> None:
        self._connection.execute("BEGIN")
        rows = [(message["id"], message["role"], message["content"]) for message in messages]
        self._connection.executemany("INSERT INTO messages VALUES (?, ?, ?)", rows)
        self._connection.execute("UPDATE fields SET value = ? WHERE name = 'scratch'", (scratch,))
        self._commit()

    def load(self) -> int:
        fields = dict(self._connection.execute("SELECT * FROM fields UNION ALL SELECT * FROM constants").fetchall())
        rows = self._connection.execute("SELECT id, role, content FROM messages ORDER BY id").fetchall()
        return self._messages(rows) if fields else 0

    def load_version(self, version: str) -> int:
        for query in ("SELECT * FROM dolt_at_fields(?)", "SELECT * FROM dolt_at_constants(?)"):
            dict(self._connection.execute(query, (version,)).fetchall())
        rows = self._connection.execute(
            "SELECT id, role, content FROM dolt_at_messages(?) ORDER BY id", (version,)
        ).fetchall()
        return self._messages(rows)

    def _messages(self, rows: list[tuple[Any, ...]]) -> int:
        messages = [{"id": number, "role": role, "content": content} for number, role, content in rows]
        return len(messages)

    def fill(self, texts: dict[str, str]) -> None:
        self._connection.execute("CREATE TABLE entries (key TEXT PRIMARY KEY, value TEXT)")
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT INTO entries VALUES (?, ?)", texts.items())
        self._commit("-A")

    def change(self, key: str, text: str) -> None:
        self._connection.execute("BEGIN")
        self._connection.execute("UPDATE entries SET value = ? WHERE key = ?", (text, key))
        self._commit()

    def log(self, count: int) -> int:
        return len(self._connection.execute("SELECT * FROM dolt_log LIMIT ?", (count,)).fetchall())

    def versions(self) -> list[str]:
        rows = self._connection.execute("SELECT commit_hash FROM dolt_log").fetchall()
        # Oldest first; the very first commit is the empty database.
        return [row[0] for row in rows[-2::-1]]

    def read_one(self, version: str, key: str) -> str:
        rows = self._connection.execute("SELECT value FROM dolt_at_entries(?) WHERE key = ?", (version, key))
        return str(rows.fetchall()[0][0])

    def read_all(self, version: str) -> int:
        rows = self._connection.execute("SELECT key, value FROM dolt_at_entries(?)", (version,)).fetchall()
        return len(dict(rows))

    def diff(self, old: str, new: str) -> int:
        rows = self._connection.execute("SELECT * FROM dolt_diff_entries(?, ?)", (old, new))
        return len(rows.fetchall())

    def branch(self, version: str) -> None:
        self._branches += 1
        self._connection.execute("SELECT dolt_branch(?, ?)", (f"fork-{self._branches}", version)).fetchall()

    def compact(self) -> None:
        self._connection.execute("SELECT dolt_gc()").fetchall()

    def reopen(self) -> None:
        self._connection.close()
        self._connection = sqlite3.connect(self._path, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def _commit(self, stage: str = "-a") -> None:
        self._connection.execute("SELECT dolt_commit(?, '-m', 'version')", (stage,)).fetchall()


def main() -> None:
    tables = DoltliteTables(sys.argv[1])
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        print(json.dumps(tables.timed(verb, *arguments)), flush=True)


if __name__ == "__main__":
    main()
