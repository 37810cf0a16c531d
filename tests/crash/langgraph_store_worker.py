"""Batches and sweeps of a LangGraph store in a process that may be killed, by a failpoint or by whoever started it:
`python -m tests.crash.langgraph_store_worker URL OBJECTS MODE NAME`."""

from __future__ import annotations

import sys

from langgraph.store.base import PutOp

from analemma.langgraph import AnalemmaStore
from tests.stores import Store

BATCH = [PutOp(("shared", name), name, {"turn": "new"}) for name in "abc"] + [PutOp(("gone",), "k", None)]
EXPIRING = [PutOp(("expiring", str(number)), str(number), {"n": number}, ttl=0) for number in range(150)]


def main() -> None:
    url, objects, mode, name = sys.argv[1:]
    with Store(url, objects or None).open() as app:
        memory = AnalemmaStore(app)
        if mode == "batch":
            memory.batch(BATCH)
            print("acknowledged", flush=True)
        elif mode == "sweep":
            memory.sweep_ttl()
            print("acknowledged", flush=True)
        else:
            # Two namespaces that belong together, until somebody ends this.
            turn = 0
            while True:
                memory.batch([PutOp((side, name), "turn", {"turn": turn}) for side in ("right", "left")])
                print(turn, flush=True)
                turn += 1


if __name__ == "__main__":
    main()
