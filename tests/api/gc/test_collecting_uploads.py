"""Objects: those whose commit never came, those in which no block lies any more, and those that cannot be deleted."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App, Settings
from analemma.errors import Conflict, Denied, HeadMoved, Invalid, NotFound
from analemma.testing import failpoints
from analemma.testing.objects import FailingStore, Fault
from tests.api.gc.collections import DAY_S, PLACE, later, text
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, select
from tests.stores import Store

OFFLOAD: dict[str, Any] = {"pack_threshold_bytes": 1000, "gc_object_delay_s": 0}
LATE: dict[str, Any] = {"workflow_id": "late", "owner_id": "ann"}


def objects_of(app: App) -> set[str]:
    assert app.objects is not None
    return {info.key for info in app.objects.list("packs")}


def requests(app: App) -> dict[str, int]:
    return {name: stats.count for name, stats in app.object_metrics.snapshot().items()}


def stalled(app: App) -> AbstractContextManager[failpoints.Paused[Any]]:
    """A writer that has uploaded everything and falls asleep before its commit."""
    save = lambda: app.kernel.save_state_delta({"large": text("stalled")}, **LATE)  # noqa: E731
    return failpoints.paused("commit.before_transaction", save)


def leave_upload(app: App) -> None:
    """An upload whose writer has died."""

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    with failpoints.call("commit.before_transaction", die), pytest.raises(Died):
        app.kernel.save_state_delta({"large": text("stalled")}, **LATE)


def test_an_upload_whose_commit_never_came_goes_after_a_day_and_its_writer_aborts(store: Store) -> None:
    with store.open(**OFFLOAD) as app, store.open(**OFFLOAD) as other:
        app.kernel.save_state_delta({"large": text("committed")}, **PLACE)
        kept = objects_of(app)
        with stalled(other) as held:
            assert len(objects_of(app)) == 2
            assert app.collector(database_clock=later(DAY_S - 60)).run().objects == 0
            tomorrow = app.collector(database_clock=later(DAY_S + 60))
            assert tomorrow.plan().abandoned == 1
            before = requests(app)
            report = tomorrow.run()
            made = {name: count - before[name] for name, count in requests(app).items()}
            assert (made["delete_object"], made["list_objects"]) == (1, 0)
            assert (report.claimed, report.objects) == (1, 1) and objects_of(app) == kept
            (entry,) = app.gc.audit()
            assert (entry.reason, entry.number) == ("commit_timeout", report.number)
            with pytest.raises(Conflict, match="collected meanwhile"):
                held.go_on()
        assert app.kernel.load_latest_state(**PLACE) == {"large": text("committed")}
        # A request of that writer that arrives even later is found by the intent, which stays.
        assert app.objects is not None
        app.objects.put(entry.object_key, b"late")
        assert app.collector(database_clock=later(3 * DAY_S)).run().objects == 0
        assert objects_of(app) == kept and len(app.gc.audit()) == 1
        app.collector(database_clock=later(9 * DAY_S)).run()
        assert select(store, "SELECT state FROM upload WHERE id = ?", [entry.upload]) == []


def test_an_object_goes_with_the_last_block_in_it(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        for number in range(3):
            app.kernel.save_state_delta({"large": text(f"version {number}")}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.gc.run(grace_s=0)
        plan = app.gc.plan(grace_s=0)
        report = app.gc.run(grace_s=0)
        assert plan.uploads == report.objects == 2 and plan.upload_bytes == report.object_bytes
        assert len(objects_of(app)) == app.stats().uploads == 1
        assert {entry.reason for entry in app.gc.audit()} == {"unreferenced"}
        assert app.kernel.load_latest_state(**PLACE) == {"large": text("version 2")}


@pytest.mark.both_stores("which rows may be lost without another is each database's")
def test_a_plan_can_be_made_where_the_row_of_an_upload_is_lost(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        for number in range(2):
            app.kernel.save_state_delta({"large": text(f"version {number}")}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.gc.run(grace_s=0)
        assert app.gc.plan(grace_s=0).uploads == 1
        assert change(store, "DELETE FROM upload WHERE created_at = (SELECT min(created_at) FROM upload)") == 1
        assert app.gc.plan(grace_s=0).uploads == 0


def test_objects_wait_after_their_claim_if_told_to(store: Store) -> None:
    with store.open(**(OFFLOAD | {"gc_object_delay_s": 3600})) as app:
        leave_upload(app)
        assert app.collector(database_clock=later(DAY_S + 60)).run().objects == 0
        assert len(objects_of(app)) == 1
        assert app.collector(database_clock=later(DAY_S + 3700)).run().objects == 1


def test_another_bucket_is_noticed_and_nothing_is_forgotten(store: Store, tmp_path: Path) -> None:
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


class Missing:
    """An object store that cannot find what it is asked about."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def head(self, key: str) -> None:
        return None


