"""What a process that is started for one call has to load: functions are started often, and pay for it each time."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import analemma

PROGRAM = """
import sqlite3, sys

sent = []
connect = sqlite3.connect

def traced(*arguments, **options):
    connection = connect(*arguments, **options)
    connection.set_trace_callback(sent.append)
    return connection

sqlite3.connect = traced
import analemma

with analemma.open(sys.argv[1]) as store:
    sent.clear()
    assert store.kernel.load_latest_state(workflow_id="trip", owner_id="ann") == {"n": 1}
print(len(sent), *sys.modules)
"""
OTHERS = {
    *("pydantic", "typing_extensions", "importlib.metadata", "importlib.resources", "tomllib", "difflib", "zipfile"),
    *("asyncio", "concurrent.futures", "socket", "multiprocessing", "email", "ssl", "subprocess"),
    *("pyfastcdc", "obstore", "psycopg", "redis", "opentelemetry", "typer", "rich", "langgraph", "ruamel"),
}
OURS = {
    *("aio", "archives", "cli", "contracts", "executors", "flows", "gc.collector", "langgraph", "outbox", "payloads"),
    *("pipeline", "sinks", "slicing", "blocks.cloud", "blocks.memory", "blocks.redis_tier", "catalog.engine.postgres"),
    *("catalog.runs", "state.merge.values", "state.verify", "store.remote"),
}
"""Modules, of others and of ours, that loading a state has no use for."""
STATEMENTS = 4
"""The tenant's number, the head, its manifest, and the blocks of the state."""


def test_loading_a_state_loads_nothing_else(tmp_path: Path) -> None:
    with analemma.open(tmp_path / "store") as store:
        store.kernel.save_state_delta({"n": 1}, workflow_id="trip", owner_id="ann")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")], capture_output=True, text=True, check=True, timeout=60
    )
    statements, *loaded = done.stdout.split()
    ours = {f"analemma.{name}" for name in OURS}
    assert all(find_spec(name) for name in ours), "of what is not there, nothing is told"
    assert (OTHERS | ours) & set(loaded) == set()
    assert int(statements) <= STATEMENTS
