"""Stores that older releases left, with processes killed in the middle: they open, verify, and everything goes on.

`stores/NUMBER.DATABASE.tar.xz` has the store as the release with that newest migration left it, and what has to be
found in it; `story.py` is what it did, and how one is made.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

import analemma
from analemma import App, Settings, decode_receipt
from analemma.errors import Invalid, NotFound
from analemma.langgraph import AnalemmaSaver
from tests.api.gc.collections import later
from tests.formats import story
from tests.raw_rows import is_sqlite
from tests.stores import Store

STORES = sorted((Path(__file__).parent / "stores").glob("*.tar.xz"))
DAY_S = 86_400
BOTH = pytest.mark.both_stores("each database is migrated by its own engine")


@dataclass(frozen=True)
class Older:
    """A store, and what its release said of it."""

    store: Store
    found: dict[str, Any]

    def open(self, **settings: Any) -> App:
        chosen = Settings(pack_threshold_bytes=16_384, **settings)
        server = not is_sqlite(self.store)
        app = analemma.open(
            self.store.url, objects=self.store.objects, settings=chosen, migrate=True, objects_moved=server
        )
        if server:
            app.adopt_objects()
        return app


@pytest.fixture(params=STORES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Older]:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    found = json.loads((tmp_path / "found.json").read_text())
    place = tmp_path / "store"
    if (place / "catalog.db").exists():
        yield Older(Store(str(place)), found)
        return
    server = request.getfixturevalue("postgres_server")
    url = server.load(place / "dump.sql")
    yield Older(Store(url, str(place)), found)
    server.drop_database(url)


def verify_all(app: App) -> None:
    for workflow in app.kernel.list_workflows(owner_id="ann").items:
        for branch in app.kernel.branches(owner_id="ann", workflow_id=workflow.workflow_id):
            report = app.kernel.verify(owner_id="ann", workflow_id=workflow.workflow_id, branch=branch.name)
            assert report.ok, report


@BOTH
def test_versions_are_as_they_were(older: Older) -> None:
    with older.open() as app:
        assert story.heads(app) == older.found["heads"]
        verify_all(app)
        receipt = decode_receipt(bytes.fromhex(older.found["receipt"]))
        assert app.kernel.verify(**story.TRIP, expect=receipt).ok
        again = app.kernel.save_state_delta({"n": 1}, **story.TRIP, idempotency_key="once")
        assert again.manifest_id == older.found["keyed"]
        trip = app.workflow("trip", owner="ann")
        assert trip.load(at="good")["goal"] == "Busan" and trip.blame("/goal").message is None
        ((tag,), (pin,)) = trip.tags(), app.kernel.pins(**story.TRIP)
        assert (tag.name, tag.branch, pin.reason, pin.manifest_id) == ("good", "main", "kept", older.found["keyed"])
        assert [found.decision for found in app.kernel.decisions(trip.at("good").manifest_id)] == ["approved"]
        saved = trip.save({"n": 100})
        assert trip.load(at=saved)["n"] == 100
        trip.tag("good", saved, force=True)
        app.kernel.unpin(pin.manifest_id, owner_id="ann")
        app.kernel.set_retention(**story.TRIP, keep_last=1)
        assert pin.version in {version.version for version in app.kernel.expire(**story.TRIP).expired}
        trip.untag("good")
        assert trip.verify().ok


@BOTH
def test_deltas_that_were_acknowledged_become_versions_once(older: Older) -> None:
    with older.open() as app:
        kernel = app.kernel
        assert kernel.wait_for(older.found["done"]).version == 2
        with pytest.raises((Invalid, NotFound)):
            kernel.wait_for(older.found["refused"])
        app.checkpoints.drain()
        assert kernel.load_latest_state(**story.LATE)["list"] == ["done", *range(story.WAITING)]
        assert kernel.wait_for(kernel.checkpoint_async({"/list/-": "more"}, **story.LATE)).version == 3 + story.WAITING
        verify_all(app)


@BOTH
def test_the_collector_goes_on_and_takes_nothing_that_is_needed(older: Older) -> None:
    with older.open() as app:
        before = app.stats().uploads
        for days in (2, 10, 20):
            app.collector(database_clock=later(days * DAY_S)).run(grace_s=0)
        assert app.stats().uploads < before
        verify_all(app)
        assert story.heads(app) == older.found["heads"]
        assert [version.version for version in app.workflow("short", owner="ann").log()] == [6, 5]
        assert app.payloads.hydrate(older.found["event"])["plan"][99]["day"] == 99


@BOTH
def test_runs_threads_and_views_go_on(older: Older) -> None:
    with older.open() as app:
        app.flows.register(story.flow)
        run = app.flows.approve(older.found["run"], "yes", actor="ann")
        assert (run.status, run.state["receipt"]) == ("COMPLETED", "paid 42")
        with AnalemmaSaver(app, owner="ann") as saver:
            graph = story.make_graph(saver)
            assert graph.get_state(story.THREAD).next == ("ask",)
            said = graph.invoke(Command(resume="ann"), story.THREAD)["said"]
        assert said == ["hello", "noted hello", "2: ann"]
        view = app.default.view("view.book")
        assert view.get("b-1").data == {"CORE": {"title": "Walks"}}
        app.worker().drain()
        titles = [view.get(book).data["CORE"]["title"] for book in ("b-1", "b-2")]
        assert titles == ["Long walks", "Talks"]
        verify_all(app)
