"""Fanouts while everything changes: whatever is renamed, comes, goes, is compiled or fails between two pages, nobody
stays behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from analemma import App, FanoutState, Tenant
from analemma.errors import NotFound, Unavailable
from analemma.testing import failpoints
from tests.api.pipeline.shop import book
from tests.core.contracts.bookshop import bookshop
from tests.depth import count
from tests.raw_rows import is_sqlite
from tests.stores import Store

AUTHORS = ("lem", "other")
BOOKS = [f"{number:02}" for number in range(16)]
PLACES = ("fanout.asked", "fanout.before_transaction", "fanout.before_commit", "fanout.after_commit")
WITHIN = ("fanout.asked", "fanout.before_commit")
"""Inside a transaction, in which nobody else may be asked to write."""
ACTIONS = 12
SETTINGS: dict[str, Any] = {
    "fanout_page": 3,
    "outbox_backoff_base_s": 0,
    "outbox_max_attempts": 50,
}


def limited(document: dict[str, Any]) -> dict[str, Any]:
    """Those beyond a few follow when there is time."""
    if document["id"] != "ruleset.book.v1":
        return document
    return {**document, "indexes": [{**document["indexes"][0], "maxFanout": 5}, *document["indexes"][1:]]}


CONTRACTS = [limited(each.document) for each in bookshop().contracts]


class Life:
    """An author with books, whom a worker has follow; something else happens wherever it is."""

    def __init__(self, app: App, other: App, seed: int) -> None:
        self.app, self.other = app, other
        self.shop, self.elsewhere = app.tenant(f"shop{seed}"), other.tenant(f"shop{seed}")
        self.name = f"shop{seed}"
        self.chance = random.Random(seed)
        self.done = 0
        self.passes = 0

    def begin(self) -> None:
        for author in AUTHORS:
            self.shop.ingest("AUTHOR", author, {"name": author})
        self.shop.ingest_many(("BOOK", isbn, self.book(isbn)) for isbn in BOOKS if self.chance.random() < 0.7)
        self.app.worker(1, tenant=self.name).drain()

    def book(self, isbn: str) -> dict[str, Any]:
        return book(isbn, authorId=self.chance.choice(("lem", "lem", "lem", "other")), price=self.chance.randrange(9))

    def act(self, shop: Tenant) -> None:
        """Somebody does something."""
        isbn, what = self.chance.choice(BOOKS), self.chance.random()
        if what < 0.4:
            shop.ingest("AUTHOR", "lem", {"name": f"Name {self.chance.randrange(1000)}"})
            if self.chance.random() < 0.7:
                shop.compile("AUTHOR", "lem")
        elif what < 0.8:
            shop.ingest("BOOK", isbn, self.book(isbn))
            if self.chance.random() < 0.5:
                shop.compile("BOOK", isbn)
        else:
            try:
                shop.delete("BOOK", isbn)
            except NotFound:
                return

    def wait(self) -> None:
        """Choose the place where the next thing happens."""
        place = self.chance.choice(PLACES)
        failpoints.arm(f"{place}:{self.chance.randrange(1, 3)}", lambda: self.happen(place))

    def happen(self, place: str) -> None:
        if self.done >= ACTIONS:
            failpoints.arm(None)
            return
        self.done += 1
        self.wait()
        if place in WITHIN or self.chance.random() < 0.25:
            raise Unavailable("out of reach")
        self.act(self.elsewhere)
        if self.chance.random() < 0.7:
            # Another worker hears of it, while this one is at a page.
            self.other.worker(1, tenant=self.name).drain()

    def live(self) -> None:
        self.begin()
        self.wait()
        try:
            for _ in range(ACTIONS):
                self.act(self.shop)
                self.app.worker(1, tenant=self.name).drain()
        finally:
            failpoints.arm(None)
        done = self.app.worker(1, tenant=self.name).drain()
        assert (done.failed, done.dead, self.app.outbox.status(self.name).dead) == (0, 0, 0)

    def check(self) -> None:
        """Everybody has what the author has; nothing is under way."""
        for author in AUTHORS:
            try:
                found = self.app.fanouts.get("AUTHOR", author, tenant=self.name)
            except NotFound:
                continue
            assert found.status is FanoutState.DONE
            self.passes = max(self.passes, found.passes)
        report = self.app.backfills.verify({"tenant": self.name}, executor="threads:1")
        assert report.ok, report


def test_nobody_stays_behind(store: Store) -> None:
    settings: dict[str, Any] = {
        "fanout_page": 3,
        "outbox_backoff_base_s": 0,
        "outbox_max_attempts": 50,
    }
    with store.open(**settings) as app, store.open(**settings) as other:
        app.contracts.load(CONTRACTS)
        # Whoever drains a server waits for what listens to it: a few are enough there.
        lives = [Life(app, other, seed) for seed in range(count(4, deep=40) if is_sqlite(store) else 10)]
        for life in lives:
            life.live()
            life.check()
        # Otherwise nothing would have come in between.
        assert sum(life.done for life in lives) > len(lives) * ACTIONS / 3
        assert max(life.passes for life in lives) > 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(10))
def test_nobody_stays_behind_at_length(store: Store, part: int) -> None:
    settings: dict[str, Any] = {
        "fanout_page": 3,
        "outbox_backoff_base_s": 0,
        "outbox_max_attempts": 50,
    }
    with store.open(**settings) as app, store.open(**settings) as other:
        app.contracts.load(CONTRACTS)
        for seed in range(1_000 * (part + 1), 1_000 * (part + 1) + 200):
            life = Life(app, other, seed)
            life.live()
            life.check()
