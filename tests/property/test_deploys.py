"""Random lives of entities some of whose versions wait to be served: after every step, what is served and what waits is
what a from-scratch evaluation gives, where joins read what is served; and indexes find what is served."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from analemma import SHIPPED, App, DeployState, EntityKey, Parcel, Shipped, retry
from tests.api.pipeline.scripted_shop import scripted
from tests.api.pipeline.ship_shop import open_ship_shop
from tests.api.pipeline.tables import query
from tests.core.entry_points.slicing import SliceContent, compile_entity
from tests.depth import count
from tests.scripted_sink import Script, install
from tests.stores import Store

AUTHORS, BOOKS = ("a", "b"), ("1", "2", "3")
SINKS = {"AUTHOR": "authors", "BOOK": "books"}
DOWN = retry("down", is_down=True)
ENTITIES = """
SELECT type, key, newest_raw, newest_compiled, serving_version FROM entity
WHERE tenant = (SELECT id FROM tenant WHERE name = 'shop')
"""
ENTRIES = """
SELECT entity.type, entity.key, entry.index_type, entry.value, target.type, target.key
FROM index_entry AS entry JOIN entity ON entity.id = entry.entity LEFT JOIN entity AS target ON target.id = entry.target
WHERE entity.tenant = (SELECT id FROM tenant WHERE name = 'shop') AND entry.waiting <> 1
"""
WAITING = """
SELECT count(*) FROM deploy JOIN entity ON entity.id = deploy.entity
WHERE entity.type = ? AND deploy.cutover = 'done' AND deploy.finished_at IS NULL
"""


class Evaluation(NamedTuple):
    """What a document becomes."""

    slices: dict[str, Any]
    entries: set[tuple[Any, ...]]


class Life:
    """One store with what it should hold: of each entity the document that is served, and the newest."""

    def __init__(self, app: App, store: Store, scripts: dict[str, Script], seed: int) -> None:
        self.app = app
        self.store = store
        self.scripts = scripts
        self.shop = app.tenant("shop")
        self.chance = random.Random(seed)
        self.served: dict[EntityKey, Any] = {}
        self.newest: dict[EntityKey, tuple[str, Any]] = {}
        self.deploys: list[str] = []
        self.waited = 0
        for script in scripts.values():
            script.answering = down

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
        else:
            self.answer(key.type)
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

    def are_served(self) -> dict[EntityKey, bool]:
        """Whether readers get the newest version, of every entity that has one."""
        found = {}
        for kind, id, newest_raw, newest_compiled, serving in query(self.store, ENTITIES):
            if newest_raw is not None:
                assert newest_raw == newest_compiled
                found[EntityKey(kind, "shop", id)] = serving == newest_compiled
        return found

    def is_served(self, key: EntityKey) -> bool:
        return self.are_served()[key]

    def answer(self, kind: str) -> None:
        """The sink of a type has what its entities are now."""
        script = self.scripts[SINKS[kind]]
        script.answering = lambda parcels: [SHIPPED] * len(parcels)
        self.app.sinks.wake(f"sink.{SINKS[kind]}")
        self.work()
        script.answering = down
        assert query(self.store, WAITING, kind) == [(0,)]
        served = self.are_served()
        self.served |= {key: document for key, (_, document) in self.newest.items() if key.type == kind and served[key]}

    def work(self) -> None:
        """Compile, fan out, and ship what sinks take."""
        self.app.worker(1).drain()

    def check(self) -> None:
        contracts = self.app.contracts.current
        made: dict[tuple[EntityKey, str], SliceContent] = {}
        stored: dict[EntityKey, set[tuple[Any, ...]]] = {key: set() for key in self.newest}
        for kind, id, *entry in query(self.store, ENTRIES):
            stored[EntityKey(kind, "shop", id)].add(tuple(entry))
        for kind in contracts.build_order():
            for key in (each for each in sorted(self.newest) if each.type == kind):

                def built(document: Any, key: EntityKey = key) -> Evaluation:
                    found = compile_entity(contracts.ruleset(key.type), key, document, lambda *asked: made.get(asked))
                    entries = {
                        (each.type, each.value, *((each.target.type, each.target.id) if each.target else (None, None)))
                        for each in found.index_entries or ()
                    }
                    return Evaluation({each.type: each for each in found.built}, entries)

                version, newest = self.newest[key]
                self.compare(key, built(newest), version)
                if key not in self.served:
                    assert not self.is_served(key) and stored[key] == set()
                    continue
                wanted = built(self.served[key])
                self.compare(key, wanted, None)
                for name, each in wanted.slices.items():
                    if each.data is not None and each.hash is not None:
                        made[key, name] = SliceContent(each.data, each.hash)
                assert stored[key] == wanted.entries

    def compare(self, key: EntityKey, wanted: Evaluation, version: str | None) -> None:
        stored = self.shop.slices(key.type, key.id, version)
        assert {name: (each.hash, each.tombstone) for name, each in stored.items()} == {
            name: (each.hash, each.tombstone) for name, each in wanted.slices.items()
        }, (key, version)


def down(parcels: Sequence[Parcel]) -> list[Shipped]:
    return [DOWN] * len(parcels)


def live(store: Store, base: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> None:
    authors, books = install(base, monkeypatch, "authors", "books")
    rules = [scripted("authors", "sink.authors"), scripted("books", "sink.books")]
    rules[0]["input"] = {"type": "SLICE", "sliceTypes": ["SUMMARY"], "entityTypes": ["AUTHOR"]}
    with open_ship_shop(store, base, *rules, ship_rest_s=600) as (app, _):
        life = Life(app, store, {"authors": authors, "books": books}, seed)
        for _ in range(steps):
            life.step()
        assert life.waited > steps / 20
        for kind in SINKS:
            life.answer(kind)
        life.work()
        life.check()
        assert all(life.are_served().values())
        assert query(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]


@pytest.mark.parametrize("seed", range(count(1, deep=3)))
def test_what_is_served_and_what_waits_is_what_a_full_evaluation_gives(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    live(store, tmp_path, monkeypatch, seed, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_what_is_served_and_what_waits_at_length(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    live(store, tmp_path, monkeypatch, seed, 400)
