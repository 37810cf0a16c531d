"""The collector takes an archive while somebody wants it back: it is there and whole, or whoever wants it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

import analemma
from analemma.errors import Conflict, Expired
from analemma.testing import failpoints
from tests.postgres_locks import beside, wait_for_waiting
from tests.raw_rows import change, connect, select
from tests.stores import Store

AT_ONCE = {"gc_object_delay_s": 0}
"""Archives at a place that others may share go no sooner than objects do."""


def archive(app: analemma.App, folder: Path) -> str:
    """A workspace with one file, archived; its archive's operation."""
    volume = folder / "volume"
    volume.mkdir()
    app.archives.create("home", owner_id="ann", volume=volume)
    (volume / "file").write_text("text")
    return app.archives.archive("home", format="tar").op_id


def delete(app: analemma.App, folder: Path) -> None:
    """A workspace that is deleted, and whose archive the next pass would take."""
    archive(app, folder)
    app.archives.delete("home")
    assert app.archives.gc_run(0).marked == 1


def read(app: analemma.App, folder: Path) -> str:
    app.archives.restore("home")
    return (folder / "volume" / "file").read_text()


def test_nobody_gets_an_archive_back_that_the_collector_has(store: Store, tmp_path: Path) -> None:
    """Guard: the collector claims an archive, durably, before it deletes anything of it."""
    with store.open(**AT_ONCE) as app, store.open(**AT_ONCE) as other:
        delete(app, tmp_path)
        with failpoints.paused("archive_gc.after_claim", lambda: app.archives.gc_run(0)) as held:
            with pytest.raises(Expired):
                other.archives.undelete("home")
            assert held.go_on().deleted == 1
        assert other.archives.get("home").status == "DELETED"


def test_nobody_adopts_an_archive_that_the_collector_has(store: Store, tmp_path: Path) -> None:
    """Guard: the same of an archive that the catalog never heard of, as after an older copy of it was restored."""
    with store.open(**AT_ONCE) as app, store.open(**AT_ONCE) as other:
        operation = archive(app, tmp_path)
        assert change(store, "DELETE FROM workspace") == 1
        assert change(store, "DELETE FROM archive_unit") == 1
        assert app.archives.gc_run(0, force=True).marked == 1
        with failpoints.paused("archive_gc.after_claim", lambda: app.archives.gc_run(0, force=True)) as held:
            with pytest.raises(Conflict):
                other.archives.adopt("home", owner_id="ann", volume=tmp_path / "volume", op_id=operation)
            assert held.go_on().deleted == 1
        assert list(other.archives.list()) == []


def test_the_collector_leaves_what_somebody_got_back_since_it_looked(store: Store, tmp_path: Path) -> None:
    """Guard: whose an archive is, is looked at again when it is claimed."""
    with store.open(**AT_ONCE) as app, store.open(**AT_ONCE) as other:
        delete(app, tmp_path)
        with failpoints.paused("archive_gc.after_look", lambda: app.archives.gc_run(0)) as held:
            other.archives.undelete("home")
            done = held.go_on()
        assert (done.claimed, done.deleted) == (0, 0)
        assert read(other, tmp_path) == "text"


def test_the_mark_of_an_archive_that_somebody_got_back_counts_no_more(store: Store, tmp_path: Path) -> None:
    """Guard: what is nobody's again has all of its time again."""
    with store.open(**AT_ONCE) as app, store.open(**AT_ONCE) as other:
        delete(app, tmp_path)
        other.archives.undelete("home")
        assert select(store, "SELECT count(*) FROM archive_mark") == [(0,)]
        other.archives.delete("home")
        assert app.archives.gc_run(0).deleted == 0
        other.archives.undelete("home")
        assert read(other, tmp_path) == "text"


def test_whoever_wants_an_archive_back_waits_for_the_claim_that_is_under_way(migrated_url: str, tmp_path: Path) -> None:
    """Guard: on PostgreSQL whoever claims an archive, and whoever wants it, have its workspace to themselves."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open(**AT_ONCE) as app, store.open(**AT_ONCE) as other:
        delete(app, tmp_path)

        def undelete() -> None:
            with pytest.raises(Expired):
                other.archives.undelete("home")

        with (
            failpoints.paused("archive_gc.before_claim", lambda: app.archives.gc_run(0)) as held,
            beside(undelete) as undeleting,
        ):
            wait_for_waiting(store.url, undeleting)
            assert held.go_on().deleted == 1
        assert other.archives.get("home").status == "DELETED"


def test_an_archive_that_somebody_gets_back_before_the_collector_is_left(migrated_url: str, tmp_path: Path) -> None:
    """Guard: whether a workspace needs the archive is looked at when it is locked. The mark may be gone by then, which
    on PostgreSQL a transaction that read it before does not see; here both wait, one behind the other."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open(**AT_ONCE) as app, store.open(**AT_ONCE) as other, connect(store.url) as holder:
        delete(app, tmp_path)
        holder.execute("SELECT FROM workspace FOR UPDATE")
        claimed: list[int] = []
        with beside(lambda: other.archives.undelete("home")) as undeleting:
            wait_for_waiting(store.url, undeleting)
            with beside(lambda: claimed.append(app.archives.gc_run(0).claimed)) as collecting:
                wait_for_waiting(store.url, undeleting, collecting)
                holder.rollback()
        assert claimed == [0]
        assert read(other, tmp_path) == "text"


def test_an_archive_is_left_whose_workspace_is_made_while_it_is_claimed(migrated_url: str, tmp_path: Path) -> None:
    """Guard: where there is no workspace to lock, it is looked for again once the archive's own row is locked, which
    whoever makes a workspace of an archive does first."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open(**AT_ONCE) as app, connect(store.url) as holder:
        archive(app, tmp_path)
        holder.execute("CREATE TEMPORARY TABLE kept AS SELECT * FROM workspace")
        holder.execute("DELETE FROM workspace")
        holder.commit()
        assert app.archives.gc_run(0, force=True).marked == 1
        holder.execute("UPDATE archive_unit SET created_at = created_at")
        holder.execute("INSERT INTO workspace SELECT * FROM kept")
        claimed: list[int] = []
        with beside(lambda: claimed.append(app.archives.gc_run(0, force=True).claimed)) as collecting:
            wait_for_waiting(store.url, collecting)
            holder.commit()
        assert claimed == [0]
        assert read(app, tmp_path) == "text"
