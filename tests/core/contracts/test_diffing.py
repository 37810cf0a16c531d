"""Differences of contracts are judged by what they mean for those who rely on them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from analemma.contracts.diffing import Difference, diff_contracts
from analemma.contracts.semver import Level, parse_semver
from analemma.errors import Invalid
from tests.core.contracts.bookshop import TEXT, bookshop, changed, load_text

SINK_HEAD = "id: sinkrule.file.book\nversion: 1.0.0\n"


def differences(text: str, folder: Path) -> tuple[Difference, ...]:
    return diff_contracts(bookshop(), load_text(text, folder))


@pytest.mark.parametrize(
    ("old", "new", "level", "reason"),
    [
        ("  - {name: born, type: int}\n", "", Level.MAJOR, "field born removed"),
        ("{name: born, type: int}", "{name: born, type: long}", Level.MINOR, "field born: type int -> long"),
        ("{name: born, type: int}", "{name: born, type: string}", Level.MAJOR, "field born: type int -> string"),
        ("{name: born, type: int}", "{name: born, type: int, required: true}", Level.MAJOR, "field born: required now"),
        (
            "{name: born, type: int}",
            "{name: born, type: int}\n  - {name: died, type: int}",
            Level.MINOR,
            "field died added",
        ),
        (
            "{name: born, type: int}",
            "{name: born, type: int}\n  - {name: died, type: int, required: true}",
            Level.MAJOR,
            "field died added",
        ),
        ("fields: [name, country]", "fields: [name, country, born]", Level.MINOR, "slice SUMMARY: field /born added"),
        ("to: amount.minor", "to: amount.cents", Level.MAJOR, "slice PRICE: buildRules changed"),
        ("required: false", "required: true", Level.MAJOR, "slice ENRICHED: join author: required now"),
        (
            "{fromTargetPath: /name, toOutputPath: /name}, ",
            "",
            Level.MAJOR,
            "slice ENRICHED: join author: projection changed",
        ),
        ('  - {type: tag, selector: "$.tags[*]"}\n', "", Level.MAJOR, "index tag removed"),
        ("maxFanout: 10000", "maxFanout: 5", Level.PATCH, "index author: maxFanout 10000 -> 5"),
        ('ignore: ["/audit/*"]', "ignore: [/audit]", Level.PATCH, "ignore [/audit/*] -> [/audit]"),
        (
            "requiredSlices: [CORE, PRICE]\noptionalSlices: [ENRICHED,",
            "requiredSlices: [CORE]\noptionalSlices: [PRICE, ENRICHED,",
            Level.MAJOR,
            "slice PRICE: required -> optional",
        ),
        ("optionalSlices: [ENRICHED, INVENTORY]", "optionalSlices: [ENRICHED]", Level.MAJOR, "slice INVENTORY removed"),
        ("FAIL_CLOSED", "PARTIAL_ALLOWED", Level.MINOR, "missingPolicy FAIL_CLOSED -> PARTIAL_ALLOWED"),
        ("batchSize: 1000", "batchSize: 10", Level.PATCH, "commit 1000 in 30000 ms -> 10 in 30000 ms"),
        ("sliceTypes: [CORE, PRICE, ENRICHED]", "sliceTypes: [CORE, PRICE]", Level.MAJOR, "slice ENRICHED removed"),
        ("{tenantId}__{entityId}", "{entityId}", Level.MAJOR, "docId {tenantId}__{entityId} -> {entityId}"),
    ],
    ids=range(19),
)
def test_each_change_has_its_level(old: str, new: str, level: Level, reason: str, tmp_path: Path) -> None:
    (found,) = differences(changed(old, new), tmp_path)
    assert found.reasons == ((level, reason),)
    assert found.level is level and not found.sufficient


def test_a_ruleset_that_accounts_for_less_is_a_major_step(tmp_path: Path) -> None:
    (found,) = differences(changed('ignore: ["/audit/*"]', "ignore: [/audit/by]"), tmp_path)
    assert found.level is Level.MAJOR
    assert found.reasons[0] == (Level.MAJOR, "documents with /audit/* are refused now")


@pytest.mark.parametrize(
    ("before", "after", "level"),
    [("", "keep", Level.MINOR), ("keep", "", Level.MAJOR), ("", "reject", Level.MAJOR), ("reject", "", Level.MINOR)],
)
def test_a_stricter_rule_for_additional_fields_is_a_major_step(
    before: str, after: str, level: Level, tmp_path: Path
) -> None:
    def said(choice: str) -> str:
        line = f"additionalFields: {choice}\n" if choice else ""
        return changed("entityType: AUTHOR\nfields:", f"entityType: AUTHOR\n{line}fields:")

    (found,) = diff_contracts(*(load_text(said(choice), tmp_path) for choice in (before, after)))
    assert found.level is level


def test_another_spelling_is_no_difference(tmp_path: Path) -> None:
    assert diff_contracts(bookshop(), bookshop()) == ()
    assert differences(changed("selector: $.authorId", "selector: /authorId"), tmp_path) == ()


@pytest.mark.parametrize(("version", "enough"), [("1.0.1", False), ("1.1.0", False), ("2.0.0", True), ("0.9.0", False)])
def test_the_version_must_be_raised_enough(version: str, enough: bool, tmp_path: Path) -> None:
    text = changed(SINK_HEAD, SINK_HEAD.replace("1.0.0", version))
    text = changed("sliceTypes: [CORE, PRICE, ENRICHED]", "sliceTypes: [CORE]", text=text)
    (found,) = differences(text, tmp_path)
    assert found.level is Level.MAJOR and found.sufficient is enough


def test_contracts_come_and_go(tmp_path: Path) -> None:
    without = TEXT[: TEXT.index("---\nkind: SINKRULE")]
    (gone,) = differences(without, tmp_path)
    assert (gone.id, gone.level, gone.after, gone.sufficient) == ("sinkrule.file.book", Level.MAJOR, None, True)
    (new,) = diff_contracts(load_text(without, tmp_path), bookshop())
    assert (new.level, new.reasons) == (Level.MINOR, ((Level.MINOR, "added"),))


def test_a_status_moves_without_a_new_version(tmp_path: Path) -> None:
    (found,) = differences(changed(f"{SINK_HEAD}status: ACTIVE", f"{SINK_HEAD}status: DEPRECATED"), tmp_path)
    assert (found.level, found.sufficient) == (Level.MINOR, True)


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


@pytest.mark.parametrize(
    ("old", "new", "level", "reason"),
    [
        ('"{workflowId}"', '"{ownerId}-{workflowId}"', Level.MAJOR, "entityId {workflowId} -> {ownerId}-{workflowId}"),
        ("fields: [isbn, title, price]", "fields: [isbn, title, price, tags]", Level.MINOR, "field /tags added"),
        ("fields: [isbn, title, price]", "fields: [isbn, price, title]", Level.NONE, None),
        ("fields: [isbn, title, price]\n", "", Level.MAJOR, "fields or mappings changed"),
        ("owners: [ann]", "owners: [ann, bob]", Level.MINOR, "owner bob added"),
        ("owners: [ann]", "tenants: [shop]", Level.MAJOR, "tenant nothing -> [shop]"),
        ("n: 1}", "n: 2}", Level.MAJOR, "constant n: value 1 -> 2"),
        (", n: 1", "", Level.MAJOR, "constant n removed"),
        ("n: 1}", "n: 1, m: 2}", Level.MINOR, "constant m added"),
        ('{ownerId}", n', '{branch}", n', Level.MAJOR, "constant kind: value {ownerId} -> {branch}"),
        ("n: 1}", "n: 1}\nwhen: EVERY_COMMIT", Level.MINOR, "when CHANGED -> EVERY_COMMIT"),
        ("n: 1}", "n: 1}\nwhenRemoved: DELETE", Level.MINOR, "whenRemoved KEEP -> DELETE"),
        ("n: 1}", "n: 1}\nwhenRefused: STOP", Level.MINOR, "whenRefused SKIP -> STOP"),
    ],
)
def test_a_state_source_is_compared_by_what_it_takes(
    old: str, new: str, level: Level, reason: str | None, tmp_path: Path
) -> None:
    before = load_text(TEXT + SOURCE, tmp_path)
    assert SOURCE.count(old) == 1
    found = diff_contracts(before, load_text(TEXT + SOURCE.replace(old, new), tmp_path))
    assert max((each.level for each in found), default=Level.NONE) == level
    assert reason is None or reason in [what for each in found for _, what in each.reasons]
