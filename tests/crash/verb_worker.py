"""One verb in a process that a failpoint may kill: `python -m tests.crash.verb_worker URL OBJECTS VERB`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from analemma.bag.kernel import BagKernel as Kernel
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def fork(kernel: Kernel) -> None:
    first = kernel.history(**NAME)[-1]
    kernel.fork(first.manifest_id, owner_id="ann", workflow_id="copy")


def branch(kernel: Kernel) -> None:
    first = kernel.history(**NAME)[-1]
    kernel.fork(first.manifest_id, owner_id="ann", branch="other")


def newest(kernel: Kernel) -> str:
    return kernel.history(**NAME)[0].manifest_id


def session(kernel: Kernel) -> None:
    with kernel.session(**NAME) as state:
        state["moved"] = state.pop("list")
        state["moved"].append("new")
        state["n"] += 1


VERBS: dict[str, Callable[[Kernel], object]] = {
    "save": lambda kernel: kernel.save_state_delta({"n": 99}, **NAME, idempotency_key="once"),
    "session": session,
    "rollback": lambda kernel: kernel.rollback_to_version(version=1, **NAME),
    "fork": fork,
    "branch": branch,
    "merge": lambda kernel: kernel.merge(source="side", **NAME),
    "expire": lambda kernel: kernel.expire(**NAME),
    "tag": lambda kernel: kernel.tag(newest(kernel), "good", owner_id="ann"),
    "untag": lambda kernel: kernel.untag("old", **NAME),
    "pin": lambda kernel: kernel.pin(newest(kernel), owner_id="ann"),
    "decide": lambda kernel: kernel.decide(newest(kernel), "approved", actor="eve"),
}


def main() -> None:
    url, objects, verb = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        VERBS[verb](app.kernel)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
