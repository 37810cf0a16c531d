"""One who ingests, compiles and delivers, in a process of its own:
`python -m tests.crash.pipeline_worker URL OBJECTS NUMBER TURNS BEGIN`; with a time to begin at, it is a race."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from analemma import App, Tenant
from analemma.testing import failpoints
from tests.stores import Store

AUTHORS = ("a", "b", "c")
TURN_S = 0.25
BOOKS = tuple(str(number) for number in range(8))


def author(chance: random.Random) -> dict[str, Any]:
    return {"name": chance.choice(["Lem", "Le Guin", "Butler", "Chiang"]), "country": chance.choice(["PL", "US"])}


def book(chance: random.Random, isbn: str) -> dict[str, Any]:
    made: dict[str, Any] = {"isbn": isbn, "title": f"Book {isbn}", "price": chance.randrange(4)}
    if chance.random() < 0.9:
        made["authorId"] = chance.choice(AUTHORS)
    made["tags"] = chance.sample(["sf", "SF", "old"], chance.randrange(3))
    return made


def change(shop: Tenant, chance: random.Random) -> None:
    """Something happens to one entity, and perhaps is compiled at once."""
    kind, name = ("AUTHOR", chance.choice(AUTHORS)) if chance.random() < 0.4 else ("BOOK", chance.choice(BOOKS))
    try:
        if chance.random() < 0.1:
            shop.delete(kind, name)
        else:
            shop.ingest(kind, name, author(chance) if kind == "AUTHOR" else book(chance, name))
        if chance.random() < 0.6:
            shop.compile(kind, name)
    except KeyError:
        pass  # There was nothing to delete.


def widen_the_gap(chance: random.Random, longest_s: float) -> None:
    """Let others come between what a compile reads and what it writes, most times."""

    def wait() -> None:
        failpoints.arm("compile.before_transaction", wait)
        if chance.random() < 0.7:
            time.sleep(chance.uniform(0, longest_s))

    failpoints.arm("compile.before_transaction", wait)


def race(app: App, chance: random.Random, number: int, turns: int, begin: float) -> None:
    """In each turn the even ones change an author who is nobody's yet, and the odd ones write the first book of that
    author, all at about the same time. Nothing happens to either later that could hide who came too late."""
    shop = app.tenant("shop")
    for turn in range(turns):
        name, isbn = f"{turn}-{number // 2}", f"{turn}-{number}"
        if number % 2 == 0:
            shop.ingest("AUTHOR", name, {"name": "Before"})
            shop.compile("AUTHOR", name)
            app.worker(2).drain()
        time.sleep(max(0.0, begin + (turn + 1) * TURN_S + chance.uniform(0, 0.02) - time.time()))
        if number % 2 == 0:
            shop.ingest("AUTHOR", name, {"name": "After"})
            shop.compile("AUTHOR", name)
        else:
            # Compiled by whoever delivers it, and once: compiled again it would be seen to be stale.
            shop.ingest("BOOK", isbn, {"isbn": isbn, "title": isbn, "price": 1, "authorId": name})
        app.worker(2).drain()


def main() -> None:
    url, objects, number, turns, begin = sys.argv[1:]
    chance = random.Random(int(number))
    with Store(url, objects or None).open() as app:
        shop = app.tenant("shop")
        if not begin or int(number) % 2:
            widen_the_gap(chance, 0.2 if begin else 0.04)
        if begin:
            race(app, chance, int(number), int(turns), float(begin))
        for turn in range(0 if begin else int(turns)):
            change(shop, chance)
            if turn % 5 == 4:
                app.worker(2).drain()
        print("done", flush=True)


if __name__ == "__main__":
    main()
