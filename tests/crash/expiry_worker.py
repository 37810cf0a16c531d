"""Expires versions of a store, in a process that a failpoint may kill: `python -m tests.crash.expiry_worker URL
OBJECTS`."""

from __future__ import annotations

import sys

from tests.stores import Store


def main() -> None:
    url, objects = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        app.kernel.expire(workflow_id="trip", owner_id="ann")
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
