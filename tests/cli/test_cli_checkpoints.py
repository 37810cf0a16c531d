"""Checkpoints that a process left pending, on the command line: they are seen, and a worker applies them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.actors import Actor
from tests.cli.command_line import CommandLine, at
from tests.raw_rows import change
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}


def leave_pending(store: Store, tenant: str, delta: dict[str, Any]) -> None:
    """A checkpoint as a process leaves it that is killed right after: durable, and not applied."""
    with Actor(checkpoint, store.url, store.objects, tenant, delta, at="ledger.after_insert", then="kill") as actor:
        assert actor.wait() == -signal.SIGKILL, actor.errors


def checkpoint(url: str, objects: str | None, tenant: str, delta: dict[str, Any]) -> None:
    with Store(url, objects).open() as app:
        app.tenant(tenant).kernel.checkpoint_async(delta, **NAME)


@pytest.fixture
def here(store: Store, tmp_path: Path) -> CommandLine:
    """A store with a state of two tenants, each with a checkpoint that is pending."""
    with store.open() as app:
        for tenant in ("default", "shop"):
            app.tenant(tenant).kernel.save_state_delta({"n": 1}, **NAME)
    for tenant in ("default", "shop"):
        leave_pending(store, tenant, {"n": 2})
    return at(store, tmp_path)


def settled(here: CommandLine, *options: str) -> str | None:
    said = {job["job"]: job["said"] for job in here.answer("worker", "--once", *options)["jobs"]}
    return said.get("checkpoints")


def test_a_worker_applies_what_was_left_pending_in_all_tenants(here: CommandLine) -> None:
    assert here.answer("status")["pending_checkpoints"] == 2
    assert settled(here) == "2 settled that were pending"
    assert here.answer("status")["pending_checkpoints"] == 0
    for tenant in ("default", "shop"):
        loaded = here.answer("load", "-w", "trip", "--tenant", tenant)
        assert (loaded["version"]["version"], loaded["state"]) == (2, {"n": 2})


def test_a_worker_of_one_tenant_leaves_the_others_alone(here: CommandLine) -> None:
    assert settled(here, "--tenant", "shop") == "1 settled that were pending"
    assert here.answer("status")["pending_checkpoints"] == 1
    assert here.answer("load", "-w", "trip", "--tenant", "shop")["state"] == {"n": 2}
    assert settled(here, "--tenant", "shop") is None


def test_what_does_not_fit_is_settled_and_makes_no_version(here: CommandLine, store: Store) -> None:
    leave_pending(store, "shop", {"/n/deep": 1})
    assert settled(here) == "3 settled that were pending"
    assert here.answer("load", "-w", "trip", "--tenant", "shop")["version"]["version"] == 2
    with store.open() as app:
        kernel = app.tenant("shop").kernel
        ticket = kernel.checkpoint_async({"/n/deep": 1}, **NAME)
        with pytest.raises(Invalid):
            kernel.wait_for(ticket)


def test_what_is_in_the_way_in_one_tenant_keeps_no_other_waiting(here: CommandLine, store: Store) -> None:
    ours = "(SELECT id FROM tenant WHERE name = 'default')"
    assert change(store, f"DELETE FROM block WHERE tenant = {ours}") > 0  # noqa: S608
    done = here.run("worker", "--once", "--json")
    assert done.returncode == 1 and "checkpoints" in done.stdout
    assert here.answer("status")["pending_checkpoints"] == 1
    assert here.answer("load", "-w", "trip", "--tenant", "shop")["state"] == {"n": 2}
