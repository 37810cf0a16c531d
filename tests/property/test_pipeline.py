"""FULL == INCREMENTAL in a database: after every event, slices and index entries are what an oracle makes of the
documents alone."""

from __future__ import annotations

import pytest

from tests.depth import count
from tests.property.pipeline_world import SETTINGS, LateLife, PipelineLife
from tests.stores import Store

SEQUENCES = count(8, deep=60)
STEPS = 5
LATE_SEQUENCES = count(3, deep=20)
LATE_STEPS = 36


def test_whatever_happens_the_store_has_what_the_oracle_has(store: Store) -> None:
    incremental = 0
    with store.open(**SETTINGS) as app:
        for seed in range(SEQUENCES):
            life = PipelineLife(app, store, f"t{seed}", seed)
            for _ in range(STEPS):
                life.step()
            incremental += life.incremental
    assert incremental > SEQUENCES / 6


def test_versions_that_come_late_show_in_no_other(store: Store) -> None:
    with store.open(**SETTINGS) as app:
        for seed in range(LATE_SEQUENCES):
            life = LateLife(app, store, f"late{seed}", 7_000 + seed)
            for _ in range(LATE_STEPS):
                life.step()
            assert life.compiled


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(10))
def test_whatever_happens_the_store_has_what_the_oracle_has_at_length(store: Store, part: int) -> None:
    deltas = 0
    with store.open(**SETTINGS) as app:
        seed = 100_000 + part * 10_000
        while deltas < 5_000:
            life = PipelineLife(app, store, f"t{seed}", seed)
            for _ in range(15):
                life.step()
            late = LateLife(app, store, f"late{seed}", seed + 5_000)
            for _ in range(36):
                late.step()
            deltas += life.deltas + len(late.documents)
            seed += 1
