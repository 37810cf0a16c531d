"""Stores with something to pack, and a look at where it lies."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from analemma import App
from tests.raw_rows import connect
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
        connection = connect(store.url, autocommit=True)
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


class Pack(NamedTuple):
    """An object with blocks, or one in which none lie any more."""

    upload: bytes
    key: str
    size: int
    blocks: int
    live_bytes: int

    @property
    def wasted(self) -> float:
        """The share of its bytes that nobody needs; every block has a line at its end, which counts."""
        return 1 - (self.live_bytes + 46 * self.blocks + 57) / self.size


def packs(store: Store) -> list[Pack]:
    """Every pack that a commit made count, and what of it is needed."""
    rows = query(
        store,
        "SELECT upload.id, object_key, upload.size, count(block.id), coalesce(sum(object_length), 0)"
        " FROM upload LEFT JOIN block ON block.upload = upload.id WHERE state = 'ready'"
        " GROUP BY upload.id, object_key, upload.size ORDER BY upload.id",
    )
    return [Pack(*row) for row in rows]


class Meddling:
    """An object store in which something happens whenever an object has been stored."""

    def __init__(self, store: Any, after_put: Callable[[str], None]) -> None:
        self._store = store
        self._after_put = after_put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, data: bytes, **more: Any) -> None:
        self._store.put(key, data, **more)
        if key.startswith("packs/"):
            self._after_put(key)


def meddle(app: App, after_put: Callable[[str], None]) -> None:
    """Have something happen in an app, which has not packed anything yet, whenever it has stored a pack."""
    objects: Any = Meddling(app.objects, after_put)
    app.objects = objects


def moved_nothing(report: Any) -> bool:
    """Whether there was nothing to do."""
    done = (report.blocks, report.packs, report.emptied, report.freed_bytes, report.left)
    return done == (0, 0, 0, 0, 0) and report.problems == ()
