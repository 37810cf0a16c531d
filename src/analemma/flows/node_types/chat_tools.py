"""Functions of the program as tools of a model: how it is told of them, and how what it asks for is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

import orjson
from pydantic import ConfigDict, ValidationError, create_model

from analemma.errors import Invalid
from analemma.flows.context import NodeContext

_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")
LONGEST_NAME: Final = 64
LARGEST_ANSWER: Final = 200_000
"""Characters of a tool's answer that a model is shown."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that a model may ask for."""

    name: str
    """As the model knows it."""
    function: Callable[..., Any]
    arguments: Any
    """A pydantic model of its parameters."""
    takes_context: bool

    def definition(self) -> dict[str, Any]:
        """How a model is told of it."""
        schema = {key: value for key, value in self.arguments.model_json_schema().items() if key != "title"}
        described = {"description": text} if (text := inspect.getdoc(self.function)) else {}
        return {"type": "function", "function": {"name": self.name, **described, "parameters": schema}}

    def call(self, text: str, ctx: NodeContext, key: str) -> Any:
        """What the function answers; Invalid if the model's arguments do not fit it."""
        try:
            given = self.arguments.model_validate_json(text or "{}")
        except ValidationError as exc:
            told = "; ".join(
                f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}"
                for each in exc.errors(include_url=False, include_input=False)[:5]
            )
            raise Invalid(f"{self.name} was called wrongly: {told}") from None
        values = {name: getattr(given, name) for name in type(given).model_fields}
        if self.takes_context:
            values["ctx"] = ctx
        answer = self.function(**values)
        if inspect.isawaitable(answer):
            answer.close()  # type: ignore[attr-defined]
            raise Invalid(f"{self.name} is async", hint="tools of models are plain functions")
        return answer


def make_tools(functions: Sequence[tuple[str, Callable[..., Any]]]) -> dict[str, Tool]:
    """The tools of a node, by the names that the model is told; Invalid for functions that cannot be one."""
    made: dict[str, Tool] = {}
    for name, function in functions:
        known_as = _UNFIT.sub("_", name)[-LONGEST_NAME:]
        if known_as in made:
            raise Invalid(f"two tools are known as {known_as}", hint="rename one of them")
        made[known_as] = _tool(known_as, function)
    return made


def answer_text(answer: Any) -> str:
    """A tool's answer as a model reads it."""
    if isinstance(answer, str):
        return answer[:LARGEST_ANSWER]
    try:
        return orjson.dumps(answer, option=orjson.OPT_NON_STR_KEYS).decode()[:LARGEST_ANSWER]
    except TypeError:
        raise Invalid(f"a tool answered a {type(answer).__name__}", hint="answer text, or plain data") from None


def _tool(name: str, function: Callable[..., Any]) -> Tool:
    try:
        hints = get_type_hints(function)
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError, NameError) as exc:
        raise Invalid(f"{name} cannot be a tool: {exc}", hint="annotate its parameters with plain types") from exc
    fields: dict[str, Any] = {}
    for each in parameters.values():
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise Invalid(f"{name} cannot be a tool: {each}", hint="tools have named parameters only")
        if each.name != "ctx":
            default = ... if each.default is each.empty else each.default
            fields[each.name] = (hints.get(each.name, Any), default)
    try:
        arguments = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
        arguments.model_json_schema()
    except Exception as exc:
        raise Invalid(f"{name} cannot be a tool: {exc}", hint="annotate its parameters with plain types") from exc
    return Tool(name, function, arguments, "ctx" in parameters)
