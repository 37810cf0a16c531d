"""An operation on a workspace is taken over by another while its worker, who was silent for too long, still lives: the
worker finishes nothing, publishes nothing and deletes nothing any more.

On one machine the lock of the volume keeps the other away. Here it does not, as on machines that share a disk and not
its locks, or of which one does not have the disk at all."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict

import analemma
from analemma.errors import Conflict, NotFound
from analemma.testing import failpoints
from tests.actors import Actor
from tests.postgres.postgres_proxy import LossyProxy
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, select
from tests.stores import Store

LOST = "was taken over"
AT_ONCE = {"gc_object_delay_s": 0}
"""Archives at a place that others may share go no sooner than objects do."""


class Place:
    """A workspace's volume, and who holds it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.volume = folder / "volumes" / "home"
        self.file = self.volume / "file"
        self.beside = self.volume.parent / f".analemma-{self.volume.name}"

    def create(self, app: analemma.App) -> None:
        app.archives.create("home", owner_id="ann", volume=self.volume)
        self.file.write_text("text")

    def silence(self) -> None:
        """Whoever works on it was not heard of for a lease, and its lock does not reach this far."""
        assert change(self.store, "UPDATE workspace SET lease_until = 0 WHERE operation <> 'NONE'") == 1
        (self.beside / "lock").unlink(missing_ok=True)

    def finish(self, app: analemma.App) -> str:
        """Take the operation over and end it; how the workspace stands then."""
        self.silence()
        return app.archives.recover("home").status

    def facts(self) -> list[Any]:
        """What the catalog and the disk say: its rows, whose the volume is, and what is in it."""
        said = [file.read_text() if file.exists() else None for file in (self.beside / "owner", self.file)]
        return [*self.rows(), *said]

    def rows(self) -> list[Any]:
        return [
            select(self.store, "SELECT * FROM workspace ORDER BY id"),
            select(self.store, "SELECT * FROM archive_unit ORDER BY number"),
        ]


@pytest.fixture
def place(store: Store, tmp_path: Path) -> Place:
    return Place(store, tmp_path)


def keys(app: analemma.App) -> set[str]:
    assert app.objects is not None
    return {info.key for info in app.objects.list()}


def nothing_changes(place: Place, late: failpoints.Paused[Any], app: analemma.App) -> None:
    """Whoever lost the operation goes on, is told, and leaves everything as it is."""
    before = place.facts(), keys(app)
    with pytest.raises(Conflict, match=LOST):
        late.go_on()
    assert (place.facts(), keys(app)) == before


def test_a_worker_that_was_silent_and_lives_has_the_lock_of_its_volume(place: Place) -> None:
    """Guard: on one machine the lock tells what a lease cannot."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("archive.after_commit", lambda: app.archives.archive("home")) as late:
            assert change(place.store, "UPDATE workspace SET lease_until = 0") == 1
            with pytest.raises(Conflict, match="somebody works on the volume"):
                other.archives.recover("home")
            (outcome,) = other.archives.reconcile()
            assert "somebody works on the volume" in str(outcome.error)
            late.go_on()
        assert other.archives.get("home").status == "COLD"


def test_whoever_lost_an_archive_does_not_commit_it(place: Place) -> None:
    """Guard: the fence, in the transaction that gives the workspace its archive."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("archive.after_meta", lambda: app.archives.archive("home")) as late:
            assert place.finish(other) == "COLD"
            nothing_changes(place, late, app)
        other.archives.restore("home")
        assert place.file.read_text() == "text"


def test_an_archive_that_the_collector_took_while_it_was_written_is_nobodys(place: Place) -> None:
    """Guard: an archive is kept only if it is still being written."""
    with place.store.open() as app:
        place.create(app)
        with failpoints.paused("archive.after_meta", lambda: app.archives.archive("home")) as late:
            assert change(place.store, "UPDATE archive_unit SET state = 'claimed', claimed_at = 1") == 1
            with pytest.raises(Conflict, match="was collected meanwhile"):
                late.go_on()
        workspace = app.archives.get("home")
        assert (workspace.status, workspace.operation, workspace.archive_key) == ("WARM", "NONE", None)
        assert place.file.read_text() == "text"


