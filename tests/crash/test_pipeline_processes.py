"""Processes that ingest and compile authors and books at the same time: when all is quiet, everything is what a
from-scratch evaluation of the newest documents gives."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from analemma import App, BlockId, EntityKey
from analemma.catalog.entities import EntityPlace, find_entity
from analemma.slicing.evaluate import evaluate
from analemma.slicing.joining import SliceContent
from tests import programs
from tests.api.pipeline.tables import query
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import Store

ROOT = Path(__file__).parents[2]


def newest_documents(store: Store, app: App) -> dict[EntityKey, Any]:
    """What each entity is now; None for one that was deleted."""
    shop = app.tenant("shop")
    rows = query(
        store,
        "SELECT entity.type, entity.key, raw.root FROM entity"
        " JOIN raw ON raw.entity = entity.id AND raw.version = entity.newest_raw",
    )
    return {
        EntityKey(kind, "shop", name): None if root is None else shop.trees.read(BlockId(bytes(root)))
        for kind, name, root in rows
    }


def check_everything(store: Store, app: App) -> int:
    shop, contracts, documents = app.tenant("shop"), app.contracts.current, newest_documents(store, app)
    made: dict[tuple[EntityKey, str], SliceContent] = {}
    for kind in contracts.build_order():
        for key in (each for each in sorted(documents) if each.type == kind):
            wanted = evaluate(contracts.ruleset(kind), key, documents[key], lambda *asked: made.get(asked))
            stored = shop.slices(kind, key.id)
            assert {name: (each.hash, each.tombstone) for name, each in stored.items()} == {
                name: (each.hash, each.tombstone) for name, each in wanted.slices.items()
            }, key
            for name, each in wanted.slices.items():
                if each.data is not None and each.hash is not None:
                    made[key, name] = SliceContent(each.data, each.hash)
            entity = find_entity(app.catalog.engine, shop.id, EntityPlace(kind, key.id))
            assert entity is not None
            entries = {
                (one, value, target) for one, value, target in shop.pipeline.slicing._slices.entries(entity.number)
            }
            assert entries == {
                (each.type, each.value, None if each.target is None else EntityPlace(each.target.type, each.target.id))
                for each in wanted.index_entries
            }
    return len(documents)


def run_processes(store: Store, count: int, turns: int, seed: int, *, race: bool = False) -> None:
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        app.tenant("shop")
    begin = str(time.time() + 2) if race else ""
    processes = [
        programs.Program(
            [
                sys.executable,
                "-m",
                "tests.crash.pipeline_worker",
                store.url,
                store.objects or "",
                str(seed + number),
                str(turns),
                begin,
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for process in processes:
        out, error = process.communicate(timeout=300)
        assert out == "done\n", error
    with store.open() as app:
        done = app.worker(2).drain()
        assert (done.failed, done.dead) == (0, 0)
        assert check_everything(store, app) > 5


def test_nothing_stays_stale_when_four_processes_compile(store: Store) -> None:
    run_processes(store, count=4, turns=40, seed=1)


def test_a_book_that_comes_while_its_author_changes_does_not_stay_stale(store: Store) -> None:
    run_processes(store, count=4, turns=20, seed=0, race=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_nothing_stays_stale_when_processes_compile_at_length(store: Store, seed: int) -> None:
    run_processes(store, count=6, turns=1000, seed=1000 * seed)
    run_processes(store, count=4, turns=200, seed=100 * seed, race=True)
