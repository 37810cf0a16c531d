"""What is wrong between contracts counts where they apply, and is only told where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import ContractSet, load_contracts
from tests.core.entry_points.contracts import check_contracts

Document = dict[str, Any]


def of_type(entity_type: str, kind: str, contract_id: str, **more: Any) -> Document:
    common = {"kind": kind, "id": contract_id, "version": "1.0.0", "status": "ACTIVE", "entityType": entity_type}
    return {**common, **more}


def schema(entity_type: str = "BOOK", **more: Any) -> Document:
    fields = [{"name": name, "type": "string"} for name in ("a", "b", "other")]
    return of_type(entity_type, "ENTITY_SCHEMA", f"entity.{entity_type}", fields=fields, **more)


def ruleset(*slices: str, entity_type: str = "BOOK", joins: list[Document] | None = None, **more: Any) -> Document:
    made: list[Document] = [{"type": each, "buildRules": {"type": "PassThrough", "fields": ["a"]}} for each in slices]
    if joins is not None:
        made[0]["joins"] = joins
        more["indexes"] = [{"type": "other", "selector": "other", "references": "AUTHOR"}]
    ignored = ["b"] if joins is not None else ["b", "other"]
    return of_type(entity_type, "RULESET", f"ruleset.{entity_type}", slices=made, ignore=ignored, **more)


def view(*slices: str, **more: Any) -> Document:
    return of_type("BOOK", "VIEW_DEFINITION", "view.book", requiredSlices=list(slices), **more)


def sink(*slices: str, **more: Any) -> Document:
    made = of_type("BOOK", "SINKRULE", "sink.book", input={"type": "SLICE", "entityTypes": ["BOOK"]}, **more)
    del made["entityType"]
    made["input"]["sliceTypes"] = list(slices)
    return {**made, "target": {"type": "JSONL", "path": "out.jsonl"}, "docId": {"pattern": "{tenantId}__{entityId}"}}


def ref(entity_type: str, version: str) -> Document:
    return {"id": f"ruleset.{entity_type}", "version": version}


JOIN = {
    "name": "author",
    "type": "LOOKUP",
    "sourceFieldPath": "other",
    "targetEntityType": "AUTHOR",
    "targetSliceType": "SHORT",
}


def loaded(*documents: Document) -> ContractSet:
    return load_contracts(list(documents))


def problems(before: ContractSet, *documents: Document) -> list[str]:
    return [each.reason for each in check_contracts(list(documents), previous=before, beside=before).problems]


def warnings(before: ContractSet | None, *documents: Document) -> list[str]:
    checked = check_contracts(list(documents), previous=before, beside=before)
    assert checked.problems == ()
    return [each.reason for each in checked.warnings]


def test_a_ruleset_that_a_schema_binds_applies_whatever_newer_one_there_is() -> None:
    """A newer ruleset that nothing binds does not make the older one idle, and what that reads must stay."""
    before = loaded(
        schema("AUTHOR"),
        ruleset("SHORT", "LONG", entity_type="AUTHOR"),
        schema(ruleSetRef=ref("BOOK", "1.0.0")),
        ruleset("CORE", joins=[JOIN]),
        ruleset("CORE", version="2.0.0"),
    )
    assert str(before.ruleset("BOOK").version) == "1.0.0"
    without = ruleset("LONG", entity_type="AUTHOR", version="2.0.0")
    assert problems(before, without) == ["ruleset.AUTHOR@2.0.0 has no slice SHORT"]
    # Bound by nobody, it would only be odd.
    moved = schema(version="2.0.0", ruleSetRef=ref("BOOK", "2.0.0"))
    assert warnings(before, without, moved) == ["ruleset.AUTHOR@2.0.0 has no slice SHORT"]


def test_a_ruleset_that_a_view_binds_applies() -> None:
    before = loaded(
        schema("AUTHOR"),
        ruleset("SHORT", "LONG", entity_type="AUTHOR"),
        schema(),
        ruleset("CORE", joins=[JOIN]),
        ruleset("CORE", version="2.0.0"),
        view("CORE", ruleSetRef=ref("BOOK", "1.0.0")),
    )
    without = ruleset("LONG", entity_type="AUTHOR", version="2.0.0")
    assert problems(before, without) == ["ruleset.AUTHOR@2.0.0 has no slice SHORT"]
    later = view("CORE", version="2.0.0", ruleSetRef=ref("BOOK", "2.0.0"))
    assert warnings(before, without, later) == ["ruleset.AUTHOR@2.0.0 has no slice SHORT"]


def test_a_ruleset_that_nothing_binds_is_only_odd() -> None:
    """It is the newest of its id, but the schema names another: what it lacks matters when the schema moves to it."""
    before = loaded(
        schema("AUTHOR"),
        ruleset("LONG", entity_type="AUTHOR"),
        schema(ruleSetRef=ref("BOOK", "1.0.0")),
        ruleset("CORE"),
    )
    idle = ruleset("CORE", joins=[JOIN], version="2.0.0")
    assert warnings(before, idle) == ["ruleset.AUTHOR@1.0.0 has no slice SHORT"]
    moved = schema(version="2.0.0", ruleSetRef=ref("BOOK", "2.0.0"))
    assert problems(before, idle, moved) == ["ruleset.AUTHOR@1.0.0 has no slice SHORT"]


def test_a_schema_applies_by_its_entity_type_and_not_by_its_id() -> None:
    """A later version of the id that is for another type leaves the type to the older one."""
    before = loaded(schema(ruleSetRef=ref("BOOK", "1.0.0")), ruleset("CORE"))
    elsewhere = {**schema("TOME", version="2.0.0"), "id": "entity.BOOK"}
    after = load_contracts([elsewhere], previous=before, beside=before)
    assert problems(after, ruleset("CORE", status="ARCHIVED")) == [
        "entity.BOOK@1.0.0 binds ruleset.BOOK@1.0.0, which is ARCHIVED"
    ]


OLD = [schema(), ruleset("CORE", "NOTES"), view("CORE", "NOTES"), sink("NOTES")]
NEW = [ruleset("CORE", version="2.0.0"), view("CORE", version="2.0.0"), sink("CORE", version="2.0.0")]


@pytest.mark.parametrize("status", ["ACTIVE", "DEPRECATED", "ARCHIVED"])
def test_what_was_replaced_can_be_loaded_again_and_retired(status: str) -> None:
    before = load_contracts(OLD)
    after = load_contracts(NEW, previous=before, beside=before)
    told = ["ruleset.BOOK@2.0.0 has no slice NOTES"] if status != "ARCHIVED" else []
    retired = [OLD[0], *({**each, "status": status} for each in OLD[1:])]
    assert set(warnings(after, *retired)) == set(told)
    assert set(warnings(after, *retired, *NEW)) == set(told)
    assert set(warnings(None, *retired, *NEW)) == set(told)


def test_what_was_replaced_keeps_its_content_and_its_status_all_the_same() -> None:
    before = load_contracts(OLD)
    after = load_contracts([*NEW, {**OLD[3], "status": "DEPRECATED"}], previous=before, beside=before)
    assert problems(after, sink("NOTES")) == ["sink.book@1.0.0 was DEPRECATED and cannot become ACTIVE again"]
    assert problems(after, view("NOTES")) == ["view.book@1.0.0 is in use with other content"]
    assert problems(after, OLD[2], OLD[2]) == ["view.book@1.0.0 exists twice"]


def test_a_view_needs_a_ruleset() -> None:
    checked = check_contracts([schema(), view("CORE")])
    assert [each.reason for each in checked.problems] == ["BOOK has no ruleset"]
    # Where something could not be read, it may be in that.
    checked = check_contracts([schema(), view("CORE"), {"kind": "RULESET"}])
    assert not any("no ruleset" in each.reason for each in checked.problems)
    assert check_contracts([schema()]).problems == ()


def test_the_only_ruleset_cannot_be_archived_while_it_is_needed() -> None:
    before = loaded(schema(), ruleset("CORE"), view("CORE"))
    gone = ruleset("CORE", status="ARCHIVED")
    assert problems(before, gone) == ["BOOK has no ruleset, only archived ones"] * 2
    assert problems(before, gone, view("CORE", status="ARCHIVED")) == ["BOOK has no ruleset, only archived ones"]
    everything = [gone, view("CORE", status="ARCHIVED"), schema(status="DEPRECATED")]
    assert problems(before, *everything) == []
    assert problems(before, gone, ruleset("CORE", version="2.0.0")) == []


def test_working_by_a_draft_is_told() -> None:
    draft = ruleset("CORE", status="DRAFT")
    both = ["ruleset.BOOK@1.0.0 is a DRAFT, and entity.BOOK@1.0.0, view.book@1.0.0 work by it"]
    assert warnings(None, schema(), draft, view("CORE")) == both
    before = loaded(schema(), draft)
    assert warnings(before, view("CORE")) == ["view.book@1.0.0 is ACTIVE, and works by ruleset.BOOK@1.0.0, a DRAFT"]
    assert warnings(before, schema(version="1.1.0")) == [
        "entity.BOOK@1.1.0 is ACTIVE, and works by ruleset.BOOK@1.0.0, a DRAFT"
    ]
    assert warnings(before, ruleset("CORE")) == []
    assert warnings(None, schema(status="DRAFT"), draft, view("CORE", status="DRAFT")) == []
    assert warnings(None, schema(), ruleset("CORE"), ruleset("CORE", version="2.0.0", status="DRAFT")) == []


@pytest.mark.parametrize("status", ["DEPRECATED", "ARCHIVED"])
def test_an_older_version_that_comes_back_is_told(status: str) -> None:
    before = loaded(*OLD, *NEW)

    def told(name: str) -> str:
        return f"{name}@2.0.0 is {status}, so {name}@1.0.0, which is ACTIVE, applies in its place"

    assert warnings(before, *({**each, "status": status} for each in NEW)) == [
        told("ruleset.BOOK"),
        told("view.book"),
        told("sink.book"),
    ]
    # Nothing comes back if the older ones are retired too, or a third version applies.
    retired = [{**each, "status": "DEPRECATED"} for each in OLD[1:]]
    third = [{**each, "version": "3.0.0"} for each in NEW]
    for others in (retired, third):
        found = warnings(before, *({**each, "status": status} for each in NEW), *others)
        assert not any("in its place" in each for each in found)
    # Neither does what was never gone: the schema names the older one.
    pinned = loaded(schema(ruleSetRef=ref("BOOK", "1.0.0")), OLD[1], NEW[0])
    assert warnings(pinned, {**NEW[0], "status": status}) == []
