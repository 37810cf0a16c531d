"""Seeded interleavings of writers and collectors against the real SQL: nothing that is needed is ever lost, and at rest
nothing else is left."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import pytest

from tests.depth import count
from tests.property.gc_world import CONTRACTS, SETTINGS, Clock, World
from tests.stores import Store

STEPS = 13
QUIET_EVERY = 8
SEEDS = count(test=40, deep=60)
"""In one part: each has a store of its own, and takes about a second."""
PARTS = count(test=30, deep=166)
"""So many that a commit whose upload the collector has claimed, the rarest of what must be found, is met often."""
EVENTS = {"lease lost", "deleting", "sparing", "marking to go", "refused", "claimed", "archived", "woke", "resumed"}
"""What has to occur among the seeds of each part, or they show nothing."""


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Runs fail here on purpose."""
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


def play(store: Store, folder: Path, seeds: range, *, may_hold_locks: bool = False) -> Counter[str]:
    happened: Counter[str] = Counter()
    clock = Clock()
    with store.open(**SETTINGS) as app, store.open(**SETTINGS) as reader:
        app.contracts.load(CONTRACTS)
        for seed in seeds:
            world = World(app, reader, clock, folder, seed)
            try:
                world.play(STEPS, may_hold_locks=may_hold_locks)
                if seed % QUIET_EVERY == 0 or world.has_books or world.runs or world.archived:
                    world.check_quiet()
                else:
                    world.check()
            except BaseException as exc:
                exc.add_note(f"seed {seed}: {dict(world.happened)}")
                raise
            finally:
                world.close()
            happened += world.happened
    return happened


def missing(happened: Counter[str], *more: str) -> set[str]:
    return {name for name in EVENTS.union(more) if not happened[name]}


@pytest.mark.parametrize("part", range(PARTS))
def test_no_interleaving_loses_a_block_on_sqlite(part: int, migrated_directory: Path, tmp_path: Path) -> None:
    happened = play(Store(str(migrated_directory)), tmp_path, range(part * SEEDS, (part + 1) * SEEDS))
    assert missing(happened) == set()


@pytest.mark.deep("the same seeds on a server take ten times as long; tests/two_actors has the moments that differ")
@pytest.mark.parametrize("part", range(5))
def test_no_interleaving_loses_a_block_on_postgresql(part: int, migrated_url: str, tmp_path: Path) -> None:
    store = Store(migrated_url, str(tmp_path / "objects"))
    happened = play(store, tmp_path, range(part * SEEDS, (part + 1) * SEEDS), may_hold_locks=True)
    assert missing(happened, "hold_transaction") == set()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(100))
def test_no_interleaving_of_very_many_loses_a_block_on_sqlite(
    share: int, migrated_directory: Path, tmp_path: Path
) -> None:
    first = 100_000 + share * 1000
    play(Store(str(migrated_directory)), tmp_path, range(first, first + 1000))


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(10))
def test_no_interleaving_of_very_many_loses_a_block_on_postgresql(
    share: int, migrated_url: str, tmp_path: Path
) -> None:
    first = 100_000 + share * 500
    store = Store(migrated_url, str(tmp_path / "objects"))
    play(store, tmp_path, range(first, first + 500), may_hold_locks=True)
