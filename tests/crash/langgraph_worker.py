"""Verbs of the saver in processes that a failpoint may kill: `python -m tests.crash.langgraph_worker`.

Importing LangGraph takes longer than most verbs. So this process imports it once and forks for each line that it is
given, which is a JSON list: the store's URL and objects, a failpoint or null, the verb and its arguments. It answers
with the number of the child, and with that number and the child's exit code when the child has ended."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from analemma.langgraph import AnalemmaSaver
from analemma.testing import failpoints
from tests.langgraph.graphs import put, thread
from tests.stores import Store

ITEMS = [f"item {n} " * 20 for n in range(100)]


def newest(saver: AnalemmaSaver, name: str = "t") -> str:
    return str(next(saver.history(thread(name))).config["configurable"]["checkpoint_id"])


def write_and_put(saver: AnalemmaSaver) -> None:
    """A step of a graph: what its task wrote, then the checkpoint that comes of it."""
    before = thread(checkpoint=newest(saver))
    saver.put_writes(before, [("items", "fresh"), ("count", 4)], "task")
    put(saver, {"items": [*ITEMS, "fresh"], "count": 4}, before, id="9", run_id="r2")


VERBS: dict[str, Callable[[AnalemmaSaver], object]] = {
    "step": write_and_put,
    "copy": lambda saver: saver.copy_thread("t", "copy"),
    "delete": lambda saver: saver.delete_thread("t"),
    "prune": lambda saver: saver.prune(["t"]),
    "runs": lambda saver: saver.delete_for_runs(["r1"]),
    "all runs": lambda saver: saver.delete_for_runs(["r0", "r1"]),
    "tagged runs": lambda saver: saver.delete_for_runs(["r0", "r1"]),
}


def append(saver: AnalemmaSaver, name: str, count: int, told: Path) -> None:
    """Checkpoints of one thread, each told of only once it is stored."""
    config = thread(name)
    items: list[str] = []
    with told.open("a") as file:
        for number in range(count):
            items = [*items, f"{number} " * 50]
            config = put(saver, {"items": items, "number": number}, config, step=number)
            print(number, file=file, flush=True)


def work(url: str, objects: str | None, point: str | None, verb: str, *rest: str) -> None:
    if point is not None:
        failpoints.arm(point)
    with Store(url, objects).open() as app:
        saver = AnalemmaSaver(app)
        if verb == "append":
            append(saver, rest[0], int(rest[1]), Path(rest[2]))
        else:
            VERBS[verb](saver)


def main() -> None:
    children: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked == "wait":
            child, status = os.wait()
            children.discard(child)
            print(child, os.waitstatus_to_exitcode(status), flush=True)
            continue
        child = os.fork()
        if child == 0:
            try:
                work(*asked)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.add(child)
        print(child, flush=True)


if __name__ == "__main__":
    main()
