"""One who delivers, in a process of its own: `python -m tests.crash.ship_worker URL OBJECTS BASE [forever]`."""

from __future__ import annotations

import sys

from tests.stores import Store


def main() -> None:
    url, objects, base, *more = sys.argv[1:]
    with Store(url, objects or None).open(ship_base=base, outbox_lease_s=1.5, ship_rest_s=0.05) as app:
        worker = app.worker(2)
        if more:
            print("working", flush=True)
            worker.run()
        else:
            worker.drain()
            print("drained", flush=True)


if __name__ == "__main__":
    main()
