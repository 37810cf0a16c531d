"""FULL == INCREMENTAL: whatever the ruleset and whatever happens to entities, both ways give what an oracle gives."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from analemma import CompileMode, ContractSet
from analemma.errors import Invalid
from tests.core.entry_points.slicing import compile_entity, wanted_slices
from tests.depth import count
from tests.property.slicing_oracle import Key, Oracle, Plan, canonical, hash_of, unmapped_paths
from tests.property.slicing_world import IDS, TYPES, Generator, Store, entity_key

STEPS = 5
SEQUENCES_PER_WORLD = 5
PARTS = count(2, deep=20)
WORLDS_PER_PART = 50


def pointer(path: Sequence[str | int]) -> str:
    return "".join(f"/{str(name).replace('~', '~0').replace('/', '~1')}" for name in path)


class Life:
    """One random sequence of events on entities that join each other, checked after every event."""

    def __init__(self, generator: Generator, plans: dict[str, Plan], contracts: ContractSet) -> None:
        self.generator = generator
        self.plans = plans
        self.contracts = contracts
        self.documents: dict[Key, dict[str, Any] | None] = {}
        self.store = Store()
        self.refused = 0
        self.rebuilt = 0
        self.kept = 0

    def step(self) -> None:
        """Something happens to one entity; it and whatever may depend on it is compiled."""
        random = self.generator.random
        key = (random.choice((*TYPES, TYPES[0], TYPES[0])), random.choice(("1", "1", *IDS)))
        if len(self.documents) < len(TYPES) and self.generator.chance(0.6):
            # What is joined is often there first.
            key = (TYPES[-1 - len(self.documents)], "1")
        # Some versions are never compiled: the next one is compared with what was there before them.
        for _ in range(random.choice([1, 1, 1, 2])):
            self.documents[key] = self.next_document(self.documents.get(key))
        self.compile(key)
        for entity_type in reversed(TYPES[: TYPES.index(key[0])]):
            for dependant in [each for each in self.documents if each[0] == entity_type]:
                self.compile(dependant)
        self.check()

    def next_document(self, document: dict[str, Any] | None) -> dict[str, Any] | None:
        if document is None:
            return self.generator.document()
        kind = self.generator.random.random()
        if kind < 0.12:
            return None
        return self.generator.document() if kind < 0.2 else self.generator.edited(document)

    def compile(self, key: Key) -> None:
        ruleset, name = self.contracts.ruleset(key[0]), entity_key(key)
        raw = copy.deepcopy(self.documents[key])
        known = self.store.compiled.get(name, [])
        predecessor = known[-1] if known else None
        full = compile_entity(ruleset, name, raw, self.store.lookup, predecessor=predecessor, mode=CompileMode.FULL)
        refused: Invalid | None = None
        try:
            made = compile_entity(ruleset, name, raw, self.store.lookup, predecessor=predecessor)
            self.rebuilt += len(made.built)
            self.kept += len(made.slices) - len(made.built)
        except Invalid as exc:
            made, refused = full, exc
            self.refused += 1
        old = None if predecessor is None else predecessor.raw
        unmapped: set[str] = set()
        if old is not None and raw is not None and repr(old) != repr(raw):
            unmapped = set(map(pointer, unmapped_paths(self.plans[key[0]], old, raw)))
        assert set(() if refused is None else refused.paths) == unmapped
        assert made.slices == full.slices, "FULL and INCREMENTAL disagree"
        assert made.dependencies == full.dependencies
        assert {(each.key, each.slice_type) for each in full.dependencies} == wanted_slices(ruleset, name, raw)
        if len(known) > 1 and self.generator.chance(0.5):
            self.check_older(key, raw, full)
        self.store.apply(name, raw, made)
        assert self.store.entries[name] == full.index_entries
        assert raw == self.documents[key], "compiling changed the document"

    def check_older(self, key: Key, raw: dict[str, Any] | None, full: Any) -> None:
        """Any earlier version will do as predecessor."""
        older = self.generator.random.choice(self.store.compiled[entity_key(key)][:-1])
        try:
            made = compile_entity(
                self.contracts.ruleset(key[0]), entity_key(key), raw, self.store.lookup, predecessor=older
            )
        except Invalid:
            return
        assert made.slices == full.slices

    def check(self) -> None:
        """Everything is what the oracle makes of the documents alone."""
        oracle = Oracle(self.plans, self.documents)
        for key in self.documents:
            name = entity_key(key)
            state = self.store.compiled[name][-1].slices
            for plan in self.plans[key[0]].slices:
                outcome = oracle.outcome(key, plan.type)
                assert outcome is not None
                content, known = self.store.lookup(name, plan.type), state[plan.type]
                if outcome[0] == "data":
                    text = canonical(outcome[1])
                    assert content is not None and canonical(content.data) == text
                    assert content.hash == known.hash == hash_of(text) and known.tombstone is None
                else:
                    assert content is None and known.hash is None
                    assert known.tombstone is not None and known.tombstone.reason == outcome[1]
            assert self.shown(self.store.entries[name]) == oracle.entries(key)

    @staticmethod
    def shown(entries: tuple[Any, ...]) -> set[tuple[str, str, Key | None]]:
        assert len(set(entries)) == len(entries)
        return {
            (each.type, each.value, None if each.target is None else (each.target.type, each.target.id))
            for each in entries
        }


def live(seed: int, sequences: int, steps: int) -> list[Life]:
    """Some sequences of events under one random set of contracts."""
    generator = Generator(seed)
    plans, contracts = generator.world()
    lives = []
    for _ in range(sequences):
        lives.append(Life(generator, plans, contracts))
        for _ in range(steps):
            lives[-1].step()
    return lives


@pytest.mark.parametrize("part", range(PARTS))
def test_full_and_incremental_give_what_the_oracle_gives(part: int) -> None:
    lives = []
    for seed in range(part * WORLDS_PER_PART, (part + 1) * WORLDS_PER_PART):
        lives += live(seed, SEQUENCES_PER_WORLD, STEPS)
    assert len(lives) == WORLDS_PER_PART * SEQUENCES_PER_WORLD
    # Otherwise it would only have compared FULL with FULL, or never have met what it must refuse.
    assert sum(life.kept for life in lives) > sum(life.rebuilt for life in lives) / 4
    assert sum(life.refused for life in lives) > 10


@pytest.mark.soak
@pytest.mark.parametrize("part", range(40))
def test_full_and_incremental_give_what_the_oracle_gives_at_length(part: int) -> None:
    for seed in range(1_000_000 + part * 200, 1_000_000 + part * 200 + 200):
        live(seed, sequences=2, steps=15)
