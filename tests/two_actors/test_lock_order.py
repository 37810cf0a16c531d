"""Two who lock rows of the same tables on PostgreSQL wait for each other in one direction only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.postgres_locks import beside, deadlocks, held_at_the_last_step, wait_for_waiting
from tests.raw_rows import connect
from tests.stores import Store

CONTRACTS = Path(__file__).parents[2] / "examples/agent_runs/contracts.yaml"
RUN: dict[str, Any] = {"workflow_id": "runs/1", "owner_id": "ann"}


@pytest.fixture
def server(migrated_url: str, tmp_path: Path) -> Store:
    return Store(migrated_url, str(tmp_path / "objects"))


def put(saver: AnalemmaSaver, checkpoint: str, *, thread: str = "T", namespace: str = "") -> None:
    place: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": namespace}}
    value: Any = {
        "v": 1,
        "id": checkpoint,
        "ts": "2024-01-01T00:00:00+00:00",
        "channel_values": {"x": checkpoint},
        "channel_versions": {"x": checkpoint},
        "versions_seen": {},
        "updated_channels": None,
    }
    saver.put(place, value, {"source": "loop", "step": 1, "parents": {}}, {"x": checkpoint})


@pytest.mark.parametrize("procedure", ["commit_checkpoint", "settle_pending"])
def test_a_branch_begun_while_its_thread_is_deleted_is_never_without_its_workflow(
    server: Store, procedure: str
) -> None:
    with server.open() as app, server.open() as other:
        saver, kernel = AnalemmaSaver(app, owner="lg"), other.kernel
        put(saver, "0001")

        def begin() -> None:
            if procedure == "commit_checkpoint":
                put(AnalemmaSaver(other, owner="lg"), "0002", namespace="sub")
            else:
                kernel.wait_for(kernel.checkpoint_async({"x": 1}, workflow_id="T", owner_id="lg", branch="sub"))

        with held_at_the_last_step(server.url, procedure) as go_on, beside(begin) as beginning:
            wait_for_waiting(server.url, beginning)
            assert beginning.is_alive()
            with beside(lambda: saver.delete_thread("T")) as deleting:
                wait_for_waiting(server.url, beginning, deleting)
                go_on()
        assert not app.kernel.list_workflows(owner_id="lg").items
        assert list(saver.list({"configurable": {"thread_id": "T"}})) == []
        with connect(server.url) as connection:
            assert connection.execute("SELECT branch FROM head").fetchall() == []


def test_a_thread_that_is_copied_while_it_is_pruned_keeps_nobody_waiting_in_a_circle(server: Store) -> None:
    with server.open() as app:
        saver = AnalemmaSaver(app, owner="lg")
        for number in range(5):
            put(saver, f"{number:04}")
        with connect(server.url) as holder:
            holder.execute("SELECT FROM thread_checkpoint WHERE checkpoint = '0001' FOR UPDATE")
            with beside(lambda: saver.copy_thread("T", "U")) as copy, beside(lambda: saver.prune(["T"])) as prune:
                wait_for_waiting(server.url, copy, prune)
                holder.rollback()
        assert len(list(saver.list({"configurable": {"thread_id": "T"}}))) == 1
    assert deadlocks(server.url) == 0


def test_a_thread_that_is_copied_while_it_is_deleted_keeps_nobody_waiting_in_a_circle(server: Store) -> None:
    with server.open() as app:
        saver = AnalemmaSaver(app, owner="lg")
        for number in reversed(range(5)):
            put(saver, f"{number:04}")
        with connect(server.url) as holder:
            # Of a table that is known to be small, rows are read as they lie, which is not in the order of their keys.
            holder.execute("ANALYZE thread_checkpoint")
            holder.execute("SELECT FROM thread_checkpoint WHERE checkpoint = '0002' FOR UPDATE")
            with (
                beside(lambda: saver.copy_thread("T", "U")) as copy,
                beside(lambda: saver.delete_thread("T")) as delete,
            ):
                wait_for_waiting(server.url, copy, delete)
                holder.rollback()
        assert list(saver.list({"configurable": {"thread_id": "T"}})) == []
    assert deadlocks(server.url) == 0


@pytest.mark.parametrize("verb", ["save", "checkpoint"])
def test_a_commit_beside_the_handler_of_a_state_source_keeps_nobody_waiting_in_a_circle(
    server: Store, verb: str
) -> None:
    first, second = "a" * 6000, "b" * 6000  # stored as blocks of their own, the same in states and documents
    with server.open() as app, server.open() as other:
        app.contracts.load(CONTRACTS)
        kernel = app.kernel
        kernel.save_state_delta({"runId": "1", "status": "R", "goal": first}, **RUN)
        kernel.save_state_delta({"goal": second}, **RUN)

        def commit() -> None:
            if verb == "save":
                kernel.save_state_delta({"goal": first}, **RUN)
            else:
                kernel.wait_for(kernel.checkpoint_async({"goal": first}, **RUN))

        with (
            failpoints.paused("outbox.before_settle", lambda: other.worker().drain()) as held,
            beside(commit) as committing,
        ):
            wait_for_waiting(server.url, committing)
            held.go_on()
        assert kernel.load_latest_state(**RUN)["goal"] == first
    assert deadlocks(server.url) == 0
