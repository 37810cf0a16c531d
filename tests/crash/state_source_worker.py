"""Commits to a workflow that a source takes, or delivers what was told, in a process of its own:
`python -m tests.crash.state_source_worker URL OBJECTS VERB`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from analemma import App
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "run-1", "owner_id": "ann"}


def save(app: App) -> None:
    """One more version."""
    app.tenant("agents").kernel.save_state_delta({"goal": "new"}, **NAME)


def settle(app: App) -> None:
    """What is pending becomes versions."""
    app.tenant("agents").checkpoints.drain()


def work(app: App) -> None:
    """Deliver everything."""
    app.worker(1).drain()


VERBS: dict[str, Callable[[App], None]] = {"save": save, "settle": settle, "work": work}


if __name__ == "__main__":
    url, objects, verb = sys.argv[1:]
    with Store(url, objects or None).open(outbox_lease_s=1) as app:
        VERBS[verb](app)
    print("acknowledged", flush=True)
