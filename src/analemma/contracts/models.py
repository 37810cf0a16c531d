"""Contracts as the library uses them: checked, with paths and versions parsed, and nothing left to default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

from analemma.canon.pointer import Path
from analemma.contracts.field_types import FieldType
from analemma.contracts.globs import matches
from analemma.contracts.paths import Pattern
from analemma.contracts.semver import SemanticVersion
from analemma.contracts.templates import Template


class Status(StrEnum):
    """A contract's life, in this order."""

    DRAFT = "DRAFT"
    ACTIVE = "ACTIVE"
    DEPRECATED = "DEPRECATED"
    ARCHIVED = "ARCHIVED"


class MissingPolicy(StrEnum):
    """What a view does without a required slice."""

    FAIL_CLOSED = "FAIL_CLOSED"
    PARTIAL_ALLOWED = "PARTIAL_ALLOWED"


class MergeStrategy(StrEnum):
    """How objects become one."""

    DEEP = "DEEP"
    SHALLOW = "SHALLOW"


class Taking(StrEnum):
    """Which commits a state source takes."""

    CHANGED = "CHANGED"
    """Those that changed what it takes."""
    EVERY_COMMIT = "EVERY_COMMIT"


@dataclass(frozen=True, slots=True, order=True)
class ContractRef:
    """A contract, by id and version."""

    id: str
    version: SemanticVersion

    def __str__(self) -> str:
        return f"{self.id}@{self.version}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a contract was read."""

    file: str
    line: int | None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What every contract has."""

    kind: ClassVar[str]

    id: str
    version: SemanticVersion
    status: Status
    checksum: str
    """`sha256:` of the canonical JSON of the document without `checksum` and `status`."""
    document: dict[str, Any] = field(repr=False, compare=False)
    """As it was read; not to be changed."""
    origin: Origin = field(compare=False)
    description: str | None = None
    lacks: frozenset[str] = field(default=frozenset(), repr=False, compare=False)
    """Keys of which something could not be read: only while contracts are checked, which then fails."""

    @property
    def ref(self) -> ContractRef:
        """Its id and version."""
        return ContractRef(self.id, self.version)


@dataclass(frozen=True, slots=True)
class EntityField:
    """A field at the top of an entity."""

    name: str
    type: FieldType
    required: bool


@dataclass(frozen=True, kw_only=True)
class EntitySchema(Contract):
    """What an entity looks like, and which ruleset slices it."""

    kind: ClassVar[str] = "ENTITY_SCHEMA"

    entity_type: str
    fields: tuple[EntityField, ...]
    keeps_additional_fields: bool
    """Whether documents may have what the ruleset does not account for."""
    rejects_additional_fields: bool
    """Whether documents may have only the fields that are listed."""
    ruleset_ref: ContractRef | None

    @cached_property
    def fields_by_name(self) -> dict[str, EntityField]:
        """For looking them up."""
        return {each.name: each for each in self.fields}


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Take what is found here to there."""

    source: Pattern
    target: Pattern


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Copy what matches to where it was."""

    fields: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class MapFields:
    """Copy what matches to other places."""

    mappings: tuple[FieldMapping, ...]


@dataclass(frozen=True, slots=True)
class MergeFields:
    """Merge what matches, in order, into one place: objects member by member, of anything else the last one stays."""

    sources: tuple[Pattern, ...]
    target: Pattern
    strategy: MergeStrategy


BuildRule = PassThrough | MapFields | MergeFields


@dataclass(frozen=True, slots=True)
class Projection:
    """What of the joined slice is taken: the fields copied, or all but those excluded."""

    copied: tuple[FieldMapping, ...] | None
    excluded: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A slice of another entity, which rules read under the join's name."""

    name: str
    source: Pattern
    """In the raw document; always without wildcards."""
    target_entity_type: str
    target_slice_type: str
    target_id: Template
    """What `{value}` becomes the id of the entity by."""
    required: bool
    projection: Projection


@dataclass(frozen=True, slots=True)
class Slice:
    """One part of an entity that is kept, hashed and served by itself."""

    type: str
    kind: str
    rules: tuple[BuildRule, ...]
    joins: tuple[Join, ...]
    reads: tuple[Pattern, ...]
    """Of the raw document: a change elsewhere cannot change the slice."""
    added_joins: tuple[Join, ...]
    """Those that no rule reads: what they find becomes a field of the slice, under the join's name."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an entity can be found by, and, with `references`, which entity it names."""

    type: str
    selector: Pattern
    references: str | None
    max_fanout: int | None


