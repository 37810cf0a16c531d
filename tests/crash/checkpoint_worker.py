"""Processes that checkpoint without waiting, until something kills them.

`python -m tests.crash.checkpoint_worker URL OBJECTS few` hands in three deltas and waits for the last. With
`produce LOG FIRST PRODUCERS NUMBERS` instead, it runs producers, one thread each, that go on where the log says they
were.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

from analemma import App
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}
WORKFLOWS = 8


def few(app: App) -> None:
    for number in range(3):
        ticket = app.kernel.checkpoint_async({f"async {number}": number}, **NAME)
        print(ticket, flush=True)
    app.kernel.wait_for(ticket)
    print("committed", flush=True)


def workflow_of(producer: int) -> str:
    """Producers of different processes share a workflow."""
    return f"workflow {producer % WORKFLOWS}"


def field_of(producer: int) -> str:
    return f"producer {producer:02}"


def produce(app: App, log: Path, producer: int, numbers: int) -> None:
    """Numbers in order, each acknowledged and logged before the next; a number whose acknowledgement was lost is handed
    in again. Every seventh is a save that waits."""
    done = -1
    for line in log.read_text().splitlines():
        who, last, _, _ = line.split()
        if int(who) == producer:
            done = int(last)
    for number in range(done + 1, numbers):
        attempt = uuid4().hex
        delta = {field_of(producer): [number, attempt]}
        name: dict[str, Any] = {"workflow_id": workflow_of(producer), "owner_id": "ann"}
        if number % 7 == 6:
            token = app.kernel.save_state_delta(delta, **name).manifest_id
        else:
            token = str(app.kernel.checkpoint_async(delta, wait_for_commit=number % 5 == 4, **name))
        with open(log, "ab", buffering=0) as file:
            file.write(f"{producer} {number} {attempt} {token}\n".encode())


def main() -> None:
    url, objects, mode, *more = sys.argv[1:]
    with Store(url, objects or None).open(checkpoint_close_s=60) as app:
        if mode == "few":
            few(app)
            return
        log, first, producers, numbers = Path(more[0]), int(more[1]), int(more[2]), int(more[3])
        threads = [
            threading.Thread(target=produce, args=(app, log, producer, numbers))
            for producer in range(first, first + producers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    os._exit(0)


if __name__ == "__main__":
    main()
