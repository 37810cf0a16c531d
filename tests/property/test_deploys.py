"""Random lives of entities some of whose versions wait to be served: after every step, what is served and what waits is
what a from-scratch evaluation gives, where joins read what is served; and indexes find what is served."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analemma import App, DeployState, EntityKey
from analemma.catalog.entities import EntityPlace, find_entity
from analemma.catalog.outbox_claiming import OutboxClaims
from analemma.catalog.sink_states import ShippedRow
from analemma.catalog.wakeups import Wakeups
from analemma.outbox.worker import OutboxPollingWorker, WorkerOptions
from analemma.pipeline.deploy_serving import DeployAnswers
from analemma.pipeline.deploys import Deploys
from analemma.pipeline.events import Events
from analemma.pipeline.handlers import handlers
from analemma.slicing.evaluate import Evaluation, evaluate
from analemma.slicing.joining import SliceContent
from tests.api.pipeline.ship_shop import jsonl, open_ship_shop
from tests.api.pipeline.tables import query
from tests.stores import Store

AUTHORS, BOOKS = ("a", "b"), ("1", "2", "3")
RULES = ("sink.authors", "sink.books")


class Life:
    """One store with what it should hold: of each entity the document that is served, and the newest."""

    def __init__(self, app: App, store: Store, seed: int) -> None:
        self.app = app
        self.store = store
        self.shop = app.tenant("shop")
        self.chance = random.Random(seed)
        self.answers = DeployAnswers(Events(app._entropy), clock=app._clock)
        self.served: dict[EntityKey, Any] = {}
        self.newest: dict[EntityKey, tuple[str, Any]] = {}
        self.deploys: list[str] = []
        self.waited = 0

    def key(self) -> EntityKey:
        kind, ids = self.chance.choice([("AUTHOR", AUTHORS), ("BOOK", BOOKS)])
        return EntityKey(kind, "shop", self.chance.choice(ids))

    def document(self, key: EntityKey) -> dict[str, Any]:
        if key.type == "AUTHOR":
            # Nobody joins the note: a version may have another one, and be what waits already to those who join.
            return {"name": self.chance.choice("LM"), "country": "PL", "note": self.chance.choice("123")}
        made: dict[str, Any] = {"isbn": key.id, "title": self.chance.choice("xyz"), "price": self.chance.randrange(3)}
        if self.chance.random() < 0.8:
            made["authorId"] = self.chance.choice(AUTHORS)
        made["tags"] = sorted(self.chance.sample("pqr", self.chance.randrange(3)))
        return made

    def step(self) -> None:
        key, what = self.key(), self.chance.random()
        if what < 0.25:
            self.newest[key] = (self.shop.ingest(key.type, key.id, document := self.document(key)).version, document)
            self.work()
            # The same content as one that waits is no version of its own, and goes on waiting.
            if self.is_served(key):
                self.served[key] = document
        elif what < 0.3 and key in self.newest:
            self.newest[key] = (self.shop.delete(key.type, key.id).version, None)
            self.work()
            if self.is_served(key):
                self.served[key] = None
        elif what < 0.75:
            self.deploy(key)
        elif key in self.newest:
            self.answer(key)
        self.work()
        self.check()

    def deploy(self, key: EntityKey) -> None:
        document, cutover = self.document(key), self.chance.choice(["done", "done", "ready"])
        deploy = self.shop.deploy(
            key.type, key.id, document, cutover=cutover, compile=self.chance.choice(["sync", "async"])
        )
        self.deploys.append(deploy.id)
        self.work()
        self.newest[key] = (deploy.version, document)
        if self.is_served(key):
            self.served[key] = document
        else:
            self.waited += 1
            assert cutover == "done" and self.shop.deploys.get(deploy.id).state is DeployState.SINKING

    def is_served(self, key: EntityKey) -> bool:
        found = find_entity(self.app.catalog.engine, self.shop.id, EntityPlace(key.type, key.id))
        assert found is not None and found.newest_raw == found.newest_compiled
        return found.serving_version == found.newest_compiled

    def answer(self, key: EntityKey) -> None:
        """The sinks have what the entity is now."""
        found = find_entity(self.app.catalog.engine, self.shop.id, EntityPlace(key.type, key.id))
        assert found is not None
        rows = [
            ShippedRow(self.shop.id, found.number, rule, "", "x", 1, found.ship_seq, False, "shipped") for rule in RULES
        ]
        self.app.catalog.engine.write(lambda tx: self.answers(tx, rows))
        open_ones = query(
            self.store,
            "SELECT count(*) FROM deploy WHERE entity = ? AND cutover = 'done' AND finished_at IS NULL",
            found.number,
        )
        assert open_ones == [(0,)]
        if self.is_served(key):
            self.served[key] = self.newest[key][1]

    def work(self) -> None:
        """Compile and fan out; nothing is shipped."""
        OutboxPollingWorker(
            OutboxClaims(self.app.catalog.engine, lease_s=30),
            handlers(lambda name: self.app.tenant(name).pipeline),
            listen=Wakeups().listen,
            options=WorkerOptions(concurrency=1),
        ).drain()

    def check(self) -> None:
        contracts = self.app.contracts.current
        made: dict[tuple[EntityKey, str], SliceContent] = {}
        for kind in contracts.build_order():
            for key in (each for each in sorted(self.newest) if each.type == kind):

                def built(document: Any, key: EntityKey = key) -> Evaluation:
                    ruleset = contracts.ruleset(key.type)
                    return evaluate(ruleset, key, document, lambda *asked: made.get(asked))

                version, newest = self.newest[key]
                self.compare(key, built(newest), version)
                entity = find_entity(self.app.catalog.engine, self.shop.id, EntityPlace(key.type, key.id))
                assert entity is not None
                entries = set(self.shop.pipeline.slicing._slices.entries(entity.number))
                if key not in self.served:
                    assert entity.serving_version is None and entries == set()
                    continue
                wanted = built(self.served[key])
                self.compare(key, wanted, None)
                for name, each in wanted.slices.items():
                    if each.data is not None and each.hash is not None:
                        made[key, name] = SliceContent(each.data, each.hash)
                assert entries == {
                    (each.type, each.value, None if each.target is None else EntityPlace(*_place(each.target)))
                    for each in wanted.index_entries
                }

    def compare(self, key: EntityKey, wanted: Evaluation, version: str | None) -> None:
        stored = self.shop.slices(key.type, key.id, version)
        assert {name: (each.hash, each.tombstone) for name, each in stored.items()} == {
            name: (each.hash, each.tombstone) for name, each in wanted.slices.items()
        }, (key, version)


def _place(key: EntityKey) -> tuple[str, str]:
    return key.type, key.id


def live(store: Store, base: Path, seed: int, steps: int) -> None:
    authors = jsonl("sink.authors", "authors.jsonl")
    authors["input"] = {"type": "SLICE", "sliceTypes": ["SUMMARY"], "entityTypes": ["AUTHOR"]}
    books = jsonl("sink.books")
    books["input"] = {"type": "SLICE", "entityTypes": ["BOOK"], "sliceTypes": ["CORE", "PRICE", "ENRICHED"]}
    with open_ship_shop(store, base, authors, books) as (app, _):
        life = Life(app, store, seed)
        for _ in range(steps):
            life.step()
        assert life.waited > steps / 20
        for key in list(life.newest):
            life.answer(key)
        life.work()
        life.check()
        assert all(life.is_served(key) for key in life.newest if _has_deploy(life.shop.deploys, key))
        assert query(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]


def _has_deploy(deploys: Deploys, key: EntityKey) -> bool:
    return bool(deploys.list(entity_type=key.type, entity_id=key.id).deploys)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_served_and_what_waits_is_what_a_full_evaluation_gives(store: Store, tmp_path: Path, seed: int) -> None:
    live(store, tmp_path, seed, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_what_is_served_and_what_waits_at_length(store: Store, tmp_path: Path, seed: int) -> None:
    live(store, tmp_path, seed, 400)
