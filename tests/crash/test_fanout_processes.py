"""Fanouts by several worker processes while authors change and books come, move and are compiled: when all is quiet,
everything is what a from-scratch evaluation gives."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analemma import FanoutState
from tests import programs
from tests.core.contracts.bookshop import EXAMPLE
from tests.crash.fanout_worker import document
from tests.crash.test_fanout_kill import drain_at_last, prepare, slice_rows
from tests.crash.test_pipeline_processes import check_everything
from tests.depth import count
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]


def start(store: Store, role: str, *, page: int, turns: float, seed: int) -> subprocess.Popen[str]:
    return programs.Program(
        [
            sys.executable,
            "-m",
            "tests.crash.fanout_worker",
            store.url,
            store.objects or "",
            role,
            str(page),
            str(turns),
            str(seed),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], *, killed: bool = False) -> None:
    out, error = process.communicate(timeout=600)
    assert killed or out == "done\n", error


def race(store: Store, *, seed: int, seconds: float, renames: int, changes: int, kills: int) -> None:
    with store.open() as app:
        app.contracts.load(EXAMPLE)
        shop = app.tenant("shop")
        for name in ("lem", "other"):
            shop.ingest("AUTHOR", name, {"name": name})
        shop.ingest_many([("BOOK", f"{number:05}", document(number, "lem")) for number in range(40)])
        app.worker(1).drain()
    workers = [start(store, "work", page=7, turns=seconds, seed=seed + number) for number in range(2)]
    others = [
        start(store, "rename", page=7, turns=renames, seed=seed + 10),
        start(store, "retarget", page=7, turns=changes, seed=seed + 11),
    ]
    chance = random.Random(seed)
    dead: list[subprocess.Popen[str]] = []
    for number in range(kills):
        time.sleep(chance.uniform(0.2, 0.4) * seconds)
        dead.append(workers.pop(0))
        dead[-1].kill()
        workers.append(start(store, "work", page=5, turns=seconds, seed=seed + 20 + number))
    for process in others:
        finish(process)
    for process in workers:
        finish(process)
    for process in dead:
        finish(process, killed=True)
    # What a dead worker held is free when its lease is over.
    change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")
    with store.open(outbox_lease_s=1) as app:
        drain_at_last(store, app)
        assert select(store, "SELECT count(*) FROM outbox WHERE status = 'DEAD'") == [(0,)]
        assert check_everything(app) >= 40
        assert not app.fanouts.list(under_way=True).fanouts


@pytest.mark.deep("the same as with kills, without them")
def test_books_that_come_and_move_while_authors_change_end_up_right(store: Store) -> None:
    race(store, seed=1, seconds=4, renames=40, changes=80, kills=0)


def test_workers_that_are_killed_in_the_middle_change_nothing(store: Store) -> None:
    race(
        store,
        seed=2,
        seconds=count(1, deep=4),
        renames=count(10, deep=30),
        changes=count(20, deep=50),
        kills=count(1, deep=2),
    )


def rename_all(store: Store, *, books: int, workers: int) -> None:
    """Rename the author of many books, twice in quick succession, with worker processes."""
    with store.open() as app:
        prepare(app, books)
        before = slice_rows(store)
        shop = app.tenant("shop")
        for name in "Second", "Third":
            shop.ingest("AUTHOR", "lem", {"name": name})
    processes = [
        programs.Program(
            [
                sys.executable,
                "-m",
                "analemma",
                "worker",
                "--drain",
                "-u",
                store.url,
                *(["--objects", store.objects] if store.objects else []),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(workers)
    ]
    for process in processes:
        _, error = process.communicate(timeout=1800)
        assert process.returncode == 0, error
    with store.open() as app:
        drain_at_last(store, app)
        shop = app.tenant("shop")
        result = app.fanouts.get("AUTHOR", "lem", tenant="shop")
        assert (result.status, result.affected, result.failed) == (FanoutState.DONE, books, 0)
        assert books <= result.processed + result.skipped <= 2 * books
        # The ruleset's own limit.
        assert (result.alert is not None) == (books > 10_000)
        assert len(app.fanouts.alerts().fanouts) == (books > 10_000)
        names = {
            shop.view("view.book.detail.v1").get(f"{number:05}").data["ENRICHED"]["author"]["name"]
            for number in range(0, books, 17)
        }
        assert names == {"Third"}
        after = slice_rows(store)
        assert (after["CORE"], after["PRICE"]) == (before["CORE"], before["PRICE"]) == (books, books)
        stale = select(
            store,
            "SELECT count(DISTINCT newest.hash), count(*) FROM entity JOIN slice AS newest ON newest.entity = entity.id"
            " WHERE entity.type = 'BOOK' AND newest.type = 'ENRICHED' AND NOT EXISTS ("
            "SELECT 1 FROM slice AS later WHERE later.entity = newest.entity AND later.type = 'ENRICHED'"
            " AND (later.version, later.revision) > (newest.version, newest.revision))",
        )
        assert stale == [(1, books)]


def test_every_book_of_a_renamed_author_follows(store: Store) -> None:
    rename_all(store, books=count(60, deep=400), workers=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("books", [5_000, 25_000])
def test_every_one_of_many_books_follows(store: Store, books: int) -> None:
    rename_all(store, books=books, workers=2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(5))
def test_races_at_length(store: Store, seed: int) -> None:
    race(store, seed=100 * seed, seconds=40, renames=600, changes=1500, kills=8)
