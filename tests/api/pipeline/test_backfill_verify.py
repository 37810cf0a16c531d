"""Verifying: every deliberate damage is found, by the mode that promises to, and nothing is changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.api.pipeline.backfill_shop import BOOKS, TENANT, book, fill, upgraded
from tests.api.pipeline.tables import query, row_counts, rows_added
from tests.stores import Store

ENTITY = "(SELECT id FROM entity WHERE key = 'b00003')"
OTHER = "(SELECT id FROM entity WHERE key = 'b00004')"


def body_of(slice_type: str, entity: str = ENTITY) -> str:
    return f"(SELECT root FROM slice WHERE entity = {entity} AND type = '{slice_type}')"  # noqa: S608


def sql(text: str) -> Callable[[Store], Any]:
    return lambda store: query(store, text)


def swap_slice(store: Store) -> None:
    """Another book's slice, hash and all: no single row is wrong."""
    ((digest, root),) = query(store, f"SELECT hash, root FROM slice WHERE entity = {OTHER} AND type = 'CORE'")  # noqa: S608
    query(store, f"UPDATE slice SET hash = ?, root = ? WHERE entity = {ENTITY} AND type = 'CORE'", digest, root)  # noqa: S608


def swap_root(store: Store) -> None:
    ((root,),) = query(store, f"SELECT root FROM slice WHERE entity = {OTHER} AND type = 'CORE'")  # noqa: S608
    query(store, f"UPDATE slice SET root = ? WHERE entity = {ENTITY} AND type = 'CORE'", root)  # noqa: S608


def tombstone(store: Store) -> None:
    query(
        store,
        f"UPDATE slice SET hash = NULL, root = NULL, tombstone = 'DELETED', detail = '' "  # noqa: S608
        f"WHERE entity = {ENTITY} AND type = 'PRICE'",
    )


def damage_body(store: Store) -> None:
    query(store, f"UPDATE block SET body = ? WHERE id = {body_of('CORE')}", b"not what it was")  # noqa: S608


def damage_raw(store: Store) -> None:
    query(store, f"UPDATE block SET body = ? WHERE id = (SELECT root FROM raw WHERE entity = {ENTITY})", b"no")  # noqa: S608


