"""Lives of entities in a real store: random contracts, random documents, and a worker that follows."""

from __future__ import annotations

from typing import Any

from analemma import App, Tenant
from analemma.errors import NotFound
from tests.api.pipeline.tables import query
from tests.api.pipeline.version_texts import text
from tests.property.slicing_oracle import Key, Oracle, Outcome, Plan, canonical, hash_of
from tests.property.slicing_world import IDS, TYPES, Generator
from tests.stores import Store

SETTINGS: dict[str, Any] = {"fanout_page": 2, "fanout_limit": 3}
"""So small that there are several pages, and some are deferred."""

ENTRIES = """
SELECT entry.index_type, entry.value, target.type, target.key
FROM index_entry AS entry JOIN entity ON entity.id = entry.entity LEFT JOIN entity AS target ON target.id = entry.target
WHERE entity.tenant = (SELECT id FROM tenant WHERE name = ?) AND entity.type = ? AND entity.key = ?
"""

Entries = set[tuple[str, str, Key | None]]


class FreeGenerator(Generator):
    """Documents of any shape: schemas say nothing about them."""

    def contracts(self, plan: Plan) -> list[dict[str, Any]]:
        schema, ruleset = super().contracts(plan)
        return [{**schema, "fields": [{"name": "unused", "type": "string"}], "additionalFields": "keep"}, ruleset]


def as_stored(value: Any) -> Any:
    """However a number was written: 1.0 is 1, and may be an id."""
    if isinstance(value, dict):
        return {name: as_stored(member) for name, member in value.items()}
    if isinstance(value, list):
        return [as_stored(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def load(app: App, documents: list[dict[str, Any]], seed: int) -> None:
    """Have a store work by these contracts from now on, whatever it worked by before."""
    app.contracts.load([{**each, "version": f"1.0.{seed}"} for each in documents])


def drain(app: App, tenant: str) -> None:
    """Have everything followed that is due."""
    done = app.worker(1, tenant=tenant).drain()
    assert done.failed == done.dead == 0


def outcomes(tenant: Tenant, key: Key, version: str | None = None) -> dict[str, Outcome]:
    """What is stored of an entity, as the oracle would say it."""
    found: dict[str, Outcome] = {}
    for name, each in tenant.slices(*key, version).items():
        if each.data is None:
            assert each.tombstone is not None and each.hash is None
            found[name] = ("tombstone", each.tombstone.reason.value)
        else:
            text = canonical(each.data)
            assert each.hash == hash_of(text)
            found[name] = ("data", text)
    return found


def expected(oracle: Oracle, plans: dict[str, Plan], key: Key) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    for plan in plans[key[0]].slices:
        outcome = oracle.outcome(key, plan.type)
        assert outcome is not None
        found[plan.type] = ("data", canonical(outcome[1])) if outcome[0] == "data" else outcome
    return found


def entries(store: Store, tenant: str, key: Key) -> Entries:
    rows = query(store, ENTRIES, tenant, *key)
    assert len(set(rows)) == len(rows)
    return {(kind, value, None if target is None else (target, name)) for kind, value, target, name in rows}


class PipelineLife:
    """One random sequence of events on entities that join each other, in a store, checked after every event."""

    def __init__(self, app: App, store: Store, name: str, seed: int) -> None:
        self.app = app
        self.store = store
        self.name = name
        self.tenant = app.tenant(name)
        self.generator = FreeGenerator(seed)
        self.plans, contracts = self.generator.world()
        load(app, [each.document for each in contracts.contracts], seed)
        self.documents: dict[Key, dict[str, Any] | None] = {}
        self.incremental = 0
        self.deltas = 0

    def step(self) -> None:
        random = self.generator.random
        key = (random.choice((*TYPES, TYPES[0], TYPES[0])), random.choice(("1", "1", *IDS)))
        if len(self.documents) < len(TYPES) and self.generator.chance(0.6):
            key = (TYPES[-1 - len(self.documents)], "1")
        for _ in range(random.choice([1, 1, 1, 2])):
            self.change(key)
        if key in self.documents and self.generator.chance(0.4):
            # Before the worker comes to it: what came between this version and the last is compiled late.
            self.compile(key)
        drain(self.app, self.name)
        self.check()

    def change(self, key: Key) -> None:
        before = self.documents.get(key)
        kind = self.generator.random.random()
        document: dict[str, Any] | None
        if before is None:
            document = self.generator.document()
        elif kind < 0.12:
            document = None
        else:
            document = self.generator.document() if kind < 0.2 else self.generator.edited(before)
        if document is None:
            self.tenant.delete(*key)
        else:
            self.tenant.ingest(*key, document)
        self.documents[key] = as_stored(document)
        self.deltas += 1

    def compile(self, key: Key) -> None:
        self.incremental += self.tenant.compile(*key).mode == "INCREMENTAL"

    def check(self) -> None:
        oracle = Oracle(self.plans, self.documents)
        for key in self.documents:
            assert outcomes(self.tenant, key) == expected(oracle, self.plans, key)
            assert entries(self.store, self.name, key) == oracle.entries(key)


class LateLife:
    """Versions of one entity that come, and are compiled, in any order: none may show in another."""

    def __init__(self, app: App, store: Store, name: str, seed: int) -> None:
        self.store = store
        self.name = name
        self.tenant = app.tenant(name)
        self.generator = FreeGenerator(seed)
        self.plans, contracts = self.generator.world()
        load(app, [each.document for each in contracts.contracts], seed)
        self.key: Key = (TYPES[-1], "1")
        """Of the type that joins nothing, so that a version is made of its document alone."""
        self.documents: dict[str, dict[str, Any] | None] = {}
        self.compiled: set[str] = set()
        self.versions = [text(1_000 * number) for number in range(1, 13)]

    def step(self) -> None:
        random = self.generator.random
        if not self.documents or (self.versions and self.generator.chance(0.6)):
            version = self.versions.pop(random.randrange(len(self.versions)))
            near = random.choice(list(self.documents.values())) if self.documents else None
            document = self.generator.document() if near is None else self.generator.edited(near)
            if self.documents and self.generator.chance(0.15):
                made = self.tenant.delete(*self.key, version=version)
                document_or_none: dict[str, Any] | None = None
            else:
                made = self.tenant.ingest(*self.key, document, version=version)
                document_or_none = document
            if made.created:
                self.documents[version] = as_stored(document_or_none)
            else:
                assert made.version == max(self.documents) and made.version < version
        else:
            version = random.choice(list(self.documents))
            self.tenant.compile(*self.key, version, mode=random.choice(["full", "auto"]))
            self.compiled.add(version)
        self.check()

    def check(self) -> None:
        for version, document in self.documents.items():
            if version not in self.compiled:
                try:
                    self.tenant.slices(*self.key, version)
                    raise AssertionError("a version that was not compiled has slices")
                except NotFound:
                    continue
            oracle = Oracle(self.plans, {self.key: document})
            assert outcomes(self.tenant, self.key, version) == expected(oracle, self.plans, self.key)
        if self.compiled:
            newest = max(self.compiled)
            oracle = Oracle(self.plans, {self.key: self.documents[newest]})
            assert outcomes(self.tenant, self.key) == expected(oracle, self.plans, self.key)
            assert entries(self.store, self.name, self.key) == oracle.entries(self.key)
