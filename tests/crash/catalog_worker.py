"""What the child processes of the catalog's crash and contention tests run: one scenario, named on the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace

from analemma import BranchKey
from analemma.catalog.opening import open_catalog
from analemma.errors import HeadMoved
from analemma.testing.commits import make_block, make_event, make_request, make_upload


def hammer(url: str, name: str, seconds: str) -> None:
    """Commit on a branch of our own until the time is over; print how often."""
    catalog = open_catalog(url)
    tenant = catalog.tenant("default")
    key = BranchKey("ann", name)
    head = None
    sys.stdin.readline()
    count = 0
    deadline = time.monotonic() + float(seconds)
    while time.monotonic() < deadline:
        request = make_request(tenant, head, [make_block()], key=key)
        catalog.commit(request)
        head = request.head
        count += 1
    catalog.close()
    print(count, flush=True)


def share(url: str, name: str, rounds: str) -> None:
    """Commit the same blocks as everyone else, every other time in the opposite order, and move a shared head too."""
    catalog = open_catalog(url, max_connections=2) if url.startswith("postgresql") else open_catalog(url)
    tenant = catalog.tenant("default")
    shared = [make_block(number.to_bytes(2, "big")) for number in range(50)]
    own, common = BranchKey("ann", name), BranchKey("ann", "common")
    head = None
    wins = 0
    sys.stdin.readline()
    for turn in range(int(rounds)):
        blocks = shared if turn % 2 else shared[::-1]
        lanes = ("x", "y") if turn % 2 else ("y", "x")
        events = tuple(make_event(f"{name}/{turn}/{lane}", lane) for lane in lanes)
        request = make_request(tenant, head, blocks, key=own, events=events)
        catalog.commit(request)
        head = request.head
        try:
            catalog.commit(make_request(tenant, catalog.head(tenant, common), blocks, key=common))
            wins += 1
        except HeadMoved:
            pass
    catalog.close()
    print(wins, flush=True)


def crash(url: str) -> None:
    """One commit on top of the first, printing what is about to happen; a failpoint in the environment kills us."""
    catalog = open_catalog(url)
    tenant = catalog.tenant("default")
    upload = replace(make_upload(), owner="ann")
    print(upload.id.hex(), flush=True)
    catalog.open_upload(tenant, upload)
    request = make_request(
        tenant,
        catalog.head(tenant, BranchKey("ann", "report")),
        [make_block(b"x" * 5000) for _ in range(3)],
        uploads=(upload.id,),
        events=(make_event("second"),),
    )
    print(request.manifest.id.hex(), flush=True)
    catalog.commit(request)
    print("committed", flush=True)
    catalog.close()


if __name__ == "__main__":
    scenarios: dict[str, Callable[..., None]] = {"hammer": hammer, "share": share, "crash": crash}
    scenarios[sys.argv[1]](*sys.argv[2:])
