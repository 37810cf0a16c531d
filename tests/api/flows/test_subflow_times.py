"""From when the time of a subflow counts."""

from __future__ import annotations

import logging

import pytest

from tests.api.flows.test_subflows import HOUR, INPUT, PLACE, _claim, child_of, order, shipping
from tests.api.gc.collections import script
from tests.stores import Store


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def test_a_childs_time_begins_anew_when_its_parent_is_resumed(store: Store) -> None:
    flow = order(shipping(["no stamps"]), timeout_s=60)
    with store.open() as app:
        run = app.flows.run(flow, INPUT, **PLACE)
        assert run.status == "FAILED"
        script(app, f"UPDATE run SET created_at = created_at - {HOUR}, begun_at = begun_at - {HOUR}")  # noqa: S608
        app.flows.resume(run.execution_id, wait=False)
        ((_, row),) = _claim(app)
        app.flows.work_on(row)
        waits = app.flows.get(run.execution_id).waiting
        assert waits is not None and waits.until is not None and waits.since is not None
        assert 50 < (waits.until - waits.since).total_seconds() <= 60
        # Also for whoever looks before it has ended: only what was since counts.
        script(app, "UPDATE run SET due_at = 1 WHERE name = 'order'")
        ((_, row),) = _claim(app)
        app.flows.work_on(row)
        assert child_of(app, run).status == "RUNNING"
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).status == "COMPLETED"


def test_a_childs_time_does_not_begin_while_it_waits_in_a_queue(store: Store) -> None:
    flow = order(shipping(), timeout_s=60)
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        ((_, row),) = _claim(app)
        app.flows.work_on(row)
        script(app, f"UPDATE run SET created_at = created_at - {HOUR}")  # noqa: S608
        script(app, "UPDATE run SET due_at = 1 WHERE name = 'order'")
        ((_, row),) = _claim(app)
        app.flows.work_on(row)
        waits = app.flows.get(run.execution_id).waiting
        assert child_of(app, run).status == "PENDING" and waits is not None and waits.until is not None
        # Once it has begun, it counts, to the end of its time.
        ((_, child),) = _claim(app)
        script(app, f"UPDATE run SET begun_at = begun_at - {HOUR} WHERE name = 'shipping'")  # noqa: S608
        script(app, "UPDATE run SET due_at = 1 WHERE name = 'order'")
        ((_, row),) = _claim(app)
        app.flows.work_on(row)
        late = app.flows.get(run.execution_id)
        # Whoever works on it is refused from there on.
        assert late.error is not None and (late.error.kind, child_of(app, run).status) == ("timeout", "CANCELLED")
        app.flows.work_on(child)
        assert child_of(app, run).status == "CANCELLED"
