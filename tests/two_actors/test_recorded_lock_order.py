"""There is one order in which rows are locked on PostgreSQL, and everyday verbs keep to it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import analemma
from analemma.langgraph import AnalemmaSaver
from tests.lock_recorder import recorded
from tests.raw_rows import connect
from tests.stores import Store

CONTRACTS = Path(__file__).parents[2] / "examples/agent_runs/contracts.yaml"
RUN: dict[str, Any] = {"workflow_id": "runs/1", "owner_id": "ann"}
AT_ONCE: dict[str, Any] = {"gc_object_delay_s": 0, "delete_grace_s": 0}
LARGE = "".join(map(str, range(30_000)))

ORDER = [
    *("gc", "sink_state", "entity", "head", "pending", "lane", "manifest", "block", "upload", "idempotency"),
    *("decision", "ref", "journal", "expired", "branch", "workflow", "thread_checkpoint", "thread_write"),
    "deletion",
    *("state_source", "outbox", "gc_count", "gc_run"),
]
"""As docs/design/ordering.md has it."""


def put(saver: AnalemmaSaver, checkpoint: str, *, namespace: str = "") -> None:
    place: Any = {"configurable": {"thread_id": "T", "checkpoint_ns": namespace}}
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


def versions(app: analemma.App) -> None:
    kernel = app.kernel
    first = kernel.save_state_delta({"runId": "1", "status": "R", "goal": "a" * 6000}, **RUN).manifest_id
    kernel.save_state_delta({"goal": "b" * 6000}, idempotency_key="once", **RUN)
    kernel.fork(first, owner_id="ann", branch="side")
    kernel.save_state_delta({"y": 2}, branch="side", **RUN)
    kernel.merge(source="side", **RUN)
    kernel.rollback_to_version(version=1, **RUN)
    kernel.wait_for(kernel.checkpoint_async({"goal": "c" * 6000}, **RUN))
    kernel.save_state_delta({"large": LARGE}, **RUN)
    kernel.tag(first, "first", owner_id="ann")
    kernel.pin(first, owner_id="ann")
    kernel.decide(first, "approved", actor="bob")
    kernel.untag("first", workflow_id="runs/1", owner_id="ann")
    kernel.unpin(first, owner_id="ann")


def threads(app: analemma.App) -> None:
    saver = AnalemmaSaver(app, owner="lg")
    for number in range(4):
        put(saver, f"{number:04}")
    put(saver, "0001", namespace="sub")
    config: Any = {"configurable": {"thread_id": "T", "checkpoint_ns": "", "checkpoint_id": "0003"}}
    saver.put_writes(config, [("x", "w")], "task")
    saver.copy_thread("T", "U")
    saver.prune(["T"])
    saver.delete_thread("U")


def deletions(app: analemma.App) -> None:
    trip = app.workflow("trip", owner="ann")
    trip.save({"n": 1}, key="once")
    trip.branch("draft", at=1)
    trip.tag("first", 1)
    trip.checkpoint({"n": 2})
    trip.delete_branch("draft")
    trip.delete()
    trip.undelete()
    trip.undelete_branch("draft")
    # What names versions goes before them, which only look as if they were locked behind it.
    trip.untag("first")
    trip.delete()


def test_everyday_verbs_lock_rows_in_the_written_order(migrated_url: str, tmp_path: Path) -> None:
    store = Store(migrated_url, str(tmp_path / "objects"))
    with recorded(store.url) as recorder, store.open(pack_threshold_bytes=65_536, **AT_ONCE) as app:
        app.contracts.load(CONTRACTS)
        versions(app)
        app.worker().drain()
        threads(app)
        deletions(app)
        app.payloads.dehydrate({"large": LARGE}, execution_id="e", return_delta=False, **RUN)
        app.kernel.set_retention(keep_last=1, owner_id="ann")
        for _ in range(2):
            app.gc.run(grace_s=0)
        AnalemmaSaver(app, owner="lg").delete_thread("T")
        app.worker().drain()
    assert recorder.inversions() == {}
    for tables in recorder.transactions:
        if len(tables) > 1:
            assert tables == sorted(tables, key=ORDER.index), tables
    # What is compared was there to be compared: a save, an applied checkpoint, an expiry, a compile, a ship, a pass.
    pairs = {(first, second) for tables in recorder.transactions for first, second in pairwise(tables)}
    assert {("head", "lane"), ("lane", "block"), ("head", "pending"), ("head", "manifest")} <= pairs
    assert {("entity", "lane"), ("sink_state", "lane"), ("gc", "block")} <= pairs


def test_the_recorder_finds_two_who_lock_in_opposite_orders(migrated_url: str) -> None:
    with recorded(migrated_url) as recorder:
        for first, second in (("ref", "branch"), ("branch", "ref")):
            with connect(migrated_url, autocommit=True) as connection:
                connection.execute("BEGIN")
                connection.execute(f"SELECT FROM {first} FOR UPDATE".encode())
                connection.execute(f"SELECT FROM {second} FOR KEY SHARE".encode())
                connection.execute("ROLLBACK")
        assert recorder.inversions() == {("branch", "ref"): (["branch", "ref"], ["ref", "branch"])}


def test_the_recorder_sees_the_order_inside_one_statement(migrated_url: str) -> None:
    with recorded(migrated_url) as recorder, connect(migrated_url, autocommit=True) as connection:
        connection.execute("INSERT INTO tenant (name) VALUES ('a'), ('b')")
        connection.execute(
            "WITH one AS (UPDATE tenant SET name = 'c' WHERE name = 'a' RETURNING 1)"
            " UPDATE store SET id = id WHERE EXISTS (SELECT FROM one)"
        )
        assert recorder.transactions == [["tenant", "store"]]
