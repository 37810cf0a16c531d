"""Objects belong to one catalog: a copy of it reads them, writes beside them, and neither collects nor deletes."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Denied, Invalid
from tests.depth import some
from tests.raw_rows import change, connect, select
from tests.servers import PostgresServer
from tests.stores import Store

NAME: dict[str, Any] = {"owner_id": "ann", "workflow_id": "trip"}
EAGER: dict[str, Any] = {"pack_threshold_bytes": 20_000, "gc_object_delay_s": 0}
"""Packs for little, and objects that go as soon as nothing names them."""


def blob(seed: int) -> bytes:
    return random.Random(seed).randbytes(90_000)


def save(app: analemma.App, seed: int) -> None:
    app.kernel.save_state_delta({"blob": blob(seed)}, **NAME)


def collect(app: analemma.App) -> int:
    """Keep one version, and pass often enough that all others would be gone; how many objects went."""
    app.kernel.set_retention(**NAME, keep_last=1)
    return sum(app.gc.run(grace_s=0).objects for _ in range(3))


def holds(app: analemma.App) -> list[bytes]:
    """Every version's value, oldest first, read past the caches."""
    return [app.kernel.load_state(each.manifest_id)["blob"] for each in reversed(app.kernel.history(**NAME))]


@pytest.fixture
def production(migrated_url: str, tmp_path: Path) -> Store:
    """A store on PostgreSQL with two versions, a pack of each, whose collector has passed."""
    store = Store(migrated_url, str(tmp_path / "objects"))
    with store.open(**EAGER) as app:
        save(app, 1)
        save(app, 2)
        app.gc.run(grace_s=0)
    return store


def dumped(server: PostgresServer, url: str) -> str:
    return server.restored(url)


def template(server: PostgresServer, url: str) -> str:
    return server.create_database(url)


Copy = Callable[[PostgresServer, str], str]


@pytest.fixture(params=some([dumped, template], test=[template]), ids=lambda each: each.__name__)
def staging(request: pytest.FixtureRequest, production: Store, postgres_server: PostgresServer) -> Iterator[Store]:
    """A copy of production's catalog, opened with production's objects."""
    url = request.param(postgres_server, production.url)
    yield Store(url, production.objects)
    postgres_server.drop_database(url)


def test_a_copy_of_the_catalog_deletes_nothing_of_its_original(production: Store, staging: Store) -> None:
    with staging.open(**EAGER) as app:
        app.kernel.set_retention(**NAME, keep_last=1)
        for _ in range(2):
            with pytest.raises(Denied, match="belong to another catalog of the same store") as refused:
                app.gc.run(grace_s=0)
        assert "objects adopt" in str(refused.value.hint) and "objects detach" in str(refused.value.hint)
        assert refused.value.facts["reason"] == "identity"
        assert holds(app) == [blob(1), blob(2)], "nothing was expired either"
    with production.open(**EAGER) as app:
        assert holds(app) == [blob(1), blob(2)]
        assert app.kernel.verify(**NAME).ok
        assert collect(app) == 1


def test_no_force_lets_a_copy_collect(staging: Store) -> None:
    with staging.open(**EAGER) as app, pytest.raises(Denied):
        app.gc.run(grace_s=0, force=True)


def test_a_copy_reads_and_writes_below_a_folder_of_its_own(production: Store, staging: Store, tmp_path: Path) -> None:
    before = packs(tmp_path)
    with staging.open(**EAGER) as early, staging.open(**EAGER) as app:
        save(app, 3)
        assert holds(app) == holds(early) == [blob(1), blob(2), blob(3)]
        assert app.kernel.verify(**NAME).ok
    assert packs(tmp_path) == before
    [written] = (tmp_path / "objects" / "copies").glob("*/packs/*/*")
    with staging.open(**EAGER) as app:
        save(app, 4)
        assert holds(app)[2:] == [blob(3), blob(4)]
    assert {each.parents[2] for each in (tmp_path / "objects" / "copies").glob("*/packs/*/*")} == {written.parents[2]}
    with production.open(**EAGER) as app:
        assert holds(app) == [blob(1), blob(2)]


def packs(tmp_path: Path) -> set[Path]:
    return set((tmp_path / "objects" / "packs").rglob("*"))


