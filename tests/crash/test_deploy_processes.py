"""Processes that deploy, ingest and work on very few entities at once: what is served never goes back, every deploy
comes to its end, and when all is quiet, everything is what a from-scratch evaluation of the newest documents gives."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from analemma import DeployState
from tests import programs
from tests.api.pipeline.ship_shop import documents_of, shop_contracts
from tests.crash.test_deploy_kill import check_history, drain, open_app, sinks
from tests.crash.test_pipeline_processes import check_everything
from tests.depth import count as so_many
from tests.raw_rows import select
from tests.stores import Store

ROOT = Path(__file__).parents[2]


def watch(store: Store, ended: threading.Event, problems: list[str]) -> None:
    """Look all the time at what is served and shipped."""
    seen: dict[int, tuple[int, int, int]] = {}
    while not ended.wait(0.002):
        rows = select(store, "SELECT id, newest_compiled, serving_version, ship_seq FROM entity WHERE type = 'BOOK'")
        for number, compiled, serving, ship_seq in rows:
            now = (compiled or 0, serving or 0, ship_seq)
            before = seen.get(number, (0, 0, 0))
            if any(new < old for new, old in zip(now, before, strict=True)):
                problems.append(f"{number} went from {before} to {now}")
            if now[1] > now[0]:
                problems.append(f"{number} serves what is not compiled: {now}")
            seen[number] = now


def run_race(store: Store, base: Path, *, count: int, turns: int, seed: int) -> None:
    with open_app(store, base) as app:
        app.contracts.load(shop_contracts(*sinks()))
        app.tenant("shop")
        processes = [
            programs.Program(
                [
                    *(sys.executable, "-m", "tests.crash.deploy_worker", store.url, store.objects or "", str(base)),
                    *("race", str(seed + number), str(turns)),
                ],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(count)
        ]
        ended, problems = threading.Event(), list[str]()
        watching = threading.Thread(target=watch, args=(store, ended, problems))
        watching.start()
        try:
            for process in processes:
                out, error = process.communicate(timeout=300)
                assert out == "acknowledged\n", error
            drain(store, app)
        finally:
            ended.set()
            watching.join()
        assert problems == []
        check_history(store)
        cursor, deploys = None, []
        while True:
            page = app.deploys.list(limit=1000, cursor=cursor)
            deploys += page.deploys
            cursor = page.next_cursor
            if cursor is None:
                break
        assert len(deploys) > count * turns / 5
        assert {app.deploys.get(each.id).state for each in deploys} == {DeployState.DONE}
        for each in deploys:
            # Whoever was left out was left out for a newer one.
            assert each.served != (each.superseded_by is not None)
            assert each.superseded_by is None or each.superseded_by > each.version
        check_everything(app)
        assert select(store, "SELECT count(*) FROM entity WHERE serving_version <> newest_compiled") == [(0,)]
        assert select(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]
        assert select(store, "SELECT count(*) FROM deploy_sink WHERE state <> 'ANSWERED'") == [(0,)]
        # A sink that was left out of a deploy has what it was last asked to take: now everybody is asked.
        for isbn in "1", "2":
            app.tenant("shop").ship("BOOK", isbn)
        drain(store, app)
        shop = app.tenant("shop")
        for name in "books.jsonl", "other.jsonl":
            documents = documents_of(base / name)
            for isbn in "1", "2":
                slices = shop.slices("BOOK", isbn)
                wanted = [slices[kind].data for kind in ("CORE", "PRICE", "ENRICHED") if slices[kind].data is not None]
                merged = {key: value for data in wanted for key, value in (data or {}).items()}
                assert documents.get(f"shop__{isbn}") == (merged or None)


def test_what_is_served_never_goes_back_when_processes_deploy(store: Store, tmp_path: Path) -> None:
    run_race(store, tmp_path, count=4, turns=so_many(12, deep=40), seed=0)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_served_never_goes_back_at_length(store: Store, tmp_path: Path, seed: int) -> None:
    run_race(store, tmp_path, count=6, turns=400, seed=1000 * (seed + 1))
