"""What was compiled and is damaged: told entity by entity, and made again from the raw document."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import aio
from analemma.errors import Corrupt
from tests.cli.command_line import user_of
from tests.raw_rows import change, select
from tests.stores import Store

ACTIVE = {"version": "1.0.0", "status": "ACTIVE"}
CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.part",
        "entityType": "PART",
        "fields": [{"name": "name", "type": "string"}, {"name": "kind", "type": "string"}],
        **ACTIVE,
    },
    {
        "kind": "RULESET",
        "id": "ruleset.part",
        "entityType": "PART",
        "slices": [
            {"type": "CORE", "buildRules": {"type": "MapFields", "mappings": [{"from": "name", "to": "title"}]}}
        ],
        "indexes": [{"type": "kind", "selector": "kind"}],
        **ACTIVE,
    },
    {"kind": "VIEW_DEFINITION", "id": "view.part", "entityType": "PART", "requiredSlices": ["CORE"], **ACTIVE},
]
"""The slice is no copy of the document: with one block for both, damage to the slice is damage to the document."""


def filled(store: Store, count: int = 7) -> None:
    with store.open() as app:
        app.contracts.load(CONTRACTS)
        for number in range(count):
            app.tenant("shop").ingest("PART", f"p{number}", {"name": f"part {number}", "kind": "bolt"})
        app.worker(1).drain()


def root_of(store: Store, entity_id: str) -> bytes:
    ((root,),) = select(
        store, "SELECT slice.root FROM slice JOIN entity ON entity.id = slice.entity WHERE entity.key = ?", [entity_id]
    )
    return bytes(root)


def flip(store: Store, entity_id: str) -> None:
    """Change one bit of the body of an entity's slice."""
    root = root_of(store, entity_id)
    ((body,),) = select(store, "SELECT body FROM block WHERE id = ?", [root])
    assert (
        change(store, "UPDATE block SET body = ? WHERE id = ?", [bytes(body[:-1]) + bytes([body[-1] ^ 1]), root]) == 1
    )


def command(store: Store, *arguments: str) -> tuple[int, str]:
    done = user_of(store).run(*arguments)
    return done.returncode, done.stdout


def title(app: analemma.App, entity_id: str) -> Any:
    return app.tenant("shop").view("view.part").get(entity_id).data["CORE"]["title"]


def test_a_page_has_all_entities_but_the_damaged_one_which_it_names(store: Store) -> None:
    filled(store)
    flip(store, "p3")
    with store.open() as app:
        view = app.tenant("shop").view("view.part")
        for page in (
            view.range(),
            view.search("kind", "bolt"),
            view.many(["p0", "p1", "p2", "p3", "p4", "p5", "p6"]),
        ):
            assert [each.entity_id for each in page] == ["p0", "p1", "p2", "p4", "p5", "p6"]
            (damaged,) = page.unanswered
            assert (damaged.entity_id, damaged.kind) == ("p3", "corrupt")
            assert root_of(store, "p3").hex() in damaged.reason


def test_cursors_lead_past_a_damaged_entity(store: Store) -> None:
    filled(store)
    for each in ("p2", "p3"):
        flip(store, each)
    with store.open() as app:
        view = app.tenant("shop").view("view.part")
        for ask in (view.range, lambda **page: view.search("kind", "bolt", **page)):
            found, damaged, cursor = [], [], None
            while True:
                page = ask(limit=1, cursor=cursor)
                found += [each.entity_id for each in page]
                damaged += [each.entity_id for each in page.unanswered]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert (found, damaged) == (["p0", "p1", "p4", "p5", "p6"], ["p2", "p3"])


def test_all_answers_are_given_before_a_damaged_one_is_told(store: Store) -> None:
    filled(store)
    flip(store, "p3")
    found = []

    def listed() -> None:
        with store.open() as app:
            for each in app.tenant("shop").view("view.part").every(page=2):
                found.append(each.entity_id)

    async def awaited() -> None:
        async with await aio.open(store.url, objects=store.objects) as app:
            async for each in (await app.tenant("shop")).view("view.part").every(page=2):
                found.append(each.entity_id)

    for give in (listed, lambda: asyncio.run(awaited())):
        found.clear()
        with pytest.raises(Corrupt, match="p3"):
            give()
        assert found == ["p0", "p1", "p2", "p4", "p5", "p6"]


def test_one_that_is_asked_for_alone_says_how_it_is_made_again(store: Store) -> None:
    filled(store)
    flip(store, "p3")
    with store.open() as app:
        with pytest.raises(Corrupt) as told:
            title(app, "p3")
        assert told.value.hint is not None and "analemma compile PART p3 --mode full" in told.value.hint
        with pytest.raises(Corrupt) as told:
            app.tenant("shop").slices("PART", "p3")
        assert told.value.hint is not None and "--mode full" in told.value.hint


def test_a_command_prints_the_others_and_ends_with_the_code_of_damage(store: Store) -> None:
    filled(store)
    flip(store, "p3")
    for arguments in (
        ["range", "view.part"],
        ["search", "view.part", "--index", "kind", "--value", "bolt"],
        ["get", "view.part", "p2", "p3"],
    ):
        code, out = command(store, "view", *arguments, "--tenant", "shop")
        assert code == 6 and "part 2" in out and "p3" in out


