"""Deletes, brings back or removes a workflow, in a process that a failpoint may kill: `python -m
tests.crash.removal_worker URL OBJECTS VERB`."""

from __future__ import annotations

import sys

from tests.stores import Store


def main() -> None:
    url, objects, verb = sys.argv[1:]
    with Store(url, objects or None).open(delete_grace_s=0) as app:
        trip = app.workflow("trip", owner="ann")
        if verb == "collect":
            app.gc.run(grace_s=0, force=True)
        elif verb == "delete":
            trip.delete()
        else:
            trip.undelete()
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
