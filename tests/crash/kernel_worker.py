"""Saves to a store from a process of its own: `python -m tests.crash.kernel_worker URL OBJECTS WORKFLOW NAME COUNT
MODE`. It says that it is ready, waits for a line, and then prints the version of each save that was acknowledged."""

from __future__ import annotations

import sys
import time

from analemma import Commit, Kernel
from analemma.errors import HeadMoved
from tests.stores import Store

PARTS = 50


def append(kernel: Kernel, workflow: str, name: str, number: int) -> Commit:
    return kernel.save_state_delta({name: number, "/log/-": f"{name}:{number}"}, workflow_id=workflow, owner_id="ann")


def add_one(kernel: Kernel, workflow: str, name: str, number: int) -> Commit:
    """Read, add one, and save on what was read; again if someone was faster."""
    while True:
        version = kernel.history(workflow_id=workflow, owner_id="ann", limit=1)[0]
        total = kernel.load_fields(version.manifest_id, ["n"])["n"]
        try:
            return kernel.save_state_delta(
                {"n": total + 1}, workflow_id=workflow, owner_id="ann", previous_manifest_id=version.manifest_id
            )
        except HeadMoved:
            continue


def share(kernel: Kernel, workflow: str, name: str, number: int) -> Commit:
    """The same new blocks as everyone else, every other in the opposite order."""
    parts = range(PARTS) if int(name) % 2 else reversed(range(PARTS))
    delta = {f"part {part}": f"{number} {part} " * 300 for part in parts}
    return kernel.save_state_delta(delta, workflow_id=workflow, owner_id="ann")


MODES = {"append": append, "count": add_one, "share": share}


def main() -> None:
    url, objects, workflow, name, count, mode = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        print("ready", flush=True)
        sys.stdin.readline()
        if mode == "hammer":
            end = time.monotonic() + float(count)
            number = 0
            while time.monotonic() < end:
                number = append(app.kernel, workflow, name, number).version
            print(number, flush=True)
            return
        for number in range(int(count)):
            print(MODES[mode](app.kernel, workflow, name, number).version, flush=True)


if __name__ == "__main__":
    main()