def test_whoever_lost_an_archive_does_not_say_that_it_is_done(place: Place) -> None:
    """Guard: the fence, in the transaction that ends the operation. By then the workspace is in use again."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("workspace.before_finish", lambda: app.archives.archive("home")) as late:
            assert place.finish(other) == "COLD"
            assert other.archives.restore("home").status == "WARM"
            place.file.write_text("more")
            nothing_changes(place, late, app)
        assert other.archives.get("home").status == "WARM"


def test_whoever_lost_an_archive_does_not_say_that_it_failed(place: Place) -> None:
    """Guard: the fence, in the transaction that ends what cannot be done. Its volume was written to, and stays."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("archive.after_commit", lambda: app.archives.archive("home")) as late:
            # Another has it by now, and has done nothing yet.
            assert change(place.store, "UPDATE workspace SET fence = fence + 1") == 1
            place.file.write_text("more")
            before = place.rows()
            with pytest.raises(Conflict, match="was kept"):
                late.go_on()
            assert (place.rows(), place.file.read_text()) == (before, "more")
        place.silence()
        with pytest.raises(Conflict, match="was kept"):
            other.archives.recover("home")
        assert (other.archives.get("home").status, place.file.read_text()) == ("WARM", "more")


def test_whoever_lost_a_restore_marks_nothing(place: Place) -> None:
    """Guard: the fence, in the transaction that says that everything is extracted."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        app.archives.archive("home")
        with failpoints.paused("restore.after_extract", lambda: app.archives.restore("home")) as late:
            assert place.finish(other) == "WARM"
            nothing_changes(place, late, app)
        assert (other.archives.get("home").status, place.file.read_text()) == ("WARM", "text")


def test_whoever_lost_a_restore_swaps_nothing_in(place: Place) -> None:
    """Guard: the catalog is asked once more before what was extracted becomes the volume."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        app.archives.archive("home")
        with failpoints.paused("restore.after_mark", lambda: app.archives.restore("home")) as late:
            # Another has it by now, and has done nothing yet.
            assert change(place.store, "UPDATE workspace SET fence = fence + 1") == 1
            nothing_changes(place, late, app)
            assert not place.volume.exists()
        assert place.finish(other) == "WARM"
        assert place.file.read_text() == "text"


def test_whoever_lost_a_restore_does_not_say_that_it_is_done(place: Place) -> None:
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        app.archives.archive("home")
        with failpoints.paused("workspace.before_finish", lambda: app.archives.restore("home")) as late:
            assert place.finish(other) == "WARM"
            other.archives.archive("home")
            nothing_changes(place, late, app)
        assert other.archives.restore("home").status == "WARM"
        assert place.file.read_text() == "text"


def test_whoever_lost_a_deletion_does_not_delete_what_was_got_back(place: Place) -> None:
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("workspace.before_finish", lambda: app.archives.delete("home")) as late:
            assert place.finish(other) == "DELETED"
            other.archives.undelete("home")
            other.archives.restore("home")
            nothing_changes(place, late, app)
        assert (other.archives.get("home").status, place.file.read_text()) == ("WARM", "text")


def test_a_deletion_whose_answer_was_lost_does_not_happen_again_after_it_was_undone(
    migrated_url: str, tmp_path: Path
) -> None:
    """Guard: whoever gets a workspace back gives it a new fence. The worker asks again whether it was done."""
    place = Place(Store(migrated_url, str(tmp_path / "objects")), tmp_path)
    proxy = LossyProxy(migrated_url)
    distant = f"{migrated_url.partition('?')[0]}?host={conninfo_to_dict(proxy.url)['host']}"
    with (
        contextlib.closing(proxy),
        Store(distant, place.store.objects).open() as app,
        place.store.open() as other,
    ):
        place.create(app)
        with failpoints.paused("workspace.before_finish", lambda: app.archives.delete("home")) as late:
            proxy.lose_answer_to(b"COMMIT\0", meanwhile=lambda: other.archives.undelete("home"))
            with pytest.raises(Conflict, match=LOST):
                late.go_on()
        assert proxy.lost == 1
        assert other.archives.restore("home").status == "WARM"
        assert place.file.read_text() == "text"


