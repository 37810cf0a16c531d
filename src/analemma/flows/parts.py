"""What all parts of a workflow document share: exactly these keys, exactly these types, and one way to write each."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)

from analemma.contracts.field_types import parse_field_type
from analemma.errors import Invalid
from analemma.flows.naming import FUNCTION_NAME, HASH, NODE_ID, WORKFLOW_NAME, path_tokens
from analemma.flows.texts import environment_names, placeholders
from analemma.state.merge.values import BY_KEY, NAMES, check_strategy

YEAR_S: Final = 366 * 86_400
INTEGERS: Final = range(-(2**63), 2**64)

Item = TypeVar("Item")


class Part(BaseModel):
    """One object of a document."""

    # Built when first used: a document's classes together take longer than reading most documents.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


def _named(pattern: str) -> Any:
    return StringConstraints(pattern=f"^(?:{pattern})$")


def _is_path(text: str) -> str:
    path_tokens(text)
    return text


def _has_placeholders(text: str) -> str:
    placeholders(text)
    environment_names(text)
    return text


def _is_field_type(text: str) -> str:
    parse_field_type(text)
    return text


def _is_strategy(text: str) -> str:
    check_strategy(text)
    return text


def _is_storable(value: Any) -> Any:
    """JSON whose numbers the kernel can store."""
    level = [value]
    while level:
        for each in level:
            if isinstance(each, float) and not isfinite(each):
                raise Invalid(f"the number {each}", hint="JSON has no form for it")
            if isinstance(each, int) and each not in INTEGERS:
                raise Invalid("an integer beyond 64 bits", hint="put it in quotes")
            if isinstance(each, str):
                environment_names(each)
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [part for parts in inner for part in parts]
    return value


def _has_filled_texts(value: Any) -> Any:
    level = [value]
    while level:
        for each in level:
            if isinstance(each, str):
                placeholders(each)
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [part for parts in inner for part in parts]
    return value


def _shortest(seconds: float) -> float:
    """30.0 and 30 are one duration, and have one spelling."""
    return int(seconds) if seconds == int(seconds) else seconds


# Lists of a document are tuples of the model: lenient about that, strict about what is in them.
Tuple = Annotated[tuple[Item, ...], Field(strict=False)]

NodeId = Annotated[str, _named(NODE_ID)]
WorkflowName = Annotated[str, _named(WORKFLOW_NAME)]
FunctionName = Annotated[str, _named(FUNCTION_NAME), Field(max_length=255)]
Hash = Annotated[str, _named(HASH)]
StatePath = Annotated[str, AfterValidator(_is_path), Field(min_length=1, max_length=1000)]
"""A field's name, or a JSON pointer."""
MergeStrategy = Annotated[
    str,
    AfterValidator(_is_strategy),
    WithJsonSchema({"anyOf": [{"enum": list(NAMES)}, {"type": "string", "pattern": f"^{BY_KEY}."}]}),
]
"""How branches are merged that changed the same."""
FieldName = Annotated[str, AfterValidator(_is_path), StringConstraints(pattern="^[^/]"), Field(max_length=256)]
"""A top-level field."""
Template = Annotated[str, AfterValidator(_has_placeholders), Field(min_length=1, max_length=100_000)]
"""A text with `{{path}}` from the state and `${NAME}` from the environment."""
FieldTypeText = Annotated[str, AfterValidator(_is_field_type)]
"""As contracts write it."""
Description = Annotated[str | None, Field(max_length=10_000)]
Seconds = Annotated[
    float,
    Field(gt=0, le=YEAR_S),
    PlainSerializer(_shortest, return_type=float),
]
Json = Annotated[Any, AfterValidator(_is_storable)]
"""Any data."""
FilledJson = Annotated[Any, AfterValidator(_is_storable), AfterValidator(_has_filled_texts)]
"""Any data, whose texts are filled in."""
