"""What tests of the collector share: stores with garbage in them, raw edits, and clocks that are off."""

from __future__ import annotations

import hashlib
from typing import Any

from analemma import App, BlockId, Tenant
from analemma.catalog.collecting import Collecting, DatabaseClock, database_clock
from analemma.catalog.engine import Statements

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
DAY_S = 86_400


def text(name: str, length: int = 4000) -> str:
    """Text that no compression makes small."""
    return "".join(hashlib.sha256(f"{name} {line}".encode()).hexdigest() for line in range(length // 64))


def save_versions(app: App, count: int = 5) -> None:
    """Versions that share one block and each have one of their own."""
    for number in range(count):
        app.kernel.save_state_delta({"shared": text("shared"), "own": text(f"own {number}"), "n": number}, **PLACE)


def expire_all_but_newest(app: App) -> None:
    app.kernel.set_retention(**PLACE, keep_last=1)
    app.kernel.expire(**PLACE)


def blocks_of(tenant: Tenant, app: App) -> set[BlockId]:
    return set(Collecting(app.catalog.engine).scan(tenant.id))


def script(app: App, sql: str) -> None:
    """Do to the database what nobody should."""
    with app.catalog.engine.transaction(write=True) as tx:
        tx.script(sql)


def later(seconds: float) -> DatabaseClock:
    """The database's clock, so many seconds off."""

    def clock(source: Statements, /) -> int:
        return database_clock(source) + int(seconds * 1_000_000)

    return clock
