"""Joins: which slice of which entity each wants, and what a document looks like with what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from analemma.contracts.models import Join, Ruleset, Slice
from analemma.contracts.templates import Template
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey, why_no_id
from analemma.slicing.rules import project


@dataclass(frozen=True, slots=True)
class SliceContent:
    """A slice of another entity, as it is now."""

    data: Document
    hash: str


Lookup = Callable[[EntityKey, str], SliceContent | None]
"""The slice of this type that an entity has now; None if there is none, or only a tombstone."""


@dataclass(frozen=True, slots=True, order=True)
class Dependency:
    """A slice that was asked for, and what was found: its hash, or None for nothing."""

    key: EntityKey
    slice_type: str
    hash: str | None


@dataclass(frozen=True, slots=True)
class Joined:
    """A document with what the joins of one slice found."""

    document: Document
    dependencies: tuple[Dependency, ...]
    missing: str | None
    """Why a required join found nothing."""


def wanted_slices(ruleset: Ruleset, key: EntityKey, raw: Document | None) -> set[tuple[EntityKey, str]]:
    """Everything that building this entity will look up, so that a caller can fetch it at once."""
    wanted = (_wanted(join, key, raw) for each in ruleset.slices for join in each.joins) if raw is not None else ()
    return {(target, slice_type) for target, slice_type, _ in wanted if target is not None}


def join_document(definition: Slice, key: EntityKey, raw: Document, lookup: Lookup) -> Joined:
    """Look up what a slice joins. A join hides the raw field of its name, found or not."""
    if not definition.joins:
        return Joined(raw, (), None)
    document = dict(raw)
    dependencies: set[Dependency] = set()
    reasons: list[str] = []
    for join in definition.joins:
        document.pop(join.name, None)
        target, slice_type, reason = _wanted(join, key, raw)
        if target is not None:
            found = lookup(target, slice_type)
            dependencies.add(Dependency(target, slice_type, None if found is None else found.hash))
            if found is not None:
                document[join.name] = project(join.projection, found.data)
                continue
            reason = f"{target} has no {slice_type}"
        if join.required:
            reasons.append(f"join {join.name}: {reason}")
    return Joined(document, tuple(sorted(dependencies, key=_order)), "; ".join(reasons) or None)


def target_id(template: Template, tenant: str, value: Any) -> str | None:
    """The id of the entity that a value refers to; None for what can be no id."""
    if type(value) is float and value.is_integer():
        value = int(value)  # Canonical JSON writes 1.0 as 1, so the two are one value.
    text = str(value) if type(value) is int else value
    if not isinstance(text, str):
        return None
    found = template.render({"tenantId": tenant, "value": text})
    return None if text == "" or why_no_id(found) else found


def dependency_vector(dependencies: Iterator[Dependency]) -> tuple[Dependency, ...]:
    """Each once, in the order in which rows are locked."""
    return tuple(sorted(set(dependencies), key=_order))


def _order(dependency: Dependency) -> tuple[EntityKey, str, str]:
    return dependency.key, dependency.slice_type, dependency.hash or ""


def _wanted(join: Join, key: EntityKey, raw: Document) -> tuple[EntityKey | None, str, str]:
    found = join.source.select(raw)
    value = found[0].value if found else None
    if value is None:
        return None, join.target_slice_type, f"{join.source} is absent"
    identity = target_id(join.target_id, key.tenant, value)
    if identity is None:
        return None, join.target_slice_type, f"{join.source} holds no id"
    return EntityKey(join.target_entity_type, key.tenant, identity), join.target_slice_type, ""
