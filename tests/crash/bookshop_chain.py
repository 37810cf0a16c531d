"""A bookshop with real worker processes: rules that ship every book to a file and to a table, workers that are killed,
and what has to be true of all of it when everything is quiet."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from analemma import App
from tests import programs
from tests.api.pipeline.shop import VIEW, book
from tests.core.contracts.bookshop import TEXT
from tests.raw_rows import select
from tests.stores import Store

AUTHOR = "lem"
LEASE_S = 2
TABLE_RULE = """
---
kind: SINKRULE
id: sinkrule.table.book
version: 1.0.0
status: ACTIVE
input: {{type: SLICE, sliceTypes: [CORE, PRICE, ENRICHED], entityTypes: [BOOK]}}
target: {{type: TABLE, url: "{url}", table: shipped_books, create: true}}
"""


@dataclass(frozen=True)
class Chain:
    """One shop, its sinks, and how to look at all of it."""

    store: Store
    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "out" / "books-shop.jsonl"

    @property
    def table_url(self) -> str:
        return self.store.url if self.store.url.startswith("postgresql") else f"sqlite:///{self.directory / 'sink.db'}"

    def load(self, *, breaker: int = 10_000) -> None:
        """Load the contracts, with a file and a table to ship to."""
        text = TEXT.replace("${BOOKSHOP_OUT:-./out}", str(self.directory / "out"))
        text = text.replace("maxFanout: 10000", f"maxFanout: {breaker}")
        # Of a lease a quarter of this has to be left for a sink that does not guard; the leases here are short.
        assert "timeoutMs: 30000" in text
        text = text.replace("timeoutMs: 30000", "timeoutMs: 2000")
        file = self.directory / "contracts.yaml"
        file.write_text(text + TABLE_RULE.format(url=self.table_url), encoding="utf-8")
        with self.store.open() as app:
            app.contracts.load(file)

    def ingest_books(self, count: int, *, author: str = AUTHOR) -> None:
        with self.store.open() as app:
            items = [("BOOK", name(number), book(name(number), authorId=author)) for number in range(count)]
            assert {each.status for each in app.tenant("shop").ingest_many(items, batch=200)} == {"created"}

    def rename(self, text: str) -> None:
        with self.store.open() as app:
            app.tenant("shop").ingest("AUTHOR", AUTHOR, {"name": text, "country": "PL"})

    def rows_of(self, *slice_types: str) -> int:
        marks = ", ".join("?" for _ in slice_types)
        sql = f"SELECT count(*) FROM slice JOIN entity ON entity.id = slice.entity WHERE entity.type = 'BOOK' AND slice.type IN ({marks})"  # noqa: S608, E501
        return int(select(self.store, sql, slice_types)[0][0])

    def shipped_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text(encoding="utf-8").splitlines()]

    def table_rows(self) -> dict[str, dict[str, Any]]:
        sql = "SELECT doc_id, body FROM shipped_books"
        if self.table_url.startswith("postgresql"):
            with psycopg.connect(self.table_url) as connection:
                return dict(connection.execute(sql).fetchall())
        database = sqlite3.connect(self.directory / "sink.db")
        try:
            return {key: json.loads(body) for key, body in database.execute(sql).fetchall()}
        finally:
            database.close()

    def check(self, count: int, author: str | None) -> None:
        """Every book's slice, answer and documents have this author; nothing is dead; the file never went back."""
        wanted = None if author is None else {"name": author, "origin": {"country": "PL"}}
        names = [name(number) for number in range(count)]
        with self.store.open() as app:
            shop = app.tenant("shop")
            assert app.outbox.status(count_processed=False).dead == 0, app.outbox.dead_letters().entries[:3]
            answers = {each.entity_id: each.data for each in shop.view(VIEW).every()}
            assert sorted(answers) == names
            stale = [key for key, data in answers.items() if (data.get("ENRICHED") or {}).get("author") != wanted]
            assert not stale, f"{len(stale)} views are stale: {stale[:3]}, {answers[stale[0]]}"
            for key in (names[0], names[-1]):
                found = (shop.slices("BOOK", key)["ENRICHED"].data or {}).get("author")
                assert found == wanted
        newest: dict[str, dict[str, Any]] = {}
        for line in self.shipped_lines():
            before = newest.get(line["docId"])
            assert before is None or before["shipSeq"] <= line["shipSeq"], f"{line['docId']} went back"
            newest[line["docId"]] = line
        documents = {key: line["body"] for key, line in newest.items()}
        for place, found in (("file", documents), ("table", self.table_rows())):
            assert sorted(found) == [f"shop__{key}" for key in names], place
            stale = [key for key, body in found.items() if body.get("author") != wanted]
            assert not stale, f"{len(stale)} documents of the {place} are stale: {stale[:3]}, {found[stale[0]]}"
            assert found[f"shop__{names[0]}"]["title"] == f"Book {names[0]}"


def name(number: int) -> str:
    return f"{number:06}"


class Workers:
    """Worker processes, as `analemma worker` starts them."""

    def __init__(self, store: Store, count: int) -> None:
        self._store = store
        self._processes = [self._start() for _ in range(count)]
        self.killed = 0

    def _start(self) -> subprocess.Popen[bytes]:
        variables = {
            **os.environ,
            "ANALEMMA_URL": self._store.url,
            "ANALEMMA_OUTBOX_LEASE_S": str(LEASE_S),
            "ANALEMMA_OUTBOX_BACKOFF_BASE_S": "0.1",
            **({"ANALEMMA_OBJECTS": self._store.objects} if self._store.objects else {}),
        }
        return programs.Program(
            [sys.executable, "-m", "analemma", "worker", "--concurrency", "2"],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_one(self, chance: random.Random) -> None:
        """One ends without a word, and another takes its place."""
        index = chance.randrange(len(self._processes))
        self._processes[index].send_signal(signal.SIGKILL)
        self._processes[index].wait()
        self._processes[index] = self._start()
        self.killed += 1

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def workers(store: Store, count: int = 2) -> Iterator[Workers]:
    """Workers, until the end of the block."""
    started = Workers(store, count)
    try:
        yield started
    finally:
        started.stop()


def wait_until_quiet(store: Store, timeout_s: float, *, between: Sequence[Callable[[], None]] = ()) -> None:
    """Wait until there is nothing to deliver any more; meanwhile do these, one every now and then."""
    deadline = time.monotonic() + timeout_s
    waiting = list(between)
    with store.open() as app:
        quiet = 0
        while quiet < 3:
            assert time.monotonic() < deadline, f"it does not come to rest: {app.outbox.status(count_processed=False)}"
            if waiting:
                waiting.pop(0)()
                time.sleep(0.4)
                continue
            quiet = quiet + 1 if _is_quiet(app) else 0
            time.sleep(0.1)


def _is_quiet(app: App) -> bool:
    status = app.outbox.status(count_processed=False)
    return status.pending == status.processing == status.failed == 0
