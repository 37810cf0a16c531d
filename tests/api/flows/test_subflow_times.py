"""From when the time of a subflow counts."""

from __future__ import annotations

from tests.api.flows.runs import HOUR, end_leases, take, work_once
from tests.api.flows.test_subflows import INPUT, PLACE, child_of, order, shipping
from tests.raw_rows import change
from tests.stores import Store

LOOK_AGAIN = "UPDATE run SET due_at = 1 WHERE name = 'order'"


def test_a_childs_time_begins_anew_when_its_parent_is_resumed(store: Store) -> None:
    flow = order(shipping(["no stamps"]), timeout_s=60)
    with store.open() as app:
        run = app.flows.run(flow, INPUT, **PLACE)
        assert run.status == "FAILED"
        change(store, "UPDATE run SET created_at = created_at - ?, begun_at = begun_at - ?", [HOUR, HOUR])
        app.flows.resume(run.execution_id, wait=False)
        work_once(app)
        waits = app.flows.get(run.execution_id).waiting
        assert waits is not None and waits.until is not None and waits.since is not None
        assert 50 < (waits.until - waits.since).total_seconds() <= 60
        # Also for whoever looks before it has ended: only what was since counts.
        change(store, LOOK_AGAIN)
        work_once(app)
        assert child_of(app, run).status == "RUNNING"
        app.run_worker(1).drain()
        assert app.flows.get(run.execution_id).status == "COMPLETED"


def test_a_childs_time_does_not_begin_while_it_waits_in_a_queue(store: Store) -> None:
    flow = order(shipping(), timeout_s=60)
    with store.open() as app:
        app.handlers.add_all(flow)
        run = app.flows.start(flow, INPUT, **PLACE)
        while app.flows.get(run.execution_id).waiting is None:
            work_once(app)
        change(store, "UPDATE run SET created_at = created_at - ?", [HOUR])
        change(store, LOOK_AGAIN)
        work_once(app)
        waits = app.flows.get(run.execution_id).waiting
        assert child_of(app, run).status == "PENDING" and waits is not None and waits.until is not None
        # Once it has begun, it counts, to the end of its time.
        assert take(app, store) == child_of(app, run).workflow_id
        change(store, "UPDATE run SET begun_at = begun_at - ? WHERE name = 'shipping'", [HOUR])
        change(store, LOOK_AGAIN)
        work_once(app)
        late = app.flows.get(run.execution_id)
        assert late.error is not None and (late.error.kind, child_of(app, run).status) == ("timeout", "CANCELLED")
        # Nobody goes on with it.
        end_leases(store)
        assert app.run_worker(1).drain().runs == 0
        assert child_of(app, run).status == "CANCELLED"