def test_a_copy_of_a_copy_writes_to_a_folder_of_its_own(
    staging: Store, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with staging.open(**EAGER) as app:
        save(app, 3)
    second = Store(postgres_server.create_database(staging.url), staging.objects)
    with second.open(**EAGER) as app:
        save(app, 4)
        assert holds(app) == [blob(1), blob(2), blob(3), blob(4)]
    assert len(list((tmp_path / "objects" / "copies").iterdir())) == 2
    postgres_server.drop_database(second.url)


def test_whoever_adopts_the_objects_collects_and_their_former_owner_does_not(production: Store, staging: Store) -> None:
    with production.open(**EAGER) as former, staging.open(**EAGER) as app:
        save(app, 3)
        assert app.adopt_objects().state == "owner"
        save(app, 4)
        assert collect(app) == 3, "also of what it had put below its folder"
        assert holds(app) == [blob(4)]
        owner = former.objects_owner()
        assert owner is not None and owner.state == "other" and "another catalog" in owner.detail
        with pytest.raises(Denied):
            former.gc.run(grace_s=0)
        assert former.adopt_objects().state == "owner"
        with pytest.raises(Denied):
            app.gc.run(grace_s=0)


def test_a_pass_that_is_under_way_deletes_nothing_once_another_has_adopted_the_objects(
    production: Store, staging: Store
) -> None:
    with production.open(**EAGER) as app, staging.open(**EAGER) as other:
        app.kernel.set_retention(**NAME, keep_last=1)
        app.gc.run(grace_s=0)

        def adopt(stage: str, count: int) -> None:
            if stage == "claiming":
                other.adopt_objects()

        report = app.gc.run(grace_s=0, progress=adopt)
        assert report.objects == 0 and "denied" in report.kinds
        assert holds(other) == [blob(1), blob(2)]


def test_archives_of_a_copy_are_neither_collected_nor_purged(
    production: Store, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "file").write_text("there")
    with production.open(**EAGER) as app:
        app.archives.create("ws", owner_id="ann", volume=volume)
        app.archives.archive("ws")
    staging = Store(postgres_server.create_database(production.url), production.objects)
    with staging.open(**EAGER) as app:
        with pytest.raises(Denied):
            app.archives.gc_run(delay_s=0, force=True)
        with pytest.raises(Denied):
            app.archives.purge("ws")
        assert app.archives.get("ws").status == "COLD"
    with production.open(**EAGER) as app:
        app.archives.restore("ws")
    assert (volume / "file").read_text() == "there"
    postgres_server.drop_database(staging.url)


@pytest.mark.deep("it starts servers")
def test_a_clone_of_the_disk_and_its_original_do_not_both_collect(
    production: Store, postgres_server: PostgresServer
) -> None:
    """Nothing but the generation tells them apart: whoever passes first keeps the objects."""
    clone = PostgresServer(clone_of=postgres_server)
    try:
        with Store(clone.database_of(production.url), production.objects).open(**EAGER) as copy:
            owner = copy.objects_owner()
            assert owner is not None and owner.state == "owner"
            with production.open(**EAGER) as app:
                app.gc.run(grace_s=0)
                with pytest.raises(Denied, match="another copy of this catalog") as refused:
                    copy.gc.run(grace_s=0)
                assert refused.value.facts["reason"] == "generation"
                save(copy, 3)
                assert holds(copy) == [blob(1), blob(2), blob(3)] and holds(app) == [blob(1), blob(2)]
                copy.adopt_objects()
                with pytest.raises(Denied):
                    app.gc.run(grace_s=0)
    finally:
        clone.stop()


@pytest.mark.deep("it starts servers")
def test_a_clone_that_is_first_deletes_nothing_before_the_delay_of_objects_is_over(
    production: Store, postgres_server: PostgresServer
) -> None:
    clone = PostgresServer(clone_of=postgres_server)
    try:
        with Store(clone.database_of(production.url), production.objects).open(pack_threshold_bytes=20_000) as copy:
            assert collect(copy) == 0
            assert len(holds(copy)) == 1
        with production.open(**EAGER) as app:
            assert holds(app) == [blob(1), blob(2)]
            with pytest.raises(Denied):
                app.gc.run(grace_s=0)
            app.adopt_objects()
        copied = Store(clone.database_of(production.url), production.objects)
        with copied.open(**EAGER) as copy, pytest.raises(Denied):
            copy.gc.run(grace_s=0)
        with production.open(**EAGER) as app:
            assert holds(app) == [blob(1), blob(2)]
    finally:
        clone.stop()


@pytest.mark.deep("it starts servers")
def test_a_clone_that_is_first_deletes_no_archive_before_that_delay_is_over(
    production: Store, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "file").write_text("there")
    with production.open(**EAGER) as app:
        app.archives.create("ws", owner_id="ann", volume=volume)
        app.archives.archive("ws")
    clone = PostgresServer(clone_of=postgres_server)
    try:
        with Store(clone.database_of(production.url), production.objects).open() as copy:
            copy.archives.delete("ws")
            for _ in range(3):
                assert copy.archives.gc_run(delay_s=0, force=True).deleted == 0
            assert copy.archives.gc_plan(delay_s=0).delay_s == 7 * 86_400
    finally:
        clone.stop()
    with production.open(**EAGER) as app:
        app.archives.restore("ws")
    assert (volume / "file").read_text() == "there"


@pytest.mark.deep("it starts servers")
def test_a_restart_a_new_name_and_a_promoted_replica_ask_for_nothing(tmp_path: Path) -> None:
    server = PostgresServer()
    standby: PostgresServer | None = None
    try:
        store = Store(server.create_database(), str(tmp_path / "objects"))
        with store.open(**EAGER) as app:
            save(app, 1)
            app.gc.run(grace_s=0)
        server.restart()
        with connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER DATABASE test_1 RENAME TO renamed")
        renamed = Store(server.url.replace("/postgres?", "/renamed?"), store.objects)
        with renamed.open(**EAGER) as app:
            app.gc.run(grace_s=0)
            standby = PostgresServer(clone_of=server, standby=True)
            save(app, 2)
            app.gc.run(grace_s=0)
        standby.promote()
        server.stop()
        with Store(standby.database_of(renamed.url), store.objects).open(**EAGER) as app:
            assert collect(app) == 1
            assert holds(app) == [blob(2)]
    finally:
        for each in (standby, server):
            if each is not None:
                each.stop()


def test_a_dump_that_is_restored_in_the_place_of_its_original_is_asked_to_adopt(
    production: Store, postgres_server: PostgresServer
) -> None:
    """As after a disaster: the catalog is last night's, and so is the generation that it knows."""
    rows = select(production, "SELECT object_generation, object_token FROM store")
    with production.open(**EAGER) as app:
        app.gc.run(grace_s=0)
    change(production, "UPDATE store SET object_generation = ?, object_token = ?", rows[0])
    with production.open(**EAGER) as app:
        with pytest.raises(Denied, match="generation 3, and this catalog at 2"):
            app.gc.run(grace_s=0)
        app.adopt_objects()
        assert app.gc.run(grace_s=0).ok


def test_a_role_that_may_not_ask_for_the_systems_identifier_still_collects(
    production: Store, postgres_server: PostgresServer
) -> None:
    with connect(production.url, autocommit=True) as connection:
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        connection.execute("DROP ROLE IF EXISTS plain")
        connection.execute("CREATE ROLE plain LOGIN")
        connection.execute("GRANT USAGE ON SCHEMA analemma TO plain")
        connection.execute("GRANT ALL ON ALL TABLES IN SCHEMA analemma TO plain")
        connection.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA analemma TO plain")
    plain = Store(production.url.replace("//postgres:@", "//plain:@"), production.objects)
    with plain.open(**EAGER) as app:
        assert collect(app) == 1
    with production.open(**EAGER) as app:
        assert app.gc.run(grace_s=0).ok
    copy = Store(postgres_server.create_database(production.url).replace("//postgres:@", "//plain:@"), plain.objects)
    with copy.open(**EAGER) as app, pytest.raises(Denied):
        app.gc.run(grace_s=0)
    postgres_server.drop_database(copy.url)
    with connect(production.url, autocommit=True) as connection:
        connection.execute("DROP OWNED BY plain")
        connection.execute("DROP ROLE plain")


def test_a_store_from_before_owners_becomes_the_owner_when_it_is_next_used(production: Store, tmp_path: Path) -> None:
    marker = tmp_path / "objects" / "owner.json"

    def forget() -> None:
        marker.unlink()
        change(production, "UPDATE store SET object_generation = 0, object_token = NULL, object_claimed = NULL")

    forget()
    with production.open(**EAGER) as app:
        owner = app.objects_owner()
        assert owner is not None and owner.state == "unclaimed"
        assert not marker.exists(), "looking makes nobody an owner"
        app.gc.run(grace_s=0)
        assert json.loads(marker.read_bytes())["generation"] == 1
    forget()
    with production.open(**EAGER) as app:
        save(app, 3)
    assert json.loads(marker.read_bytes())["store"] == select(production, "SELECT id FROM store")[0][0]


def test_objects_whose_marker_is_gone_are_not_collected(production: Store, tmp_path: Path) -> None:
    """As when another disk is mounted there."""
    (tmp_path / "objects" / "owner.json").unlink()
    with production.open(**EAGER) as app:
        with pytest.raises(Denied, match="no marker any more"):
            app.gc.run(grace_s=0)
        app.adopt_objects()
        assert app.gc.run(grace_s=0).ok


def test_objects_whose_marker_cannot_be_read_are_not_collected(production: Store, tmp_path: Path) -> None:
    for damage in (b"", b"{}", b'{"format": 2}', b"\xff"):
        (tmp_path / "objects" / "owner.json").write_bytes(damage)
        with production.open(**EAGER) as app:
            with pytest.raises(Denied, match="cannot be read"):
                app.gc.run(grace_s=0)
            app.adopt_objects()
            assert app.gc.run(grace_s=0).ok


def test_another_store_does_not_collect_what_lies_at_the_same_place(production: Store, tmp_path: Path) -> None:
    other = Store(str(tmp_path / "other"), production.objects)
    with other.open(**EAGER) as app:
        save(app, 5)
        assert holds(app) == [blob(5)]
        with pytest.raises(Denied, match="of store"):
            app.gc.run(grace_s=0)


@pytest.mark.parametrize("how", [shutil.copytree, shutil.move], ids=["copied", "moved"])
def test_a_directory_that_is_copied_or_moved_has_objects_of_its_own(tmp_path: Path, how: Any) -> None:
    with Store(str(tmp_path / "store")).open(**EAGER) as app:
        save(app, 1)
        save(app, 2)
        app.gc.run(grace_s=0)
    how(tmp_path / "store", tmp_path / "there")
    with Store(str(tmp_path / "there")).open(**EAGER) as app:
        owner = app.objects_owner()
        assert owner is not None and owner.state == "own"
        assert collect(app) == 1
        assert holds(app) == [blob(2)]
        with pytest.raises(Invalid):
            app.adopt_objects()
    if how is shutil.copytree:
        with Store(str(tmp_path / "store")).open(**EAGER) as app:
            assert holds(app) == [blob(1), blob(2)]


def test_a_copied_file_with_objects_elsewhere_does_not_collect_and_a_moved_one_does(tmp_path: Path) -> None:
    objects = str(tmp_path / "objects")
    with Store(str(tmp_path / "store"), objects).open(**EAGER) as app:
        save(app, 1)
        save(app, 2)
        app.gc.run(grace_s=0)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with Store(str(tmp_path / "copy"), objects).open(**EAGER) as app, pytest.raises(Denied, match="SQLite file"):
        app.gc.run(grace_s=0)
    shutil.move(tmp_path / "store", tmp_path / "moved")
    with Store(str(tmp_path / "moved"), objects).open(**EAGER) as app:
        assert app.gc.run(grace_s=0).ok
    with Store(str(tmp_path / "copy"), objects).open(**EAGER) as app:
        app.adopt_objects()
        assert collect(app) == 1


def test_objects_that_were_moved_are_still_their_catalogs(production: Store, tmp_path: Path) -> None:
    for name, leave_out in (("second", ()), ("third", ("owner.json",))):
        shutil.copytree(production.objects or "", tmp_path / name, ignore=shutil.ignore_patterns(*leave_out))
        production = Store(production.url, str(tmp_path / name))
        with analemma.open(production.url, objects=production.objects, objects_moved=True) as app:
            assert app.gc.run(grace_s=0).ok
    with production.open(**EAGER) as app:
        assert collect(app) == 1


def test_a_plan_says_how_long_objects_stay_and_that_a_copy_would_be_refused(production: Store, staging: Store) -> None:
    with production.open() as app:
        plan = app.gc.plan()
        assert plan.object_delay_s == 7 * 86_400 and "7 days after they are let go" in plan.describe()
        assert plan.refused is None
    with staging.open() as app:
        plan = app.gc.plan()
        assert "objects adopt" in str(plan.refused) and plan.describe().startswith("a run would be refused")
        assert app.gc.run(dry_run=True).kinds == ("denied",)


def test_no_grace_shortens_the_delay_of_objects(store: Store) -> None:
    with store.open(pack_threshold_bytes=20_000) as app:
        save(app, 1)
        save(app, 2)
        assert collect(app) == 0
        assert app.gc.status().runs[0].objects == 0 and sum(run.claimed for run in app.gc.status().runs) == 1
    with store.open(**EAGER) as app:
        assert app.gc.run(grace_s=0).objects == 1


def test_a_copy_that_detaches_has_objects_of_its_own(production: Store, staging: Store, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    (volume / "file").write_text("there")
    with production.open(**EAGER) as app:
        before = holds(app)
    with staging.open(**EAGER) as app:
        app.archives.create("ws", owner_id="ann", volume=volume)
        app.archives.archive("ws")
        save(app, 3)
        done = app.detach_objects(to=str(tmp_path / "own"))
        assert done.place == (tmp_path / "own").as_uri() and done.objects == 5
    with pytest.raises(Invalid, match="opened with those"):
        staging.open(**EAGER)
    staging = Store(staging.url, str(tmp_path / "own"))
    with staging.open(**EAGER) as app:
        owner = app.objects_owner()
        assert owner is not None and (owner.state, owner.generation) == ("owner", 1)
        assert holds(app) == [*before, blob(3)] and app.kernel.verify(**NAME).ok
        app.archives.restore("ws")
        assert collect(app) == 2
    assert (volume / "file").read_text() == "there"
    assert not (tmp_path / "own" / "copies").exists()
    with production.open(**EAGER) as app:
        assert holds(app) == before and app.gc.run(grace_s=0).ok
        assert app.kernel.verify(**NAME).ok


def test_a_copy_detaches_to_no_place_of_another(production: Store, staging: Store, tmp_path: Path) -> None:
    with Store(str(tmp_path / "other"), str(tmp_path / "theirs")).open(**EAGER) as other:
        save(other, 9)
    with staging.open(**EAGER) as app:
        with pytest.raises(Denied, match="another catalog's"):
            app.detach_objects(to=str(tmp_path / "theirs"))
        for place in (production.objects, "memory://"):
            with pytest.raises(Invalid):
                app.detach_objects(to=place)
        with pytest.raises(Invalid):
            app.detach_objects()
        with pytest.raises(Invalid):
            app.detach_objects(to=str(tmp_path / "x"), forget=True)
        assert holds(app) == [blob(1), blob(2)]


def test_a_copy_forgets_objects_only_if_it_needs_none(
    production: Store, staging: Store, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    with staging.open(**EAGER) as app, pytest.raises(Invalid, match="lie in its objects"):
        app.detach_objects(forget=True)
    with production.open(**EAGER | {"gc_object_delay_s": 86_400}) as app:
        app.kernel.save_state_delta({"blob": b"small"}, **NAME)
        # Two objects in which nothing lies any more, and which stay for a day.
        assert collect(app) == 0
    before = packs(tmp_path)
    copy = Store(postgres_server.create_database(production.url), production.objects)
    with copy.open(**EAGER) as app:
        done = app.detach_objects(forget=True)
        assert (done.place, done.objects, done.forgotten) == (None, 0, 2)
    with Store(copy.url).open(**EAGER) as app:
        assert holds(app) == [b"small"]
        save(app, 3)
        assert collect(app) == 0 and holds(app) == [blob(3)]
    postgres_server.drop_database(copy.url)
    assert packs(tmp_path) == before
    with production.open(**EAGER) as app:
        assert holds(app) == [b"small"] and app.kernel.verify(**NAME).ok


def test_an_object_that_is_missing_stops_a_detachment_before_anything_is_changed(
    staging: Store, tmp_path: Path
) -> None:
    one, _ = sorted((tmp_path / "objects" / "packs").rglob("*/*"))
    one.unlink()
    with staging.open(**EAGER) as app, pytest.raises(analemma.errors.Corrupt, match="is missing"):
        app.detach_objects(to=str(tmp_path / "own"))
    staging.open(**EAGER).close()


def test_another_system_identifier_as_pg_upgrade_makes_one_asks_for_adopt(production: Store, tmp_path: Path) -> None:
    marker = tmp_path / "objects" / "owner.json"
    facts = json.loads(marker.read_bytes())
    marker.write_text(json.dumps({**facts, "system": str(int(facts["system"]) + 1)}))
    with production.open(**EAGER) as app:
        with pytest.raises(Denied, match="belong to another catalog of the same store") as refused:
            app.gc.run(grace_s=0)
        assert refused.value.facts["reason"] == "identity"
        app.adopt_objects()
        assert collect(app) == 1
