"""The background runner: when a collection is due, in one tenant and in all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from analemma import App
from tests.api.gc.collections import PLACE, blocks_of, later, save_versions, text
from tests.raw_rows import change
from tests.stores import Store

HOUR_S = 3600


def collect_if_due(app: App, tenant: str | None, seconds: float = 0) -> bool:
    """What a worker does, so many seconds from now, in a process that has not collected yet; whether it was due."""
    collector = app.collector(database_clock=later(seconds))
    if not collector.is_due(HOUR_S, tenant):
        return False
    collector.run(tenant=tenant)
    return True


def two_tenants(app: App) -> None:
    save_versions(app, 1)
    app.tenant("other").kernel.save_state_delta({"large": text("other")}, **PLACE)


def test_the_command_works_in_the_tenant_that_it_is_told(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        blocks = len(blocks_of(app.tenant("other"), app))
    objects = [] if store.objects is None else ["--objects", store.objects]
    program = str(Path(sys.executable).with_name("analemma"))
    command = [program, "worker", "-u", store.url, *objects, "--tenant", "other", "--once"]
    # Everything is cold, and no pack is too small.
    settings = {"ANALEMMA_PACK_AFTER_S": "0", "ANALEMMA_PACK_LEAST_BYTES": "0"}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    packed = [line for line in done.stdout.splitlines() if line.startswith("pack: ")]
    assert len(packed) == 1 and "of other" in packed[0] and "of default" not in packed[0]
    with store.open() as app:
        assert [run.total for run in app.gc.status().runs] == [blocks]


def test_a_run_in_one_tenant_does_not_keep_a_worker_from_the_others(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        assert collect_if_due(app, "other")
        assert not collect_if_due(app, "other")
        assert collect_if_due(app, "default")
        # Every tenant was visited within the hour.
        assert not collect_if_due(app, None)
        assert collect_if_due(app, "other", HOUR_S)
        assert collect_if_due(app, None, HOUR_S)
        assert not collect_if_due(app, None, HOUR_S)


def test_a_tenant_that_cannot_be_collected_is_not_tried_every_minute(store: Store) -> None:
    with store.open() as app:
        two_tenants(app)
        change(store, "UPDATE block SET body = ? WHERE tenant = ?", [b"damaged", app.tenant("other").id])
        assert app.gc.is_due(HOUR_S)
        assert "other" in app.gc.run().problems[0]
        assert not app.gc.is_due(HOUR_S)
        # Another worker has not met it yet.
        assert collect_if_due(app, None)
