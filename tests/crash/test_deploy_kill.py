"""kill -9 at every failpoint of a deploy: what is left is true, somebody goes on, and every deploy comes to its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from analemma import App, DeployState
from analemma.testing import failpoints
from tests import programs
from tests.api.pipeline.ship_shop import documents_of, jsonl, shop_contracts
from tests.api.pipeline.shop import book
from tests.api.pipeline.tables import damaged, row_counts
from tests.crash.deploy_worker import BAD, BOOK, VERBS
from tests.crash.points import kills
from tests.crash.test_pipeline_processes import check_everything
from tests.raw_rows import change, select
from tests.stores import Store

ROOT = Path(__file__).parents[2]
COMPILED = ["compile.before_transaction", "deploy.moved", "compile.before_commit", "compile.after_commit"]
CASES = [
    *(("sync", point) for point in ["deploy.stored", "ingest.after_commit", "deploy.moved", "deploy.compiled"]),
    *(("same", point) for point in ["deploy.stored", "deploy.moved"]),
    ("async", "ingest.after_commit"),
    *(("work", point) for point in ["deploy.begun", "deploy.moved", "deploy.compiled", "deploy.answered"]),
    ("bad", "deploy.failed"),
    ("fail", "deploy.failed"),
    ("retry", "deploy.retried"),
    ("housekeep", "deploy.after_housekeeping"),
]
FAILING = ("bad", "fail", "retry")
"""What they deploy cannot be compiled, for what was there before is damaged."""
NEXT_TO_THEM = [
    *(("sync", point) for point in ["ingest.before_transaction", "ingest.before_commit"]),
    *(("sync", point) for point in COMPILED if point != "deploy.moved"),
    *(("async", point) for point in ["ingest.before_transaction", "deploy.stored", "ingest.before_commit"]),
    *(("work", point) for point in COMPILED if point != "deploy.moved"),
    *(("work", point) for point in ["ship.after_read", "ship.after_answer", "ship.before_settle"]),
    ("same", "deploy.compiled"),
]
"""Points of those whose work a deploy is made of."""


FOLLOWS = {
    "QUEUED": {"RUNNING", "FAILED"},
    "RUNNING": {"READY", "FAILED"},
    "READY": {"SINKING", "DONE"},
    "SINKING": {"DONE", "FAILED"},
    "DONE": set(),
    "FAILED": {"QUEUED"},
}


def open_app(store: Store, base: Path) -> App:
    return store.open(outbox_lease_s=1, ship_base=str(base), ship_rest_s=0.05, outbox_backoff_base_s=0.01)


def sinks() -> list[dict[str, Any]]:
    """Two files; a call takes no longer than a lease."""
    quick: dict[str, Any] = {"commit": {"batchSize": 100, "timeoutMs": 1000}}
    return [jsonl(**quick), jsonl("sink.other", "other.jsonl", **quick)]


def prepare(app: App, store: Store, verb: str, damage: ExitStack) -> None:
    app.contracts.load(shop_contracts(*sinks()))
    shop = app.tenant("shop")
    shop.ingest("AUTHOR", "lem", {"name": "Lem"})
    for isbn in "1", "2":
        shop.ingest("BOOK", isbn, {**BOOK, "isbn": isbn, "title": "Old"})
    app.worker(1).drain()
    if verb == "same":
        # Stored already, and neither served nor shipped.
        shop.deploy("BOOK", "2", {**BOOK, "isbn": "2"}, cutover="done", compile="async")
    if verb == "work":
        VERBS["async"](app)
    if verb in FAILING:
        damage.enter_context(damaged(store))
    if verb == "fail":
        shop.deploy("BOOK", "1", BAD, compile="async")
    if verb == "retry":
        assert shop.deploy("BOOK", "1", BAD).state is DeployState.FAILED
        app.worker(1).drain()
    if verb == "housekeep":
        for number in range(3):
            shop.deploy("BOOK", "3", book("3", title=f"{number}"), ship=[])
        app.worker(1).drain()


def check_history(store: Store) -> None:
    """Every deploy went from state to state as states follow each other, to where it is."""
    rows = select(store, "SELECT deploy, before, state FROM deploy_step ORDER BY deploy, place")
    ends: dict[int, str] = {}
    for deploy, before, state in rows:
        assert before == ends.get(deploy)
        assert before is None or state in FOLLOWS[before]
        ends[deploy] = state
    assert ends == dict(select(store, "SELECT number, state FROM deploy"))


def drain(store: Store, app: App) -> None:
    """Until nothing is left to do; a lane that the dead one held is free when its lease is over."""
    deadline = time.monotonic() + 30
    pending = "SELECT count(*) FROM outbox WHERE status IN ('PENDING', 'PROCESSING', 'FAILED')"
    while app.worker(1).drain().delivered or select(store, pending) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


LIKE_OTHERS = [("same", "deploy.stored"), ("work", "deploy.moved"), ("bad", "deploy.failed")]
CHOSEN = [case for case in CASES if case not in LIKE_OTHERS]
AROUND_COMMITS = [("sync", "deploy.stored"), ("sync", "ingest.after_commit")]


@pytest.mark.parametrize(("verb", "point"), kills([*CASES, *NEXT_TO_THEM], test=CHOSEN, postgres=AROUND_COMMITS))
def test_a_kill_leaves_what_somebody_can_go_on_with(verb: str, point: str, store: Store, tmp_path: Path) -> None:
    damage = ExitStack()
    with open_app(store, tmp_path) as app:
        prepare(app, store, verb, damage)
    before, deploys = row_counts(store), select(store, "SELECT count(*) FROM deploy")[0][0]
    done = programs.run(
        [
            *(sys.executable, "-m", "tests.crash.deploy_worker", store.url, store.objects or "", str(tmp_path)),
            "work" if verb == "fail" else verb,
        ],
        cwd=ROOT,
        env={**os.environ, failpoints.VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, ""), done.stderr
    check_history(store)
    if verb in ("sync", "async"):
        # The document, its deploy and the event by which somebody goes on are there together, or none of them.
        stored = point == "ingest.after_commit" or point in (*COMPILED, "deploy.compiled")
        assert row_counts(store)["raw"] - before["raw"] == int(stored)
        assert select(store, "SELECT count(*) FROM deploy")[0][0] - deploys == int(stored)
        assert row_counts(store)["outbox"] - before["outbox"] >= int(stored)
    # What a dead worker held is free when its lease is over.
    change(store, "UPDATE lane SET lease_until = 0 WHERE lease_until > 0")
    with open_app(store, tmp_path) as app:
        shop = app.tenant("shop")
        drain(store, app)
        check_history(store)
        found = app.deploys.list().deploys
        wanted = ["FAILED"] if verb in FAILING else ["DONE"] * len(found)
        assert [app.deploys.get(each.id).state for each in found] == wanted
        damage.close()
        if verb in ("sync", "async", "same"):
            # Whoever was killed does it again; and then it is done, whatever was done of it before.
            again = VERBS[verb](app)
            drain(store, app)
            assert app.deploys.get(again.id).state is DeployState.DONE  # type: ignore[attr-defined]
        if verb in ("sync", "async", "work", "same"):
            isbn = "2" if verb == "same" else "1"
            assert shop.slices("BOOK", isbn)["CORE"].data == {"isbn": isbn, "title": "New", "tags": ["new"]}
            for name in "books.jsonl", "other.jsonl":
                assert documents_of(tmp_path / name)[f"shop__{isbn}"]["title"] == "New"
        if verb in FAILING:
            # What failed stands in nobody's way.
            better = shop.deploy("BOOK", "1", BOOK, compile="async")
            drain(store, app)
            assert app.deploys.get(better.id).state is DeployState.DONE
        if verb == "retry":
            # Not retried: the transaction was undone.
            assert found[0].attempt == 1
        check_everything(app)
        check_history(store)
        assert select(store, "SELECT count(*) FROM index_entry WHERE waiting <> 0") == [(0,)]
