"""Looking for runs reads those that are wanted, and not all that there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg

from analemma import Flow
from analemma.catalog.statements import load
from tests.stores import Store

COLUMNS = (
    "tenant, owner, workflow, branch, name, document, born, head, position, options, incarnation, fence, fingerprint,"
    " queue, priority, created_at, updated_at"
)
MANY = 5000


def many_runs(url: str, status: str, due_at: str, ended_at: str) -> None:
    """One run, and a few thousand that nobody has to look at."""
    flow = Flow("x")
    flow.human("h", choices=["y"], timeout_s=1e6)
    with Store(url).open() as app:
        app.flows.run(flow, workflow_id="w", owner_id="me")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            f"INSERT INTO run (execution, status, due_at, ended_at, {COLUMNS})"  # noqa: S608
            f" SELECT 'e' || i, '{status}', {due_at}, {ended_at}, {COLUMNS} FROM run, generate_series(1, {MANY}) i"
        )
        connection.execute("ANALYZE run")


def plan_nodes(url: str, name: str, **parameters: Any) -> list[dict[str, Any]]:
    """How PostgreSQL ran a statement: every node of the plan."""
    statement = load("postgres")[name]
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as connection:
        asked = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.sql}"
        row = connection.execute(asked, [parameters[each] for each in statement.parameters]).fetchone()
        connection.rollback()
    assert row is not None
    plan = json.loads(row[0]) if isinstance(row[0], str) else row[0]
    return list(_flat(plan[0]["Plan"]))


def _flat(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for each in node.get("Plans", ()):
        yield from _flat(each)


def test_a_worker_reads_the_runs_that_are_due_and_no_others(migrated_url: str) -> None:
    many_runs(migrated_url, "WAITING_HUMAN", "analemma_now() + 1000000000000 + i", "NULL")
    nodes = plan_nodes(migrated_url, "claim_due_runs", tenant=None, holder="me", lease=1_000_000, limit=1)
    found = [node for node in nodes if node.get("Index Name") == "run_due"]
    assert found and "due_at <=" in found[0]["Index Cond"]
    assert sum(node.get("Rows Removed by Filter", 0) for node in nodes) < 10


def test_runs_that_ended_long_ago_are_found_by_when_they_did(migrated_url: str) -> None:
    many_runs(migrated_url, "COMPLETED", "NULL", "analemma_now() + i")
    nodes = plan_nodes(migrated_url, "ended_runs", tenant=1, before=1, limit=100)
    found = [node for node in nodes if node.get("Index Name") == "run_ended"]
    assert found and "ended_at <" in found[0]["Index Cond"]
    assert sum(node.get("Rows Removed by Filter", 0) for node in nodes) < 10
