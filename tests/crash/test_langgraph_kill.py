"""kill -9 at every failpoint of the saver: the reopened store verifies, holds the old or the new, and doing it again
works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.langgraph import AnalemmaSaver
from tests import programs
from tests.crash.langgraph_worker import ITEMS
from tests.crash.points import kills
from tests.langgraph.graphs import put, thread
from tests.stores import Store

ROOT = Path(__file__).parents[2]
INSIDE = ["commit.after_head", "commit.after_blocks", "commit.before_commit"]
POINTS = {
    "step": [
        "thread.before_writes",
        "thread.after_writes",
        "commit.before_transaction",
        *INSIDE,
        "commit.after_commit",
    ],
    "copy": ["thread.copy_before_commit", "thread.copy_after_commit"],
    "delete": ["remove.before_transaction", "remove.before_commit", "remove.after_commit"],
    "prune": ["expire.before_commit", "expire.after_commit", "thread.before_drop", "thread.after_drop"],
    "runs": ["commit.after_commit", "expire.after_commit", "thread.before_drop", "thread.after_drop"],
    "all runs": ["remove.before_commit", "remove.after_commit"],
    "tagged runs": ["commit.after_commit", "expire.after_commit", "thread.before_drop", "thread.after_drop"],
}
CASES = [(verb, point) for verb, points in POINTS.items() for point in points]
CHOSEN = [
    *(("step", point) for point in POINTS["step"] if point not in INSIDE[:2]),
    *(("copy", point) for point in POINTS["copy"]),
    *(("delete", "remove.before_commit"), ("delete", "remove.after_commit")),
    *(("prune", "expire.after_commit"), ("prune", "thread.before_drop"), ("prune", "thread.after_drop")),
    *(("runs", "commit.after_commit"), ("runs", "expire.after_commit"), ("runs", "thread.before_drop")),
    # These end as deleting a thread does, and as deleting some runs does.
    *(("all runs", "remove.before_commit"), ("tagged runs", "expire.after_commit")),
]
AROUND_COMMITS = [
    *(("step", "thread.after_writes"), ("step", "commit.after_commit")),
    *(("copy", "thread.copy_before_commit"), ("copy", "thread.copy_after_commit")),
]


def prepare(app: App) -> None:
    saver = AnalemmaSaver(app)
    config = None
    for number in range(4):
        run = "r0" if number < 2 else "r1"
        config = put(saver, {"items": ITEMS, "count": number}, config, id=str(number), run_id=run, step=number)
        saver.put_writes(config, [("count", number)], "old task")


def tagged_version(app: App) -> str:
    return next(
        each.manifest_id for each in app.kernel.history(workflow_id="t", owner_id="langgraph") if each.version == 3
    )


def facts(app: App) -> dict[str, Any]:
    """What the verbs change, read by a saver that has seen nothing; every block is read on the way."""
    saver = AnalemmaSaver(app)
    found: dict[str, Any] = {}
    for name in ("t", "copy"):
        listed = list(saver.list(thread(name)))
        found[name] = {
            each.config["configurable"]["checkpoint_id"]: (
                each.checkpoint["channel_values"]["count"],
                len(each.checkpoint["channel_values"]["items"]),
                each.pending_writes,
            )
            for each in listed
        }
        latest = saver.get_tuple(thread(name))
        assert (latest is None) == (not listed)
        try:
            assert app.kernel.verify(workflow_id=name, owner_id="langgraph").problems == []
        except KeyError:
            pass
    return found


class Workers:
    """The process that forks others."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] = programs.Program(
            [sys.executable, "-m", "tests.crash.langgraph_worker"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, store: Store, verb: str, *arguments: str, point: str | None = None) -> int:
        """Begin a verb; the number of its process."""
        return int(self._ask([store.url, store.objects, point, verb, *arguments]))

    def wait(self, *children: int) -> list[int]:
        """Their exit codes, once all have ended."""
        codes: dict[int, int] = {}
        while not codes.keys() >= set(children):
            child, code = self._ask("wait").split()
            codes[int(child)] = int(code)
        return [codes[child] for child in children]

    def run(self, store: Store, verb: str, *, point: str | None = None) -> int:
        return self.wait(self.start(store, verb, point=point))[0]

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _ask(self, line: Any) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(line), file=self._process.stdin, flush=True)
        return self._process.stdout.readline()


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    workers = Workers()
    yield workers
    workers.close()


