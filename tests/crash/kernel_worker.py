"""Saves to a store from a process of its own: `python -m tests.crash.kernel_worker URL OBJECTS WORKFLOW NAME COUNT
MODE`."""

from __future__ import annotations

import sys

from analemma import Commit, Kernel
from analemma.errors import HeadMoved
from tests.stores import Store


def add_one(kernel: Kernel, workflow: str) -> Commit:
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


def main() -> None:
    url, objects, workflow, name, count, mode = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        kernel = app.kernel
        for number in range(int(count)):
            if mode == "append":
                delta = {name: number, "/log/-": f"{name}:{number}"}
                commit = kernel.save_state_delta(delta, workflow_id=workflow, owner_id="ann")
            else:
                commit = add_one(kernel, workflow)
            print(commit.version, flush=True)


if __name__ == "__main__":
    main()
