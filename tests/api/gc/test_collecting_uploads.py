"""Objects: those whose commit never came, those in which no block lies any more, and those that cannot be deleted."""

from __future__ import annotations

from typing import Any

import pytest

import analemma
from analemma import App, BlockId, BranchKey, Proposal, Settings
from analemma.blocks.memory import MemoryStore
from analemma.blocks.metrics import DELETE, LIST
from analemma.catalog.bodies import emit_blocks
from analemma.catalog.collecting_sessions import SessionId
from analemma.catalog.collecting_uploads import MOST_ATTEMPTS, VISIBILITY_S, CollectingUploads
from analemma.catalog.port import BlockRow, Upload, UploadId
from analemma.errors import Conflict, Denied, Expired, Invalid, Unavailable
from analemma.gc.lifecycle import ORPHAN_TAG, Bucket, lifecycle
from analemma.gc.uploads import COMMIT_FAILED, COMMIT_TIMEOUT, UNREFERENCED, UploadCollector
from analemma.testing.objects import FailingStore, Fault
from tests.api.gc.collections import DAY_S, PLACE, later, text
from tests.internals import delete_doomed_blocks
from tests.stores import Store

KEY = BranchKey("ann", "trip")
OFFLOAD: dict[str, Any] = {"pack_threshold_bytes": 1000, "gc_object_delay_s": 0}


def objects_of(app: App) -> set[str]:
    assert app.objects is not None
    return {info.key for info in app.objects.list()}


def requests(app: App) -> dict[str, int]:
    return {name: stats.count for name, stats in app.object_metrics.snapshot().items()}


def stall(app: App) -> Any:
    """A writer that has uploaded everything and falls asleep before its commit."""
    tree = app.default.trees.build({"large": text("stalled")})
    return app.default.committer.draft(Proposal(KEY, tree, app.default.head(KEY))).request


