"""Saves that need an object each, for ever: `python -m tests.crash.object_worker DIRECTORY`. The number of each is
printed when it is acknowledged."""

from __future__ import annotations

import itertools
import random
import sys

from tests.stores import Store

SIZE = 200_000


def content(number: int) -> bytes:
    """What no compression makes small, and no other save has."""
    return random.Random(number).randbytes(SIZE)


def main() -> None:
    with Store(sys.argv[1]).open(pack_threshold_bytes=1000) as app:
        first = len(app.kernel.list_workflows(owner_id="ann").items)
        for number in itertools.count(first):
            app.kernel.save_state_delta({"content": content(number)}, workflow_id=f"w-{number:06}", owner_id="ann")
            print(number, flush=True)


if __name__ == "__main__":
    main()
