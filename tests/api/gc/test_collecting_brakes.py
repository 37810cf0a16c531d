"""What stops a collection whose numbers look wrong, or that cannot read what it must."""

from __future__ import annotations

import pytest

from analemma.catalog.collecting_sessions import SessionId
from analemma.gc.brakes import BrakeLimits, judge
from tests.api.gc.collections import PLACE, blocks_of, expire_all_but_newest, save_versions, script
from tests.stores import Store

SESSION = SessionId(bytes(16))


def reason(**numbers: object) -> str | None:
    given: dict[str, object] = {
        "roots": 1,
        "total": 10_000,
        "referenced": 9_000,
        "emptiness_is_unexplained": False,
        "last": None,
        "limits": BrakeLimits(unmarked=0.9, drop=0.5, blocks=1000),
        **numbers,
    }
    return judge(**given)  # type: ignore[arg-type]


def test_ordinary_numbers_pass() -> None:
    assert reason() is None
    assert reason(last=(10_000, 9_500)) is None
    assert reason(roots=0, total=0, referenced=0, emptiness_is_unexplained=True) is None
    assert reason(roots=0, total=900, referenced=0) is None


def test_numbers_that_look_wrong_are_told() -> None:
    assert "nothing that leads" in str(reason(roots=0, total=5, referenced=0, emptiness_is_unexplained=True))
    assert "more than 90%" in str(reason(referenced=900))
    assert "were in the pass before" in str(reason(referenced=4_000, last=(9_000, 8_100)))


def test_small_numbers_are_never_wrong() -> None:
    assert reason(total=900, referenced=1) is None
    assert reason(total=1000, referenced=100, last=(1000, 1000)) is None


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


def test_first_blocks_of_a_session_are_nothing_wrong(store: Store) -> None:
    with store.open() as app:
        save_versions(app)
        app.gc.sessions.open(app.default.id, SESSION)
        script(app, "DELETE FROM head; DELETE FROM manifest")
        assert app.gc.run(grace_s=0).ok
        app.catalog.engine.write(lambda tx: app.gc.sessions.close(tx, app.default.id, SESSION))
        assert app.gc.run(grace_s=0).kinds == ("limit",)
