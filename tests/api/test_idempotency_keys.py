"""How long an idempotency key gives its answer again, and that it is a new one afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Expired
from tests.raw_rows import change, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
DAY_US = 86_400 * 1_000_000
KEEP_DAYS = 30


def age(store: Store, days: float) -> None:
    assert change(store, "UPDATE idempotency SET created_at = created_at - ?", [round(days * DAY_US)]) >= 1


def save(app: analemma.App, key: str = "order-1", place: str = "Oslo") -> analemma.Commit:
    return app.kernel.save_state_delta({"place": place}, idempotency_key=key, **PLACE)


def checkpoint(app: analemma.App, key: str = "order-1", place: str = "Oslo") -> analemma.Commit:
    ticket = app.kernel.checkpoint_async({"place": place}, idempotency_key=key, **PLACE)
    return app.kernel.wait_for(ticket)


def save_bag(app: analemma.App, key: str = "order-1", place: str = "Oslo") -> analemma.Commit:
    bag = app.kernel.load_latest_state(**PLACE, lazy=True)
    bag["place"] = place
    return app.kernel.save(bag, idempotency_key=key)


def let_expire(app: analemma.App) -> None:
    """All versions but the newest."""
    app.kernel.save_state_delta({"later": True}, **PLACE)
    app.kernel.set_retention(keep_last=1, **PLACE)
    assert app.kernel.expire(**PLACE).expired


def versions(app: analemma.App) -> int:
    return app.kernel.history(**PLACE)[0].version


SAVES = pytest.mark.parametrize("again", [save, checkpoint])


@SAVES
def test_a_key_gives_its_answer_again_while_it_is_kept_also_if_its_version_expired(
    store: Store, again: Callable[[analemma.App], analemma.Commit]
) -> None:
    with store.open() as app:
        first = save(app)
        let_expire(app)
        age(store, KEEP_DAYS - 1)
        before = versions(app)
        if again is save:
            assert again(app).manifest_id == first.manifest_id
        assert save(app).receipt == first.receipt and versions(app) == before
        with pytest.raises(Conflict, match="another request"):
            save(app, place="Rome")
        with pytest.raises(Expired):
            app.kernel.load_state(first.manifest_id)


@SAVES
def test_a_key_is_kept_as_long_as_retention_keeps_its_version(
    store: Store, again: Callable[[analemma.App], analemma.Commit]
) -> None:
    with store.open() as app:
        first = save(app)
        app.kernel.save_state_delta({"later": True}, **PLACE)
        age(store, 10 * KEEP_DAYS)
        app.gc.run()
        assert again(app).manifest_id == first.manifest_id and versions(app) == 2
        with pytest.raises(Conflict, match="another request"):
            save(app, place="Rome")


@SAVES
def test_a_key_that_is_used_again_after_that_is_a_new_request(
    store: Store, again: Callable[[analemma.App], analemma.Commit]
) -> None:
    with store.open() as app:
        first = save(app)
        let_expire(app)
        age(store, KEEP_DAYS + 1)
        second = again(app)
        assert second.manifest_id != first.manifest_id and second.version == 3 == versions(app)
        assert app.kernel.load_state(second.manifest_id) == {"place": "Oslo", "later": True}
        # From now on it is the key of the new one.
        assert again(app).manifest_id == second.manifest_id and versions(app) == 3
        with pytest.raises(Conflict, match="another request"):
            save(app, place="Rome")


@pytest.mark.parametrize("again", [save, checkpoint, save_bag])
def test_another_request_under_an_old_key_is_none_of_the_old_one(
    store: Store, again: Callable[..., analemma.Commit]
) -> None:
    with store.open() as app:
        save(app)
        let_expire(app)
        age(store, KEEP_DAYS + 1)
        second = again(app, place="Rome")
        assert second.version == 3 and app.kernel.load_state(second.manifest_id)["place"] == "Rome"


def test_a_failed_request_under_an_old_key_leaves_the_key_as_it_is(store: Store) -> None:
    with store.open() as app:
        first = save(app)
        let_expire(app)
        age(store, KEEP_DAYS + 1)
        with pytest.raises(Conflict):
            app.kernel.save_state_delta(
                {"place": "Rome"}, idempotency_key="order-1", previous_manifest_id=first.manifest_id, **PLACE
            )
        assert versions(app) == 2
        assert save(app).version == 3


def test_the_settings_decide_how_long_a_key_is_kept(store: Store) -> None:
    with store.open(idempotency_keep_s=60) as app:
        first = save(app)
        let_expire(app)
        assert save(app).manifest_id == first.manifest_id
        age(store, 61 / 86_400)
        assert save(app).manifest_id != first.manifest_id


def test_collecting_forgets_keys_that_count_no_more_and_no_others(store: Store) -> None:
    with store.open() as app:
        for number in range(5):
            save(app, f"old-{number}", f"place {number}")
        app.kernel.tag(app.kernel.history(**PLACE)[3].manifest_id, "kept", owner_id="ann")
        let_expire(app)
        age(store, KEEP_DAYS + 1)
        save(app, "young")
        app.kernel.save_state_delta({"more": True}, **PLACE)
        app.gc.run()
        assert select(store, "SELECT key FROM idempotency ORDER BY key") == [("old-1",), ("young",)]


def test_collecting_forgets_more_keys_than_it_takes_at_a_time(store: Store) -> None:
    with store.open() as app:
        save(app)
        let_expire(app)
        copies = (
            "INSERT INTO idempotency (tenant, owner, workflow, key, fingerprint, manifest, receipt, created_at)"
            " WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 2500)"
            " SELECT tenant, owner, workflow, key || n, fingerprint, manifest, receipt, created_at"
            " FROM idempotency, number"
        )
        assert change(store, copies) == 2500
        age(store, KEEP_DAYS + 1)
        young = "order-1777"
        change(store, "UPDATE idempotency SET created_at = created_at + ? WHERE key = ?", [KEEP_DAYS * DAY_US, young])
        app.gc.run()
        assert select(store, "SELECT key FROM idempotency") == [(young,)]


def flow() -> analemma.Flow:
    built = analemma.Flow("trip")
    built.step(plan, reads=["did"], writes=["did"])
    return built


def plan(state: Any, ctx: Any) -> dict[str, Any]:
    return {"did": state["did"] + 1}


def run(app: analemma.App, did: int = 0) -> str:
    return app.flows.run(flow(), {"did": did}, idempotency_key="run-1", **PLACE).execution_id


def age_runs(store: Store, days: float) -> None:
    assert change(store, "UPDATE run SET ended_at = ended_at - ?", [round(days * DAY_US)]) == 1


def test_the_key_of_a_run_gives_that_run_while_its_first_version_is_kept(store: Store) -> None:
    with store.open() as app:
        first = run(app)
        age_runs(store, 10 * KEEP_DAYS)
        assert run(app) == first
        let_expire(app)
        assert run(app, did=0) != first


def test_the_key_of_a_run_that_ended_lately_gives_that_run(store: Store) -> None:
    with store.open() as app:
        first = run(app)
        let_expire(app)
        age_runs(store, KEEP_DAYS - 1)
        assert run(app) == first
        with pytest.raises(Conflict, match="another run"):
            run(app, did=5)


def test_the_key_of_a_run_that_is_used_again_after_that_begins_a_new_run(store: Store) -> None:
    with store.open() as app:
        first = run(app)
        let_expire(app)
        age_runs(store, KEEP_DAYS + 1)
        second = run(app, did=5)
        assert second != first and run(app, did=5) == second
        assert {each.execution_id for each in app.flows.runs()} == {first, second}
        assert app.flows.get(first).status == "COMPLETED"
