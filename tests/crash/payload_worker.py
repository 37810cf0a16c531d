"""One dehydrate in a process that a failpoint may kill: `python -m tests.crash.payload_worker URL OBJECTS SIZE`; with
`release` for a size, one release."""

from __future__ import annotations

import random
import sys
from typing import Any

from tests.stores import Store

NAMES: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann", "execution_id": "run-1"}


def state(size: str) -> dict[str, Any]:
    """Fields that leave: below what needs an object, or above it."""
    made = random.Random(7)
    count = 20_000 if size == "small" else 400_000
    return {"n": 1, "bytes": made.randbytes(count), "more": {"text": made.randbytes(count).hex()}}


def main() -> None:
    url, objects, size = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        if size == "release":
            app.payloads.release(**NAMES)
        else:
            app.payloads.dehydrate(state(size), **NAMES)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