@dataclass(frozen=True, kw_only=True)
class Ruleset(Contract):
    """How an entity is sliced and indexed."""

    kind: ClassVar[str] = "RULESET"

    entity_type: str
    slices: tuple[Slice, ...]
    indexes: tuple[Index, ...]
    ignore: tuple[Pattern, ...]
    impact_map: dict[str, tuple[Pattern, ...]] | None
    fingerprint: str
    """`sha256:` of what decides the slices and index entries: two rulesets with the same one build the same."""

    @cached_property
    def slices_by_type(self) -> dict[str, Slice]:
        """For looking them up."""
        return {each.type: each for each in self.slices}

    @cached_property
    def read_sets(self) -> dict[str, tuple[Pattern, ...]]:
        """What makes each slice impacted: what its rules and joins read, and what the impactMap says beyond that."""
        declared = self.impact_map or {}
        return {each.type: tuple(dict.fromkeys((*each.reads, *declared.get(each.type, ())))) for each in self.slices}

    @cached_property
    def accounted(self) -> tuple[Pattern, ...]:
        """What documents may have: what slices and indexes read, impactMap names, and `ignore` covers."""
        return (*self._read_patterns, *self.ignore)

    @cached_property
    def whole_fields(self) -> frozenset[str]:
        """Fields at the top of a document of which everything is accounted for: most paths need no further look."""
        literals = (pattern.literal for pattern in self.accounted)
        return frozenset(literal[0] for literal in literals if literal is not None and len(literal) == 1)

    def accounts_for(self, path: Path) -> bool:
        """Whether a slice or an index reads what is at this path or some of it, impactMap names it, or `ignore` covers
        it. What a document has elsewhere may be what a rule forgot."""
        reads, ignored = (
            self._by_field.get(path[0], self._by_field[None]) if path else (self._read_patterns, self.ignore)
        )
        return any(each.touches(path) for each in reads) or any(each.covers(path) for each in ignored)

    @cached_property
    def _by_field(self) -> dict[str | None, tuple[tuple[Pattern, ...], tuple[Pattern, ...]]]:
        """What can reach a field at the top, of what is read and of what is ignored: every path of every document is
        asked for. None: a field that no pattern names."""
        first = [pattern.segments[0] for pattern in self.accounted if pattern.segments]
        names: list[str | None] = [None, *dict.fromkeys(each for each in first if isinstance(each, str))]

        def reaching(patterns: Iterable[Pattern], name: str | None) -> tuple[Pattern, ...]:
            return tuple(
                each
                for each in patterns
                if not each.segments or not isinstance(each.segments[0], str) or each.segments[0] == name
            )

        return {name: (reaching(self._read_patterns, name), reaching(self.ignore, name)) for name in names}

    @cached_property
    def _read_patterns(self) -> tuple[Pattern, ...]:
        read = [pattern for patterns in self.read_sets.values() for pattern in patterns]
        return tuple(dict.fromkeys((*read, *(index.selector for index in self.indexes))))


@dataclass(frozen=True, slots=True)
class PartialPolicy:
    """When a view's answer may be incomplete, and what it then says."""

    allowed: bool
    optional_only: bool
    include_missing_slices: bool
    include_used_contracts: bool


@dataclass(frozen=True, kw_only=True)
class ViewDefinition(Contract):
    """Which slices an answer has, and what happens without them."""

    kind: ClassVar[str] = "VIEW_DEFINITION"

    entity_type: str
    required_slices: tuple[str, ...]
    optional_slices: tuple[str, ...]
    missing_policy: MissingPolicy
    partial_policy: PartialPolicy
    defaults: dict[str, dict[str, Any]] | None
    """What stands in for missing slices (fallback DEFAULT_VALUE); None for fallback NONE."""
    ruleset_ref: ContractRef | None


@dataclass(frozen=True, kw_only=True)
class SinkRule(Contract):
    """What is shipped where."""

    kind: ClassVar[str] = "SINKRULE"

    entity_types: tuple[str, ...]
    slice_types: tuple[str, ...] | None
    """None: every slice."""
    target_type: str
    target: dict[str, Any]
    """The sink's own settings, uninterpreted."""
    document_id: Template
    batch_size: int
    timeout_ms: int
    per_second: float | None = None
    """Documents that the sink gets in a second, at most."""

    @cached_property
    def target_placeholders(self) -> frozenset[str]:
        """What the target's settings tell places apart by: of tenantId and entityType."""
        texts = str(self.target)
        return frozenset(name for name in ("tenantId", "entityType") if f"{{{name}}}" in texts)


@dataclass(frozen=True, kw_only=True)
class StateSource(Contract):
    """Which state becomes which entity. Names may have wildcards (see `globs`)."""

    kind: ClassVar[str] = "STATE_SOURCE"

    entity_type: str
    workflows: tuple[str, ...]
    owners: tuple[str, ...] | None
    branches: tuple[str, ...]
    tenants: tuple[str, ...] | None
    entity_id: Template | Pattern
    """A pattern's placeholders that begin with `/` are paths into the state."""
    rules: tuple[BuildRule, ...] | None
    """How the payload is made of the state; None: it has the fields that the entity's schema names."""
    constants: dict[str, Any]
    """What else the payload has, by field: values, and texts as Templates."""
    when: Taking
    deletes: bool
    """Whether the entity is deleted when its branch is removed."""
    stops: bool
    """Whether a state that is no such entity stops its workflow until somebody looks, or is passed over."""

    def takes(self, tenant: str, owner: str, workflow: str, branch: str) -> bool:
        """Whether this branch of this workflow is one of those it names."""
        return (
            matches(self.workflows, workflow)
            and matches(self.branches, branch)
            and (self.owners is None or matches(self.owners, owner))
            and (self.tenants is None or matches(self.tenants, tenant))
        )
