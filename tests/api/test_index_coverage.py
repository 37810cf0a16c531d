"""An index that a newer ruleset adds: searches say which entities it does not know yet."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import aio
from analemma.errors import Conflict
from tests.cli.command_line import user_of
from tests.formats.older_schema import record
from tests.raw_rows import change
from tests.stores import Store

ACTIVE = {"version": "1.0.0", "status": "ACTIVE"}
RULESET: dict[str, Any] = {
    "kind": "RULESET",
    "id": "ruleset.part",
    "entityType": "PART",
    "slices": [{"type": "CORE", "buildRules": {"type": "PassThrough", "fields": ["name", "kind", "shelf"]}}],
    "indexes": [{"type": "kind", "selector": "kind"}],
    **ACTIVE,
}
CONTRACTS: list[dict[str, Any]] = [
    {
        "kind": "ENTITY_SCHEMA",
        "id": "entity.part",
        "entityType": "PART",
        "fields": [{"name": name, "type": "string"} for name in ("name", "kind", "shelf")],
        **ACTIVE,
    },
    RULESET,
    {"kind": "VIEW_DEFINITION", "id": "view.part", "entityType": "PART", "requiredSlices": ["CORE"], **ACTIVE},
]
COUNT = 5


def ruleset(version: str, *indexes: str, selector: str | None = None) -> dict[str, Any]:
    made = copy.deepcopy(RULESET)
    made["version"] = version
    made["indexes"] = [{"type": each, "selector": selector or each} for each in indexes]
    return made


def part(number: int, **more: str) -> dict[str, str]:
    return {"name": f"part {number}", "kind": "bolt", "shelf": "A", **more}


@contextmanager
def parts(store: Store) -> Iterator[tuple[analemma.App, Any]]:
    """Some parts that were compiled by rules with the index `kind`."""
    with store.open() as app:
        app.contracts.load(CONTRACTS)
        shop = app.tenant("shop")
        for number in range(COUNT):
            shop.ingest("PART", f"p{number}", part(number))
        app.worker(1).drain()
        yield app, shop


def command(store: Store, *arguments: str) -> tuple[int, str, str]:
    done = user_of(store).run(*arguments)
    return done.returncode, done.stdout, done.stderr


def unindexed(shop: Any, index: str = "shelf", value: str = "A") -> tuple[int, int]:
    """What search and count say of how many entities an index does not know yet."""
    view = shop.view("view.part")
    return view.search(index, value).unindexed, view.count(index=index, value=value).unindexed


def test_search_and_count_say_how_many_entities_a_new_index_does_not_know_yet(store: Store) -> None:
    with parts(store) as (app, shop):
        view = shop.view("view.part")
        assert unindexed(shop, "kind", "bolt") == (0, 0)
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        assert (len(view.search("shelf", "A")), view.count(index="shelf", value="A")) == (0, 0)
        assert unindexed(shop) == (COUNT, COUNT)
        shop.ingest("PART", "p0", part(0, name="changed"))
        shop.ingest("PART", "new", part(9))
        app.worker(1).drain()
        assert [each.entity_id for each in view.search("shelf", "A")] == ["p0", "new"]
        assert unindexed(shop) == (COUNT - 1, COUNT - 1)
        app.backfill({"tenant": "shop", "types": ["PART"], "stale": True})
        assert view.count(index="shelf", value="A") == COUNT + 1 and unindexed(shop) == (0, 0)


def test_an_index_that_a_newer_ruleset_keeps_is_complete_all_along(store: Store) -> None:
    with parts(store) as (app, shop):
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        assert unindexed(shop, "kind", "bolt") == (0, 0)
        assert len(shop.view("view.part").search("kind", "bolt", require_complete=True)) == COUNT


def test_an_index_that_reads_another_field_is_not_complete(store: Store) -> None:
    with parts(store) as (app, shop):
        app.contracts.load(ruleset("2.0.0", "kind", selector="shelf"))
        assert unindexed(shop, "kind", "A") == (COUNT, COUNT)


def test_an_index_that_was_taken_away_and_comes_back_is_not_complete(store: Store) -> None:
    with parts(store) as (app, shop):
        app.contracts.load(ruleset("2.0.0", "shelf"))
        app.backfill({"tenant": "shop"})
        app.contracts.load(ruleset("3.0.0", "shelf", "kind"))
        assert unindexed(shop, "kind", "bolt") == (COUNT, COUNT) and unindexed(shop) == (0, 0)


def test_incomplete_answers_are_refused_when_asked_to(store: Store) -> None:
    async def awaited() -> None:
        async with await aio.open(store.url, objects=store.objects) as found:
            await (await found.tenant("shop")).view("view.part").search("shelf", "A", require_complete=True)

    with parts(store) as (app, shop):
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        view = shop.view("view.part")
        asks: list[Callable[[], Any]] = [
            lambda: view.search("shelf", "A", require_complete=True),
            lambda: view.count(index="shelf", value="A", require_complete=True),
        ]
        for ask in asks:
            with pytest.raises(Conflict, match=f"{COUNT} entities") as told:
                ask()
            assert told.value.hint is not None
            assert "analemma backfill run --tenant shop --type PART --stale" in told.value.hint
    with pytest.raises(Conflict, match=f"{COUNT} entities"):
        asyncio.run(awaited())


def test_what_is_deleted_is_not_missing_from_an_index(store: Store) -> None:
    with parts(store) as (app, shop):
        shop.delete("PART", "p1")
        app.worker(1).drain()
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        assert unindexed(shop) == (COUNT - 1, COUNT - 1)


def test_other_tenants_and_types_are_not_counted(store: Store) -> None:
    with parts(store) as (app, _):
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        other = app.tenant("other")
        other.ingest("PART", "p0", part(0))
        app.worker(1).drain()
        assert unindexed(other) == (0, 0)


def test_what_a_deploy_serves_after_the_rules_changed_is_counted_by_what_it_was_compiled_by(
    store: Store, tmp_path: Path
) -> None:
    sink = {
        "kind": "SINKRULE",
        "id": "sink.part",
        "input": {"type": "SLICE", "entityTypes": ["PART"]},
        "target": {"type": "JSONL", "path": str(tmp_path / "parts.jsonl")},
        **ACTIVE,
    }
    with parts(store) as (app, shop):
        app.contracts.load(sink)
        shop.deploy("PART", "p0", part(0, name="deployed"), cutover="done")
        shop.deploy("PART", "new", part(9), cutover="done")
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        assert unindexed(shop) == (COUNT, COUNT)
        app.worker(1).drain()
        assert shop.view("view.part").get("new").data["CORE"]["name"] == "part 9"
        assert unindexed(shop) == (COUNT + 1, COUNT + 1)
        app.backfill({"tenant": "shop", "types": ["PART"], "stale": True})
        assert unindexed(shop) == (0, 0)


def test_a_backfill_also_completes_an_index_for_what_is_served_while_a_deploy_waits(
    store: Store, tmp_path: Path
) -> None:
    sink = {
        "kind": "SINKRULE",
        "id": "sink.part",
        "input": {"type": "SLICE", "entityTypes": ["PART"]},
        "target": {"type": "JSONL", "path": str(tmp_path / "parts.jsonl")},
        **ACTIVE,
    }
    with parts(store) as (app, shop):
        app.contracts.load(sink)
        shop.deploy("PART", "p0", part(0, name="deployed"), cutover="done")
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        app.backfill({"tenant": "shop", "types": ["PART"], "stale": True})
        assert unindexed(shop) == (0, 0)
        found = shop.view("view.part").search("shelf", "A")
        assert next(iter(found)).data["CORE"]["name"] == "part 0"


def test_the_backfills_that_are_needed_are_listed_with_the_indexes_they_complete(store: Store) -> None:
    with parts(store) as (app, _):
        assert app.backfills.needed() == ()
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        (needed,) = app.backfills.needed()
        assert (needed.tenant, needed.entity_type, needed.entities) == ("shop", "PART", COUNT)
        assert needed.indexes == ("shelf",)
        assert needed.command == "analemma backfill run --tenant shop --type PART --stale"
        app.backfill(needed.scope)
        assert app.backfills.needed() == ()


def test_loading_contracts_says_which_backfill_is_needed_and_runs_it_when_asked_to(
    store: Store, tmp_path: Path
) -> None:
    with parts(store):
        pass
    path = tmp_path / "ruleset.json"
    path.write_text(json.dumps(ruleset("1.1.0", "kind", "shelf")))
    code, out, _ = command(store, "contracts", "load", str(path))
    assert code == 0 and "analemma backfill run --tenant shop --type PART --stale" in out and "shelf" in out
    code, out, err = command(
        store, "view", "search", "view.part", "--index", "shelf", "--value", "A", "--tenant", "shop"
    )
    assert code == 0 and f"{COUNT} entities" in err and "backfill run" in err
    asked = ("view", "count", "view.part", "--index", "shelf", "--value", "A", "--tenant", "shop")
    code, out, _ = command(store, *asked, "--json")
    assert code == 0 and json.loads(out) == {"count": 0, "unindexed": COUNT}
    assert command(store, *asked, "--require-complete")[0] == 4
    path.write_text(json.dumps(ruleset("1.2.0", "kind", "shelf", "name")))
    code, out, _ = command(store, "contracts", "load", str(path), "--backfill", "--json")
    told = json.loads(out)
    assert code == 0 and [each["state"] for each in told["backfills"]] == ["DONE"]
    code, out, _ = command(store, *asked, "--json", "--require-complete")
    assert code == 0 and json.loads(out) == {"count": COUNT, "unindexed": 0}


def test_a_store_that_is_migrated_knows_by_which_rules_its_entities_are_served(store: Store) -> None:
    with parts(store) as (app, shop):
        shop.delete("PART", "p1")
        shop.ingest("PART", "p2", part(2, name="changed"))
        app.worker(1).drain()
    change(store, "DROP INDEX entity_served_rules")
    change(store, "ALTER TABLE entity DROP COLUMN served_rules")
    record(store, but=27)
    with store.open() as app:
        shop = app.tenant("shop")
        assert unindexed(shop, "kind", "bolt") == (0, 0)
        app.contracts.load(ruleset("1.1.0", "kind", "shelf"))
        assert unindexed(shop) == (COUNT - 1, COUNT - 1)