def test_an_upload_whose_commit_never_came_goes_after_a_day_and_its_writer_aborts(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        app.kernel.save_state_delta({"large": text("committed")}, **PLACE)
        kept = objects_of(app)
        request = stall(app)
        assert len(objects_of(app)) == 2
        assert app.collector(database_clock=later(DAY_S - 60)).run().objects == 0
        tomorrow = app.collector(database_clock=later(DAY_S + 60))
        assert tomorrow.plan().abandoned == 1
        before = requests(app)
        report = tomorrow.run()
        made = {name: count - before[name] for name, count in requests(app).items()}
        assert (made[DELETE], made[LIST]) == (1, 0)
        assert (report.claimed, report.objects) == (1, 1) and objects_of(app) == kept
        (entry,) = app.gc.audit()
        assert (entry.reason, entry.upload, entry.number) == (COMMIT_TIMEOUT, request.uploads[0], report.number)
        with pytest.raises(Conflict, match="collected meanwhile"):
            app.catalog.commit(request)
        assert app.kernel.load_latest_state(**PLACE) == {"large": text("committed")}
        # A request of that writer that arrives even later is found by the intent, which stays.
        assert app.objects is not None
        app.objects.put(entry.object_key, b"late")
        assert app.collector(database_clock=later(3 * DAY_S)).run().objects == 0
        assert objects_of(app) == kept and len(app.gc.audit()) == 1
        app.collector(database_clock=later(9 * DAY_S)).run()
        assert app.catalog.upload(app.default.id, entry.upload) is None


def test_an_object_goes_with_the_last_block_in_it(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        for number in range(3):
            app.kernel.save_state_delta({"large": text(f"version {number}")}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.gc.run(grace_s=0)
        plan = app.gc.plan(grace_s=0)
        report = app.gc.run(grace_s=0)
        assert plan.uploads == report.objects == 2 and plan.upload_bytes == report.object_bytes
        assert len(objects_of(app)) == 1
        assert {entry.reason for entry in app.gc.audit()} == {UNREFERENCED}
        assert app.catalog.upload(app.default.id, app.gc.audit()[0].upload) is None
        assert app.kernel.load_latest_state(**PLACE) == {"large": text("version 2")}


def test_objects_wait_after_their_claim_if_told_to(store: Store) -> None:
    with store.open(**(OFFLOAD | {"gc_object_delay_s": 3600})) as app:
        stall(app)
        assert app.collector(database_clock=later(DAY_S + 60)).run().objects == 0
        assert len(objects_of(app)) == 1
        assert app.collector(database_clock=later(DAY_S + 3700)).run().objects == 1


def test_another_bucket_is_noticed_and_nothing_is_forgotten(store: Store, tmp_path: Any) -> None:
    with store.open(**OFFLOAD) as app:
        for number in range(8):
            app.kernel.save_state_delta({"large": text(f"version {number}")}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.kernel.expire(**PLACE)
        app.gc.run(grace_s=0)
        uploads = app.stats().uploads
    another: dict[str, Any] = {"objects": str(tmp_path / "another"), "settings": Settings(cache_bytes=0)}
    with pytest.raises(Invalid, match="another"):
        analemma.open(store.url, **another)
    # Somebody says that they were copied there, and they were not.
    with analemma.open(store.url, objects_moved=True, **another) as wrong:
        newest = wrong.kernel.history(**PLACE)[0]
        assert newest.version == 8
        report = wrong.gc.run(grace_s=0)
        # It cannot even mark: the newest version's own blocks are not there.
        assert report.kinds == ("corrupt",) and report.deleted == 0
    with analemma.open(
        store.url, objects=store.objects, objects_moved=True, settings=Settings(gc_object_delay_s=0)
    ) as app:
        if store.objects is not None:
            # It was said that they are elsewhere, so it must be said that they are not.
            with pytest.raises(Denied):
                app.gc.run(grace_s=0)
            app.adopt_objects()
        assert app.gc.audit() == []
        assert app.gc.run(grace_s=0).objects == 7 and len(objects_of(app)) == 1
        assert app.stats().uploads == uploads - 7


def test_claimed_objects_that_are_not_there_stop_the_deletion(store: Store) -> None:
    with store.open(**OFFLOAD) as app, analemma.open("sqlite:///:memory:") as another:
        for number in range(9):
            app.kernel.save_state_delta({"large": text(f"version {number}")}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.gc.run(grace_s=0)
        delete_doomed_blocks(app)
        catalog = CollectingUploads(app.catalog.engine)
        wrong = UploadCollector(catalog, another.objects, age_s=DAY_S, delay_s=0)
        before = app.stats().uploads
        assert wrong.claim([app.default.id], None) == 8
        with pytest.raises(Unavailable, match="another bucket"):
            wrong.delete(1)
        assert app.stats().uploads == before and len(objects_of(app)) == 9 and app.gc.audit() == []
        assert UploadCollector(catalog, app.objects, age_s=DAY_S, delay_s=0).delete(1).objects == 8
        assert len(objects_of(app)) == 1


def test_a_failed_commit_has_its_upload_collected_without_waiting_a_day(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        app.kernel.save_state_delta({"n": 1}, **PLACE)
        head = app.default.head(KEY)
        assert head is not None

        def propose(_: object) -> Proposal:
            # Built on a version that is gone by the time of the commit.
            return Proposal(KEY, app.default.trees.build({"large": text("failed")}), head, bases=(BlockId(bytes(32)),))

        with pytest.raises(Expired):
            app.kernel._commit(KEY, head.manifest, propose)
        assert len(objects_of(app)) == 1
        (failure,) = app.gc.failures()
        assert (failure.kind, failure.state, failure.attempts) == ("commit", "waiting", 0) and "expired" in str(
            failure.error
        )
        assert app.gc.work_failures() == 1
        assert objects_of(app) == set() and app.gc.failures() == []
        assert [entry.reason for entry in app.gc.audit()] == [COMMIT_FAILED]


def test_a_request_for_an_upload_that_was_committed_after_all_deletes_nothing(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        app.kernel.save_state_delta({"large": text("fine")}, **PLACE)
        (key,) = objects_of(app)
        upload = UploadId(bytes.fromhex(key.rpartition("/")[2]))
        CollectingUploads(app.catalog.engine).enqueue(app.default.id, [upload], "commit", "outcome unknown")
        assert app.gc.work_failures() == 1
        assert objects_of(app) == {key} and app.gc.audit() == []


def test_a_delete_that_fails_is_tried_three_times_and_then_left_to_people(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        stall(app)
        assert app.objects is not None
        broken = [Fault("delete", "before") for _ in range(20)] + [Fault("delete_many", "before") for _ in range(20)]
        failing = FailingStore(app.objects, faults=broken)
        for attempt in range(MOST_ATTEMPTS):
            clock = later(DAY_S + 60 + attempt * (VISIBILITY_S + 1))
            catalog = CollectingUploads(app.catalog.engine, clock=clock)
            collector = UploadCollector(catalog, failing, age_s=DAY_S, delay_s=0)
            collector.claim([app.default.id], None)
            collector.delete(0)
            assert collector.work_failures() == 0
            # It is nobody else's until its visibility has ended.
            assert collector.work_failures() == 0 and app.gc.failures()[0].attempts == attempt + 1
        (failure,) = app.gc.failures()
        assert (failure.kind, failure.state) == ("delete", "dead") and app.gc.status().dead_failures == 1
        assert app.collector(database_clock=later(13 * DAY_S)).run().failures == 0
        assert app.gc.retry() == 1
        assert app.collector(database_clock=later(2 * DAY_S)).work_failures() == 1
        assert objects_of(app) == set() and len(app.gc.audit()) == 1


@pytest.mark.parametrize("kind", ["pass", "failure queue"])
def test_an_object_that_cannot_be_deleted_is_tagged_so_that_the_bucket_does_it(kind: str) -> None:
    with analemma.open("sqlite:///:memory:", objects="memory://", settings=Settings(**OFFLOAD)) as app:
        app.kernel.save_state_delta({"large": text("committed")}, **PLACE)
        (kept,) = objects_of(app)
        request = stall(app)
        (key,) = objects_of(app) - {kept}
        assert app.objects is not None
        broken = [Fault("delete", "before") for _ in range(9)] + [Fault("delete_many", "before") for _ in range(9)]
        catalog = CollectingUploads(app.catalog.engine, clock=later(DAY_S + 60))
        collector = UploadCollector(catalog, FailingStore(app.objects, faults=broken), age_s=DAY_S, delay_s=0)
        if kind == "pass":
            assert collector.claim([app.default.id], None) == 1
            assert collector.delete(1).failed == 1
        else:
            catalog.enqueue(app.default.id, request.uploads, "commit", "it failed")
            assert collector.work_failures() == 0
        tags = memory_of(app).tags
        assert (tags(key), tags(kept)) == (dict([ORPHAN_TAG]), {})
        rule = lifecycle(Bucket("shop")).rules["Rules"][0]["Filter"]["Tag"]
        assert tags(key) == {rule["Key"]: rule["Value"]}
        # The bucket's rules come first, and the next attempt finds nothing to do.
        app.objects.delete(key)
        app.gc.retry()
        assert app.collector(database_clock=later(2 * DAY_S)).work_failures() == 1
        assert app.gc.failures() == [] and objects_of(app) == {kept}


def memory_of(app: App) -> MemoryStore:
    """Below retries and metrics."""
    store: Any = app.objects
    while not isinstance(store, MemoryStore):
        store = store._store
    return store


def test_what_a_payload_uploaded_before_it_failed_is_collected_at_once(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        place: dict[str, Any] = {**PLACE, "execution_id": "run"}
        pointers = app.payloads.dehydrate({"first": text("first", 20_000)}, **place)
        before = objects_of(app)
        assert len(before) == 1
        state = app.payloads.hydrate(pointers)
        state["second"] = text("second", 20_000)
        app.payloads.release(**place)
        with pytest.raises(Denied, match="released"):
            app.payloads.dehydrate(state, return_delta=False, **place)
        (left,) = objects_of(app) - before
        upload = UploadId(bytes.fromhex(left.rpartition("/")[2]))
        found = app.catalog.upload(app.default.id, upload)
        assert found is not None and found.state == "temp"
        listings = requests(app)[LIST]
        assert app.gc.run().ok
        assert requests(app)[LIST] == listings and left not in objects_of(app)
        assert [entry.reason for entry in app.gc.audit() if entry.upload == upload] == [COMMIT_FAILED]


def test_dead_failures_are_forgotten_after_two_weeks(store: Store) -> None:
    with store.open() as app:
        catalog = CollectingUploads(app.catalog.engine)
        catalog.enqueue(app.default.id, [UploadId(b"u" * 16)], "delete", "broken")
        for _ in range(MOST_ATTEMPTS):
            with app.catalog.engine.transaction(write=True) as tx:
                tx.script("UPDATE gc_failure SET visible_at = 0")
            (taken,) = catalog.take_failures()
            catalog.fail_again(taken, "still broken")
        assert CollectingUploads(app.catalog.engine, clock=later(13 * DAY_S)).forget_failures() == 0
        assert CollectingUploads(app.catalog.engine, clock=later(15 * DAY_S)).forget_failures() == 1


def test_failures_come_in_batches_of_ten(store: Store) -> None:
    with store.open() as app:
        catalog = CollectingUploads(app.catalog.engine)
        catalog.enqueue(app.default.id, [UploadId(bytes([n]) * 16) for n in range(25)], "commit", "x")
        catalog.enqueue(app.default.id, [UploadId(bytes([3]) * 16)], "commit", "again")
        assert [len(catalog.take_failures()) for _ in range(4)] == [10, 10, 5, 0]


def test_a_claim_needs_exactly_the_state_that_it_was_decided_for(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        app.kernel.save_state_delta({"large": text("fine")}, **PLACE)
        request = stall(app)
        catalog = CollectingUploads(app.catalog.engine, clock=later(2 * DAY_S))
        (abandoned,) = catalog.abandoned(catalog.now_us() - DAY_S * 1_000_000)
        app.catalog.commit(request)
        assert catalog.claim_abandoned([abandoned], catalog.now_us()) == []
        assert catalog.claim_unreferenced([abandoned]) == []
        assert not catalog.claim_failed(abandoned)
        assert app.catalog.upload(app.default.id, request.uploads[0]).state == "ready"  # type: ignore[union-attr]


def test_a_session_keeps_what_nothing_leads_to_yet(store: Store) -> None:
    with store.open() as app:
        app.kernel.save_state_delta({"n": 1}, **PLACE)
        session = SessionId(b"s" * 16)
        app.gc.sessions.open(app.default.id, session)
        tree = app.default.trees.build({"large": text("imported")})
        rows = [
            BlockRow(block.id, len(block.data), 0, block.data, links=b"" if block.links else None)
            for block in sorted(tree.blocks)
        ]

        def write(tx: Any) -> None:
            app.gc.sessions.touch(tx, app.default.id, session)
            emit_blocks(tx, app.default.id, rows)

        app.catalog.engine.write(write)
        for _ in range(3):
            assert app.gc.run(grace_s=0).deleted == 0
        assert app.gc.status().sessions == 1
        # Silent for a day: it is given up, and hears so.
        app.collector(database_clock=later(DAY_S + 60)).run(grace_s=0)
        with pytest.raises(Conflict, match="given up"):
            app.catalog.engine.write(write)
        with pytest.raises(Conflict, match="given up"):
            app.catalog.engine.write(lambda tx: app.gc.sessions.close(tx, app.default.id, session))
        assert app.gc.run(grace_s=0).deleted + app.gc.run(grace_s=0).deleted == 0
        assert app.stats().blocks == 2


def test_intents_of_stores_without_objects_are_left_alone(postgres_url: str) -> None:
    with Store(postgres_url).open() as app:
        app.catalog.open_upload(app.default.id, Upload(UploadId(b"u" * 16), "temp", "packs/x", 1, 0))
        with pytest.raises(Invalid, match="opened without them"):
            app.gc.run(grace_s=0)
        assert app.stats().uploads == 1 and app.gc.audit() == []
