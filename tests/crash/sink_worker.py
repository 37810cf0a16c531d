"""Ships numbered batches to a sink for ever, and prints each number when its batch is acknowledged."""

from __future__ import annotations

import json
import sys

from analemma import open_sink
from analemma.testing.sinks import make_document

BATCH = 7


def main(target: str, first: int) -> None:
    sink = open_sink(json.loads(target), environment={})
    for number in range(first, sys.maxsize):
        batch = [make_document(f"{number}-{place}", 1, text="\u00e9" * (place * 400)) for place in range(BATCH)]
        answers = sink.ship_batch(batch)
        assert all(answer.is_done for answer in answers), answers
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
