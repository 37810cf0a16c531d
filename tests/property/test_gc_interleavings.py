"""Seeded interleavings of writers and collectors against the real SQL: nothing that is needed is ever lost, and at rest
nothing else is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

import analemma
from analemma import App, Settings
from tests.property.gc_world import World

STEPS = 13
PER_STORE = 250
QUIET_EVERY = 8
SHARES = 4
"""Parts of the seeds, so that several processes share the work."""
SETTINGS = Settings(pack_threshold_bytes=2000, cache_bytes=0, tenant="interleavings")
EVENTS = {"lease lost", "deleting", "sparing", "marking to go", "refused", "claimed", "session committed", "woke"}
"""What has to occur among the seeds of each share, or they show nothing."""


def play(app: App, seeds: range, *, may_hold_locks: bool = False) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        world = World(app, f"seed{seed}", seed)
        try:
            world.play(STEPS, may_hold_locks=may_hold_locks)
            world.check()
            if seed % QUIET_EVERY == 0:
                world.check_quiet()
        except BaseException as exc:
            exc.add_note(f"seed {seed}: {dict(world.happened)}")
            raise
        happened += world.happened
        app._tenants.pop(f"seed{seed}").checkpoints.close(0)
    return happened


def play_in_memory(seeds: range) -> Counter[str]:
    happened: Counter[str] = Counter()
    for start in range(seeds.start, seeds.stop, PER_STORE):
        with analemma.open("sqlite:///:memory:", settings=SETTINGS) as app:
            happened += play(app, range(start, min(start + PER_STORE, seeds.stop)))
    return happened


@pytest.fixture
def postgres_app(postgres_url: str) -> Iterator[App]:
    with analemma.open(postgres_url, objects="memory://", settings=SETTINGS, migrate=True) as app:
        yield app


@pytest.mark.parametrize("share", range(SHARES))
def test_no_interleaving_loses_a_block_on_sqlite(share: int) -> None:
    happened = play_in_memory(range(share * 2_500, share * 2_500 + 2_500))
    assert {name for name in EVENTS if not happened[name]} == set()


def test_no_interleaving_loses_a_block_on_postgresql(postgres_app: App) -> None:
    happened = play(postgres_app, range(500), may_hold_locks=True)
    assert {name for name in EVENTS | {"hold_commit"} if not happened[name]} == set()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(8))
def test_no_interleaving_of_very_many_loses_a_block_on_sqlite(share: int) -> None:
    first = 100_000 + share * 12_500
    play_in_memory(range(first, first + 12_500))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(2))
def test_no_interleaving_of_very_many_loses_a_block_on_postgresql(share: int, postgres_app: App) -> None:
    first = 100_000 + share * 2_500
    play(postgres_app, range(first, first + 2_500), may_hold_locks=True)
