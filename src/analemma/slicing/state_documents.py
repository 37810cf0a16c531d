"""What a state source makes of a state: which paths it needs, which entity that is, and the entity's document. Pure."""

from __future__ import annotations

import base64
import datetime as dt
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.canon.pointer import Path, format_pointer
from analemma.canon.types import Tagged
from analemma.contracts.models import BuildRule, EntitySchema, PassThrough, StateSource
from analemma.contracts.paths import Pattern, parse_path
from analemma.contracts.private_fields import is_private
from analemma.contracts.reads import rule_sources
from analemma.contracts.templates import PATH_MARK, Template
from analemma.errors import Invalid
from analemma.slicing.rules import apply_rules

VERSION: Final = "version"
"""The one placeholder that is a number where it stands alone."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """Where a state stands."""

    tenant: str
    owner: str
    workflow: str
    branch: str
    version: int
    execution: str | None
    committed_at_us: int

    def texts(self) -> dict[str, str]:
        """What placeholders stand for; one that stands for nothing is left out."""
        moment = dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=self.committed_at_us)
        found = {
            "tenantId": self.tenant,
            "ownerId": self.owner,
            "workflowId": self.workflow,
            "branch": self.branch,
            VERSION: str(self.version),
            "executionId": self.execution,
            "committedAt": moment.isoformat(timespec="microseconds"),
        }
        return {name: text for name, text in found.items() if text is not None}


@dataclass(frozen=True, slots=True)
class StateDocument:
    """What a state becomes."""

    entity_id: str
    payload: dict[str, Any]
    taken: dict[str, Any]
    """The part of it that comes from the state: what has to change for there to be something new."""


def needed_paths(source: StateSource, schema: EntitySchema) -> tuple[Path, ...]:
    """What has to be read of a state, none below another; wildcards need everything from there on."""
    patterns = [*rule_sources(_rules(source, schema)), *_id_paths(source)]
    wanted = {_literal_part(pattern) for pattern in patterns}
    return tuple(sorted(path for path in wanted if not any(path[:length] in wanted for length in range(len(path)))))


def build_document(
    source: StateSource, schema: EntitySchema, found: Mapping[Path, Any], facts: StateFacts
) -> StateDocument:
    """The entity and its document, of what was found at the paths needed; Invalid if they make none."""
    state: dict[str, Any] = {}
    for path, value in found.items():
        _put(state, path, plain(value, path))
    state = {name: value for name, value in state.items() if not is_private(name)}
    taken = apply_rules(_rules(source, schema), state)
    return StateDocument(_entity_id(source, state, facts), {**taken, **_constants(source, facts)}, taken)


def plain(value: Any, path: Path = ()) -> Any:
    """A stored value as JSON: moments and numbers of other types as text, tuples and sets as lists, bytes in base64,
    values of a program's own types as what they are made of."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case dict():
            return {name: plain(member, (*path, name)) for name, member in value.items()}
        case list() | tuple():
            return [plain(member, (*path, str(number))) for number, member in enumerate(value)]
        case set() | frozenset():
            return sorted((plain(member, path) for member in value), key=canonical_json)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case dt.timedelta():
            return value.total_seconds()
        case Decimal() | uuid.UUID():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case Tagged():
            return plain(_untagged(value.payload), path)
    raise Invalid(
        f"{format_pointer(path)} is of type {type(value).__name__}, which is no JSON",
        hint="save a value that documents can have",
        pointer=format_pointer(path),
    )


def _untagged(payload: Any) -> Any:
    """Of a type that only its program knows: an Enum's name, a model's fields, or what it was stored as. What is stored
    does not say which of these it is, so whatever has a name and nothing else is its name."""
    if type(payload) is dict and payload.keys() == {"name"} and type(payload["name"]) is str:
        return payload["name"]
    if type(payload) is dict and payload.keys() == {"fields", "set", "extra", "private"}:
        return {**payload["fields"], **(payload["extra"] or {})}
    return payload


def _rules(source: StateSource, schema: EntitySchema) -> tuple[BuildRule, ...]:
    if source.rules is not None:
        return source.rules
    names = [each.name for each in schema.fields if each.name not in source.constants and not is_private(each.name)]
    return (PassThrough(tuple(Pattern((name,)) for name in names)),)


def _id_paths(source: StateSource) -> list[Pattern]:
    if isinstance(source.entity_id, Pattern):
        return [source.entity_id]
    return [parse_path(name) for name in source.entity_id.placeholders if name.startswith(PATH_MARK)]


def _literal_part(pattern: Pattern) -> Path:
    path: list[str] = []
    for segment in pattern.segments:
        # What may be a position: the list that it is in has to be seen, or it would be taken for a name.
        if not isinstance(segment, str) or segment.isdigit():
            break
        path.append(segment)
    return tuple(path)


def _put(state: dict[str, Any], path: Path, value: Any) -> None:
    """As an object at each step, also where the state has a list: patterns name positions in the same way."""
    if not path:
        state.update(value if type(value) is dict else {})
        return
    for name in path[:-1]:
        state = state.setdefault(name, {})
    state[path[-1]] = value


def _entity_id(source: StateSource, state: dict[str, Any], facts: StateFacts) -> str:
    if isinstance(source.entity_id, Pattern):
        return _id_text(source.entity_id, state)
    values = facts.texts()
    for pattern, name in zip(_id_paths(source), _path_names(source.entity_id.placeholders), strict=True):
        values[name] = _id_text(pattern, state)
    return source.entity_id.render(values)


def _path_names(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(PATH_MARK)]


def _id_text(pattern: Pattern, state: dict[str, Any]) -> str:
    found = pattern.select(state)
    value = found[0].value if found else None
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    was = "is not there" if value is None else f"is of type {type(value).__name__}"
    raise Invalid(f"the entity's id, {pattern}, {was}", hint="ids are text or whole numbers", pointer=str(pattern))


def _constants(source: StateSource, facts: StateFacts) -> dict[str, Any]:
    texts = facts.texts()
    made: dict[str, Any] = {}
    for name, value in source.constants.items():
        if not isinstance(value, Template):
            made[name] = value
        elif value.pieces == ((True, VERSION),):
            made[name] = facts.version
        elif all(each in texts for each in value.placeholders):
            made[name] = value.render(texts)
    return made
