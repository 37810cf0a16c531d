"""What branches and loops ask of the state."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.flows.building import Where
from analemma.flows.conditions import Condition, holds
from analemma.flows.drawing import described

STATE: dict[str, Any] = {
    "n": 3,
    "zero": 0,
    "label": "bug",
    "flag": True,
    "none": None,
    "list": [1, {"a": 2.0}],
    "object": {"key": {"inner": "x"}},
}


def ask(condition: Any, state: dict[str, Any] | None = None) -> bool:
    return holds(
        Condition.model_validate(condition), STATE if state is None else state, lambda name: name == "test.yes"
    )


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Where("label").equals("bug"), True),
        (Where("label").equals("Bug"), False),
        (Where("n").equals(3.0), True),
        (Where("flag").equals(1), False),
        (Where("zero").equals(False), False),
        (Where("none").equals(None), True),
        (Where("missing").equals(None), False),
        (Where("missing").not_equals(None), True),
        (Where("list").equals([1, {"a": 2}]), True),
        (Where("list").equals([True, {"a": 2}]), False),
        (Where("/object/key/inner").equals("x"), True),
        (Where("/list/1/a").equals(2), True),
        (Where("/list/2").exists(), False),
        (Where("/label/0").exists(), False),
        (Where("n").less_than(4), True),
        (Where("n").less_than(3), False),
        (Where("n").at_most(3), True),
        (Where("n").more_than(2.5), True),
        (Where("n").at_least(4), False),
        (Where("label").more_than("a"), True),
        (Where("label").less_than(5), False),
        (Where("flag").at_least(1), False),
        (Where("missing").less_than(1), False),
        (Where("label").one_of("bug", "crash"), True),
        (Where("flag").one_of(1, "true"), False),
        (Where("list").contains(1), True),
        (Where("list").contains(True), False),
        (Where("object").contains("key"), True),
        (Where("label").contains("u"), True),
        (Where("label").contains(1), False),
        (Where("n").contains(3), False),
        (Where("none").exists(), True),
        (Where("missing").missing(), True),
        ({"function": "test.yes"}, True),
        ({"not": {"function": "test.yes"}}, False),
        ({"all": [Where("n").exists(), Where("label").exists()]}, True),
        ({"all": [Where("n").exists(), Where("label").missing()]}, False),
        ({"any": [Where("n").missing(), Where("label").exists()]}, True),
    ],
    ids=lambda value: described(Condition.model_validate(value)) if isinstance(value, dict) else repr(value),
)
def test_a_condition_holds_or_does_not(condition: Any, expected: bool) -> None:
    assert ask(condition) is expected


def test_a_condition_knows_where_it_looks_and_whom_it_asks() -> None:
    made = Condition.model_validate(
        {"any": [Where("a").exists(), {"not": {"all": [Where("/b/c").equals(1), {"function": "test.f"}]}}]}
    )
    assert made.paths() == ("a", "/b/c")
    assert made.functions() == ("test.f",)
    assert described(made) == "(a exists) or (not ((/b/c equals 1) and (test.f())))"
