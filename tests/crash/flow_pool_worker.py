"""A worker that goes on with runs until it is killed, or with `drain` until none is due:
`python -m tests.crash.flow_pool_worker URL OBJECTS LOG run|drain`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.flow_program import make_flow, to_file
from tests.stores import Store

LEASE_S = 0.5


def main() -> None:
    url, objects, log, how = sys.argv[1:]
    with Store(url, objects or None).open(run_lease_s=LEASE_S, run_poll_s=0.05) as app:
        app.handlers.add_all(make_flow(to_file(Path(log))))
        worker = app.run_worker(2)
        print("ready", flush=True)
        if how == "drain":
            worker.drain()
        else:
            worker.run()


if __name__ == "__main__":
    main()
