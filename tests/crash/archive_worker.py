"""One verb on a workspace in a process that a failpoint may kill:
`python -m tests.crash.archive_worker URL OBJECTS VERB VOLUME [FORMAT]`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from analemma import Archives
from tests.stores import Store

LEASE_S = 0.2

VERBS: dict[str, Callable[[Archives, str], object]] = {
    "create": lambda archives, volume: archives.create("ws1", owner_id="ann", volume=volume),
    "archive": lambda archives, volume: archives.archive("ws1"),
    "restore": lambda archives, volume: archives.restore("ws1"),
    "delete": lambda archives, volume: archives.delete("ws1"),
    "discard": lambda archives, volume: archives.delete("ws1", discard=True),
    "purge": lambda archives, volume: archives.purge("ws1"),
    "start": lambda archives, volume: archives.start("ws1"),
    "stop": lambda archives, volume: archives.stop("ws1"),
    "collect": lambda archives, volume: archives.gc_run(0),
    "recover": lambda archives, volume: archives.recover("ws1"),
}


def main() -> None:
    url, objects, verb, volume, *rest = sys.argv[1:]
    settings = {"archive_format": rest[0]} if rest else {}
    with Store(url, objects or None).open(archive_lease_s=LEASE_S, **settings) as app:
        print("ready", flush=True)
        VERBS[verb](app.archives, volume)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
