"""What a payload stands on ends while the payload is written: it is refused, or whoever ends it sees it and waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Denied
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, is_sqlite, select
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
LARGE = "x" * 20_000
MONTH_US = 31 * 86_400 * 1_000_000


def write(app: analemma.App, state: Any, execution: str = "one") -> dict[str, Any]:
    return app.payloads.dehydrate(state, execution_id=execution, return_delta=False, **PLACE)


def leased(app: analemma.App) -> list[str]:
    """The executions that have leases."""
    return [lease.execution for lease in app.payloads.leases()]


def release(app: analemma.App, store: Store) -> None:
    app.payloads.release(execution_id="one", **PLACE)


def end(app: analemma.App, store: Store) -> None:
    """As a collector ends what nobody has used for long."""
    assert change(store, "UPDATE payload SET renewed_at = renewed_at - ?", [MONTH_US]) == 1
    assert sum(each.leases for each in app.gc.run(grace_s=0).tenants) == 1


Ending = Callable[[analemma.App, Store], None]


@pytest.mark.parametrize("execution", ["one", "two"], ids=["its own payload", "another's payload"])
@pytest.mark.parametrize("ending", [release, end], ids=["released", "unused"])
def test_no_payload_goes_on_using_pointers_that_ended_before_it_was_written(
    store: Store, ending: Ending, execution: str
) -> None:
    """Guard: the leases that a payload goes on using are looked at again in the transaction that writes it."""
    with store.open() as app, store.open() as other:
        state = app.payloads.hydrate(write(app, {"plan": LARGE}))
        with failpoints.paused("payload.before_transaction", lambda: write(app, state, execution)) as held:
            ending(other, store)
            with pytest.raises(Denied, match="released"):
                held.go_on()
        assert leased(other) == []


def test_pointers_do_not_end_while_a_payload_passes_them_on(store: Store) -> None:
    """Guard: a payload locks the leases that it goes on using on PostgreSQL. Without that, what they keep is collected
    before the payload's own leases are there."""
    with store.open() as app, store.open() as other:
        state = app.payloads.hydrate(write(app, {"plan": LARGE}))
        with (
            failpoints.paused("payload.before_commit", lambda: write(app, state, "two")) as held,
            beside(lambda: release(other, store)) as releasing,
        ):
            if not is_sqlite(store):
                wait_for_waiting(store.url, releasing)
                for _ in range(3):
                    app.gc.run(grace_s=0)
            passed = held.go_on()
        for _ in range(3):
            app.gc.run(grace_s=0)
        assert leased(other) == ["two"]
    with store.open() as app:
        assert app.payloads.hydrate(passed)["plan"] == LARGE


def test_no_execution_gets_pointers_after_it_was_released(store: Store) -> None:
    """Guard: whether an execution is over is looked at again in the transaction that writes its payload."""
    with store.open() as app, store.open() as other:
        with failpoints.paused("payload.before_transaction", lambda: write(app, {"plan": LARGE})) as held:
            release(other, store)
            with pytest.raises(Denied, match="gets no new pointers"):
                held.go_on()
        assert leased(other) == []


def test_whoever_releases_an_execution_waits_for_its_payload_that_is_being_written(store: Store) -> None:
    """Guard: both have the execution, the one together with others and the other alone. Without that, whoever ends it
    sees no lease yet, and the lease stays for ever."""
    with store.open() as app, store.open() as other:
        with (
            failpoints.paused("payload.before_commit", lambda: write(app, {"plan": LARGE})) as held,
            beside(lambda: release(other, store)) as releasing,
        ):
            if not is_sqlite(store):
                wait_for_waiting(store.url, releasing)
            payload = held.go_on()
        assert leased(other) == []
        with pytest.raises(Denied, match="released"):
            other.payloads.hydrate(payload)


def test_no_payload_is_written_for_an_execution_that_is_being_released(store: Store) -> None:
    """Guard: the same the other way round."""
    refused: list[str] = []
    with store.open() as app, store.open() as other:

        def write_late() -> None:
            try:
                write(app, {"plan": LARGE})
            except Denied as exc:
                refused.append(exc.message)

        with (
            failpoints.paused("payload.before_release", lambda: release(other, store)) as held,
            beside(write_late) as writing,
        ):
            if not is_sqlite(store):
                wait_for_waiting(store.url, writing)
            held.go_on()
        assert len(refused) == 1 and "gets no new pointers" in refused[0]
        assert leased(other) == []


def test_no_payload_names_an_upload_that_was_collected_meanwhile(store: Store) -> None:
    """Guard: a payload finishes its uploads, and only if nobody has claimed them."""
    blob = random.Random(1).randbytes(90_000)
    settings: dict[str, Any] = {"pack_threshold_bytes": 20_000, "gc_object_delay_s": 0}
    with store.open(**settings) as app, store.open(**settings) as other:
        with failpoints.paused("payload.before_transaction", lambda: write(app, {"blob": blob})) as held:
            assert change(store, "UPDATE upload SET created_at = 0 WHERE state = 'temp'") == 1
            assert other.gc.run(grace_s=0).objects == 1
            with pytest.raises(Conflict, match="collected meanwhile"):
                held.go_on()
        assert leased(other) == [] and select(store, "SELECT count(*) FROM block") == [(0,)]
        assert other.payloads.hydrate(write(app, {"blob": blob}))["blob"] == blob


def test_the_versions_of_a_run_that_is_taken_up_again_when_they_are_about_to_expire_stay(store: Store) -> None:
    """Guard: which runs still need a version is looked at again in the transaction that removes it."""
    flow = analemma.Flow("trip", checkpoints="node")
    failing = [True]

    def plan(state: Any, ctx: Any) -> dict[str, int]:
        return {"plan": 1}

    def compare(state: Any, ctx: Any) -> dict[str, int]:
        return {"fare": 1}

    def book(state: Any, ctx: Any) -> dict[str, int]:
        if failing:
            raise ValueError(failing.pop())
        assert [each.version for each in expiring.go_on().expired] == []
        return {"booked": 1}

    for step, field in ((plan, "plan"), (compare, "fare"), (book, "booked")):
        flow.step(step, writes=[field])
    with store.open() as app, store.open() as other:
        run = app.flows.run(flow, {}, **PLACE)
        assert run.status == "FAILED"
        versions = [each.version for each in app.kernel.history(**PLACE)]
        app.kernel.set_retention(owner_id="ann", keep_last=1)
        expire = lambda: other.kernel.expire(**PLACE)  # noqa: E731
        with failpoints.paused("record.before_transaction", expire) as expiring:
            assert app.flows.resume(run.execution_id).status == "COMPLETED"
        assert [each.version for each in app.kernel.history(**PLACE)][-len(versions) :] == versions
