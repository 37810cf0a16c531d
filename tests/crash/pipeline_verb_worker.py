"""One verb of the pipeline in a process that a failpoint may kill:
`python -m tests.crash.pipeline_verb_worker URL OBJECTS VERB`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from analemma import App
from tests.stores import Store

BOOK = {"isbn": "1", "title": "New", "price": 5, "authorId": "lem", "tags": ["new"]}
AUTHOR = {"name": "Stanislaw"}

VERBS: dict[str, Callable[[App], object]] = {
    "ingest": lambda app: app.tenant("shop").ingest("BOOK", "1", BOOK),
    "late": lambda app: app.tenant("shop").ingest("BOOK", "1", BOOK, version="0000000000001"),
    "delete": lambda app: app.tenant("shop").delete("BOOK", "1"),
    "compile": lambda app: app.tenant("shop").compile("BOOK", "2"),
    "work": lambda app: app.worker(1).drain(),
}


def main() -> None:
    url, objects, verb = sys.argv[1:]
    with Store(url, objects or None).open(outbox_lease_s=1) as app:
        VERBS[verb](app)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
