"""Contracts that are right load, from wherever they come, and say what applies to what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from analemma import ContractProblems, ContractSet, load_contracts
from analemma.errors import NotFound
from tests.core.contracts.bookshop import TEXT, bookshop, changed, check_text, line_of, load_text
from tests.core.entry_points.contracts import check_contracts

STATE_SOURCE = """
---
kind: STATE_SOURCE
id: source.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
input: {type: STATE, workflows: ["book-*"]}
entityId: {path: /isbn}
fields: [isbn, price]
mappings: [{from: draft.title, to: title}]
"""


def documents() -> list[dict[str, Any]]:
    return [json.loads(json.dumps(each)) for each in YAML(typ="safe", pure=True).load_all(TEXT)]


def test_the_example_loads_with_nothing_to_complain_about() -> None:
    contracts = bookshop()
    assert [each.id for each in contracts.contracts] == [
        "entity.author.v1",
        "ruleset.author.v1",
        "entity.book.v1",
        "ruleset.book.v1",
        "view.book.detail.v1",
        "sinkrule.file.book",
    ]
    assert contracts.warnings == ()
    assert contracts.build_order() == ("AUTHOR", "BOOK")
    ruleset = contracts.ruleset("BOOK")
    assert ruleset is contracts.contract(ruleset.ref)
    assert {each.type: [str(read) for read in each.reads] for each in ruleset.slices} == {
        "CORE": ["/isbn", "/title", "/tags"],
        "PRICE": ["/price"],
        "INVENTORY": ["/stock/sites/*/count"],
        "ENRICHED": ["/authorId"],
    }
    (rule,) = contracts.sink_rules("BOOK")
    assert rule.target == {"path": "${BOOKSHOP_OUT:-./out}/books-{tenantId}.jsonl"} and rule.target_type == "JSONL"
    assert rule.document_id.render({"tenantId": "shop", "entityId": "978"}) == "shop__978"
    view = contracts.view("view.book.detail.v1")
    assert contracts.ruleset_of_view(view) is ruleset
    assert view.partial_policy.include_used_contracts
    (dependant,) = contracts.dependants("AUTHOR", "SUMMARY")
    assert (dependant.entity_type, dependant.slice_type, dependant.index_type) == ("BOOK", "ENRICHED", "author")
    assert dependant.max_fanout == 10_000
    assert contracts.dependants("AUTHOR", "PROFILE") == contracts.dependants("BOOK") == ()


def test_yaml_json_folders_and_data_give_the_same_contracts(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(json.dumps(documents(), indent=1), encoding="utf-8")
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, document in enumerate(documents()):
        (folder / f"{number}.json").write_text(json.dumps(document), encoding="utf-8")
    (folder / "notes.txt").write_text("not a contract", encoding="utf-8")
    (folder / ".hidden.yaml").write_text("kind: X", encoding="utf-8")
    expected = [(each.ref, each.checksum) for each in bookshop().contracts]
    for source in (tmp_path / "all.json", folder, str(folder), documents()):
        assert [(each.ref, each.checksum) for each in load_contracts(source).contracts] == expected
    first, *others = documents()
    assert [each.ref for each in load_contracts(others, first).contracts][-1] == expected[0][0]


def test_json_problems_have_lines_too(tmp_path: Path) -> None:
    broken = documents()
    broken[3]["slices"][1]["buildRules"]["mappings"][0]["from"] = "price..x"
    text = json.dumps(broken, indent=2)
    (problem,) = check_text(text, tmp_path, "contracts.json").problems
    assert problem.line == line_of(text, "price..x") and "not a path" in problem.reason
    (problem,) = check_text('{"kind": "RULESET",\n "kind": "RULESET"}', tmp_path, "contracts.json").problems
    assert "same key twice" in problem.reason
    (problem,) = check_text('[{"kind":\n\n nope}]', tmp_path, "contracts.json").problems
    assert problem.line == 3 and "not JSON" in problem.reason


def test_data_that_changes_later_does_not_change_the_contracts() -> None:
    given = documents()
    contracts = load_contracts(given)
    before = json.dumps(contracts.contracts[0].document)
    given[0]["fields"].clear()
    assert json.dumps(contracts.contracts[0].document) == before


def test_data_that_is_no_json_is_refused() -> None:
    (problem,) = check_contracts({"kind": "RULESET", "id": object()}).problems
    assert (problem.file, problem.line) == ("contract 1", None) and "/id" in problem.reason


def test_the_checksum_ignores_spelling_and_status_and_nothing_else(tmp_path: Path) -> None:
    name = "id: sinkrule.file.book\n"
    expected = bookshop().sink_rules("BOOK")[0].checksum
    load_text(changed(name, f"{name}checksum: {expected}\n"), tmp_path)
    reordered = changed("commit: {batchSize: 1000, timeoutMs: 30000}", "commit: {timeoutMs: 30000, batchSize: 0x3E8}")
    load_text(changed(name, f"{name}checksum: {expected}\n", text=reordered), tmp_path)
    retired = changed(f"{name}version: 1.0.0\nstatus: ACTIVE", f"{name}version: 1.0.0\nstatus: ARCHIVED")
    assert load_text(retired, tmp_path).contracts[-1].checksum == expected
    described = changed(name, f"{name}description: ''\n")
    assert load_text(described, tmp_path).contracts[-1].checksum != expected


def test_the_fingerprint_is_of_what_is_built(tmp_path: Path) -> None:
    expected = bookshop().ruleset("BOOK").fingerprint

    def fingerprint(old: str, new: str) -> str:
        return load_text(changed(old, new), tmp_path).ruleset("BOOK").fingerprint

    assert fingerprint("selector: $.authorId", "selector: /authorId") == expected
    assert fingerprint("maxFanout: 10000", "maxFanout: 5") == expected
    assert fingerprint('ignore: ["/audit/*"]', "ignore: [/audit]") == expected
    assert fingerprint("to: amount.minor", "to: amount.cents") != expected
    assert fingerprint("required: false", "required: true") != expected
    assert fingerprint('- {type: tag, selector: "$.tags[*]"}', '- {type: tags, selector: "$.tags[*]"}') != expected


def test_the_newest_active_version_applies(tmp_path: Path) -> None:
    sink = TEXT[TEXT.index("kind: SINKRULE") :]
    newer = sink.replace("version: 1.0.0", "version: 1.10.0").replace("1000", "10")
    draft = sink.replace("version: 1.0.0", "version: 2.0.0").replace("ACTIVE", "DRAFT")
    contracts = load_text("\n---\n".join([TEXT, newer, draft]), tmp_path)
    (rule,) = contracts.sink_rules("BOOK")
    assert (str(rule.version), rule.batch_size) == ("1.10.0", 10)
    assert [each.status for each in contracts.contracts if str(each.version) == "2.0.0"] == ["DRAFT"]
    with pytest.raises(NotFound):
        contracts.view("sinkrule.file.book")
    with pytest.raises(NotFound):
        contracts.ruleset("TOME")


def test_a_deprecated_contract_still_applies_and_a_draft_may_bind_a_draft(tmp_path: Path) -> None:
    deprecated = changed(
        "id: ruleset.book.v1\nversion: 1.0.0\nstatus: ACTIVE", "id: ruleset.book.v1\nversion: 1.0.0\nstatus: DEPRECATED"
    )
    contracts = load_text(deprecated, tmp_path)
    assert contracts.ruleset("BOOK").status == "DEPRECATED"
    assert ["DEPRECATED" in each.reason for each in contracts.warnings] == [True, True]
    drafts = load_text(TEXT.replace("status: ACTIVE", "status: DRAFT"), tmp_path)
    assert drafts.ruleset("BOOK").status == "DRAFT" and drafts.sink_rules("BOOK") == ()


def test_nothing_new_binds_what_is_deprecated(tmp_path: Path) -> None:
    before = bookshop()
    deprecated = changed(
        "id: ruleset.book.v1\nversion: 1.0.0\nstatus: ACTIVE", "id: ruleset.book.v1\nversion: 1.0.0\nstatus: DEPRECATED"
    )
    assert load_after(deprecated, before, tmp_path).ruleset("BOOK").status == "DEPRECATED"
    view = TEXT[TEXT.index("kind: VIEW_DEFINITION") : TEXT.index("---\nkind: SINKRULE")]
    fresh = view.replace("view.book.detail.v1", "view.book.new")
    with pytest.raises(ContractProblems, match=r"view\.book\.new@1\.0\.0 is new and binds"):
        load_after(f"{deprecated}\n---\n{fresh}", before, tmp_path)


def test_what_was_published_keeps_its_content_and_never_goes_back(tmp_path: Path) -> None:
    before = bookshop()
    with pytest.raises(ContractProblems, match="is in use with other content"):
        load_after(changed("batchSize: 1000", "batchSize: 10"), before, tmp_path)
    name = "id: sinkrule.file.book\nversion: 1.0.0\nstatus: "
    with pytest.raises(ContractProblems, match="was ACTIVE and cannot become DRAFT again"):
        load_after(changed(f"{name}ACTIVE", f"{name}DRAFT"), before, tmp_path)
    draft = changed(f"{name}ACTIVE", f"{name}DRAFT")
    still_a_draft = load_text(draft, tmp_path)
    load_after(changed("batchSize: 1000", "batchSize: 10", text=draft), still_a_draft, tmp_path)


def load_after(text: str, previous: ContractSet, folder: Path) -> ContractSet:
    file = folder / "next.yaml"
    file.write_text(text, encoding="utf-8")
    return load_contracts(file, previous=previous)


def test_reading_what_the_schema_does_not_have_is_odd_but_works(tmp_path: Path) -> None:
    contracts = load_text(changed("fields: [name, country]", "fields: [name, country, awards]"), tmp_path)
    (warning,) = contracts.warnings
    assert "the slice SUMMARY reads /awards" in warning.reason


def test_a_state_source_says_which_state_becomes_which_entity(tmp_path: Path) -> None:
    (source,) = load_text(TEXT + STATE_SOURCE, tmp_path).state_sources()
    assert (source.entity_type, source.workflows, source.owners, source.branches) == (
        "BOOK",
        ("book-*",),
        None,
        ("main",),
    )
    assert str(source.entity_id) == "/isbn" and source.rules is not None
    assert source.takes("shop", "ann", "book-7", "main") and not source.takes("shop", "ann", "book-7", "draft")


def test_every_contract_has_its_kind() -> None:
    kinds = {each.kind for each in bookshop().contracts}
    assert kinds == {"ENTITY_SCHEMA", "RULESET", "VIEW_DEFINITION", "SINKRULE"}