def test_whoever_lost_a_deletion_without_archive_deletes_nothing_more(place: Place) -> None:
    """Guard: the fence, in the transaction that says that the volume is moved away, before it is deleted."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        delete = lambda: app.archives.delete("home", discard=True)  # noqa: E731
        with failpoints.paused("remove.after_aside", delete) as late:
            # Another has it by now, and has done nothing yet.
            place.silence()
            assert change(place.store, "UPDATE workspace SET fence = fence + 1") == 1
            nothing_changes(place, late, app)
            (aside,) = place.beside.glob("trash-*")
            assert (aside / "file").read_text() == "text"
        assert other.archives.recover("home").status == "DELETED"
        assert not aside.exists()


def test_whoever_lost_the_making_of_a_workspace_does_not_say_that_it_is_done(place: Place) -> None:
    with place.store.open() as app, place.store.open() as other:
        create = lambda: app.archives.create("home", owner_id="ann", volume=place.volume)  # noqa: E731
        with failpoints.paused("workspace.before_finish", create) as late:
            assert place.finish(other) == "WARM"
            assert other.archives.start("home").status == "RUNNING"
            nothing_changes(place, late, app)


@pytest.mark.parametrize(("verb", "ends_as"), [("start", "RUNNING"), ("stop", "WARM")])
def test_whoever_lost_a_start_or_a_stop_does_not_say_that_it_is_done(place: Place, verb: str, ends_as: str) -> None:
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        if verb == "stop":
            app.archives.start("home")
        with failpoints.paused("workspace.before_finish", lambda: getattr(app.archives, verb)("home")) as late:
            assert place.finish(other) == ends_as
            getattr(other.archives, "stop" if verb == "start" else "start")("home")
            nothing_changes(place, late, app)


def again(place: Place, app: analemma.App) -> None:
    """A workspace of the same name, whose archive is all there is of it."""
    place.create(app)
    app.archives.archive("home")


@pytest.mark.parametrize("point", ["remove.after_volume", "remove.after_markers", "remove.after_objects"])
def test_whoever_lost_a_purge_leaves_a_workspace_that_is_called_the_same(place: Place, point: str) -> None:
    """Guard: the fence, before objects are deleted and in the transaction that drops the row; a new workspace has other
    fences than the one that was there before."""
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused(point, lambda: app.archives.purge("home")) as late:
            place.silence()
            with pytest.raises(NotFound):
                other.archives.recover("home")
            again(place, other)
            nothing_changes(place, late, app)
        other.archives.restore("home")
        assert place.file.read_text() == "text"


def test_whoever_lost_a_purge_that_another_has_ended_has_nothing_to_do(place: Place) -> None:
    with place.store.open() as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("remove.after_volume", lambda: app.archives.purge("home")) as late:
            place.silence()
            with pytest.raises(NotFound):
                other.archives.recover("home")
            late.go_on()
        assert place.rows()[0] == []


def test_whoever_loses_a_purge_at_its_very_end_drops_nothing(migrated_url: str, tmp_path: Path) -> None:
    """Guard: the fence, in the transaction that drops the row. Another takes the purge over while it waits for that."""
    place = Place(Store(migrated_url, str(tmp_path / "objects")), tmp_path)
    told: list[str] = []

    def end(late: failpoints.Paused[None]) -> None:
        with pytest.raises(Conflict, match=LOST) as refused:
            late.go_on()
        told.append(str(refused.value))

    with place.store.open() as app, connect(migrated_url) as another:
        place.create(app)
        with failpoints.paused("remove.after_objects", lambda: app.archives.purge("home")) as late:
            another.execute("UPDATE workspace SET fence = fence + 1")
            with beside(lambda: end(late)) as ending:
                wait_for_waiting(migrated_url, ending)
                another.commit()
        assert len(told) == 1 and app.archives.get("home").operation == "DELETING"


def test_whoever_lost_an_operation_does_not_keep_it_with_heartbeats(place: Place) -> None:
    """Guard: the fence, in the transaction that prolongs the lease."""
    with place.store.open(archive_lease_s=0.1) as app, place.store.open() as other:
        place.create(app)
        with failpoints.paused("archive.after_data", lambda: app.archives.archive("home")) as late:
            place.silence()
            assert change(place.store, "UPDATE workspace SET fence = fence + 1, lease_until = 0, holder = NULL") == 1
            # Many times as long as it takes until the next.
            time.sleep(0.3)
            assert select(place.store, "SELECT lease_until FROM workspace") == [(0,)]
            nothing_changes(place, late, app)
        assert other.archives.recover("home").status == "COLD"


def test_of_two_that_begin_at_the_same_moment_one_does(migrated_url: str, tmp_path: Path) -> None:
    """Guard: that nobody works on it is looked at again under the row's lock. Neither has the disk, and so no lock."""
    place = Place(Store(migrated_url, str(tmp_path / "objects")), tmp_path)
    with place.store.open() as app, place.store.open() as other, connect(migrated_url) as holder:
        place.create(app)
        place.volume.parent.rename(tmp_path / "elsewhere")
        begun: list[str] = []
        refused = threading.Event()

        def hook(_: object) -> None:
            """Whoever is first is at it until the second has had its answer."""
            begun.append("begun")
            refused.wait(60)

        for each in (app, other):
            each.archives.on_start(hook)

        told: list[str] = []

        def start(archives: analemma.Archives) -> None:
            try:
                archives.start("home")
            except Conflict as exc:
                told.append(str(exc))
                refused.set()

        holder.execute("SELECT FROM workspace FOR UPDATE")
        with (
            beside(lambda: start(app.archives)) as first,
            beside(lambda: start(other.archives)) as second,
        ):
            wait_for_waiting(migrated_url, first, second)
            holder.rollback()
        assert (begun, told) == (["begun"], ["workspace home is STARTING (wait until that is done)"])
        assert app.archives.get("home").status == "RUNNING"


