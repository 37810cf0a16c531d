"""Index entries of a document: what it can be found by, and which entities it refers to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.contracts.models import Index, Ruleset
from analemma.contracts.templates import Template, parse_template
from analemma.errors import Invalid
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.joining import target_id

MAXIMUM_VALUE_BYTES: Final = 512
"""Longer texts are indexed by their hash."""
_PLAIN: Final = parse_template("{value}", ("value",))


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One way to an entity: by value, or, backwards, from the entity that the value names."""

    type: str
    value: str
    target: EntityKey | None = None
    """With `references`: the entity named, which need not exist."""


def index_text(value: Any) -> str | None:
    """The text under which a value is indexed and searched; None for what is not indexed (null, objects, lists)."""
    if value is None or type(value) in (dict, list):
        return None
    text = value if type(value) is str else canonical_json(value).decode()
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise Invalid("the value is no text: it has half of a surrogate pair", hint="no document can hold it") from exc
    if len(data) <= MAXIMUM_VALUE_BYTES and "\0" not in text:
        return text
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def index_entries(ruleset: Ruleset, key: EntityKey, raw: Document | None) -> tuple[IndexEntry, ...]:
    """All entries of an entity, each once, in a fixed order. One that was deleted has none."""
    if raw is None:
        return ()
    found: set[IndexEntry] = set()
    for index in ruleset.indexes:
        templates = _templates(ruleset, index)
        for place in index.selector.select(raw):
            text = index_text(place.value)
            if text is None:
                continue
            for target in _targets(index, templates, key.tenant, place.value):
                found.add(IndexEntry(index.type, text, target))
    return tuple(sorted(found, key=lambda each: (each.type, each.value, str(each.target or ""))))


def _templates(ruleset: Ruleset, index: Index) -> tuple[Template, ...]:
    """How the joins that this index serves make an id of a value."""
    if index.references is None:
        return ()
    served = (
        join.target_id
        for definition in ruleset.slices
        for join in definition.joins
        if join.target_entity_type == index.references and join.source == index.selector
    )
    return tuple(dict.fromkeys(served)) or (_PLAIN,)


def _targets(index: Index, templates: Iterable[Template], tenant: str, value: Any) -> Iterable[EntityKey | None]:
    if index.references is None:
        return (None,)
    ids = [target_id(template, tenant, value) for template in templates]
    found = [EntityKey(index.references, tenant, each) for each in ids if each is not None]
    return found or (None,)
