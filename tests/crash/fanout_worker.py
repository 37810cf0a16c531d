"""One who works on fanouts, or changes what they are about, in a process of its own:
`python -m tests.crash.fanout_worker URL OBJECTS ROLE PAGE COUNT SEED`."""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from analemma import Tenant
from analemma.testing import failpoints
from tests.stores import Store

AUTHORS = ("lem", "other", "third")


def document(number: int, author: str) -> dict[str, Any]:
    isbn = f"{number:05}"
    return {"isbn": isbn, "title": f"Book {isbn}", "price": number, "authorId": author, "tags": ["sf"]}


def rename(shop: Tenant, chance: random.Random, count: int) -> None:
    """Change the authors, over and over."""
    for turn in range(count):
        name = chance.choice(AUTHORS)
        if chance.random() < 0.1:
            try:
                shop.delete("AUTHOR", name)
            except KeyError:
                pass
        else:
            shop.ingest("AUTHOR", name, {"name": f"{name} {turn} {chance.random()}", "country": "PL"})
        if chance.random() < 0.7:
            shop.compile("AUTHOR", name)
        time.sleep(chance.uniform(0, 0.03))


def retarget(shop: Tenant, chance: random.Random, count: int) -> None:
    """Change books: new ones, other authors, other titles; compiled at once or by whoever comes."""
    for turn in range(count):
        number = chance.randrange(60)
        made = document(number, chance.choice(AUTHORS))
        if chance.random() < 0.5:
            made["title"] = f"Turn {turn}"
        shop.ingest("BOOK", made["isbn"], made)
        if chance.random() < 0.5:
            shop.compile("BOOK", made["isbn"])
        time.sleep(chance.uniform(0, 0.01))


def widen_the_gap(chance: random.Random) -> None:
    """Let others come between what a page reads and what it writes, each time."""

    def wait() -> None:
        failpoints.arm("fanout.before_transaction", wait)
        time.sleep(chance.uniform(0, 0.03))

    failpoints.arm("fanout.before_transaction", wait)


def main() -> None:
    url, objects, role, page, count, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    with Store(url, objects or None).open(fanout_page=int(page), fanout_limit=20, outbox_lease_s=1) as app:
        shop = app.tenant("shop")
        if role == "drain":
            app.worker(1).drain()
        elif role == "work":
            widen_the_gap(chance)
            deadline = time.monotonic() + float(count)
            while time.monotonic() < deadline:
                app.worker(2).drain()
                time.sleep(0.02)
        else:
            {"rename": rename, "retarget": retarget}[role](shop, chance, int(count))
        print("done", flush=True)


if __name__ == "__main__":
    main()
