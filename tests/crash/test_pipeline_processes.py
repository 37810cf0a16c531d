"""Processes that ingest and compile authors and books at the same time: when all is quiet, everything is what a
from-scratch evaluation of the newest documents gives."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from analemma import App
from tests import programs
from tests.core.contracts.bookshop import EXAMPLE
from tests.depth import count as so_many
from tests.stores import Store

ROOT = Path(__file__).parents[2]


def check_everything(app: App) -> int:
    """Slices and index entries are what compiling everything anew gives; how many entities there are."""
    report = app.backfills.verify({"tenant": "shop"}, "strict")
    assert report.ok, report.problems
    return report.entities


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
        assert check_everything(app) > 5


def test_nothing_stays_stale_when_four_processes_compile(store: Store) -> None:
    run_processes(store, count=so_many(3, deep=4), turns=so_many(12, deep=40), seed=1)


@pytest.mark.deep("tests/two_actors/test_joins.py has the moment that this looks for")
def test_a_book_that_comes_while_its_author_changes_does_not_stay_stale(store: Store) -> None:
    run_processes(store, count=4, turns=20, seed=0, race=True)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_nothing_stays_stale_when_processes_compile_at_length(store: Store, seed: int) -> None:
    run_processes(store, count=6, turns=1000, seed=1000 * seed)
    run_processes(store, count=4, turns=200, seed=100 * seed, race=True)
