"""Differences of contracts are judged by what they mean for those who rely on them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import Invalid
from tests.core.contracts.bookshop import TEXT, bookshop, changed, load_text
from tests.core.entry_points.contracts import diff_contracts, parse_semver

SINK_HEAD = "id: sinkrule.file.book\nversion: 1.0.0\n"


def differences(text: str, folder: Path) -> Any:
    return diff_contracts(bookshop(), load_text(text, folder))


LEVELS = [
    ("  - {name: born, type: int}\n", "", "MAJOR", "field born removed"),
    ("{name: born, type: int}", "{name: born, type: long}", "MINOR", "field born: type int -> long"),
    ("{name: born, type: int}", "{name: born, type: string}", "MAJOR", "field born: type int -> string"),
    ("{name: born, type: int}", "{name: born, type: int, required: true}", "MAJOR", "field born: required now"),
    (
        "{name: born, type: int}",
        "{name: born, type: int}\n  - {name: died, type: int}",
        "MINOR",
        "field died added",
    ),
    (
        "{name: born, type: int}",
        "{name: born, type: int}\n  - {name: died, type: int, required: true}",
        "MAJOR",
        "field died added",
    ),
    ("fields: [name, country]", "fields: [name, country, born]", "MINOR", "slice SUMMARY: field /born added"),
    ("to: amount.minor", "to: amount.cents", "MAJOR", "slice PRICE: buildRules changed"),
    ("required: false", "required: true", "MAJOR", "slice ENRICHED: join author: required now"),
    (
        "{fromTargetPath: /name, toOutputPath: /name}, ",
        "",
        "MAJOR",
        "slice ENRICHED: join author: projection changed",
    ),
    ('  - {type: tag, selector: "$.tags[*]"}\n', "", "MAJOR", "index tag removed"),
    ("maxFanout: 10000", "maxFanout: 5", "PATCH", "index author: maxFanout 10000 -> 5"),
    ('ignore: ["/audit/*"]', "ignore: [/audit]", "PATCH", "ignore [/audit/*] -> [/audit]"),
    (
        "requiredSlices: [CORE, PRICE]\noptionalSlices: [ENRICHED,",
        "requiredSlices: [CORE]\noptionalSlices: [PRICE, ENRICHED,",
        "MAJOR",
        "slice PRICE: required -> optional",
    ),
    ("optionalSlices: [ENRICHED, INVENTORY]", "optionalSlices: [ENRICHED]", "MAJOR", "slice INVENTORY removed"),
    ("FAIL_CLOSED", "PARTIAL_ALLOWED", "MINOR", "missingPolicy FAIL_CLOSED -> PARTIAL_ALLOWED"),
    ("batchSize: 1000", "batchSize: 10", "PATCH", "commit 1000 in 30000 ms -> 10 in 30000 ms"),
    ("sliceTypes: [CORE, PRICE, ENRICHED]", "sliceTypes: [CORE, PRICE]", "MAJOR", "slice ENRICHED removed"),
    ("{tenantId}__{entityId}", "{entityId}", "MAJOR", "docId {tenantId}__{entityId} -> {entityId}"),
]


def told(found: Any) -> list[tuple[str, str]]:
    return [(level.name, reason) for level, reason in found.reasons]


def test_each_change_has_its_level(tmp_path: Path) -> None:
    wrong = []
    for old, new, level, reason in LEVELS:
        found = differences(changed(old, new), tmp_path)
        said = [(told(each), each.level.name, each.sufficient) for each in found]
        if said != [([(level, reason)], level, False)]:
            wrong.append((old, new, said))
    assert wrong == []


def test_a_ruleset_that_accounts_for_less_is_a_major_step(tmp_path: Path) -> None:
    (found,) = differences(changed('ignore: ["/audit/*"]', "ignore: [/audit/by]"), tmp_path)
    assert found.level.name == "MAJOR"
    assert told(found)[0] == ("MAJOR", "documents with /audit/* are refused now")


def test_a_stricter_rule_for_additional_fields_is_a_major_step(tmp_path: Path) -> None:
    steps = [("", "keep", "MINOR"), ("keep", "", "MAJOR"), ("", "reject", "MAJOR"), ("reject", "", "MINOR")]

    def said(choice: str) -> str:
        line = f"additionalFields: {choice}\n" if choice else ""
        return changed("entityType: AUTHOR\nfields:", f"entityType: AUTHOR\n{line}fields:")

    for before, after, level in steps:
        (found,) = diff_contracts(load_text(said(before), tmp_path), load_text(said(after), tmp_path))
        assert found.level.name == level, (before, after)


def test_another_spelling_is_no_difference(tmp_path: Path) -> None:
    assert diff_contracts(bookshop(), bookshop()) == ()
    assert differences(changed("selector: $.authorId", "selector: /authorId"), tmp_path) == ()


def test_the_version_must_be_raised_enough(tmp_path: Path) -> None:
    for version, enough in [("1.0.1", False), ("1.1.0", False), ("2.0.0", True), ("0.9.0", False)]:
        text = changed(SINK_HEAD, SINK_HEAD.replace("1.0.0", version))
        text = changed("sliceTypes: [CORE, PRICE, ENRICHED]", "sliceTypes: [CORE]", text=text)
        (found,) = differences(text, tmp_path)
        assert (found.level.name, found.sufficient) == ("MAJOR", enough), version


def test_contracts_come_and_go(tmp_path: Path) -> None:
    without = TEXT[: TEXT.index("---\nkind: SINKRULE")]
    (gone,) = differences(without, tmp_path)
    assert (gone.id, gone.level.name, gone.after, gone.sufficient) == ("sinkrule.file.book", "MAJOR", None, True)
    (new,) = diff_contracts(load_text(without, tmp_path), bookshop())
    assert (new.level.name, told(new)) == ("MINOR", [("MINOR", "added")])


def test_a_status_moves_without_a_new_version(tmp_path: Path) -> None:
    (found,) = differences(changed(f"{SINK_HEAD}status: ACTIVE", f"{SINK_HEAD}status: DEPRECATED"), tmp_path)
    assert (found.level.name, found.sufficient) == ("MINOR", True)


def test_versions_are_ordered_as_semver_says() -> None:
    before_release = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    ordered = [*before_release, "1.0.0-rc.1", "1.0.0", "1.0.1", "1.9.0", "1.10.0", "2.0.0"]
    parsed = [parse_semver(text) for text in ordered]
    shuffled = random.Random(3).sample(parsed, len(parsed))
    assert sorted(shuffled) == parsed and list(map(str, parsed)) == ordered
    for text in (
        "1",
        "1.0",
        "1.0.0.0",
        "v1.0.0",
        "01.0.0",
        "1.0.0+build",
        "1.0.0-",
        "1.0.0-01",
        "",
        "1.0.0\n",
        "1" * 70,
    ):
        with pytest.raises(Invalid):
            parse_semver(text)


SOURCE = """
---
kind: STATE_SOURCE
id: source.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
input: {type: STATE, workflows: ["book-*"], owners: [ann]}
entityId: {pattern: "{workflowId}"}
fields: [isbn, title, price]
constants: {kind: "{ownerId}", n: 1}
"""


SOURCE_LEVELS: list[tuple[str, str, str, str | None]] = [
    ('"{workflowId}"', '"{ownerId}-{workflowId}"', "MAJOR", "entityId {workflowId} -> {ownerId}-{workflowId}"),
    ("fields: [isbn, title, price]", "fields: [isbn, title, price, tags]", "MINOR", "field /tags added"),
    ("fields: [isbn, title, price]", "fields: [isbn, price, title]", "NONE", None),
    ("fields: [isbn, title, price]\n", "", "MAJOR", "fields or mappings changed"),
    ("owners: [ann]", "owners: [ann, bob]", "MINOR", "owner bob added"),
    ("owners: [ann]", "tenants: [shop]", "MAJOR", "tenant nothing -> [shop]"),
    ("n: 1}", "n: 2}", "MAJOR", "constant n: value 1 -> 2"),
    (", n: 1", "", "MAJOR", "constant n removed"),
    ("n: 1}", "n: 1, m: 2}", "MINOR", "constant m added"),
    ('{ownerId}", n', '{branch}", n', "MAJOR", "constant kind: value {ownerId} -> {branch}"),
    ("n: 1}", "n: 1}\nwhen: EVERY_COMMIT", "MINOR", "when CHANGED -> EVERY_COMMIT"),
    ("n: 1}", "n: 1}\nwhenRemoved: DELETE", "MINOR", "whenRemoved KEEP -> DELETE"),
    ("n: 1}", "n: 1}\nwhenRefused: STOP", "MINOR", "whenRefused SKIP -> STOP"),
]


def test_a_state_source_is_compared_by_what_it_takes(tmp_path: Path) -> None:
    before = load_text(TEXT + SOURCE, tmp_path)
    for old, new, level, reason in SOURCE_LEVELS:
        assert SOURCE.count(old) == 1
        found = diff_contracts(before, load_text(TEXT + SOURCE.replace(old, new), tmp_path))
        levels = [each.level for each in found]
        assert (max(levels).name if levels else "NONE") == level, (old, new)
        assert reason is None or reason in [what for each in found for _, what in each.reasons], (old, new)
