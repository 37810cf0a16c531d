"""What each build rule does: pure functions from a document to a draft."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from analemma.contracts.models import (
    BuildRule,
    FieldMapping,
    MapFields,
    MergeFields,
    MergeStrategy,
    PassThrough,
    Projection,
)
from analemma.contracts.paths import Found, Pattern, Token, Wildcard
from analemma.slicing.changes import Document
from analemma.slicing.drafts import Draft


def apply_rules(rules: Iterable[BuildRule], document: Document) -> Document:
    """What the rules make of a document, one after the other."""
    draft = Draft()
    for rule in rules:
        match rule:
            case PassThrough():
                _pass_through(rule.fields, document, draft)
            case MapFields():
                _map_fields(rule.mappings, document, draft)
            case MergeFields():
                _merge_fields(rule, document, draft)
    return _object(draft)


def project(projection: Projection, data: Document) -> Document:
    """What a join takes of the slice that it found."""
    if projection.copied is not None:
        draft = Draft()
        _map_fields(projection.copied, data, draft)
        return _object(draft)
    for excluded in projection.excluded:
        for found in reversed(excluded.select(data)):
            data = _without(data, found.path)
    return data


def _object(draft: Draft) -> Document:
    """A slice is an object, also when the data would make it a list: paths begin with a name."""
    made = draft.finish()
    return made if type(made) is dict else {str(position): value for position, value in enumerate(made)}


def _pass_through(fields: Sequence[Pattern], document: Document, draft: Draft) -> None:
    for pattern in fields:
        if not pattern.segments:
            for name in document:
                draft.put((name,), document[name])
            continue
        for found in pattern.select(document):
            if found.path:
                draft.put(found.path, found.value)
            else:
                _pass_through((Pattern(()),), document, draft)


def _map_fields(mappings: Sequence[FieldMapping], document: Document, draft: Draft) -> None:
    for mapping in mappings:
        matches = mapping.source.select(document)
        if mapping.source.wildcards == mapping.target.wildcards:
            for found in matches:
                draft.put(_target(mapping.target, found), found.value)
            continue
        # Wildcards that the target does not have make a list.
        lists: dict[tuple[Token, ...], list[Any]] = {}
        for found in matches:
            lists.setdefault(_target(mapping.target, found), []).append(found.value)
        for path, values in lists.items():
            draft.put(path, values)


def _target(target: Pattern, found: Found) -> tuple[Token, ...]:
    bound = iter(found.bound)
    return tuple(next(bound) if isinstance(segment, Wildcard) else segment for segment in target.segments)


def _merge_fields(rule: MergeFields, document: Document, draft: Draft) -> None:
    values = [found.value for source in rule.sources for found in source.select(document)]
    if values:
        merged = values[0]
        for value in values[1:]:
            merged = _merged(merged, value, deep=rule.strategy is MergeStrategy.DEEP)
        draft.put(_target(rule.target, Found((), (), None)), merged)


def _merged(one: Any, other: Any, *, deep: bool) -> Any:
    if type(one) is not dict or type(other) is not dict:
        return other
    made = dict(one)
    for name, value in other.items():
        made[name] = _merged(made[name], value, deep=True) if deep and name in made else value
    return made


def _without(data: Any, path: Sequence[Token]) -> Any:
    """A copy without what is at a path; an item of a list leaves null, so that the others keep their positions."""
    if not path:
        return {}
    first, rest = path[0], path[1:]
    copied = data.copy()
    if rest:
        copied[first] = _without(data[first], rest)
    elif type(data) is dict:
        del copied[first]
    else:
        copied[first] = None
    return copied
