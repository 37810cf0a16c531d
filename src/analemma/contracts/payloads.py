"""Checks an entity's payload: against its schema, and whether its ruleset accounts for all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from analemma.canon.pointer import Path, format_pointer
from analemma.contracts.field_types import mismatches
from analemma.contracts.models import EntitySchema, Ruleset
from analemma.errors import Invalid

SHOWN_IN_MESSAGE: Final = 5
SHOWN_PATHS: Final = 50
SHOWN_OF_A_PATH: Final = 200


def check_payload(schema: EntitySchema, payload: Any, ruleset: Ruleset | None = None) -> tuple[str, ...]:
    """The names of fields that the schema does not know, which are kept; Invalid lists everything that is wrong.

    A field that is null counts as absent. With a ruleset, what it does not account for is wrong too, unless the schema
    says that such fields are kept.
    """
    if type(payload) is not dict:
        raise Invalid(f"a payload of {schema.entity_type} is an object, not a {type(payload).__name__}", pointer="")
    found: list[tuple[str, str]] = []
    for field in schema.fields:
        value = payload.get(field.name)
        if value is not None:
            at = (field.name,)
            found += [(format_pointer(path), reason) for path, reason in mismatches(field.type, value, at)]
        elif field.required:
            found.append((format_pointer((field.name,)), "a required field is missing"))
    unknown = tuple(sorted(name for name in payload if name not in schema.fields_by_name))
    if schema.rejects_additional_fields:
        found += [(format_pointer((name,)), "the schema has no such field") for name in unknown]
    uncovered: list[str] = []
    if ruleset is not None and not schema.keeps_additional_fields:
        rejected = set(unknown) if schema.rejects_additional_fields else set()
        uncovered = [format_pointer(path) for path in _uncovered(ruleset, payload, ()) if path[0] not in rejected]
    if found or uncovered:
        raise _refusal(schema, ruleset, found, uncovered)
    return unknown


def unaccounted(ruleset: Ruleset, pointers: Sequence[str]) -> str:
    """The sentence on paths that a ruleset does not account for."""
    shown = ", ".join(_shortened(pointer) for pointer in pointers[:SHOWN_PATHS])
    more = len(pointers) - SHOWN_PATHS
    return f"{ruleset.ref} neither reads nor ignores {shown}" + (f" and {more} more" if more > 0 else "")


def _uncovered(ruleset: Ruleset, value: Any, path: Path) -> Iterator[Path]:
    """The leaves of a document that a ruleset does not account for. A list is a leaf, as it is where documents are
    compared."""
    if type(value) is dict and value:
        for name in sorted(value):
            if path or name not in ruleset.whole_fields:
                yield from _uncovered(ruleset, value[name], (*path, name))
    elif path and not ruleset.accounts_for(path):
        yield path


def _refusal(
    schema: EntitySchema, ruleset: Ruleset | None, found: Sequence[tuple[str, str]], uncovered: Sequence[str]
) -> Invalid:
    problems = [{"pointer": pointer, "reason": reason} for pointer, reason in found]
    said: list[str] = []
    hint = f"the schema is {schema.ref}"
    facts: dict[str, Any] = {}
    if found:
        shown = "; ".join(f"{pointer}: {reason}" for pointer, reason in found[:SHOWN_IN_MESSAGE])
        more = len(found) - SHOWN_IN_MESSAGE
        said.append(f"the payload is no {schema.entity_type}: {shown}" + (f"; and {more} more" if more > 0 else ""))
    if uncovered and ruleset is not None:
        reason = f"{ruleset.ref} neither reads nor ignores it"
        problems += [{"pointer": pointer, "reason": reason} for pointer in uncovered]
        said.append(unaccounted(ruleset, uncovered))
        hint = f"add the paths to a slice, to impactMap or to ignore; or have {schema.ref} say additionalFields: keep"
        facts = {"paths": list(uncovered), "ruleset": str(ruleset.ref)}
    return Invalid("; ".join(said), hint=hint, pointer=problems[0]["pointer"], problems=problems, **facts)


def _shortened(pointer: str) -> str:
    return pointer if len(pointer) <= SHOWN_OF_A_PATH else f"{pointer[:SHOWN_OF_A_PATH]}..."
