"""What a branch or a loop asks of the state: comparisons as data, or a registered function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from analemma.errors import Invalid
from analemma.flows.parts import FunctionName, Json, Part, StatePath, Tuple
from analemma.flows.texts import MISSING, value_at

Comparison = Literal[
    "equals", "not_equals", "less_than", "at_most", "more_than", "at_least", "one_of", "contains", "exists", "missing"
]
_ORDERED: Final = frozenset({"less_than", "at_most", "more_than", "at_least"})


class Condition(Part):
    """A comparison of what the state has at `path`, or `all`, `any` or `not` of others, or a function's answer."""

    path: StatePath | None = None
    comparison: Annotated[Comparison | None, Field(alias="is")] = None
    value: Json = None
    all: Annotated[Tuple[Condition] | None, Field(min_length=1, max_length=50)] = None
    any: Annotated[Tuple[Condition] | None, Field(min_length=1, max_length=50)] = None
    not_: Annotated[Condition | None, Field(alias="not")] = None
    function: FunctionName | None = None

    @model_validator(mode="after")
    def _is_one_thing(self) -> Condition:
        said = [self.path, self.all, self.any, self.not_, self.function]
        if sum(each is not None for each in said) != 1:
            raise Invalid("a condition is one of path, all, any, not, function")
        if (self.path is None) != (self.comparison is None):
            raise Invalid("a comparison has a path and `is`", hint="{path: label, is: equals, value: bug}")
        if self.comparison in ("exists", "missing", None) and self.value is not None:
            raise Invalid("a value that nothing is compared with", hint="leave it out")
        if self.comparison == "one_of" and not isinstance(self.value, list):
            raise Invalid("the value of one_of is a list")
        if self.comparison in _ORDERED and not _is_orderable(self.value):
            raise Invalid(f"the value of {self.comparison} is a number or a text")
        return self

    def parts(self) -> Iterator[Condition]:
        """The condition and all those inside."""
        yield self
        inner = (*(self.all or ()), *(self.any or ()), *(() if self.not_ is None else (self.not_,)))
        for each in inner:
            yield from each.parts()

    def paths(self) -> tuple[str, ...]:
        """Where it looks in the state."""
        return tuple(each.path for each in self.parts() if each.path is not None)

    def functions(self) -> tuple[str, ...]:
        """Which functions it asks."""
        return tuple(each.function for each in self.parts() if each.function is not None)


def holds(condition: Condition, state: Mapping[str, Any], ask: Callable[[str], bool]) -> bool:
    """Whether a state fulfils a condition; `ask` calls a function by its name.

    What is not there equals nothing and is in no order. True is not 1, and a text is never less than a number.
    """
    if condition.all is not None:
        return all(holds(each, state, ask) for each in condition.all)
    if condition.any is not None:
        return any(holds(each, state, ask) for each in condition.any)
    if condition.not_ is not None:
        return not holds(condition.not_, state, ask)
    if condition.function is not None:
        return ask(condition.function)
    assert condition.path is not None and condition.comparison is not None
    return _compare(condition.comparison, value_at(state, condition.path), condition.value)


def _compare(comparison: Comparison, found: Any, value: Any) -> bool:
    match comparison:
        case "exists":
            return found is not MISSING
        case "missing":
            return found is MISSING
        case "equals":
            return _equal(found, value)
        case "not_equals":
            return not _equal(found, value)
        case "one_of":
            return any(_equal(found, each) for each in value)
        case "contains":
            return _contains(found, value)
    if not _is_orderable(found) or isinstance(found, str) != isinstance(value, str):
        return False
    match comparison:
        case "less_than":
            return bool(found < value)
        case "at_most":
            return bool(found <= value)
        case "more_than":
            return bool(found > value)
    return bool(found >= value)


def _equal(found: Any, value: Any) -> bool:
    """As JSON: 1 and 1.0 are one number, and true is none."""
    if isinstance(found, bool) or isinstance(value, bool):
        return found is value
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        return found.keys() == value.keys() and all(_equal(found[key], value[key]) for key in value)
    if isinstance(found, list | tuple) and isinstance(value, list | tuple):
        return len(found) == len(value) and all(map(_equal, found, value))
    return found is not MISSING and bool(found == value)


def _contains(found: Any, value: Any) -> bool:
    if isinstance(found, str):
        return isinstance(value, str) and value in found
    if isinstance(found, Mapping):
        return isinstance(value, str) and value in found
    return isinstance(found, list | tuple) and any(_equal(each, value) for each in found)


def _is_orderable(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)
