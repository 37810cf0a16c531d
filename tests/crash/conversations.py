"""Stores with something to pack, and a look at where it lies."""

from __future__ import annotations

import random
from typing import Any

from analemma import App
from tests.raw_rows import select
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
SMALL: dict[str, Any] = {"cache_bytes": 0, "pack_least_bytes": 0, "pack_target_bytes": 65_536}
"""Settings with which a test's few blocks fill several packs, and every read goes to the store."""


def converse(app: App, versions: int) -> None:
    """A workflow as agents leave it: a message more each time, something replaced, much that stays."""
    pick = random.Random(7)
    constant = {f"field {number}": pick.randbytes(300).hex() for number in range(60)}
    app.kernel.save_state_delta({"messages": [], "scratch": "", "constant": constant}, **NAME)
    for _ in range(versions - 1):
        message = {"role": "user", "content": pick.randbytes(700).hex()}
        app.kernel.save_state_delta({"/messages/-": message, "/scratch": pick.randbytes(2400).hex()}, **NAME)


def states(app: App) -> list[Any]:
    """Every version's state, read from the store."""
    return [app.kernel.load_state(each.manifest_id) for each in app.kernel.history(**NAME, limit=1000)]


def places(store: Store) -> dict[bytes, tuple[Any, ...]]:
    """Where each block lies: in its row, or in which upload and where there."""
    rows = select(store, "SELECT id, body IS NOT NULL, upload, object_offset FROM block")
    return {row[0]: row[1:] for row in rows}
