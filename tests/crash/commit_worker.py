"""Makes one version of a store, in a process that a failpoint may kill: `python -m tests.crash.commit_worker URL
OBJECTS SIZE`."""

from __future__ import annotations

import random
import sys
from typing import Any

from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "report", "owner_id": "ann"}


def large_value(seed: int) -> dict[str, Any]:
    """State that needs an object: about half a megabyte that does not compress."""
    pick = random.Random(seed)
    return {f"part {number}": pick.randbytes(20_000) for number in range(25)}


def main() -> None:
    url, objects, size = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        value = large_value(2) if size == "large" else {"small": True}
        app.kernel.save_state_delta({"changed": value}, **PLACE)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
