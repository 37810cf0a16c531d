"""Stores with something to pack, and a look at where it lies."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from analemma import App
from analemma.blocks.port import ObjectInfo, ObjectStore
from analemma.catalog.packing import SqlPacking
from analemma.clock import SystemClock, SystemEntropy
from analemma.gc.packing import Packing, PackingPolicy
from tests.stores import Store

OWNER = "ann"
SMALL: dict[str, Any] = {"cache_bytes": 0, "pack_least_bytes": 0, "pack_target_bytes": 65_536}
"""Settings with which a test's few blocks fill several packs, and every read goes to the store."""


def converse(app: App, workflow: str = "report", versions: int = 60, seed: int = 7) -> None:
    """A workflow as agents leave it: a message more each time, something replaced, much that stays."""
    pick = random.Random(seed)
    name: dict[str, Any] = {"workflow_id": workflow, "owner_id": OWNER}
    app.kernel.save_state_delta(
        {"messages": [], "scratch": "", "constant": {f"field {n}": noise(pick, 300) for n in range(60)}}, **name
    )
    for _ in range(versions - 1):
        message = {"role": "user", "content": noise(pick, 700)}
        app.kernel.save_state_delta({"/messages/-": message, "/scratch": noise(pick, 2400)}, **name)


def noise(pick: random.Random, count: int) -> str:
    """Text that does not compress well."""
    return pick.randbytes(count).hex()


def states(app: App, workflow: str = "report") -> list[Any]:
    """Every version's state, read from the store."""
    kernel = app.kernel
    versions = kernel.history(workflow_id=workflow, owner_id=OWNER, limit=1000)
    return [kernel.load_state(version.manifest_id) for version in versions]


def assert_whole(app: App, workflow: str = "report") -> None:
    report = app.kernel.verify(workflow_id=workflow, owner_id=OWNER)
    assert report.problems == []


def query(store: Store, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Whatever a test wants to know, or to do, behind the catalog's back."""
    postgres = store.url.startswith("postgresql")
    connection: Any
    if postgres:
        connection = psycopg.connect(store.url, autocommit=True)
        sql = sql.replace("?", "%s")
    else:
        connection = sqlite3.connect(Path(store.url) / "catalog.db", isolation_level=None, timeout=30)
    try:
        cursor = connection.execute(sql, parameters)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []
    finally:
        connection.close()


def block_rows(store: Store) -> dict[bytes, tuple[Any, ...]]:
    """Every block's row, and the number of the pass that doomed it."""
    if store.url.startswith("postgresql"):
        source = "doomed FROM block"
    else:
        source = "pass FROM block LEFT JOIN doom USING (tenant, id)"
    rows = query(store, f"SELECT id, size, codec, body, upload, object_offset, object_length, links, {source}")
    return {row[0]: row[1:] for row in rows}


def bytes_in_database(store: Store) -> int:
    """What rows of blocks hold beside their ids."""
    rows = query(store, "SELECT coalesce(sum(coalesce(length(body), 0) + coalesce(length(links), 0)), 0) FROM block")
    return int(rows[0][0])


def upload_states(store: Store) -> list[str]:
    return [row[0] for row in query(store, "SELECT state FROM upload ORDER BY created_at, id")]


class StoppedClock(SystemClock):
    """A clock that stands."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us

    def now_us(self) -> int:
        return self._now_us


def packing_of(
    app: App, *, objects: ObjectStore | None = None, clock: SystemClock | None = None, after_s: float = 0
) -> Packing:
    """As the app's own, with an object store or a clock of the test's."""
    settings = app.settings
    return Packing(
        app.catalog,
        SqlPacking(app.catalog.engine),
        app.default.id,
        objects=objects or app.objects,
        policy=PackingPolicy(
            after_s=after_s,
            target_bytes=settings.pack_target_bytes,
            least_bytes=settings.pack_least_bytes,
            waste=settings.pack_waste,
        ),
        clock=clock or SystemClock(),
        entropy=SystemEntropy(),
    )


class Meddling:
    """An object store in which something happens whenever an object has been stored."""

    def __init__(self, store: ObjectStore, after_put: Callable[[str], None]) -> None:
        self._store = store
        self._after_put = after_put

    @property
    def supports_tags(self) -> bool:
        return self._store.supports_tags

    def put(self, key: str, data: bytes, *, metadata: Mapping[str, str] | None = None, if_absent: bool = False) -> None:
        self._store.put(key, data, metadata=metadata, if_absent=if_absent)
        self._after_put(key)

    def put_stream(self, key: str, chunks: Iterable[bytes], *, metadata: Mapping[str, str] | None = None) -> None:
        self._store.put_stream(key, chunks, metadata=metadata)

    def replace(self, key: str, data: bytes, *, expected: bytes) -> None:
        self._store.replace(key, data, expected=expected)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._store.get_range(key, offset, length)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._store.get_ranges(key, ranges)

    def open_read(self, key: str) -> Iterator[bytes]:
        return self._store.open_read(key)

    def head(self, key: str) -> ObjectInfo | None:
        return self._store.head(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def delete_many(self, keys: Iterable[str]) -> None:
        self._store.delete_many(keys)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def tag(self, key: str, tags: Mapping[str, str]) -> None:
        self._store.tag(key, tags)

    def health(self) -> None:
        self._store.health()

    def close(self) -> None:
        """The store behind it is the app's."""
