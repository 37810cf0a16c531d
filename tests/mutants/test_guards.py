"""Every guard of the source has a mutant, and every mutant breaks a guard and names tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.guards import ROOT, guards, mutants, mutate


@cache
def functions_of(file: Path) -> set[str]:
    """The test functions of a file, with their classes."""
    found = set[str]()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def test_a_guard_stands_in_one_place() -> None:
    assert {name: places for name, places in guards().items() if len(places) != 1} == {}


def test_every_guard_has_a_mutant() -> None:
    assert sorted(set(guards()) - {mutant.guard for mutant in mutants()}) == []


def test_every_mutant_changes_what_its_guard_says() -> None:
    wrong = []
    for mutant in mutants():
        try:
            mutate(mutant)
        except ValueError as exc:
            wrong.append(str(exc))
    assert wrong == []


def test_every_mutant_names_tests_that_exist() -> None:
    wrong = []
    for mutant in mutants():
        for killer in mutant.killers:
            file, _, name = killer.partition("::")
            if not (ROOT / file).exists() or (name and name.partition("[")[0] not in functions_of(ROOT / file)):
                wrong.append(f"{mutant.name}: {killer}")
    assert wrong == []


def test_a_mutant_has_tests_that_kill_it_or_a_reason_why_nothing_can() -> None:
    assert [mutant.name for mutant in mutants() if bool(mutant.killers) == bool(mutant.equivalent)] == []


def test_a_mutant_whose_text_is_gone_is_told() -> None:
    from dataclasses import replace

    broken = replace(mutants()[0], old="this is nowhere")
    with pytest.raises(ValueError, match="this is nowhere"):
        mutate(broken)