@pytest.mark.parametrize("lost", [False, True], ids=["changed", "gone"])
def test_a_full_compile_makes_a_damaged_body_again_from_the_raw_document(store: Store, lost: bool) -> None:
    filled(store)
    if lost:
        change(store, "DELETE FROM block WHERE id = ?", [root_of(store, "p3")])
    else:
        flip(store, "p3")
    with store.open() as app:
        shop = app.tenant("shop")
        done = shop.compile("PART", "p3", mode="full")
        assert (done.repaired, done.written) == (("CORE",), ())
        assert shop.compile("PART", "p3", mode="full").repaired == ()
    with store.open() as app:
        assert title(app, "p3") == "part 3"
        assert app.backfills.verify({"tenant": "shop"}).ok


def test_a_full_compile_repairs_what_another_entity_shares(store: Store) -> None:
    filled(store)
    flip(store, "p3")
    with store.open() as app:
        app.tenant("shop").ingest("PART", "twin", {"name": "part 3", "kind": "nut"})
        app.worker(1).drain()
    with store.open() as app:
        assert app.tenant("shop").compile("PART", "twin", mode="full").repaired == ("CORE",)
    with store.open() as app:
        assert (title(app, "twin"), title(app, "p3")) == ("part 3", "part 3")


def test_a_first_full_compile_does_not_trust_a_damaged_body_that_is_there_already(store: Store) -> None:
    filled(store)
    flip(store, "p3")
    with store.open() as app:
        app.tenant("shop").ingest("PART", "twin", {"name": "part 3", "kind": "nut"})
        app.tenant("shop").compile("PART", "twin", mode="full")
    with store.open() as app:
        assert (title(app, "twin"), title(app, "p3")) == ("part 3", "part 3")


def test_a_backfill_makes_damaged_bodies_again(store: Store) -> None:
    filled(store)
    for each in ("p1", "p5"):
        flip(store, each)
    with store.open() as app:
        planned = app.backfill({"tenant": "shop"}, dry_run=True)
        done = app.backfill({"tenant": "shop"})
        assert (done.state, done.counts.done, done.counts.failed) == ("DONE", 7, 0)
        assert planned.changes == done.counts
        assert app.backfills.verify({"tenant": "shop"}).ok
    with store.open() as app:
        assert (title(app, "p1"), title(app, "p5")) == ("part 1", "part 5")


@pytest.mark.parametrize("mode", ["full", "auto"])
def test_one_damaged_entity_does_not_fail_the_page_of_a_backfill(store: Store, mode: str) -> None:
    filled(store)
    change(store, "DELETE FROM compile WHERE entity = (SELECT id FROM entity WHERE key = 'p3')")
    change(store, "UPDATE compile SET fingerprint = 'of other rules'")
    with store.open() as app:
        done = app.backfill({"tenant": "shop"}, mode=mode)
        assert (done.state, done.counts.done, done.counts.changed) == ("DONE", 7, 7)
        assert done.counts.failed == 0
        assert title(app, "p3") == "part 3"
        assert app.backfills.verify({"tenant": "shop"}).ok


def test_a_newest_compiled_version_that_there_is_not_is_set_right_by_a_backfill(store: Store) -> None:
    filled(store)
    change(store, "UPDATE entity SET newest_compiled = 12345 WHERE key = 'p3'")
    with store.open() as app:
        app.backfill({"tenant": "shop"})
        assert app.backfills.verify({"tenant": "shop"}).ok


def test_slices_whose_pack_is_gone_are_made_again(store: Store) -> None:
    filled(store, 0)
    objects = Path(store.objects or f"{store.url}/objects")
    with store.open(pack_threshold_bytes=0) as app:
        for number in range(3):
            app.tenant("shop").ingest("PART", f"p{number}", {"name": f"part {number}", "kind": "bolt"})
        ingested = {each for each in objects.rglob("*") if each.is_file()}
        app.worker(1).drain()
    packs = {each for each in objects.rglob("*") if each.is_file()} - ingested
    assert len(packs) == 3
    for each in packs:
        each.unlink()
    with store.open() as app:
        assert [each.kind for each in app.tenant("shop").view("view.part").range().unanswered] == ["corrupt"] * 3
        app.backfill({"tenant": "shop"})
    with store.open() as app:
        assert [title(app, f"p{number}") for number in range(3)] == ["part 0", "part 1", "part 2"]


def test_a_document_that_is_not_shipped_for_damage_says_whose_it_is_and_is_shipped_once_repaired(
    store: Store, tmp_path: Path
) -> None:
    lines = tmp_path / "parts.jsonl"
    sink = {
        "kind": "SINKRULE",
        "id": "sink.part",
        "input": {"type": "SLICE", "entityTypes": ["PART"]},
        "target": {"type": "JSONL", "path": str(lines)},
        **ACTIVE,
    }
    filled(store)
    flip(store, "p3")
    with store.open() as app:
        app.contracts.load(sink)
        app.backfill({"tenant": "shop"}, kind="slice_to_sink")
        app.worker(1).drain()
        (letter,) = app.outbox.dead_letters().entries
        assert letter.failure_reason is not None and "PART#shop#p3.CORE is damaged" in letter.failure_reason
        assert len(lines.read_text().splitlines()) == 6
        app.tenant("shop").compile("PART", "p3", mode="full")
        app.outbox.replay(letter.id)
        app.worker(1).drain()
        assert "part 3" in lines.read_text()