DAMAGES: dict[str, tuple[Callable[[Store], Any], str, bool]] = {
    # What is done, the kind that is told, and whether `fast` finds it too.
    "body": (damage_body, "corrupt", True),
    "body gone": (sql(f"DELETE FROM block WHERE id = {body_of('CORE')}"), "corrupt", True),  # noqa: S608
    "root of another": (swap_root, "corrupt", True),
    "row of another": (swap_slice, "wrong", False),
    "row gone": (sql(f"DELETE FROM slice WHERE entity = {ENTITY} AND type = 'PRICE'"), "wrong", True),  # noqa: S608
    "tombstone": (tombstone, "wrong", False),
    "compile gone": (sql(f"DELETE FROM compile WHERE entity = {ENTITY}"), "wrong", True),  # noqa: S608
    "dependencies": (
        sql(f"UPDATE compile SET dependencies = '{{\"CORE\":[]}}' WHERE entity = {ENTITY}"),  # noqa: S608
        "wrong",
        False,
    ),
    "dependencies unreadable": (
        sql(f"UPDATE compile SET dependencies = 'x' WHERE entity = {ENTITY}"),  # noqa: S608
        "corrupt",
        True,
    ),
    "fingerprint": (sql(f"UPDATE compile SET fingerprint = 'x' WHERE entity = {ENTITY}"), "stale", True),  # noqa: S608
    "entry gone": (
        sql(f"DELETE FROM index_entry WHERE entity = {ENTITY} AND index_type = 'tag'"),  # noqa: S608
        "wrong",
        False,
    ),
    "entry with another value": (
        sql(f"UPDATE index_entry SET value = 't9' WHERE entity = {ENTITY} AND index_type = 'tag'"),  # noqa: S608
        "wrong",
        False,
    ),
    "entry to another target": (
        sql(
            f"UPDATE index_entry SET target = {OTHER} WHERE entity = {ENTITY} AND index_type = 'author'"  # noqa: S608
        ),
        "wrong",
        False,
    ),
    "entry of another tenant": (
        sql(f"UPDATE index_entry SET tenant = tenant + 1 WHERE entity = {ENTITY} AND index_type = 'tag'"),  # noqa: S608
        "wrong",
        False,
    ),
    "raw": (damage_raw, "corrupt", False),
    "newest hash": (
        sql("UPDATE entity SET newest_hash = hash FROM raw WHERE raw.entity = entity.id - 1 AND key = 'b00003'"),
        "wrong",
        True,
    ),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_a_deliberate_damage_is_found(store: Store, name: str) -> None:
    damage, kind, fast = DAMAGES[name]
    with store.open() as app:
        fill(app, 8)
        assert app.backfill(TENANT).state == "DONE"
        assert app.backfills.verify(TENANT, "strict").ok and app.backfills.verify(TENANT, "fast").ok
        damage(store)
        before = row_counts(store)
        # The process that has everything in its caches is not taken in either.
        strict, quick = app.backfills.verify(TENANT, "strict"), app.backfills.verify(TENANT, "fast")
        assert row_counts(store) == before
        assert quick.ok is not fast
        for report in (strict, quick) if fast else (strict,):
            assert not report.ok and getattr(report, kind) >= 1
            assert {each.entity for each in report.problems} == {"BOOK#shop#b00003"}
            assert kind in {each.kind for each in report.problems}
            assert report.damaged == (kind != "stale")


def test_what_is_out_of_date_is_told_apart_from_what_is_wrong(store: Store, tmp_path: Path) -> None:
    with store.open() as app:
        fill(app, 7)
        app.backfill(TENANT)
        shop = app.tenant("shop")
        shop.ingest("BOOK", "b00001", book(1, price=17))
        report = app.backfills.verify(TENANT)
        assert (report.uncompiled, report.damaged, report.ok) == (1, False, False)
        shop.compile("BOOK", "b00001")
        # Nobody has told its book yet.
        shop.ingest("AUTHOR", "a2", {"name": "Somebody else"})
        shop.compile("AUTHOR", "a2")
        report = app.backfills.verify(TENANT)
        assert [(each.entity, each.kind) for each in report.problems] == [("BOOK#shop#b00002", "stale")]
        assert "what has changed since" in report.problems[0].what
        app.worker(1).drain()
        assert app.backfills.verify(TENANT).ok
        app.contracts.load(upgraded(tmp_path))
        report = app.backfills.verify(TENANT)
        assert (report.stale, report.damaged) == (7, False)
        verified = app.backfill({**TENANT, "stale": True}, verify="strict").verified
        assert verified is not None and verified.ok and not verified.damaged
        assert (verified.mode, verified.entities, verified.versions, verified.slices) == ("strict", 12, 12, 45)


def test_what_was_damaged_is_compiled_again(store: Store) -> None:
    with store.open() as app:
        fill(app, 8)
        app.backfill(TENANT)
        swap_slice(store)
        assert not app.backfills.verify(BOOKS).ok
        plan = app.backfill(BOOKS, dry_run=True)
        assert plan.changes is not None and plan.changes.slices == 1
        assert app.backfill(BOOKS).counts == plan.changes
        assert app.backfills.verify(BOOKS).ok


@pytest.mark.parametrize("name", ["entry with another value", "entry to another target"])
def test_index_entries_that_were_damaged_are_written_again(name: str, store: Store) -> None:
    with store.open() as app:
        fill(app, 8)
        app.backfill(TENANT)
        DAMAGES[name][0](store)
        assert not app.backfills.verify(BOOKS).ok
        # What is taken for granted is not looked at.
        assert app.backfill(BOOKS, mode="auto").counts.changed == 0
        plan = app.backfill(BOOKS, dry_run=True)
        assert plan.changes is not None and (plan.changes.changed, plan.changes.slices) == (1, 0)
        assert app.backfill(BOOKS).counts == plan.changes
        assert app.backfills.verify(BOOKS).ok
        before = row_counts(store)
        assert app.backfill(BOOKS).counts.changed == 0
        assert rows_added(store, before) == {}


def test_only_the_scope_is_verified(store: Store) -> None:
    with store.open() as app:
        fill(app, 20)
        app.backfill(TENANT)
        damage_body(store)
        assert app.backfills.verify({**BOOKS, "prefix": "b0001"}).entities == 10
        assert app.backfills.verify({**BOOKS, "prefix": "b0001"}).ok
        assert not app.backfills.verify({**BOOKS, "ids": ["b00003"]}).ok
        with pytest.raises(Invalid, match="no way to verify 'hard'"):
            app.backfills.verify(TENANT, "hard")  # type: ignore[arg-type]
