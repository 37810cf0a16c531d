"""`analemma demo`: an agent's state through a few hundred versions, a conflict, a way back, a crash and a check; then a
flow that is killed and goes on; then a bookshop, whose views and sinks follow what they are made of."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

import analemma
from analemma.cli.demo_agent import tell_agent_story
from analemma.cli.demo_bookshop import tell_bookshop_story
from analemma.cli.output import bytes_for_people
from analemma.errors import HeadMoved
from analemma.failpoints import VARIABLE
from analemma.state.records import Commit
from analemma.store.store import App

NAME: dict[str, Any] = {"workflow_id": "trip-planner", "owner_id": "ann"}
STEPS = 200
CRASH_AT = "commit.before_commit"
CRASH = """
import sys, analemma
from analemma.cli.demo import NAME
with analemma.open(sys.argv[1]) as app:
    app.kernel.save_state_delta({"goal": "never written"}, **NAME)
"""


def run_demo(console: Console) -> None:
    """Tell the story; every number in it is measured while it runs."""
    with tempfile.TemporaryDirectory(prefix="analemma-demo-") as directory:
        store = Path(directory) / "store"
        console.print(f"A store is a directory: [bold]{store}[/]")
        console.print("(SQLite and files; PostgreSQL and S3 by changing it to a URL)\n")
        with analemma.open(store) as app:
            first, last = _save_versions(console, app)
            _look_back(console, app, first, last)
            _collide(console, app, last)
            _roll_back(console, app)
        _crash(console, store)
        with analemma.open(store) as app:
            _check(console, app)
        console.print()
        tell_agent_story(console, store, Path(directory))
        console.print()
        with analemma.open(store) as app:
            tell_bookshop_story(console, app, Path(directory))


def _save_versions(console: Console, app: App) -> tuple[Commit, Commit]:
    """Save a few hundred versions, each a small change to a growing state."""
    pick = random.Random(7)
    words = [pick.randbytes(3).hex() for _ in range(400)]
    state = {"goal": "two weeks in Korea", "guide": " ".join(pick.choices(words, k=7000)), "messages": []}
    first = last = app.kernel.save_state_delta(state, **NAME)
    logical = 0
    started = time.perf_counter()
    for step in range(STEPS):
        message = {"role": "assistant" if step % 2 else "user", "content": " ".join(pick.choices(words, k=200))}
        delta = {"/messages/-": message, "scratch": " ".join(pick.choices(words, k=300)), "step": step}
        last = app.kernel.save_state_delta(delta, **NAME)
        logical += app.default.manifest(last.receipt.manifest).root.size
    seconds = time.perf_counter() - started
    stats = app.stats()
    console.print(f"[bold]{last.version} versions[/] of an agent's state, each complete and durable before the next:")
    console.print(
        f"  {seconds / STEPS * 1000:.2f} ms a version, and together they show {bytes_for_people(logical)} of state"
    )
    console.print(f"  in {bytes_for_people(stats.stored_bytes)}: a version stores what changed.\n")
    return first, last


def _look_back(console: Console, app: App, first: Commit, last: Commit) -> None:
    kernel = app.kernel
    changes = kernel.diff(first.manifest_id, last.manifest_id)
    kinds = sorted({f"{change['op']} /{change['path'].split('/')[1]}" for change in changes})
    console.print(f"From version 1 to {last.version}: {len(changes)} changes ({', '.join(kinds)}).")
    version = kernel.blame(path="/messages/3", **NAME)
    console.print(f"  /messages/3 was last changed by version {version.version}.")
    console.print(f"  Version 1 is as it was: {len(kernel.load_state(first.manifest_id)['messages'])} messages.\n")


def _collide(console: Console, app: App, seen: Commit) -> None:
    kernel = app.kernel
    kernel.save_state_delta({"goal": "three weeks in Korea"}, previous_manifest_id=seen.manifest_id, **NAME)
    try:
        kernel.save_state_delta({"goal": "one week in Korea"}, previous_manifest_id=seen.manifest_id, **NAME)
    except HeadMoved as exc:
        console.print(f"A second writer that had not seen the last version is told so:\n  HeadMoved: {exc}\n")


def _roll_back(console: Console, app: App) -> None:
    started = time.perf_counter()
    back = app.kernel.rollback_to_version(version=100, **NAME)
    took_ms = (time.perf_counter() - started) * 1000
    messages = len(app.kernel.load_latest_state(**NAME)["messages"])
    console.print(
        f"Back to version 100 in {took_ms:.1f} ms, as version {back.version} with {messages} messages; "
        f"{back.blocks_stored} block written, nothing lost.\n"
    )


def _crash(console: Console, store: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CRASH, str(store)], env={**os.environ, VARIABLE: CRASH_AT}, capture_output=True
    )
    console.print(f"A process killed in the middle of a commit (exit {ended.returncode}) leaves the version before:")


def _check(console: Console, app: App) -> None:
    newest = app.kernel.history(limit=1, **NAME)[0]
    goal = app.kernel.load_fields(newest.manifest_id, ["goal"])["goal"]
    report = app.kernel.verify(**NAME)
    console.print(f"  version {newest.version}, goal {goal!r}")
    console.print(
        f"  verified: {report.records} journal records, {report.manifests} versions and {report.blocks} blocks "
        f"hashed again, {'all as they should be' if report.ok else 'PROBLEMS: ' + '; '.join(report.problems)}."
    )
