"""kill -9 while documents are shipped: every sink ends with the newest state of each, and never went backwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analemma import App
from analemma.testing import failpoints
from tests import programs
from tests.api.pipeline.ship_shop import documents_of, jsonl, lines_of, open_ship_shop, rows_of, table
from tests.api.pipeline.shop import put_book
from tests.crash.points import kills
from tests.depth import count
from tests.raw_rows import change
from tests.stores import Store

ROOT = Path(__file__).parents[2]
POINTS = [
    "ship.after_read",
    "ship.after_answer",
    "ship.before_settle",
    "outbox.after_claim",
    "outbox.before_acknowledge",
    "outbox.after_acknowledge",
    "jsonl.after_write",
    "jsonl.after_flush",
]
BOOKS = 12


def command(store: Store, base: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "tests.crash.ship_worker", store.url, store.objects or "", str(base), *more]


def finish(app: App) -> None:
    """Deliver until nothing is left: what a dead worker held is free when its lease is over."""
    deadline = time.monotonic() + 30
    while app.worker(2).drain().delivered or app.outbox.status().lanes:
        assert time.monotonic() < deadline, app.outbox.status()
        time.sleep(0.05)
    assert app.outbox.status().dead == 0


def check_sinks(base: Path, prices: dict[str, int], seqs: dict[str, int]) -> None:
    documents, rows = documents_of(base / "books.jsonl"), rows_of(base / "t.db")
    assert {doc_id: body["amount"]["minor"] for doc_id, body in documents.items()} == prices
    assert {doc_id: (seq, body["amount"]["minor"]) for doc_id, (seq, body) in rows.items()} == {
        doc_id: (seqs[doc_id], price) for doc_id, price in prices.items()
    }
    for doc_id in prices:
        found = [line["shipSeq"] for line in lines_of(base / "books.jsonl") if line["docId"] == doc_id]
        assert found == sorted(found) and found[-1] == seqs[doc_id]


@pytest.mark.parametrize(
    "point",
    kills(
        POINTS,
        test=[*POINTS[:3], "outbox.after_acknowledge", "jsonl.after_write"],
        postgres=["ship.before_settle", "outbox.after_acknowledge"],
    ),
)
def test_a_kill_while_shipping_loses_nothing(point: str, store: Store, tmp_path: Path) -> None:
    with open_ship_shop(store, tmp_path, jsonl(), table(tmp_path / "t.db")) as (app, shop):
        for number in range(BOOKS):
            put_book(shop, f"{number:02}", price=number)
    done = programs.run(
        command(store, tmp_path),
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    # What a dead worker held is free when its lease is over.
    change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")
    with store.open(ship_base=str(tmp_path), ship_rest_s=0.05) as app:
        # The newest state is that of after the kill, for one of them.
        put_book(app.tenant("shop"), "03", price=99)
        finish(app)
        prices = {f"shop__{number:02}": 99 if number == 3 else number for number in range(BOOKS)}
        check_sinks(tmp_path, prices, {doc_id: 1 + (doc_id == "shop__03") for doc_id in prices})
        # What was shipped twice had the same number both times.
        for number in range(BOOKS):
            lines = [line for line in lines_of(tmp_path / "books.jsonl") if line["docId"] == f"shop__{number:02}"]
            assert len({(line["shipSeq"], line["body"]["amount"]["minor"]) for line in lines}) <= 1 + (number == 3)


def test_workers_that_are_killed_all_the_time_ship_everything(store: Store, tmp_path: Path) -> None:
    chance = random.Random(7)
    prices: dict[str, int] = {}
    seqs: dict[str, int] = {}
    with open_ship_shop(store, tmp_path, jsonl(), table(tmp_path / "t.db"), ship_max_attempts=1000) as (app, shop):
        for _ in range(count(1, deep=5)):
            workers = [
                programs.Program(command(store, tmp_path, "forever"), cwd=ROOT, stdout=subprocess.PIPE)
                for _ in range(2)
            ]
            try:
                for worker in workers:
                    assert worker.stdout is not None and worker.stdout.readline() == b"working\n"
                end = time.monotonic() + chance.uniform(0.1, 0.5)
                while time.monotonic() < end:
                    isbn = f"{chance.randrange(BOOKS):02}"
                    price = prices.get(f"shop__{isbn}", 0) + 1
                    put_book(shop, isbn, price=price)
                    prices[f"shop__{isbn}"] = price
                    seqs[f"shop__{isbn}"] = seqs.get(f"shop__{isbn}", 0) + 1
            finally:
                for worker in workers:
                    worker.kill()
                    worker.wait()
                    assert worker.stdout is not None
                    worker.stdout.close()
        finish(app)
        check_sinks(tmp_path, prices, seqs)
