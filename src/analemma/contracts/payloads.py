"""Checks an entity's payload against its schema."""

from __future__ import annotations

from typing import Any

from analemma.canon.pointer import format_pointer
from analemma.contracts.field_types import mismatches
from analemma.contracts.models import EntitySchema
from analemma.errors import Invalid

SHOWN_IN_MESSAGE = 5


def check_payload(schema: EntitySchema, payload: Any) -> tuple[str, ...]:
    """The names of fields that the schema does not know, which are kept; Invalid lists everything that is wrong.

    A field that is null counts as absent.
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
    if found:
        shown = "; ".join(f"{pointer}: {reason}" for pointer, reason in found[:SHOWN_IN_MESSAGE])
        more = len(found) - SHOWN_IN_MESSAGE
        raise Invalid(
            f"the payload is no {schema.entity_type}: {shown}" + (f"; and {more} more" if more > 0 else ""),
            hint=f"the schema is {schema.ref}",
            pointer=found[0][0],
            problems=[{"pointer": pointer, "reason": reason} for pointer, reason in found],
        )
    return unknown
