"""One who runs a backfill, in a process of its own:
`python -m tests.crash.backfill_worker URL OBJECTS VERB BACKFILL EXECUTOR LEASE_S`."""

from __future__ import annotations

import sys

from analemma.errors import Conflict
from tests.stores import Store


def main() -> None:
    url, objects, verb, backfill, executor, lease_s = sys.argv[1:]
    with Store(url, objects or None).open(backfill_lease_s=float(lease_s)) as app:
        if verb == "create":
            made = app.backfills.create({"tenant": "shop"}, page=20)
            print(f"created {made.id}", flush=True)
            return
        if verb == "verify":
            report = app.backfills.verify({"tenant": "shop"}, executor=executor)
            print(f"verified {report.entities} {report.ok}", flush=True)
            return
        print("begins", flush=True)
        try:
            done = app.backfills.resume(backfill, executor=executor, wait_s=60 if verb == "follow" else 0)
        except Conflict as exc:
            print(f"refused: {exc.message}", flush=True)
            return
        print(f"{done.state} {done.counts.done}", flush=True)


if __name__ == "__main__":
    main()
