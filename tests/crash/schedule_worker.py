"""Subflows, queues and schedules in a process that a failpoint may kill:
`python -m tests.crash.schedule_worker WHAT URL OBJECTS LOG LEASE_S`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from analemma import App, Flow, Run
from tests.stores import Store

SHORT_S, LONG_S = 0.3, 30.0
"""Leases of those who die, and of those who do not."""
KEY = "order-1"
PLACE: dict[str, Any] = {"workflow_id": "order-1", "owner_id": "me"}


def say(log: Path, text: str) -> None:
    """One line, whoever else writes."""
    with open(log, "a", encoding="ascii") as file:
        file.write(f"{text}\n")


def order(log: Path) -> Flow:
    """A workflow whose subflow fails the first time, and is tried again."""
    child = Flow("shipping", checkpoints="node")

    @child.step(reads=["n"], writes=["n"])
    def pack(state: Any, ctx: Any) -> None:
        state["n"] += 1
        ctx.emit({"type": "Packed"})

    @child.step(reads=["n"], writes=["n"])
    def send(state: Any, ctx: Any) -> None:
        if "failed" not in log.read_text().split():
            say(log, "failed")
            raise RuntimeError("no stamps")
        state["n"] += 10
        ctx.emit({"type": "Sent"})

    parent = Flow("order", checkpoints="node")

    @parent.step(reads=["n"], writes=["n"])
    def check(state: Any, ctx: Any) -> None:
        state["n"] += 100

    parent.subflow("ship", child, inputs={"n": "n"}, outputs={"n": "n"}, retries={"times": 3, "delay_s": 0.01})

    @parent.step(reads=["n"], writes=["n"])
    def close(state: Any, ctx: Any) -> None:
        state["n"] += 1000
        ctx.emit({"type": "Closed"})

    return parent


def slow(log: Path) -> Flow:
    """Says when it begins and when it ends."""
    flow = Flow("slow")

    @flow.step
    def work(state: Any, ctx: Any) -> None:
        say(log, f"{time.time_ns()} 1 {os.getpid()}")
        time.sleep(0.05)
        say(log, f"{time.time_ns()} -1 {os.getpid()}")

    return flow


def finish(app: App, flow: Flow, most_s: float = 20.0, threads: int = 3) -> list[Run]:
    """Work until nothing is left, also of workers that died."""
    app.handlers.add_all(flow)
    until = time.monotonic() + most_s
    while True:
        app.run_worker(threads).drain()
        runs = app.flows.runs()
        if all(run.status in ("COMPLETED", "FAILED", "CANCELLED") for run in runs) or time.monotonic() > until:
            return runs
        time.sleep(0.02)


def order_by_workers(app: App, log: Path) -> None:
    """Begin the order, once, and leave it to workers."""
    app.flows.start(order(log), {"n": 0}, idempotency_key=KEY, **PLACE)
    # One at a time: a child that has said that it fails is not killed, beside its parent, before that is recorded.
    finish(app, order(log), threads=1)


def order_here(app: App, log: Path) -> None:
    """Begin the order, once, and run it in this process."""
    run = app.flows.run(order(log), {"n": 0}, idempotency_key=KEY, **PLACE)
    if run.status != "COMPLETED":
        app.flows.resume(run.execution_id)


def tend(app: App, log: Path) -> None:
    """Begin the runs of a schedule of which three ticks are due."""
    app.flows.schedules.tend()


def queue(app: App, log: Path) -> None:
    """Do what is in the queue."""
    finish(app, slow(log))


DOES = {"workers": order_by_workers, "here": order_here, "schedule": tend, "queue": queue}


def main() -> None:
    what, url, objects, log, lease_s = sys.argv[1:]
    with Store(url, objects or None).open(run_lease_s=float(lease_s)) as app:
        DOES[what](app, Path(log))


if __name__ == "__main__":
    main()
