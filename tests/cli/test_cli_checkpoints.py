"""Checkpoints that a process left pending, on the command line: they are seen, and a worker applies them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.catalog.port import TenantId
from analemma.cli.checkpoint_jobs import checkpoint_job, pending_checkpoints
from analemma.errors import Invalid, Unavailable
from tests.cli.command_line import at
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


def leave_behind(app: App, *tenants: str) -> None:
    """Two checkpoints in each, as a process leaves them that died right after."""
    for tenant in tenants:
        app.tenant(tenant).checkpoints._closed = True
        app.tenant(tenant).kernel.save_state_delta({"n": 1}, **NAME)
        for number in (2, 3):
            app.tenant(tenant).kernel.checkpoint_async({"n": number}, **NAME)


def test_a_worker_applies_what_was_left_pending_in_all_tenants(store: Store, tmp_path: Path) -> None:
    with store.open(checkpoint_close_s=0) as app:
        leave_behind(app, "default", "shop")
    here = at(store, tmp_path)
    assert here.answer("status")["pending_checkpoints"] == 4
    said = {job["job"]: job["said"] for job in here.answer("worker", "--once")["jobs"]}
    assert said["checkpoints"] == "4 settled that were pending"
    assert here.answer("status")["pending_checkpoints"] == 0
    for tenant in ("default", "shop"):
        assert here.answer("load", "-w", "trip", "--tenant", tenant)["version"]["version"] == 3
        assert here.answer("load", "-w", "trip", "--tenant", tenant)["state"] == {"n": 3}


def test_a_worker_of_one_tenant_leaves_the_others_alone(store: Store) -> None:
    with store.open() as app:
        leave_behind(app, "default", "shop")
        assert checkpoint_job(app, "shop").work(lambda: False) == "2 settled that were pending"
        assert pending_checkpoints(app) == {"default": 2}
        assert checkpoint_job(app, "shop").work(lambda: False) is None


def test_what_does_not_fit_is_settled_and_not_called_applied(store: Store) -> None:
    with store.open() as app:
        leave_behind(app, "shop")
        ticket = app.tenant("shop").kernel.checkpoint_async({"/n/deep": 1}, **NAME)
        assert checkpoint_job(app, "shop").work(lambda: False) == "3 settled that were pending"
        assert pending_checkpoints(app) == {}
        with pytest.raises(Invalid):
            app.tenant("shop").kernel.wait_for(ticket)


def test_what_is_in_the_way_in_one_tenant_keeps_no_other_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.open() as app:
        leave_behind(app, "broken", "shop")
        broken, settle = app.tenant("broken").id, app.catalog.settle

        def settle_others(tenant: TenantId, *arguments: Any) -> Any:
            if tenant == broken:
                raise Unavailable("the disk is full")
            return settle(tenant, *arguments)

        monkeypatch.setattr(app.catalog, "settle", settle_others)
        with pytest.raises(Unavailable, match="the disk is full"):
            checkpoint_job(app, None).work(lambda: False)
        assert pending_checkpoints(app) == {"broken": 2}
