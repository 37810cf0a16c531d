"""Each way to break the example is refused, on the right line, for the right reason, and for nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from analemma import ContractProblems, load_contracts
from tests.core.contracts.bookshop import TEXT, changed, check_text, line_of
from tests.core.entry_points.contracts import check_contracts

CASES: list[dict[str, Any]] = YAML(typ="safe", pure=True).load(Path(__file__).with_name("broken_contracts.yaml"))
PARTS = 5


@pytest.mark.parametrize("part", range(PARTS))
def test_what_is_broken_is_refused_where_it_is_broken(tmp_path: Path, part: int) -> None:
    wrong = []
    for case in CASES[part::PARTS]:
        text = changed(case["old"], case["new"])
        checked = check_text(text, tmp_path)
        told = [(each.line, each.reason) for each in checked.problems]
        expected = [(line_of(text, each["at"]), each["reason"]) for each in case["problems"]]
        right = [line for line, _ in told] == [line for line, _ in expected]
        right = right and all(part in reason for (_, reason), (_, part) in zip(told, expected, strict=True))
        named = {each.file for each in checked.problems} == {str(tmp_path / "contracts.yaml")}
        if not right or not named or checked.contracts is not None:
            wrong.append((case["name"], told, expected))
    assert wrong == []


def test_there_are_enough_of_them_and_no_two_alike() -> None:
    assert len(CASES) >= 40
    assert len({(case["old"], case["new"]) for case in CASES}) == len({case["name"] for case in CASES}) == len(CASES)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = changed("targetSliceType: SUMMARY", "targetSliceType: SHORT")
    text = changed("requiredSlices: [CORE, PRICE]", "requiredSlices: [CORE, COST]", text=text)
    text = changed("batchSize: 1000", "batchSize: -1", text=text)
    text = changed("{name: born, type: int}", "{name: born, type: integer}", text=text)
    checked = check_text(text, tmp_path)
    places = ["type: integer", "targetSliceType: SHORT", "COST", "batchSize: -1"]
    assert [each.line for each in checked.problems] == [line_of(text, place) for place in places]
    file = tmp_path / "contracts.yaml"
    with pytest.raises(ContractProblems) as caught:
        load_contracts(file)
    assert caught.value.problems == checked.problems
    assert caught.value.kind == "invalid"
    assert f"{file}:{line_of(text, 'type: integer')}: " in str(caught.value)


def test_problems_of_several_files_name_their_file(tmp_path: Path) -> None:
    first, *others = TEXT.split("---\n")
    (tmp_path / "a.yaml").write_text(first.replace("status: ACTIVE", "status: OLD"), encoding="utf-8")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.yml").write_text("---\n".join(others) + "\nowner: me\n", encoding="utf-8")
    problems = check_contracts(tmp_path).problems
    assert [(Path(each.file).name, each.reason) for each in problems] == [
        ("a.yaml", "status is 'OLD'"),
        ("b.yml", "unknown key owner"),
    ]


HOSTILE = [
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "the alias *a"),
    ("[" * 5000, "nesting deeper than 32"),
    ("- " * 5000 + "x", "nesting deeper than 32"),
    ("kind: !!python/object/apply:os.system [ls]", "the tag"),
    ("kind: !custom x", "the tag !custom"),
    ('kind: "\\ud800"', "a lone surrogate"),
    ('kind: "\\Uffffffff"', "not YAML"),
    ("kind: .nan", "the number .nan"),
    ("kind: 1e999", "the number 1e999"),
    (f"kind: {'9' * 5000}", "a number of 5000 characters"),
    ("? {a: b}\n: c\n", "a key that is a list or an object"),
    ("kind: \x07", "not YAML"),
    ("kind: [a\n", "not YAML"),
    ("\tkind: a\n", "not YAML"),
]


def test_hostile_yaml_is_refused(tmp_path: Path) -> None:
    wrong = []
    for text, reason in HOSTILE:
        told = [(each.line, each.reason) for each in check_text(text, tmp_path).problems]
        if len(told) != 1 or told[0][0] is None or reason not in told[0][1]:
            wrong.append((text[:40], told))
    assert wrong == []


def test_files_that_are_too_large_or_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text("# " + "x" * 600_000, encoding="utf-8")
    (tmp_path / "latin.yaml").write_bytes(b"kind: A\nid: caf\xe9\n")
    (tmp_path / "many.yaml").write_text("[" + "1," * 21_000 + "1]", encoding="utf-8")
    problems = {Path(each.file).name: (each.line, each.reason) for each in check_contracts(tmp_path).problems}
    assert problems["large.yaml"] == (None, "is larger than 512 KiB")
    assert problems["latin.yaml"] == (2, "is not UTF-8")
    assert problems["many.yaml"] == (1, "contracts may not have more than 20000 values")


def test_having_no_contracts_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.yaml").write_text("# nothing yet\n", encoding="utf-8")
    expected = {
        "missing.yaml": "does not exist",
        "folder": "has no contract files",
        "empty.yaml": "there are no contracts",
    }
    found = {name: check_contracts(tmp_path / name).problems for name in expected}
    assert {name: [each.reason for each in problems] for name, problems in found.items()} == {
        name: [reason] for name, reason in expected.items()
    }
    assert [each.file for problems in found.values() for each in problems] == [str(tmp_path / name) for name in found]


def test_an_error_survives_the_way_to_another_process(tmp_path: Path) -> None:
    import pickle

    error = ContractProblems(check_text("kind: X\n", tmp_path).problems)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, ContractProblems)
    assert (again.problems, str(again)) == (error.problems, str(error))


def test_contracts_made_to_be_slow_are_not(tmp_path: Path) -> None:
    """Joins with many ways, paths with many readings, thousands of mappings and of slips: each a moment's work."""
    common: dict[str, Any] = {"version": "1.0.0", "status": "ACTIVE"}
    documents: list[dict[str, Any]] = []
    layers = [[f"T{layer}_{number}" for number in range(3)] for layer in range(20)]
    for layer, below in zip(layers, [*layers[1:], []], strict=True):
        for name in layer:
            of_type = {**common, "entityType": name}
            documents.append(
                {"kind": "ENTITY_SCHEMA", "id": f"e.{name}", **of_type, "fields": [{"name": "a", "type": "string"}]}
            )
            joins = [
                {
                    "name": f"j{each}",
                    "type": "LOOKUP",
                    "sourceFieldPath": "a",
                    "targetEntityType": each,
                    "targetSliceType": "S",
                }
                for each in below
            ]
            indexes = [{"type": f"i{each}", "selector": "a", "references": each} for each in below]
            rule = {"type": "PassThrough", "fields": ["a"]}
            slices = [{"type": "S", "buildRules": rule, "joins": joins}]
            documents.append({"kind": "RULESET", "id": f"r.{name}", **of_type, "slices": slices, "indexes": indexes})
    assert check_contracts(documents).problems == ()

    last = documents[-1]
    intricate = "/**/a" + "/*" * 40
    last["impactMap"] = {"S": [intricate, "/**/b" + "/*" * 40]}
    last["slices"][0]["buildRules"] = {"type": "PassThrough", "fields": ["/**/a/**/b" + "/*" * 30]}
    (problem,) = check_contracts(documents).problems
    assert "does not cover what S reads" in problem.reason

    del last["impactMap"]
    mappings = [{"from": "a", "to": f"o{number}.p"} for number in range(5000)]
    last["slices"][0]["buildRules"] = {"type": "MapFields", "mappings": [*mappings, {"from": "a", "to": "o77"}]}
    (problem,) = check_contracts(documents).problems
    assert "writes /o77/p where it also writes /o77" in problem.reason

    last.update({f"key{number}": 1 for number in range(300)})
    assert len(check_contracts(documents).problems) == 301
    assert check_text(f"kind: ENTITY_SCHEMA\nfields: [{{name: a, type: 'list<{' ' * 200_000}'}}]\n", tmp_path).problems