def test_claimed_objects_that_are_not_there_stop_the_deletion(store: Store) -> None:
    with store.open(**OFFLOAD) as app, store.open(**OFFLOAD) as wrong:
        for number in range(9):
            app.kernel.save_state_delta({"large": text(f"version {number}")}, **PLACE)
        app.kernel.set_retention(**PLACE, keep_last=1)
        app.gc.run(grace_s=0)
        objects: Any = Missing(wrong.objects)
        wrong.objects = objects
        before = app.stats().uploads
        report = wrong.gc.run(grace_s=0)
        assert report.claimed == 8 and report.objects == 0 and "another bucket" in report.problems[0]
        assert app.stats().uploads == before and len(objects_of(app)) == 9 and app.gc.audit() == []
        assert app.gc.run(grace_s=0).objects == 8
        assert len(objects_of(app)) == 1


def test_a_failed_commit_has_its_upload_collected_without_waiting_a_day(store: Store) -> None:
    with store.open(**OFFLOAD) as app, store.open(**OFFLOAD) as other:
        head = app.kernel.save_state_delta({"n": 1}, **PLACE).manifest_id
        meanwhile = lambda: other.kernel.save_state_delta({"n": 2}, **PLACE)  # noqa: E731
        with failpoints.call("commit.before_transaction", meanwhile), pytest.raises(HeadMoved):
            app.kernel.save_state_delta({"large": text("failed")}, previous_manifest_id=head, **PLACE)
        assert len(objects_of(app)) == 1
        (failure,) = app.gc.failures()
        assert (failure.kind, failure.state, failure.attempts) == ("commit", "waiting", 0)
        assert app.gc.work_failures() == 1
        assert objects_of(app) == set() and app.gc.failures() == []
        assert [entry.reason for entry in app.gc.audit()] == ["commit_failed"]


def give_up(store: Store, app: App, error: str) -> None:
    """As a writer does whose commit has failed: or so it seems to him."""
    uploads = [upload for (upload,) in select(store, "SELECT id FROM upload")]
    app.default.blocks.give_up(uploads, Conflict(error))


