"""One verb in a process that a failpoint may kill: `python -m tests.crash.verb_worker URL OBJECTS VERB`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from analemma import App
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def fork(app: App) -> None:
    first = app.kernel.history(**NAME)[-1]
    app.kernel.fork(first.manifest_id, owner_id="ann", workflow_id="copy")


def branch(app: App) -> None:
    first = app.kernel.history(**NAME)[-1]
    app.kernel.fork(first.manifest_id, owner_id="ann", branch="other")


def newest(app: App) -> str:
    return app.kernel.history(**NAME)[0].manifest_id


def session(app: App) -> None:
    with app.kernel.session(**NAME) as state:
        state["moved"] = state.pop("list")
        state["moved"].append("new")
        state["n"] += 1


VERBS: dict[str, Callable[[App], object]] = {
    "save": lambda app: app.kernel.save_state_delta({"n": 99}, **NAME, idempotency_key="once"),
    "session": session,
    "rollback": lambda app: app.kernel.rollback_to_version(version=1, **NAME),
    "fork": fork,
    "branch": branch,
    "merge": lambda app: app.kernel.merge(source="side", **NAME),
    "tag": lambda app: app.kernel.tag(newest(app), "good", owner_id="ann"),
    "untag": lambda app: app.kernel.untag("old", **NAME),
    "pin": lambda app: app.kernel.pin(newest(app), owner_id="ann"),
    "decide": lambda app: app.kernel.decide(newest(app), "approved", actor="eve"),
}


def main() -> None:
    url, objects, verb = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        VERBS[verb](app)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
