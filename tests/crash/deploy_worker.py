"""Deploys in a process that a failpoint may kill, or among others that do the same:
`python -m tests.crash.deploy_worker URL OBJECTS BASE VERB [SEED TURNS]`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable

from analemma import App, Tenant
from analemma.errors import Conflict, NotFound
from tests.stores import Store

BOOK = {"isbn": "1", "title": "New", "price": 5, "authorId": "lem", "tags": ["new"]}
BAD = {**BOOK, "title": "Bad"}
ISBNS = ("1", "2")

VERBS: dict[str, Callable[[App], object]] = {
    "sync": lambda app: app.tenant("shop").deploy("BOOK", "1", BOOK, cutover="done"),
    "async": lambda app: app.tenant("shop").deploy("BOOK", "1", BOOK, cutover="done", compile="async"),
    "same": lambda app: app.tenant("shop").deploy("BOOK", "2", {**BOOK, "isbn": "2"}, cutover="done"),
    "bad": lambda app: app.tenant("shop").deploy("BOOK", "1", BAD),
    "work": lambda app: app.worker(1).drain(),
    "retry": lambda app: app.deploys.retry(app.deploys.list(state="FAILED").deploys[0].id),
    "housekeep": lambda app: app.deploys.housekeep(older_than_s=-1),
}


def change(shop: Tenant, chance: random.Random) -> None:
    """Something happens to one of very few books."""
    isbn = chance.choice(ISBNS)
    book = {"isbn": isbn, "title": chance.choice("abcd"), "price": chance.randrange(3), "tags": [chance.choice("xy")]}
    if chance.random() < 0.7:
        book["authorId"] = chance.choice("ab")
    what = chance.random()
    if what < 0.15:
        shop.ingest("BOOK", isbn, book)
    elif what < 0.2:
        shop.ingest("AUTHOR", chance.choice("ab"), {"name": chance.choice("LMN")})
    elif what < 0.25:
        try:
            shop.delete("BOOK", isbn)
        except NotFound:
            pass
    else:
        shop.deploy(
            "BOOK",
            isbn,
            book,
            compile=chance.choice(["sync", "async"]),
            cutover=chance.choice(["ready", "done"]),
            ship=chance.choice([None, None, [], ["sink.file"]]),
        )


def race(app: App, seed: int, turns: int) -> None:
    """Even ones change things, odd ones work."""
    shop, chance = app.tenant("shop"), random.Random(seed)
    for _ in range(turns):
        if seed % 2:
            app.worker(1).drain()
            time.sleep(chance.uniform(0, 0.02))
            continue
        try:
            change(shop, chance)
        except Conflict:
            pass
        time.sleep(chance.uniform(0, 0.01))


def main() -> None:
    url, objects, base, verb, *more = sys.argv[1:]
    with Store(url, objects or None).open(outbox_lease_s=1, ship_base=base, ship_rest_s=0.05) as app:
        if verb == "race":
            race(app, *map(int, more))
        else:
            VERBS[verb](app)
        print("acknowledged", flush=True)


if __name__ == "__main__":
    main()
