"""Judges the shape of one document, and says in plain words what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from analemma.contracts.documents import DOCUMENTS, ContractDocument
from analemma.contracts.located import Located
from analemma.contracts.reporting import Place, Reporter
from analemma.contracts.schema import known_keys

_WANTED: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "float_type": "a number",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_CONTEXT: Final = {
    "greater_than": "is not more than {gt}",
    "greater_than_equal": "is less than {ge}",
    "less_than_equal": "is more than {le}",
    "string_too_long": "is longer than {max_length} characters",
    "string_pattern_mismatch": "does not have the form {pattern}",
}

_ITEMIZED: Final = ("fields", "slices", "indexes")
"""Lists whose items can be judged one by one."""

Meant = Callable[[Place], str | None]
"""A hint for an unknown key, by its place."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A document whose shape is right."""

    document: ContractDocument
    node: Located
    """What it was read from."""
    lacks: frozenset[str] = frozenset()
    """Keys at the top of which something was wrong, and left out."""


def read_shape(reporter: Reporter) -> Shape | None:
    """The document. All that is wrong with its shape is reported; without what is wrong, the rest may be a document all
    the same, so that what else there is to say of it can be said at once."""
    plain = reporter.node.value
    if type(plain) is not dict:
        reporter.at((), f"a contract is an object, not {_shown(plain)}", "begin with kind, id, version and status")
        return None
    kind = plain.get("kind")
    known = DOCUMENTS.get(kind) if isinstance(kind, str) else None
    if known is None:
        kinds = ", ".join(DOCUMENTS)
        if "kind" in plain:
            reporter.at(("kind",), f"unknown kind {_shown(kind)}", f"there are {kinds}")
        else:
            reporter.at((), "the key kind is missing", f"there are {kinds}")
        return None
    try:
        return Shape(known.model_validate(plain), reporter.node)
    except ValidationError as exc:
        report_errors(exc, reporter, lambda place: close_key(place, known_keys()))
        return _sound_part(exc, known, reporter.node)


def _sound_part(found: ValidationError, known: type[ContractDocument], node: Located) -> Shape | None:
    wrong: set[Place] = {_part_of(error["loc"]) for error in found.errors(include_url=False)}
    keys = {each.alias or name for name, each in known.model_fields.items()}
    lacks = {str(place[0]) for place in wrong if place}
    if lacks - keys:
        # A key that nobody knows may have been meant for any that is not there.
        lacks |= keys - node.value.keys()
    left = node.without(wrong)
    try:
        return Shape(known.model_validate(left.value), left, frozenset(lacks))
    except ValidationError:
        return None


def _part_of(place: Place) -> Place:
    """The largest part that can be left out without making another mistake: an item of a list, or all of a key."""
    return place[:2] if len(place) > 1 and place[0] in _ITEMIZED and isinstance(place[1], int) else place[:1]


def report_errors(found: ValidationError, reporter: Reporter, meant: Meant) -> None:
    """Say what is wrong with a document, whatever its format; `meant` is asked what an unknown key was to be."""
    for error in found.errors(include_url=False):
        _report(error, reporter, meant)


def close_key(place: Place, keys: Sequence[str]) -> str | None:
    """A hint at the key that looks like the one that nobody knows there.

    >>> close_key(("nodes", 0, "retires"), ["retries", "retires"])
    'did you mean retries?'
    """
    name = str(place[-1])
    close = get_close_matches(name, [each for each in keys if each != name], n=1)
    return f"did you mean {close[0]}?" if close else None


def _report(error: ErrorDetails, reporter: Reporter, meant: Meant) -> None:
    place: Place = error["loc"]
    name = f"{place[-1]}" if place and isinstance(place[-1], str) else _name_of(place)
    kind, found, context = error["type"], error["input"], error.get("ctx", {})
    match kind:
        case "missing":
            reporter.at(place[:-1], f"the key {name} is missing{_inside(place[:-1])}")
        case "extra_forbidden":
            reporter.at_key(place, f"unknown key {name}{_inside(place[:-1])}", meant(place))
        case "literal_error":
            reporter.at(place, f"{name} is {_shown(found)}", f"it is one of {context['expected']}".replace("'", ""))
        case "union_tag_invalid":
            tag = str(context["discriminator"]).strip("'")
            expected = str(context["expected_tags"]).replace("'", "")
            reporter.at((*place, tag), f"unknown {tag} {_shown(context['tag'])} of {name}", f"there are {expected}")
        case "union_tag_not_found":
            tag = str(context["discriminator"]).strip("'")
            reporter.at(place, f"the key {tag} is missing{_inside(place)}")
        case "value_error":
            cause: Any = context.get("error")
            reporter.at(place, f"{name}: {getattr(cause, 'message', cause)}", getattr(cause, "hint", None))
        case "too_short" if found:
            # Only what is wrong with its items made it so, and that was said.
            pass
        case "too_short" | "string_too_short":
            reporter.at(place, f"{name} is empty")
        case "too_long":
            reporter.at(place, f"{name} has more than {context['max_length']} items")
        case _ if kind in _CONTEXT:
            reporter.at(place, f"{name} {_CONTEXT[kind].format(**context)}: {_shown(found)}")
        case _:
            wanted = _WANTED.get(kind)
            said = f"is {_shown(found)}, not {wanted}" if wanted else error["msg"]
            quote = "put it in quotes" if kind == "string_type" and type(found) in (int, float, bool) else None
            reporter.at(place, f"{name} {said}", quote)


def _name_of(place: Place) -> str:
    names = [token for token in place if isinstance(token, str)]
    return f"an item of {names[-1]}" if names else "the document"


def _inside(place: Place) -> str:
    return f" in {_name_of(place) if place and isinstance(place[-1], int) else place[-1]}" if place else ""


def _shown(value: Any) -> str:
    if value is None or type(value) is bool:
        return {None: "nothing", True: "true", False: "false"}[value]
    if type(value) in (dict, list):
        return "an object" if type(value) is dict else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
