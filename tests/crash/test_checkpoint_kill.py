"""kill -9 while deltas are pending: what was acknowledged becomes a version, once and in order, whoever applies it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.crash.checkpoint_worker import NAME, WORKFLOWS, field_of
from tests.crash.points import kills
from tests.depth import count
from tests.stores import Store

ROOT = Path(__file__).parents[2]
PROCESSES = count(2, deep=4)
PRODUCERS = count(8, deep=32)


def worker(store: Store, *arguments: object) -> list[str]:
    module = [sys.executable, "-m", "tests.crash.checkpoint_worker"]
    return [*module, store.url, store.objects or "", *map(str, arguments)]


ENTERING: list[tuple[str, int | None, int | None]] = [("ledger.before_insert:2", 1, 1), ("ledger.after_insert:2", 1, 2)]
APPLYING: list[tuple[str, int | None, int | None]] = [
    ("apply.before_transaction", None, None),
    ("apply.before_commit", None, None),
    ("apply.after_commit", None, None),
]
INSIDE: list[tuple[str, int | None, int | None]] = [
    ("commit.after_head", None, None),
    ("commit.before_commit", None, None),
]


@pytest.mark.parametrize(
    ("point", "acknowledged", "durable"),
    kills([*ENTERING, *APPLYING, *INSIDE], test=[*ENTERING, *APPLYING], postgres=[*ENTERING[1:], *APPLYING[2:]]),
)
def test_a_kill_loses_nothing_that_was_acknowledged(
    point: str, acknowledged: int | None, durable: int | None, store: Store
) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"first": True}, **NAME)
    done = programs.run(
        worker(store, "few"),
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    # PostgreSQL writes all versions of a transaction in one statement, so there is no stopping between them.
    reached = not (store.url.startswith("postgresql") and point.startswith("commit."))
    assert done.returncode == (-signal.SIGKILL if reached else 0), done.stderr
    tokens = [line for line in done.stdout.split() if line != "committed"]
    if acknowledged is not None:
        assert len(tokens) == acknowledged
    with store.open() as app:
        versions = len(app.kernel.history(**NAME))
        pending = app.checkpoints.pending
        total = versions - 1 + pending
        # At most one was durable and not yet acknowledged.
        assert len(tokens) <= total <= len(tokens) + 1
        if durable is not None:
            assert total == durable
        if reached and point in ("apply.before_transaction", "apply.before_commit", "commit.after_head"):
            assert versions == 1
        if point == "apply.after_commit":
            assert versions > 1
        assert app.checkpoints.drain() == pending
        for number, token in enumerate(tokens):
            state = app.kernel.load_state_with_consistency(token)
            assert state == {"first": True} | {f"async {earlier}": earlier for earlier in range(number + 1)}
            assert app.kernel.ticket(token).version == number + 2
        assert len(app.kernel.history(**NAME)) == total + 1
        assert app.kernel.verify(**NAME).problems == []


def test_the_next_save_applies_what_a_dead_process_left(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"first": True}, **NAME)
    programs.run(
        worker(store, "few"),
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: "apply.before_commit"},
        capture_output=True,
        timeout=60,
    )
    with store.open() as app:
        pending = app.checkpoints.pending
        assert pending > 0
        assert app.kernel.save_state_delta({"last": True}, **NAME).version == pending + 2
        assert list(app.kernel.load_latest_state(**NAME)) == ["last", "first", *[f"async {n}" for n in range(pending)]]


def run_producers(store: Store, log: Path, *, numbers: int, deaths: int, seed: int) -> None:
    """Keep the processes running until each has done its part, killing one now and then."""
    choice = random.Random(seed)
    each = PRODUCERS // PROCESSES
    running: dict[int, subprocess.Popen[bytes]] = {}

    def start(number: int) -> None:
        command = worker(store, "produce", log, number * each, each, numbers)
        running[number] = programs.Program(command, cwd=ROOT, stderr=subprocess.PIPE)

    for number in range(PROCESSES):
        start(number)
    deadline = time.monotonic() + 60 + numbers * 15
    while running:
        assert time.monotonic() < deadline
        if deaths > 0:
            time.sleep(choice.uniform(0.3, 1.2))
            number = choice.choice(sorted(running))
            running[number].kill()
            deaths -= 1
        else:
            time.sleep(0.05)
        for number, process in list(running.items()):
            code = process.poll()
            if code is None:
                continue
            assert process.stderr is not None
            message = process.stderr.read()
            process.stderr.close()
            del running[number]
            assert code in (0, -signal.SIGKILL), message.decode()
            if code != 0:
                start(number)


def check_producers(app: App, log: Path, *, numbers: int) -> None:
    kernel = app.kernel
    acknowledged: dict[int, list[tuple[int, str, str]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        who, place, attempt, token = line.split()
        acknowledged[int(who)].append((int(place), attempt, token))
    assert {producer: [number for number, _, _ in done] for producer, done in acknowledged.items()} == {
        producer: list(range(numbers)) for producer in range(PRODUCERS)
    }
    changes: dict[int, list[tuple[int, str]]] = defaultdict(list)
    states: dict[str, dict[str, Any]] = {}
    for number in range(WORKFLOWS):
        name: dict[str, Any] = {"workflow_id": f"workflow {number}", "owner_id": "ann"}
        history = kernel.history(limit=100_000, **name)
        assert [row.version for row in history] == list(range(len(history), 0, -1))
        before: dict[str, Any] = {}
        for row in reversed(history):
            state = states[row.manifest_id] = kernel.load_state(row.manifest_id)
            # One delta per version: exactly one producer's field differs from the version before.
            ((field, value),) = [(field, value) for field, value in state.items() if before.get(field) != value]
            assert before | {field: value} == state
            changes[int(field.split()[1])].append((value[0], value[1]))
            before = state
        assert kernel.verify(**name).problems == []
    for producer in range(PRODUCERS):
        attempts = [attempt for _, attempt in changes[producer]]
        assert len(attempts) == len(set(attempts)), "applied twice"
        applied = [number for number, _ in changes[producer]]
        assert applied == sorted(applied), "out of order"
        for number, attempt, token in acknowledged[producer]:
            assert (number, attempt) in changes[producer]
            manifest = token
            if token.startswith("ticket"):
                ticket = kernel.ticket(token)
                assert ticket.status == "committed" and ticket.manifest_id is not None
                manifest = ticket.manifest_id
            assert states[manifest][field_of(producer)] == [number, attempt]


def produce_and_check(store: Store, tmp_path: Path, *, numbers: int, deaths: int, seed: int) -> None:
    log = tmp_path / "acknowledged"
    log.touch()
    store.open().close()
    run_producers(store, log, numbers=numbers, deaths=deaths, seed=seed)
    with store.open() as app:
        app.checkpoints.drain()
        assert app.checkpoints.pending == 0
        check_producers(app, log, numbers=numbers)


def test_producers_that_are_killed_and_started_again(store: Store, tmp_path: Path) -> None:
    produce_and_check(store, tmp_path, numbers=count(8, deep=20), deaths=count(2, deep=5), seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_producers_that_are_killed_and_started_again_for_long(store: Store, tmp_path: Path, seed: int) -> None:
    produce_and_check(store, tmp_path, numbers=200, deaths=40, seed=seed)