@pytest.mark.parametrize(("verb", "point"), kills(CASES, test=CHOSEN, postgres=AROUND_COMMITS))
def test_a_kill_leaves_what_was_or_what_is_to_be(verb: str, point: str, store: Store, workers: Workers) -> None:
    with store.open() as app:
        prepare(app)
        if verb == "tagged runs":
            app.kernel.tag(tagged_version(app), "mark", owner_id="langgraph")
        before = facts(app)
    if store.url.startswith("postgresql") and point in INSIDE:
        pytest.skip("PostgreSQL writes a version in one statement, so there is no stopping inside it")
    assert workers.run(store, verb, point=point) == -signal.SIGKILL
    with store.open() as app:
        between = facts(app)
        if verb in ("copy", "delete"):
            assert (between == before) == (not point.endswith("after_commit"))
        if verb == "step" and point != "thread.before_writes":
            pending = {(task, channel) for task, channel, _ in between["t"]["3"][2]}
            assert ("task", "items") in pending
            assert ("9" in between["t"]) == (point == "commit.after_commit")
        # A pass of the collector finds nothing wrong, and takes nothing that is needed.
        for _ in range(2):
            app.gc.run(grace_s=0, force=True)
        assert facts(app) == between
    if verb == "copy" and between != before:
        return
    assert workers.run(store, verb) == 0
    with store.open() as app:
        after = facts(app)
        assert after != before
        if verb == "prune":
            assert list(after["t"]) == ["3"]
        if verb == "runs":
            assert list(after["t"]) == ["1", "0"]
        if verb in ("all runs", "tagged runs"):
            assert after["t"] == {}
        if verb == "tagged runs":
            assert [tag.version for tag in app.kernel.tags(workflow_id="t", owner_id="langgraph")] == [3]
            assert app.kernel.load_state(tagged_version(app), owner_id="langgraph")["format"] == 1
        if verb == "step":
            assert after["t"]["9"][:2] == (4, len(ITEMS) + 1)
        assert {name: after["t"][name] for name in after["t"] if name in ("0", "1", "2")} == {
            name: before["t"][name] for name in after["t"] if name in ("0", "1", "2")
        }


def test_what_was_acknowledged_before_a_kill_is_there(store: Store, workers: Workers, tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.touch()
    child = workers.start(store, "append", "t", "500", str(told))
    while len(told.read_text().split()) < 12:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert workers.wait(child) == [-signal.SIGKILL]
    acknowledged = len(told.read_text().split())
    with store.open() as app:
        saver = AnalemmaSaver(app)
        numbers = [each.checkpoint["channel_values"]["number"] for each in saver.list(thread())]
        assert numbers == list(range(len(numbers)))[::-1]
        assert acknowledged <= len(numbers) <= acknowledged + 1
        assert app.kernel.verify(workflow_id="t", owner_id="langgraph").problems == []


def test_several_processes_on_one_thread_and_on_their_own(store: Store, workers: Workers, tmp_path: Path) -> None:
    with store.open():
        pass
    names = ["shared", "shared", "own"]
    told = str(tmp_path / "told")
    children = [workers.start(store, "append", name, "15", told) for name in names]
    assert workers.wait(*children) == [0, 0, 0]
    with store.open() as app:
        saver = AnalemmaSaver(app)
        for name in set(names):
            found = list(saver.list(thread(name)))
            assert len(found) == 15 * names.count(name)
            for each in found:
                state = each.checkpoint["channel_values"]
                assert state["items"] == [f"{n} " * 50 for n in range(state["number"] + 1)]
            assert app.kernel.verify(workflow_id=name, owner_id="langgraph").problems == []
