"""Leases that were released: how long their rows stay."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.errors import Denied
from tests.api.gc.collections import DAY_S, PLACE, later, save_versions, text
from tests.api.gc.packing_stores import query
from tests.stores import Store


def test_released_leases_are_forgotten_after_thirty_days_and_live_ones_never(store: Store) -> None:
    with store.open(payload_lease_s=90 * DAY_S) as app:
        save_versions(app, 1)
        old, live = (
            app.payloads.dehydrate({"large": text(name, 20_000)}, execution_id=name, **PLACE)
            for name in ("old", "live")
        )
        app.payloads.release(execution_id="old", **PLACE)
        app.collector(database_clock=later(29 * DAY_S)).run(grace_s=0)
        assert (lease_count(store), end_count(store)) == (2, 1)
        with pytest.raises(Denied, match="released"):
            dict(app.payloads.hydrate(old))
        app.collector(database_clock=later(31 * DAY_S)).run(grace_s=0)
        assert (lease_count(store), end_count(store)) == (1, 0)
        with pytest.raises(Denied):
            dict(app.payloads.hydrate(old))
        assert dict(app.payloads.hydrate(live)) == {"large": text("live", 20_000)}


def test_released_leases_stay_while_they_explain_that_nothing_leads_to_blocks(store: Store) -> None:
    with store.open() as app:
        place: dict[str, Any] = {**PLACE, "execution_id": "run"}
        app.payloads.dehydrate({"large": text("leased", 20_000)}, **place)
        app.payloads.release(**place)
        after = app.collector(database_clock=later(31 * DAY_S))
        first = after.run(grace_s=0)
        assert first.ok and first.doomed == first.total > 0 and lease_count(store) == 1
        second = after.run(grace_s=0)
        assert second.ok and second.deleted == second.total and lease_count(store) == 0
        assert after.run(grace_s=0).ok


def lease_count(store: Store) -> int:
    return int(query(store, "SELECT count(*) FROM payload")[0][0])


def end_count(store: Store) -> int:
    return int(query(store, "SELECT count(*) FROM payload_end")[0][0])
