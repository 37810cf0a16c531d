"""What no rule reads, no impactMap covers and no `ignore` names: refused when it comes in, in whichever version, unless
the contract says that such fields are kept."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma.errors import Invalid
from tests.programs import run
from tests.stores import Store

Document = dict[str, Any]
FIELDS = [{"name": "text", "type": "string"}, {"name": "stock", "type": "object"}, {"name": "audit", "type": "object"}]


def schema(version: str = "1.0.0", **more: Any) -> Document:
    common = {"kind": "ENTITY_SCHEMA", "id": "entity.note", "version": version, "status": "ACTIVE"}
    return {**common, "entityType": "NOTE", "fields": FIELDS, **more}


def ruleset(version: str = "1.0.0", **more: Any) -> Document:
    common = {"kind": "RULESET", "id": "ruleset.note", "version": version, "status": "ACTIVE", "entityType": "NOTE"}
    slices = [
        {"type": "TEXT", "buildRules": {"type": "PassThrough", "fields": ["text"]}},
        {"type": "STOCK", "buildRules": {"type": "PassThrough", "fields": ["/stock/here"]}},
    ]
    return {**common, "ignore": ["/audit"], "slices": slices, **more}


VIEW = {
    "kind": "VIEW_DEFINITION",
    "id": "view.note",
    "version": "1.0.0",
    "status": "ACTIVE",
    "entityType": "NOTE",
    "requiredSlices": ["TEXT"],
}
SURPRISES = {"extra": {"b": 1, "a": [2]}, "stock": {"here": 1, "there": 2}, "more": None}
PATHS = ["/extra/a", "/extra/b", "/more", "/stock/there"]


def counts(app: analemma.App) -> tuple[int, int, int]:
    status = app.outbox.status()
    return status.pending, status.dead, status.parked


def command(store: Store, *arguments: str, given: str = "") -> tuple[int, str, str]:
    variables = {**os.environ, "ANALEMMA_URL": store.url, "ANALEMMA_TENANT": "shop"}
    if store.objects is not None:
        variables["ANALEMMA_OBJECTS"] = store.objects
    line = [sys.executable, "-m", "analemma", *arguments]
    done = run(line, env=variables, input=given.encode(), capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("before", [0, 1])
def test_the_first_version_and_later_ones_are_refused_alike_with_every_path(store: Store, before: int) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset(), VIEW])
        shop = app.tenant("shop")
        for _ in range(before):
            shop.ingest("NOTE", "1", {"text": "one", "audit": {"by": "me"}})
            app.worker(1).drain()
        with pytest.raises(Invalid) as caught:
            shop.ingest("NOTE", "1", {"text": "two", **SURPRISES})
        assert caught.value.facts["paths"] == PATHS
        assert all(path in str(caught.value) for path in PATHS)
        assert "additionalFields: keep" in str(caught.value.hint)
        assert counts(app) == (0, 0, 0)
        shop.ingest("NOTE", "1", {"text": "three"})
        app.worker(1).drain()
        assert shop.view("view.note").get("1").data["TEXT"] == {"text": "three"}
        assert counts(app) == (0, 0, 0)


def test_types_and_paths_that_are_wrong_are_told_together(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset()])
        with pytest.raises(Invalid) as caught:
            app.tenant("shop").ingest("NOTE", "1", {"text": 1, "extra": 2})
        assert [each["pointer"] for each in caught.value.facts["problems"]] == ["/text", "/extra"]


def test_a_document_with_very_many_such_paths_has_all_of_them_in_its_error(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset()])
        with pytest.raises(Invalid) as caught:
            app.tenant("shop").ingest("NOTE", "1", {f"f{number:04}": number for number in range(1000)})
        assert len(caught.value.facts["paths"]) == 1000 and "and 950 more" in caught.value.message


def test_a_contract_that_keeps_such_fields_stores_them_and_never_fails_for_them(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(additionalFields="keep"), ruleset(), VIEW])
        shop = app.tenant("shop")
        for number in range(3):
            shop.ingest("NOTE", "1", {"text": "one", **SURPRISES, "extra": number})
            app.worker(1).drain()
            shop.compile("NOTE", "1", mode="incremental")
        done = shop.deploy("NOTE", "1", {"text": "two", "extra": "x"})
        assert (done.state, counts(app)) == ("DONE", (1, 0, 0))
        app.worker(1).drain()
        assert shop.view("view.note").get("1").data["TEXT"] == {"text": "two"}
        assert counts(app) == (0, 0, 0)


def test_a_document_ingested_by_a_schema_that_keeps_such_fields_is_compiled_whatever_applies(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema("1.0.0", additionalFields="keep"), ruleset(), VIEW])
        app.contracts.load(schema("2.0.0"))
        shop = app.tenant("shop")
        for number in range(2):
            shop.ingest("NOTE", "1", {"text": "one", "extra": number}, schema="entity.note@1.0.0")
            app.worker(1).drain()
        assert counts(app) == (0, 0, 0)
        with pytest.raises(Invalid):
            shop.ingest("NOTE", "1", {"text": "one", "extra": 2})


def test_a_type_without_a_ruleset_takes_what_its_schema_takes(store: Store) -> None:
    with store.open() as app:
        app.contracts.load(schema())
        assert app.tenant("shop").ingest("NOTE", "1", SURPRISES).unknown_fields == ("extra", "more")


def test_a_deploy_of_such_a_document_is_refused_before_anything_is_stored(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset(), VIEW])
        shop = app.tenant("shop")
        for compiling in ("sync", "async"):
            with pytest.raises(Invalid) as caught:
                shop.deploy("NOTE", "1", {"text": "one", **SURPRISES}, compile=compiling)
            assert caught.value.facts["paths"] == PATHS
        assert (shop.deploys.list().deploys, counts(app)) == ([], (0, 0, 0))


def test_a_bulk_ingest_tells_every_bad_line_with_its_paths_and_stores_the_others_whole(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset(), VIEW])
        items = [("NOTE", "1", {"text": "a"}), ("NOTE", "2", {"x": 1}), ("NOTE", "3", {"y": {"z": 1}})]
        found = app.tenant("shop").ingest_many(items)
        assert [each.status for each in found] == ["created", "refused", "refused"]
        assert [each.error and each.error.facts["paths"] for each in found] == [None, ["/x"], ["/y/z"]]
        assert counts(app) == (1, 0, 0)


def test_lines_of_a_file_that_are_refused_are_told_with_their_paths(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset(ignore=["/audit", "/id"]), VIEW])
    documents = [{"id": "1", "text": "a"}, {"id": "2", "x": 1, "w": {}}, {"id": "3", "text": "b"}, {"id": "4", "y": 1}]
    lines = "".join(f"{json.dumps(each)}\n" for each in documents)
    code, out, _ = command(store, "ingest", "NOTE", "-", "--on-error", "skip", "--json", given=lines)
    told = json.loads(out)["ingested"]
    assert (code, told["created"], told["refused"]) == (0, 2, 2)
    assert [(each["line"], each["paths"]) for each in told["problems"]] == [(2, ["/w", "/x"]), (4, ["/y"])]
    code, _, err = command(store, "ingest", "NOTE", "-", "--on-error", "skip", given=lines)
    assert "line 2" in err and "/w, /x" in err and "line 4" in err and "/y" in err
    code, _, err = command(store, "ingest", "NOTE", "-", "--json", given=lines)
    error = json.loads(err)["error"]
    assert (code, error["line"], error["paths"]) == (2, 2, ["/w", "/x"])
    with store.open() as app:
        app.worker(1).drain()
        assert [app.tenant("shop").view("view.note").count(), *counts(app)] == [2, 0, 0, 0]


def test_a_state_that_no_rule_accounts_for_is_passed_over_and_told(store: Store) -> None:
    source = {
        "kind": "STATE_SOURCE",
        "id": "source.note",
        "version": "1.0.0",
        "status": "ACTIVE",
        "entityType": "NOTE",
        "input": {"type": "STATE", "workflows": ["notes/*"]},
        "mappings": [{"from": "text", "to": "text"}, {"from": "mood", "to": "mood"}],
        "entityId": {"pattern": "{ownerId}"},
    }
    with store.open() as app:
        loaded = app.contracts.load([schema(), ruleset(), VIEW, source])
        assert any("neither reads nor ignores mood" in each.reason for each in loaded.warnings)
        shop = app.tenant("shop")
        shop.kernel.save_state_delta({"text": "a", "mood": "fine"}, workflow_id="notes/1", owner_id="ann")
        shop.kernel.save_state_delta({"text": "b"}, workflow_id="notes/2", owner_id="bob")
        app.worker(1).drain()
        (problem,) = shop.source_problems("source.note")
        assert "/mood" in problem.problem
        assert shop.view("view.note").get("bob").data["TEXT"] == {"text": "b"}
        assert counts(app) == (0, 0, 0)


def test_what_an_older_ruleset_accounted_for_can_be_left_out_and_compiled(store: Store) -> None:
    with store.open() as app:
        app.contracts.load([schema(), ruleset(ignore=["/audit", "/extra"]), VIEW])
        shop = app.tenant("shop")
        shop.ingest("NOTE", "1", {"text": "one", "extra": 1})
        app.worker(1).drain()
        app.contracts.load(ruleset("1.0.1"))
        with pytest.raises(Invalid):
            shop.ingest("NOTE", "1", {"text": "two", "extra": 1})
        shop.ingest("NOTE", "1", {"text": "two"})
        app.worker(1).drain()
        assert shop.view("view.note").get("1").data["TEXT"] == {"text": "two"}
        assert counts(app) == (0, 0, 0)


def test_what_only_an_older_ruleset_accounted_for_is_compiled_in_full_by_other_rules(store: Store) -> None:
    narrow = ruleset("2.0.0", slices=[{"type": "TEXT", "buildRules": {"type": "PassThrough", "fields": ["text"]}}])
    with store.open() as app:
        app.contracts.load([schema(), ruleset(), VIEW])
        shop = app.tenant("shop")
        shop.ingest("NOTE", "1", {"text": "one", "stock": {"here": 1}})
        app.worker(1).drain()
        shop.ingest("NOTE", "1", {"text": "two", "stock": {"here": 2}})
        app.contracts.load(narrow)
        app.worker(1).drain()
        assert shop.view("view.note").get("1").data["TEXT"] == {"text": "two"}
        assert counts(app) == (0, 0, 0)
        assert app.backfills.verify({"types": ["NOTE"], "tenant": "shop"}).ok


def test_a_declared_field_that_nothing_accounts_for_is_told_when_contracts_are_loaded(store: Store) -> None:
    odd = [*FIELDS, {"name": "mood", "type": "string"}]
    said = "ruleset.note@1.0.0 neither reads nor ignores the field mood of entity.note@1.0.0"
    with store.open() as app:
        loaded = app.contracts.load([schema(fields=odd), ruleset()])
        assert [each.reason for each in loaded.warnings] == [f"{said}: documents that have it are refused"]
        with pytest.raises(Invalid, match="/mood"):
            app.tenant("shop").ingest("NOTE", "1", {"mood": "fine"})
        again = app.contracts.load(ruleset("1.0.1"))
        assert [each.reason for each in again.warnings] == [
            "ruleset.note@1.0.1 neither reads nor ignores the field mood of entity.note@1.0.0: "
            "documents that have it are refused"
        ]
        assert app.contracts.load(ruleset("1.0.2", ignore=["/audit", "/mood"])).warnings == ()
        assert app.tenant("shop").ingest("NOTE", "1", {"mood": "fine"}).created


def test_validate_tells_of_a_declared_field_that_nothing_accounts_for(tmp_path: Path) -> None:
    odd = [*FIELDS, {"name": "mood", "type": "string"}]
    (tmp_path / "contracts.json").write_text(json.dumps([schema(fields=odd), ruleset()], indent=1))
    line = [sys.executable, "-m", "analemma", "contracts", "validate", str(tmp_path)]
    done = run(line, capture_output=True, timeout=60)
    assert done.returncode == 0
    (told,) = [line for line in done.stdout.decode().splitlines() if "warning" in line]
    assert "the field mood" in told and "contracts.json:" in told
