"""`analemma demo`: an agent's state through a few hundred versions, a second writer, a crash and a check, in a
directory of its own."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import analemma
from analemma.app import App, Tenant
from analemma.canon.pointer import format_pointer
from analemma.canon.tree import Operation
from analemma.catalog.port import BranchKey, Head
from analemma.cli.output import bytes_for_people
from analemma.errors import HeadMoved
from analemma.failpoints import VARIABLE
from analemma.state.committer import Outcome, Proposal

KEY = BranchKey("ann", "trip-planner")
STEPS = 200
CRASH_AT = "commit.before_commit"


@dataclass(frozen=True, slots=True)
class Written:
    """What the steps cost."""

    versions: int
    blocks: int
    bytes: int
    seconds: float
    logical_bytes: int


def run_demo(console: Console) -> None:
    """Tell the story; every number in it is measured while it runs."""
    with tempfile.TemporaryDirectory(prefix="analemma-demo-") as directory:
        store = Path(directory) / "store"
        say = console.print
        say(f"A store is a directory: [bold]{store}[/] (SQLite and files; PostgreSQL and S3 by changing it to a URL)\n")
        with analemma.open(store) as app:
            tenant = app.default
            first, written = _write_versions(tenant)
            _tell_versions(console, app, written)
            _tell_diff(console, tenant, first)
            _tell_second_writer(console, tenant)
        _tell_crash(console, store)
        with analemma.open(store) as app:
            _tell_verification(console, app)


def _write_versions(tenant: Tenant) -> tuple[Head, Written]:
    pick = random.Random(7)
    started = time.perf_counter()
    state: dict[str, Any] = {
        "goal": "two weeks in Korea",
        "guide": pick.randbytes(24_000).hex(),
        "messages": [],
        "scratch": "",
    }
    outcomes = [tenant.committer.commit(Proposal(KEY, tenant.trees.build(state), None))]
    first = outcomes[0].head
    for step in range(STEPS):
        message = {"role": "assistant" if step % 2 else "user", "content": pick.randbytes(700).hex()}
        changes = [
            Operation("add", ("messages", "-"), message),
            Operation("put", ("scratch",), pick.randbytes(1000).hex()),
        ]
        outcomes.append(_change(tenant, outcomes[-1].head, changes))
    seconds = time.perf_counter() - started
    logical = sum(_size(tenant, outcome) for outcome in outcomes)
    return first, Written(
        len(outcomes),
        sum(len(outcome.committed.stored) for outcome in outcomes),
        sum(outcome.bytes_written for outcome in outcomes),
        seconds,
        logical,
    )


def _change(tenant: Tenant, head: Head, operations: list[Operation]) -> Outcome:
    root = tenant.manifest(head.manifest).root.id
    return tenant.committer.commit(Proposal(KEY, tenant.trees.edit(root, operations), head))


def _size(tenant: Tenant, outcome: Outcome) -> int:
    return tenant.manifest(outcome.receipt.manifest).root.size


def _tell_versions(console: Console, app: App, written: Written) -> None:
    stats = app.stats()
    console.print(
        f"[bold]{written.versions} versions[/] of an agent's state, each complete, each durable before the next: "
        f"{written.seconds / written.versions * 1000:.2f} ms a version."
    )
    console.print(
        f"Together they hold {bytes_for_people(written.logical_bytes)} of state in {stats.blocks} blocks "
        f"of {bytes_for_people(stats.stored_bytes)}: a version stores what changed, on average "
        f"{written.blocks / written.versions:.1f} blocks of {bytes_for_people(written.bytes // written.versions)}.\n"
    )


def _tell_diff(console: Console, tenant: Tenant, first: Head) -> None:
    head = tenant.head(KEY)
    assert head is not None
    old, new = (tenant.manifest(manifest).root.id for manifest in (first.manifest, head.manifest))
    changes = tenant.trees.diff(old, new)
    kinds = sorted({f"{change.op} {format_pointer(change.path[:1])}" for change in changes})
    console.print(f"From version 1 to {head.version}, {len(changes)} changes: {', '.join(kinds)}.")
    beginning = tenant.trees.get(old, "/messages")
    console.print(f"Version 1 is still there as it was: {len(beginning)} messages in it.\n")


def _tell_second_writer(console: Console, tenant: Tenant) -> None:
    seen = tenant.head(KEY)
    assert seen is not None
    _change(tenant, seen, [Operation("put", ("goal",), "three weeks in Korea")])
    try:
        _change(tenant, seen, [Operation("put", ("goal",), "one week in Korea")])
    except HeadMoved as exc:
        console.print(f"A second writer that had not seen the last version is told so:\n  HeadMoved: {exc}\n")


def _tell_crash(console: Console, store: Path) -> None:
    program = (
        "import sys, analemma\n"
        "from analemma.cli.demo import KEY, _change\n"
        "with analemma.open(sys.argv[1]) as app:\n"
        "    _change(app.default, app.default.head(KEY), [analemma.Operation('put', ('goal',), 'never written')])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(store)], env={**os.environ, VARIABLE: CRASH_AT}, capture_output=True
    )
    console.print(f"A process killed in the middle of a commit (exit {ended.returncode}) leaves the version before:")


def _tell_verification(console: Console, app: App) -> None:
    tenant = app.default
    head = tenant.head(KEY)
    assert head is not None
    goal = tenant.trees.get(tenant.manifest(head.manifest).root.id, "/goal")
    report = tenant.verify(KEY)
    console.print(f"  version {head.version}, goal {goal!r}")
    console.print(
        f"  verified: {report.records} journal records and {report.blocks} blocks hashed again, "
        f"{'all as they should be' if report.ok else 'PROBLEMS: ' + '; '.join(report.problems)}."
    )