def test_a_request_for_an_upload_that_was_committed_after_all_deletes_nothing(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        app.kernel.save_state_delta({"large": text("fine")}, **PLACE)
        (key,) = objects_of(app)
        give_up(store, app, "outcome unknown")
        assert select(store, "SELECT state FROM upload") == [("ready",)] and app.gc.failures() == []
        assert app.gc.work_failures() == 0
        assert objects_of(app) == {key} and app.gc.audit() == []


def broken() -> list[Fault]:
    return [Fault("delete", "before") for _ in range(20)] + [Fault("delete_many", "before") for _ in range(20)]


def test_a_delete_that_fails_is_tried_three_times_and_then_left_to_people(store: Store) -> None:
    with store.open(**OFFLOAD) as app, store.open(**OFFLOAD) as failing:
        leave_upload(app)
        assert failing.objects is not None
        failing.objects = FailingStore(failing.objects, faults=broken())
        for attempt in range(3):
            collector = failing.collector(database_clock=later(DAY_S + 60 + attempt * 301))
            assert collector.run().failures == 0
            # It is nobody else's until its visibility has ended.
            assert collector.work_failures() == 0 and app.gc.failures()[0].attempts == attempt + 1
        (failure,) = app.gc.failures()
        assert (failure.kind, failure.state) == ("delete", "dead") and app.gc.status().dead_failures == 1
        assert app.collector(database_clock=later(2 * DAY_S)).work_failures() == 0
        assert app.gc.retry() == 1
        assert app.collector(database_clock=later(2 * DAY_S)).work_failures() == 1
        assert objects_of(app) == set() and len(app.gc.audit()) == 1


class Tagging(FailingStore):
    """Deletes nothing, and remembers what was tagged."""

    tagged: dict[str, Any]

    def tag(self, key: str, tags: Any) -> None:
        self.tagged[key] = dict(tags)


@pytest.mark.parametrize("kind", ["pass", "failure queue"])
def test_an_object_that_cannot_be_deleted_is_tagged_so_that_the_bucket_does_it(kind: str, store: Store) -> None:
    with store.open(**OFFLOAD) as app, store.open(**OFFLOAD) as failing:
        app.kernel.save_state_delta({"large": text("committed")}, **PLACE)
        (kept,) = objects_of(app)
        leave_upload(app)
        (key,) = objects_of(app) - {kept}
        assert failing.objects is not None and app.objects is not None
        objects = Tagging(failing.objects, faults=broken())
        objects.tagged = {}
        failing.objects = objects
        collector = failing.collector(database_clock=later(DAY_S + 60))
        if kind == "pass":
            collector.run()
        else:
            give_up(store, app, "outcome unknown")
            assert collector.work_failures() == 0
        assert objects.tagged == {key: {"status": "orphan"}}
        # The bucket's rules come first, and the next attempt finds nothing to do.
        app.objects.delete(key)
        assert app.collector(database_clock=later(2 * DAY_S)).work_failures() == 1
        assert app.gc.failures() == [] and objects_of(app) == {kept}


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
        upload = bytes.fromhex(left.rpartition("/")[2])
        assert select(store, "SELECT state FROM upload WHERE id = ?", [upload]) == [("deleting",)]
        listings = requests(app)["list_objects"]
        assert app.gc.run().ok
        assert requests(app)["list_objects"] == listings and left not in objects_of(app)
        assert [entry.reason for entry in app.gc.audit() if entry.upload == upload] == ["commit_failed"]


def test_dead_failures_are_tried_again_after_two_weeks(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        leave_upload(app)
        give_up(store, app, "outcome unknown")
        assert change(store, "UPDATE upload SET attempts = 3") == 1
        assert app.collector(database_clock=later(13 * DAY_S)).work_failures() == 0
        assert [failure.state for failure in app.gc.failures()] == ["dead"] and len(objects_of(app)) == 1
        assert app.collector(database_clock=later(15 * DAY_S)).work_failures() == 1
        assert app.gc.failures() == [] and objects_of(app) == set()


def test_one_dead_failure_is_tried_again_by_its_id(store: Store) -> None:
    with store.open(**OFFLOAD) as app:
        for _ in range(2):
            leave_upload(app)
        give_up(store, app, "outcome unknown")
        assert change(store, "UPDATE upload SET attempts = 3") == 2
        first, second = app.gc.failures()
        assert app.gc.retry(first.id) == 1
        with pytest.raises(NotFound, match=f"no dead failure {first.id}"):
            app.gc.retry(first.id)
        for unknown in (-1, first.id + (1 << 48)):
            with pytest.raises(NotFound):
                app.gc.retry(unknown)
        assert app.gc.work_failures() == 1 and app.gc.failures() == [second]


def test_a_claim_needs_the_state_that_it_was_decided_for(migrated_url: str, tmp_path: Path) -> None:
    """A commit comes when its upload was found to be abandoned, and is not claimed yet: here both wait for one."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open(**OFFLOAD) as app, connect(store.url) as writer:
        leave_upload(app)
        writer.execute("UPDATE upload SET state = 'ready'")
        claimed: list[int] = []
        tomorrow = app.collector(database_clock=later(2 * DAY_S))
        with beside(lambda: claimed.append(tomorrow.run(expire=False).claimed)) as collecting:
            wait_for_waiting(store.url, collecting)
            writer.commit()
        # No block lies in it, so it goes in the end; but not as one whose commit never came.
        assert claimed == [1] and [entry.reason for entry in app.gc.audit()] == ["unreferenced"]


def test_a_session_that_was_silent_for_too_long_is_given_up_and_hears_so(store: Store, tmp_path: Path) -> None:
    """What it wrote is gone then: whoever archives has to begin again."""
    volume = tmp_path / "volume"
    with store.open(archive_format="blocks") as app, store.open() as other:
        other.kernel.save_state_delta({"n": 1}, **PLACE)
        app.archives.create("home", owner_id="ann", volume=volume)
        (volume / "file").write_text(text("imported"))
        before = other.stats().blocks
        with failpoints.paused("archive.after_data", lambda: app.archives.archive("home")) as held:
            for _ in range(3):
                assert other.gc.run(grace_s=0).deleted == 0
            assert other.gc.status().sessions == 1
            other.collector(database_clock=later(DAY_S + 60)).run(grace_s=0)
            other.gc.run(grace_s=0)
            assert other.gc.status().sessions == 0 and other.stats().blocks == before
            held.go_on()
        for _ in range(2):
            other.gc.run(grace_s=0)
        app.archives.restore("home")
        assert (volume / "file").read_text() == text("imported")


def test_intents_of_stores_without_objects_are_left_alone(postgres_url: str) -> None:
    store = Store(postgres_url)
    with store.open() as app:
        app.kernel.save_state_delta({"n": 1}, **PLACE)
        sql = (
            "INSERT INTO upload (tenant, id, state, object_key, size, created_at)"
            " SELECT id, ?, 'temp', 'packs/x', 1, 0 FROM tenant"
        )
        assert change(store, sql, [b"u" * 16]) == 1
        with pytest.raises(Invalid, match="opened without them"):
            app.gc.run(grace_s=0)
        assert app.stats().uploads == 1 and app.gc.audit() == []
