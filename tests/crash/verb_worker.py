"""One verb in a process that a failpoint may kill: `python -m tests.crash.verb_worker URL OBJECTS VERB`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from analemma.state.kernel import Kernel
from tests.stores import Store

NAME: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def fork(kernel: Kernel) -> None:
    first = kernel.history(**NAME)[-1]
    kernel.fork(first.manifest_id, owner_id="ann", workflow_id="copy")


def branch(kernel: Kernel) -> None:
    first = kernel.history(**NAME)[-1]
    kernel.fork(first.manifest_id, owner_id="ann", branch="other")


VERBS: dict[str, Callable[[Kernel], object]] = {
    "save": lambda kernel: kernel.save_state_delta({"n": 99}, **NAME, idempotency_key="once"),
    "rollback": lambda kernel: kernel.rollback_to_version(version=1, **NAME),
    "fork": fork,
    "branch": branch,
    "merge": lambda kernel: kernel.merge(source="side", **NAME),
    "expire": lambda kernel: kernel.expire(**NAME),
}


def main() -> None:
    url, objects, verb = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        VERBS[verb](app.kernel)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
