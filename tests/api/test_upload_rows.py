"""Rows of uploads that are wrong: nothing that a block lies in is deleted by them, and verify finds each."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import analemma
from tests.raw_rows import change, select
from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
OTHER: dict[str, Any] = {"owner_id": "ann", "workflow_id": "journey"}
SETTINGS: dict[str, Any] = {"pack_threshold_bytes": 20_000}


def blob(seed: int) -> bytes:
    return random.Random(seed).randbytes(90_000)


@pytest.fixture
def packed(store: Store) -> Store:
    """Two workflows of one tenant, each with a pack of its own, and another tenant."""
    with store.open(**SETTINGS) as app:
        app.kernel.save_state_delta({"blob": blob(1)}, **NAME)
        app.kernel.save_state_delta({"blob": blob(2)}, **OTHER)
        app.tenant("elsewhere").kernel.save_state_delta({"n": 1}, **NAME)
    assert select(store, "SELECT count(*) FROM upload WHERE state = 'ready'") == [(2,)]
    return store


def upload_of(store: Store, workflow: str) -> bytes:
    [(found,)] = select(store, "SELECT id FROM upload WHERE workflow = ?", (workflow,))
    return bytes(found)


def claimed(store: Store, upload: bytes) -> int:
    return change(store, "UPDATE upload SET state = 'deleting' WHERE id = ?", (upload,))


def claimed_and_failed(store: Store, upload: bytes) -> int:
    sql = "UPDATE upload SET state = 'deleting', error = 'deleting it failed', due_at = 0 WHERE id = ?"
    return change(store, sql, (upload,))


def abandoned(store: Store, upload: bytes) -> int:
    return change(store, "UPDATE upload SET state = 'temp', created_at = 0 WHERE id = ?", (upload,))


def given_up(store: Store, upload: bytes) -> int:
    """Claimed by its commit, as if that had failed."""
    sql = (
        "UPDATE upload SET state = 'deleting', claimed_from = 'temp', reason = 'commit_failed', error = '', due_at = 0"
    )
    return change(store, f"{sql} WHERE id = ?", (upload,))


def another_id(store: Store, upload: bytes) -> int:
    return change(store, "UPDATE upload SET id = ? WHERE id = ?", (bytes([upload[0] ^ 1]) + upload[1:], upload))


def another_tenant(store: Store, upload: bytes) -> int:
    return change(store, "UPDATE upload SET tenant = (SELECT max(id) FROM tenant) WHERE id = ?", (upload,))


def another_object(store: Store, upload: bytes) -> int:
    [(key,)] = select(store, "SELECT object_key FROM upload WHERE workflow = 'journey'")
    return change(store, "UPDATE upload SET object_key = ? WHERE id = ?", (key, upload))


Damage = Callable[[Store, bytes], int]
CHANGES = [claimed, claimed_and_failed, abandoned, given_up, another_id, another_tenant, another_object]


@pytest.mark.parametrize("damage", CHANGES, ids=lambda each: each.__name__)
def test_no_collection_deletes_an_object_in_which_blocks_lie(packed: Store, damage: Damage) -> None:
    assert damage(packed, upload_of(packed, "trip")) == 1
    with packed.open(**SETTINGS, gc_object_delay_s=0) as app:
        for _ in range(3):
            app.gc.run(grace_s=0)
        assert app.gc.audit() == []
    with packed.open(**SETTINGS) as app:
        assert app.kernel.load_latest_state(**NAME) == {"blob": blob(1)}
        assert app.kernel.load_latest_state(**OTHER) == {"blob": blob(2)}


@pytest.mark.parametrize("damage", CHANGES, ids=lambda each: each.__name__)
def test_verify_finds_an_upload_that_is_wrong(packed: Store, damage: Damage) -> None:
    with packed.open(**SETTINGS) as app:
        assert app.kernel.verify(**NAME).ok
        assert damage(packed, upload_of(packed, "trip")) == 1
        report = app.kernel.verify(**NAME)
        [problem] = report.problems
        assert problem.startswith(f"upload {upload_of_block(packed)}")
        assert not app.kernel.verify_manifest_integrity(app.kernel.history(**NAME)[0].manifest_id)
        assert app.kernel.verify(**OTHER).ok


def upload_of_block(store: Store) -> str:
    """The upload that blocks of the first workflow name, which damage to uploads does not touch."""
    [(found,)] = select(store, "SELECT DISTINCT upload FROM block WHERE upload <> ?", (upload_of(store, "journey"),))
    return bytes(found).hex()


def test_verify_finds_an_object_of_another_size(packed: Store) -> None:
    with packed.open(**SETTINGS) as app:
        assert change(packed, "UPDATE upload SET size = size + 1 WHERE workflow = 'trip'") == 1
        [problem] = app.kernel.verify(**NAME).problems
        assert "bytes instead of" in problem


@pytest.mark.parametrize("damage", [claimed, abandoned, another_tenant], ids=lambda each: each.__name__)
def test_a_collection_tells_of_an_upload_that_is_wrong(packed: Store, damage: Damage) -> None:
    damage(packed, upload_of(packed, "trip"))
    with packed.open(**SETTINGS, gc_object_delay_s=0) as app:
        assert app.gc.plan(grace_s=0).uploads == 0
        report = app.gc.run(grace_s=0)
    assert not report.ok and set(report.kinds) == {"corrupt"}
    assert all("nothing was deleted by it" in problem for problem in report.problems)


def let_go(app: analemma.App) -> None:
    """Leave no block in the pack of the first workflow, and two passes behind."""
    app.kernel.save_state_delta({"blob": None}, **NAME)
    app.kernel.set_retention(**NAME, keep_last=1)
    for _ in range(2):
        app.gc.run(grace_s=0)


def test_an_upload_without_blocks_takes_no_object_of_another_with_it(packed: Store) -> None:
    another_object(packed, upload_of(packed, "trip"))
    with packed.open(**SETTINGS, gc_object_delay_s=0) as app:
        let_go(app)
        assert "names another upload's object" in app.gc.run(grace_s=0).problems[0]
        assert app.gc.audit() == []
    with packed.open(**SETTINGS) as app:
        assert app.kernel.load_latest_state(**OTHER) == {"blob": blob(2)}


def test_an_object_in_which_no_block_lies_is_still_deleted(packed: Store) -> None:
    with packed.open(**SETTINGS, gc_object_delay_s=0) as app:
        let_go(app)
        assert app.gc.run(grace_s=0).ok
        assert [entry.reason for entry in app.gc.audit()] == ["unreferenced"]
