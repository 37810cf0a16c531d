"""What stops a collection whose numbers look wrong, or that cannot read what it must."""

from __future__ import annotations

from pathlib import Path

import pytest

from analemma.testing import failpoints
from tests.api.gc.collections import PLACE, blocks_of, expire_all_but_newest, save_versions, script
from tests.stores import Store


def test_blocks_without_any_root_are_left_alone(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        before = blocks_of(app.default, app)
        script(app, "DELETE FROM head; DELETE FROM manifest")
        assert "nothing that leads to any of them" in app.gc.plan(grace_s=0).problems[0]
        for _ in range(3):
            report = app.gc.run(grace_s=0)
            assert report.kinds == ("limit",) and "run it with force" in report.problems[0]
            assert (report.doomed, report.deleted) == (0, 0)
        assert blocks_of(app.default, app) == before
        assert app.gc.status().runs[0].state == "aborted"
        assert app.gc.run(grace_s=0, force=True).doomed == len(before)


def test_a_sudden_drop_of_what_is_needed_stops_a_tenant_until_it_is_forced(store: Store) -> None:
    with store.open(gc_brake_blocks=5) as app:
        save_versions(app, 8)
        app.tenant("other").kernel.save_state_delta({"n": 1}, **PLACE)
        assert app.gc.run(grace_s=0).ok
        expire_all_but_newest(app)
        for _ in range(2):
            report = app.gc.run(grace_s=0)
            assert "were in the pass before" in report.problems[0] and report.doomed == 0
            assert [each.problem is None for each in report.tenants] == [False, True]
        assert app.gc.run(grace_s=0, force=True).doomed > 0
        assert app.gc.run(grace_s=0).ok


@pytest.mark.parametrize("damage", ["missing", "other bytes"])
def test_a_block_that_cannot_be_read_ends_the_pass(damage: str, store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        expire_all_but_newest(app)
        app.gc.run(grace_s=0)
        newest = app.kernel.history(**PLACE)[0]
        literal = f"x'{newest.root_hash}'" if "postgres" not in store.url else f"decode('{newest.root_hash}', 'hex')"
        sql = "DELETE FROM block WHERE" if damage == "missing" else "UPDATE block SET size = size + 1 WHERE"
        script(app, f"{sql} id = {literal}")
        before = blocks_of(app.default, app)
        assert app.gc.plan(grace_s=0).tenants[0].kind == "corrupt"
        for _ in range(2):
            report = app.gc.run(grace_s=0, force=True)
            assert report.kinds == ("corrupt",) and report.deleted == 0
        assert blocks_of(app.default, app) == before


def test_first_blocks_that_come_while_a_pass_looks_are_nothing_wrong(store: Store) -> None:
    with store.open() as app:
        assert app.default.id

        def write(stage: str, count: int) -> None:
            if stage == "snapshot":
                app.kernel.save_state_delta({"n": 1}, **PLACE)

        report = app.gc.run(grace_s=0, progress=write)
        assert report.ok and report.total > 0 == report.referenced, report
        assert [app.gc.run(grace_s=0).deleted for _ in range(2)] == [0, 0]
        assert app.kernel.load_latest_state(**PLACE) == {"n": 1}


def test_first_blocks_of_a_session_are_nothing_wrong(store: Store, tmp_path: Path) -> None:
    with store.open(archive_format="blocks") as app, store.open() as other:
        volume = tmp_path / "volume"
        app.archives.create("home", owner_id="ann", volume=volume)
        (volume / "file").write_text("x" * 5000)
        with failpoints.paused("archive.after_data", lambda: app.archives.archive("home")) as held:
            assert other.stats().blocks > 0 and other.gc.status().sessions == 1
            for _ in range(3):
                report = other.gc.run(grace_s=0)
                assert report.ok and report.deleted == 0
            held.go_on()
        assert other.gc.run(grace_s=0).ok and other.gc.status().sessions == 0
        app.archives.restore("home")


def test_more_garbage_than_looks_right_is_left_alone(store: Store) -> None:
    with store.open(gc_brake_unmarked=0.3, gc_brake_blocks=5, gc_brake_drop=1) as app:
        save_versions(app, 8)
        expire_all_but_newest(app)
        report = app.gc.run(grace_s=0)
        assert report.kinds == ("limit",) and "more than 30%" in report.problems[0] and report.doomed == 0
    with store.open(gc_brake_unmarked=0.3, gc_brake_blocks=1000, gc_brake_drop=1) as app:
        # Small numbers are never wrong.
        assert app.gc.run(grace_s=0).doomed > 0
