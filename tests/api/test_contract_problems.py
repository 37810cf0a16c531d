"""Everything that is wrong with contracts is told at once: what is wrong with the shape of a document hides nothing of
what is wrong with the rest of it, or with others."""

from __future__ import annotations

from pathlib import Path

import analemma
from analemma.errors import Invalid
from tests.cli.command_line import CommandLine

RIGHT = """\
kind: ENTITY_SCHEMA
id: entity.author
version: 1.0.0
status: ACTIVE
entityType: AUTHOR
fields:
  - {name: name, type: string}
---
kind: RULESET
id: ruleset.author
version: 1.0.0
status: ACTIVE
entityType: AUTHOR
slices:
  - {type: SHORT, buildRules: {type: PassThrough, fields: [name]}}
---
kind: ENTITY_SCHEMA
id: entity.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
fields:
  - {name: title, type: string}
  - {name: price, type: long}
  - {name: authorId, type: string}
ruleSetRef: {id: ruleset.book, version: 1.0.0}
---
kind: RULESET
id: ruleset.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
slices:
  - {type: CORE, buildRules: {type: PassThrough, fields: [title]}}
  - {type: PRICE, buildRules: {type: PassThrough, fields: [price]}}
  - type: WRITTEN
    buildRules: {type: PassThrough, fields: [author]}
    joins: [{name: author, type: LOOKUP, sourceFieldPath: authorId, targetEntityType: AUTHOR, targetSliceType: SHORT}]
indexes:
  - {type: author, selector: authorId, references: AUTHOR}
  - {type: title, selector: title}
---
kind: VIEW_DEFINITION
id: view.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
requiredSlices: [CORE]
---
kind: SINKRULE
id: sink.book
version: 1.0.0
status: ACTIVE
input: {type: SLICE, entityTypes: [BOOK]}
target: {type: JSONL, path: books.jsonl}
commit: {batchSize: 100}
"""
FAULTS = [
    ("{name: name, type: string}", "{name: name, type: text}", "type: unknown field type 'text'"),
    ("fields: [name]", "fields: [name, name]", "the field /name stands here twice"),
    ("{name: price, type: long}", "{name: price, type: long, unit: EUR}", "unknown key unit in an item of fields"),
    (
        "ruleSetRef: {id: ruleset.book, version: 1.0.0}",
        "ruleSetRef: {id: ruleset.book, version: 9.0.0}",
        "ruleset.book@9.0.0",
    ),
    ("{type: PRICE, buildRules: {type: PassThrough", "{type: PRICE, buildRules: {type: Pass", "unknown type 'Pass'"),
    ("references: AUTHOR", "references: WRITER", "the join author has no index"),
    ("  - {type: title, selector: title}", "  - {type: author, selector: title}", "the index type author stands here"),
    ("requiredSlices: [CORE]", "requiredSlices: [CORE, CORE]", "the slice type CORE stands here twice"),
    ("entityTypes: [BOOK]", "entityTypes: [BOOK, BAG]", "there is no ENTITY_SCHEMA for BAG"),
    ("{type: JSONL, path: books.jsonl}", "{type: JSON}", "there is no sink of type 'JSON'"),
    ("batchSize: 100", "batchSize: 0", "batchSize is less than 1: 0"),
]


def write(folder: Path, faults: list[tuple[str, str, str]]) -> Path:
    text = RIGHT
    for old, new, _ in faults:
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = folder / "contracts.yaml"
    file.write_text(text)
    return file


def told(file: Path) -> list[str]:
    done = CommandLine(file.parent, {}).run("contracts", "validate", str(file))
    return [line for line in done.stdout.splitlines() if "warning" not in line and "are valid" not in line]


def test_problems_of_every_phase_are_told_at_once(tmp_path: Path) -> None:
    assert told(write(tmp_path, [])) == []
    found = told(write(tmp_path, FAULTS))
    for _, _, reason in FAULTS:
        assert any(reason in line for line in found), reason
    others = [line for line in found if not any(reason in line for _, _, reason in FAULTS)]
    assert ["for WRITER" in line or "a BOOK and a BAG" in line for line in others] == [True, True]


def test_what_is_told_names_the_line_also_behind_what_was_left_out(tmp_path: Path) -> None:
    file = write(tmp_path, FAULTS)
    lines = file.read_text().splitlines()
    for wanted, place in (("the join author has no index", "joins: [{"), ("the index type author", "selector: title")):
        (line,) = [each for each in told(file) if wanted in each]
        assert place in lines[int(line.split(":")[1]) - 1]


def test_each_fault_is_told_for_itself_and_for_nothing_else(tmp_path: Path) -> None:
    with analemma.open("sqlite:///:memory:") as app:
        for fault in FAULTS:
            try:
                app.contracts.load(write(tmp_path, [fault]))
            except Invalid as exc:
                reasons = [each.reason for each in exc.facts["problems"]]
                assert any(fault[2] in reason for reason in reasons)
                related = ("WRITER", "BAG", "is the same for a BOOK")
                assert all(fault[2] in each or any(name in each for name in related) for each in reasons), reasons
            else:
                raise AssertionError(f"not refused: {fault[1]}")
