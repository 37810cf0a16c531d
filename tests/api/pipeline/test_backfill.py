"""Backfills: what they do to each entity, once; plans that say so before; pausing, resuming, taking over."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Conflict, Invalid, NotFound
from analemma.testing import failpoints
from tests.api.pipeline.backfill_shop import BOOKS, TENANT, book, fill, upgraded
from tests.api.pipeline.shop import VIEW
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.depth import count, some
from tests.stores import Store


def counted(counts: Any) -> dict[str, int]:
    """What was done, without what was not."""
    return {name: each for name, each in counts._asdict().items() if each}


def pending(store: Store, kind: str) -> list[tuple[Any, ...]]:
    return query(store, "SELECT payload, priority FROM outbox WHERE type = ? AND status = 'PENDING' ORDER BY id", kind)


def test_entities_are_compiled_in_the_order_of_their_joins_and_counted(store: Store) -> None:
    with store.open() as app:
        fill(app, 250)
        done = app.backfill(TENANT, executor="threads:3")
        assert (done.state, done.total) == ("DONE", 255)
        assert counted(done.counts) == {"done": 255, "changed": 255, "slices": 1010, "requested": 250}
        assert query(store, "SELECT sum(revision), count(*) FROM compile") == [(255, 255)]
        answer = app.tenant("shop").view(VIEW).get("b00003")
        assert answer.data["ENRICHED"] == {"author": {"name": "Author 3"}}
        again = app.backfill(TENANT)
        assert counted(again.counts) == {"done": 255}
        assert app.backfills.verify(TENANT).ok


RUNS = [
    (kind, versions, stage)
    for kind in ("raw_to_slice", "slice_to_sink", "full")
    for versions in ("newest", "all")
    for stage in ("new", "upgraded", "changed")
    # Nothing is compiled for sinks.
    if (kind, versions) != ("slice_to_sink", "all")
]
SOME_RUNS = [
    ("raw_to_slice", "all", "new"),
    ("raw_to_slice", "newest", "changed"),
    ("slice_to_sink", "newest", "changed"),
    ("full", "all", "upgraded"),
]


@pytest.mark.parametrize(("kind", "versions", "stage"), some(RUNS, test=SOME_RUNS))
def test_a_dry_run_counts_what_a_run_then_does(
    store: Store, tmp_path: Path, kind: Any, versions: str, stage: str
) -> None:
    scope: dict[str, Any] = {**TENANT, "versions": versions}
    with store.open() as app:
        fill(app, 40)
        shop = app.tenant("shop")
        if stage != "new":
            app.backfill({**TENANT, "prefix": "b"}, executor="threads:1")
        if stage == "upgraded":
            app.contracts.load(upgraded(tmp_path))
        if stage == "changed":
            # Authors that are new change what books become, in the same run; so does one that is deleted.
            shop.ingest("AUTHOR", "a5", {"name": "New"})
            for number in range(0, 40, 7):
                shop.ingest("BOOK", f"b{number:05}", book(number, price=7000))
            shop.delete("BOOK", "b00001")
            shop.delete("AUTHOR", "a2")
        before = row_counts(store)
        plan = app.backfill(scope, kind=kind, dry_run=True)
        assert row_counts(store) == before and plan.exact
        done = app.backfill(scope, kind=kind, executor="threads:2")
        assert done.state == "DONE" and done.counts == plan.changes
        assert done.total == plan.total == done.counts.done
        assert rows_added(store, before).get("slice", 0) >= done.counts.slices - done.counts.tombstones
        if kind != "slice_to_sink":
            assert app.backfills.verify(TENANT).ok


def test_only_stale_entities_are_compiled_after_an_upgrade(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        fill(app, 60)
        app.backfill(TENANT)
        app.contracts.load(upgraded(tmp_path))
        shop = app.tenant("shop")
        shop.compile("BOOK", "b00000")
        shop.ingest("BOOK", "b00100", book(100))
        plan = app.backfills.plan({**TENANT, "stale": True}, quick=True)
        assert [(each.type, each.selected) for each in plan.types] == [("AUTHOR", 0), ("BOOK", 60)]
        books = plan.types[1].there
        assert (books.entities, books.never_compiled, books.other_rules, books.behind) == (61, 1, 59, 0)
        assert plan.raw_bytes > 61 * 50 and len(plan.samples) == 10
        before = row_counts(store)
        done = app.backfill({**TENANT, "stale": True})
        assert (done.total, done.counts.done, done.counts.changed) == (60, 60, 60)
        assert done.counts.slices == 59 * 2 + 5
        assert rows_added(store, before)["compile"] == 60
        assert app.backfill({**TENANT, "stale": True}).total == 0
        assert shop.slices("BOOK", "b00007")["PRICE"].data == {"amount": {"cents": 7}}


def test_one_that_fails_keeps_no_other_from_being_done(store: Store) -> None:
    with store.open(cache_bytes=0) as app:
        fill(app, 30)
        roots = "SELECT root FROM raw JOIN entity ON entity.id = raw.entity WHERE key IN ('b00004', 'b00009')"
        query(store, f"DELETE FROM block WHERE id IN ({roots})")  # noqa: S608
        # What was just ingested is known here: another process is asked.
    with store.open(cache_bytes=0) as app:
        plan = app.backfill(BOOKS, dry_run=True)
        done = app.backfill(BOOKS)
        assert done.state == "DONE"
        assert plan.changes == done.counts
        assert (done.counts.done, done.counts.changed, done.counts.failed) == (30, 28, 2)
        assert sorted(each.entity.partition("@")[0] for each in done.errors) == ["BOOK#shop#b00004", "BOOK#shop#b00009"]
        assert {each.kind for each in done.errors} == {"corrupt"}


def test_every_version_is_compiled_where_that_is_asked_for(store: Store) -> None:
    with store.open() as app:
        fill(app, 3)
        shop = app.tenant("shop")
        first = shop.ingest("BOOK", "b00001", book(1, price=5)).version
        shop.ingest("BOOK", "b00001", book(1, price=6))
        done = app.backfill({**BOOKS, "versions": "all"})
        assert (done.total, done.counts.done, done.counts.changed) == (3, 3, 5)
        assert shop.slices("BOOK", "b00001", first)["PRICE"].data == {"amount": {"minor": 5}}


def test_what_is_chosen_by_id_or_prefix_is_all_that_is_done(store: Store) -> None:
    with store.open() as app:
        fill(app, 120)
        done = app.backfill({**BOOKS, "prefix": "b0001"})
        assert (done.total, done.counts.done) == (10, 10)
        done = app.backfill({**BOOKS, "ids": ["b00055", "b00119", "nobody"]})
        assert (done.total, done.counts.done) == (2, 2)
        compiled = query(store, "SELECT key FROM entity WHERE newest_compiled IS NOT NULL ORDER BY key")
        assert [each[0] for each in compiled] == [*(f"b{n:05}" for n in range(10, 20)), "b00055", "b00119"]


def test_tenants_are_apart(store: Store) -> None:
    with store.open() as app:
        fill(app, 10)
        app.tenant("other").ingest("BOOK", "b1", book(1))
        assert app.backfill(BOOKS).total == 10
        assert query(store, "SELECT newest_compiled FROM entity WHERE key = 'b1'") == [(None,)]
        with pytest.raises(NotFound, match="no tenant 'nobody'"):
            app.backfill({"tenant": "nobody"})
        made = app.backfills.create({"tenant": "other"})
        assert [each.id for each in app.backfills.list("other")] == [made.id]
        assert len(app.backfills.list()) == 2


def test_sinks_are_asked_again_behind_everything_else(store: Store, tmp_path: Path) -> None:
    with store.open(ship_base=str(tmp_path)) as app:
        fill(app, 25)
        app.backfill(BOOKS)
        assert {priority for _, priority in pending(store, "ShipRequested")} == {100}
        app.worker(1).drain()
        (file,) = (tmp_path / "out").glob("*.jsonl")
        shipped = file.read_text(encoding="utf-8").count("\n")
        assert shipped >= 25
        done = app.backfill({**TENANT, "sinks": ["sinkrule.file.book"]}, kind="slice_to_sink")
        assert (done.total, done.counts.requested) == (25, 25)
        asked = pending(store, "ShipRequested")
        assert len(asked) == 25 and {json.loads(bytes(payload))["shipMode"] for payload, _ in asked} == {"FORCED"}
        app.worker(1).drain()
        assert file.read_text(encoding="utf-8").count("\n") == shipped + 25
        quiet = app.backfill({**TENANT, "sinks": []})
        assert quiet.counts.requested == 0
        full = app.backfill(BOOKS, kind="full")
        assert (full.counts.changed, full.counts.requested) == (0, 25)


def test_dead_letters_are_delivered_again_by_type_and_entity(store: Store) -> None:
    with store.open(outbox_max_attempts=1) as app:
        fill(app, 12, authors=2)

        def refuse(event: Any, settle: Any) -> None:
            raise Invalid("not today")

        app.worker(1, handlers={"RawDataIngested": refuse}).drain()
        assert app.outbox.status().dead == 14
        plan = app.backfill({**BOOKS, "prefix": "b0000"}, kind="dead_letters", dry_run=True)
        assert (plan.total, counted(plan.changes)) == (10, {"done": 10, "changed": 10})
        done = app.backfill({**BOOKS, "prefix": "b0000"}, kind="dead_letters", page=3)
        assert (done.counts, done.state) == (plan.changes, "DONE")
        assert app.outbox.status().dead == 4
        assert app.backfill({**TENANT, "events": ["ShipRequested"]}, kind="dead_letters").total == 0
        assert app.backfill(TENANT, kind="dead_letters").counts.changed == 4
        app.worker(1).drain()
        assert app.backfills.verify(TENANT).ok and app.outbox.status().dead == 0


class PauseAt:
    """Pauses a backfill from another connection when so much is done."""

    def __init__(self, store: Store, done: int) -> None:
        self.store = store
        self.done = done
        self.seen: list[Any] = []

    def __call__(self, progress: Any) -> None:
        self.seen.append(progress)
        if progress.done >= self.done and not self.done < 0:
            self.done = -1
            with self.store.open() as other:
                (newest,) = other.backfills.list(limit=1)
                assert newest.state == "RUNNING" and newest.holder
                other.backfills.pause(newest.id, "for lunch")


def test_one_that_was_paused_goes_on_where_it_was(store: Store) -> None:
    with store.open() as app:
        fill(app, 400)
        watch = PauseAt(store, 60)
        done = app.backfill(BOOKS, executor="threads:2", page=20, rate=400, watch=watch)
        assert (done.state, done.reason, done.holder) == ("PAUSED", "for lunch", None)
        assert 60 <= done.counts.done < 400
        assert query(store, "SELECT count(*) FROM compile") == [(done.counts.done,)]
        with pytest.raises(Conflict, match="it is PAUSED"):
            app.backfills.run(done.id)
    with store.open() as app:
        finished = app.backfills.resume(done.id)
        assert finished.state == "DONE" and finished.counts.done == finished.counts.changed == 400
        assert query(store, "SELECT count(*) FROM compile") == [(400,)]
        assert watch.seen[0].total == 400 and watch.seen[-1].rate > 0
        with pytest.raises(Conflict, match="cannot be run: it is DONE"):
            app.backfills.resume(done.id)
        with pytest.raises(Conflict, match="cannot be paused"):
            app.backfills.pause(done.id)


def test_one_that_is_cancelled_stays_so(store: Store) -> None:
    with store.open() as app:
        fill(app, 30)
        made = app.backfills.create(BOOKS)
        assert made.state == "PLANNED" and app.backfills.cancel(made.id).state == "CANCELLED"
        for verb in (app.backfills.run, app.backfills.resume, app.backfills.pause, app.backfills.cancel):
            with pytest.raises(Conflict, match="it is CANCELLED"):
                verb(made.id)
        with pytest.raises(NotFound, match="there is no backfill 'bf-none'"):
            app.backfills.get("bf-none")


def test_whoever_runs_it_can_stop_it(store: Store) -> None:
    with store.open() as app:
        fill(app, 300)
        seen: list[Any] = []
        done = app.backfill(BOOKS, page=10, watch=seen.append, stop=lambda: bool(seen))
        assert done.state == "PAUSED" and 0 < done.counts.done < 300
        assert app.backfills.resume(done.id).counts.done == 300


@pytest.mark.deep("it waits for longer than a lease lasts")
def test_whoever_runs_one_keeps_its_lease(store: Store) -> None:
    with store.open(backfill_lease_s=3) as app, store.open() as other:
        fill(app, 20)
        id = app.backfills.create(BOOKS).id
        with failpoints.paused("backfill.before_transaction", lambda: app.backfills.run(id)) as held:
            time.sleep(5)
            with pytest.raises(Conflict, match=r"runs backfill .*") as refused:
                other.backfills.run(id)
            assert refused.value.facts["backfill"] == id
            assert held.go_on().state == "DONE"
        assert query(store, "SELECT count(*) FROM compile") == [(20,)]


def test_rules_that_change_under_a_backfill_end_it_and_the_rest_is_stale(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        fill(app, 300)
        with store.open() as other:

            def replace_rules(progress: Any) -> None:
                if progress.done and len(other.contracts.list()) == 6:
                    other.contracts.load(upgraded(tmp_path))

            with pytest.raises(Conflict, match="not those that the backfill was planned with"):
                app.backfill(BOOKS, rate=100, watch=replace_rules)
        (failed,) = app.backfills.list()
        assert failed.state == "FAILED" and failed.reason is not None and 0 < failed.counts.done < 300
        assert app.backfill({**BOOKS, "stale": True}).total == 300
        assert app.backfills.verify(BOOKS).ok


def test_contracts_of_something_else_do_not_end_it(store: Store) -> None:
    note: dict[str, Any] = {"kind": "ENTITY_SCHEMA", "id": "entity.note", "version": "1.0.0", "status": "ACTIVE"}
    note |= {"entityType": "NOTE", "fields": [{"name": "text", "type": "string"}]}
    with store.open() as app, store.open() as elsewhere:
        fill(app, 20)
        with failpoints.call("backfill.before_transaction", lambda: elsewhere.contracts.load(note)):
            done = app.backfill(BOOKS, executor="threads:1")
        assert (done.state, done.counts.done, done.counts.changed) == ("DONE", 20, 20)
        assert app.backfills.verify(BOOKS).ok


def test_a_rate_is_kept(store: Store) -> None:
    with store.open() as app:
        fill(app, 100)
        began = time.monotonic()
        done = app.backfill(BOOKS, rate=100, executor="threads:4")
        # The first page is free, and one may be made up for.
        assert done.counts.done == 100 and time.monotonic() - began > 0.4


def test_live_traffic_goes_on_meanwhile_and_nothing_is_lost(store: Store) -> None:
    with store.open() as app, store.open() as live:
        fill(app, 300)
        over = threading.Event()
        failures: list[BaseException] = []

        def trade() -> None:
            shop = live.tenant("shop")
            turn = 0
            try:
                while not over.is_set():
                    turn += 1
                    number = turn * 13 % 300
                    shop.ingest("BOOK", f"b{number:05}", book(number, price=turn))
                    shop.compile("BOOK", f"b{number:05}")
                    if turn % 10 == 0:
                        shop.ingest("AUTHOR", f"a{turn % 5}", {"name": f"Name {turn}"})
                        shop.compile("AUTHOR", f"a{turn % 5}")
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=trade)
        thread.start()
        try:
            for _ in range(count(1, deep=3)):
                done = app.backfill(TENANT, executor="threads:2", page=50)
                assert (done.state, done.counts.failed, done.counts.done) == ("DONE", 0, 305)
        finally:
            over.set()
            thread.join()
        assert not failures
        app.worker(2).drain()
        assert app.backfills.verify(TENANT).ok


def test_both_the_served_and_the_newest_version_are_compiled(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        fill(app, 2)
        app.backfill(TENANT)
        shop = app.tenant("shop")
        served = shop.ingest("BOOK", "b00000", book(0)).version
        # Nobody ships it, so that it is not served.
        newest = shop.deploy("BOOK", "b00000", book(0, price=99), cutover="done").version
        app.contracts.load(upgraded(tmp_path))
        plan = app.backfill({**BOOKS, "stale": True}, dry_run=True)
        done = app.backfill({**BOOKS, "stale": True}, kind="raw_to_slice")
        assert done.counts == plan.changes
        assert (done.counts.done, done.counts.changed) == (2, 3)
        assert shop.view(VIEW).get("b00000").data["PRICE"] == {"amount": {"cents": 0}}
        assert shop.slices("BOOK", "b00000", newest)["PRICE"].data == {"amount": {"cents": 99}}
        assert shop.slices("BOOK", "b00000", served)["PRICE"].data == {"amount": {"cents": 0}}
        assert app.backfills.verify(BOOKS).ok


NO_SENSE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"colour": "red"}, {}, "a scope has no 'colour'"),
    ({"types": ["B#K"]}, {}, "not an entity type"),
    ({"ids": ["a#b"]}, {}, "not an entity id"),
    ({"ids": []}, {}, "0 ids"),
    ({"prefix": "a#"}, {}, "no id begins with"),
    ({"versions": "some"}, {}, "no versions 'some'"),
    ({"stale": True}, {"kind": "slice_to_sink"}, "does not go by stale"),
    ({"events": ["X"]}, {}, "does not go by events"),
    ({"sinks": []}, {"kind": "slice_to_sink"}, "no sink is to be asked"),
    ({}, {"kind": "sideways"}, "there is no backfill 'sideways'"),
    ({}, {"mode": "incremental"}, "mode 'incremental'"),
    ({}, {"rate": 0}, "a rate of 0"),
    ({}, {"page": 0}, "a page of 0"),
    ({}, {"executor": "clouds"}, "no executor 'clouds'"),
    ({}, {"verify": "hard"}, "no way to verify 'hard'"),
]


def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")).open() as app:
        fill(app, 1)
        for scope, options, message in NO_SENSE:
            with pytest.raises(Invalid, match=message):
                app.backfill({"tenant": "shop", **scope}, **options)


def test_a_store_in_memory_stays_in_its_process() -> None:
    with analemma.open("sqlite:///:memory:") as app:
        fill(app, 5)
        assert app.backfill(BOOKS, executor="threads:2").counts.done == 5
        with pytest.raises(Invalid, match="a store in memory is of this process only"):
            app.backfill(BOOKS, executor="processes:1")


def test_a_backfill_can_be_verified_at_once(store: Store) -> None:
    with store.open() as app:
        fill(app, 5)
        done = app.backfill(TENANT, verify="strict")
        assert done.verified is not None and done.verified.ok and done.verified.slices == 30
        assert json.loads(json.dumps(done.as_dict(), default=str))["verified"]["entities"] == 10


def test_a_scope_without_entities_is_done_at_once(store: Store) -> None:
    with store.open() as app:
        fill(app, 0, authors=0)
        app.tenant("shop")
        done = app.backfill(TENANT)
        assert (done.state, done.total, counted(done.counts)) == ("DONE", 0, {})