def collect(url: str, objects: str | None) -> None:
    with Store(url, objects).open(**AT_ONCE) as app:
        app.archives.gc_run(0)


def deleted(place: Place, app: analemma.App) -> str:
    """A workspace that is deleted, and whose archive the next pass takes; its archive's operation."""
    place.create(app)
    operation = app.archives.archive("home").op_id
    app.archives.delete("home")
    assert app.archives.gc_run(0).marked == 1
    return operation


def end_lease(store: Store) -> None:
    assert change(store, "UPDATE archive_gc SET lease_until = 0 WHERE holder IS NOT NULL") == 1


def lease(store: Store) -> list[Any]:
    return select(store, "SELECT pass, holder, lease_until, needed FROM archive_gc")


def test_two_do_not_collect_archives_at_the_same_time(place: Place) -> None:
    with place.store.open(**AT_ONCE) as app, place.store.open(**AT_ONCE) as other:
        deleted(place, app)
        with failpoints.paused("archive_gc.after_lease", lambda: app.archives.gc_run(0)) as held:
            before = lease(place.store)
            with pytest.raises(Conflict, match="is collecting archives"):
                other.archives.gc_run(0)
            assert lease(place.store) == before
            assert held.go_on().deleted == 1
        assert other.archives.gc_run(0).ok


@pytest.mark.parametrize("point", ["archive_gc.after_lease", "archive_gc.after_list", "archive_gc.after_look"])
def test_a_collector_of_archives_that_lost_its_lease_takes_nothing(place: Place, point: str) -> None:
    """Guard: the number of the pass, wherever a collector writes, and where it keeps and gives back its lease."""
    with place.store.open(**AT_ONCE) as app, place.store.open(**AT_ONCE) as other:
        operation = deleted(place, app)
        with failpoints.paused(point, lambda: app.archives.gc_run(0)) as late:
            end_lease(place.store)
            at = "archive_gc.after_lease"
            with Actor(collect, place.store.url, place.store.objects, at=at) as actor:
                actor.wait_until_stopped()
                before = lease(place.store), place.rows(), keys(app)
                report = late.go_on()
                assert (report.kind, report.claimed, report.deleted) == ("conflict", 0, 0)
                assert (lease(place.store), place.rows(), keys(app)) == before
                actor.thaw()
                assert actor.wait() == 0, actor.errors
        assert not [key for key in keys(other) if operation in key]


def test_nobody_takes_the_lease_while_archives_are_being_claimed(migrated_url: str, tmp_path: Path) -> None:
    """Guard: on PostgreSQL the lease's row is held while its collector writes, not only looked at before that."""
    place = Place(Store(migrated_url, str(tmp_path / "objects")), tmp_path)
    with place.store.open(**AT_ONCE) as app, place.store.open(**AT_ONCE) as other:
        deleted(place, app)

        def try_to_collect() -> None:
            with contextlib.suppress(Conflict):
                other.archives.gc_run(0)

        with (
            failpoints.paused("archive_gc.before_claim", lambda: app.archives.gc_run(0)) as held,
            beside(try_to_collect) as waiting,
        ):
            wait_for_waiting(migrated_url, waiting)
            assert waiting.is_alive()
            assert held.go_on().deleted == 1
