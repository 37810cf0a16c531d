"""Contracts that belong together, and which of them applies to what."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TypeVar

from analemma.contracts.models import (
    Contract,
    ContractRef,
    EntitySchema,
    Join,
    Ruleset,
    SinkRule,
    StateSource,
    Status,
    ViewDefinition,
)
from analemma.contracts.problems import Problem
from analemma.contracts.semver import SemanticVersion
from analemma.errors import NotFound

C = TypeVar("C", bound=Contract)

_PREFERRED = (Status.ACTIVE, Status.DEPRECATED, Status.DRAFT)
"""Of several contracts for one thing, the newest of the first status that there is. ARCHIVED ones apply to nothing."""


@dataclass(frozen=True, slots=True)
class Dependant:
    """Slices that a join makes depend on another entity's slice."""

    entity_type: str
    slice_type: str
    join: Join
    index_type: str
    """The index of `entity_type` whose entries lead from the entity joined to those that join it."""
    max_fanout: int | None


@dataclass(frozen=True)
class ContractSet:
    """Contracts that were checked together."""

    contracts: tuple[Contract, ...]
    warnings: tuple[Problem, ...] = ()
    loaded_at_us: int | None = field(default=None, compare=False)
    """When the last of them came to the store that they are of, or its status moved; None: they are of none."""

    @property
    def entity_types(self) -> tuple[str, ...]:
        """Every type that has a schema, in order."""
        return tuple(sorted({each.entity_type for each in self.of_kind(EntitySchema)}))

    def of_kind(self, kind: type[C]) -> tuple[C, ...]:
        """All contracts of a kind."""
        return tuple(each for each in self.contracts if isinstance(each, kind))

    def contract(self, ref: ContractRef) -> Contract:
        """The contract with this id and version, whatever its status."""
        found = self.by_ref.get(ref)
        if found is None:
            raise NotFound(f"there is no contract {ref}", hint="analemma contracts list shows all", contract=str(ref))
        return found

    def newest(self, contract_id: str, kind: type[C], version: SemanticVersion | None = None) -> C | None:
        """The contract with this id that applies, or with this version."""
        named = [each for each in self.of_kind(kind) if each.id == contract_id]
        if version is not None:
            return next((each for each in named if each.version == version), None)
        return _applying(named)

    def find_schema(self, entity_type: str) -> EntitySchema | None:
        """The schema that applies to a type."""
        return self._schemas.get(entity_type)

    def schema(self, entity_type: str) -> EntitySchema:
        """The schema that applies to a type, or NotFound."""
        return _or_missing(self.find_schema(entity_type), "ENTITY_SCHEMA", entity_type)

    def find_ruleset(self, entity_type: str) -> Ruleset | None:
        """The ruleset that slices a type: the one its schema names, or the one there is."""
        return self._rulesets.get(entity_type)

    def ruleset(self, entity_type: str) -> Ruleset:
        """The ruleset that slices a type, or NotFound."""
        return _or_missing(self.find_ruleset(entity_type), "RULESET", entity_type)

    def rules_with(self, entity_type: str, index: str) -> frozenset[str]:
        """The fingerprints of all rulesets of a type, whatever their status, that have this index as the one has it
        that applies; empty if that one does not have it."""
        wanted = _index_of(self.find_ruleset(entity_type), index)
        if wanted is None:
            return frozenset()
        rulesets = [each for each in self.of_kind(Ruleset) if each.entity_type == entity_type]
        return frozenset(each.fingerprint for each in rulesets if _index_of(each, index) == wanted)

    def view(self, view_id: str, version: SemanticVersion | None = None) -> ViewDefinition:
        """The view with this id, or NotFound."""
        found = self.newest(view_id, ViewDefinition, version)
        if found is None:
            raise NotFound(f"there is no view {view_id}", hint="analemma contracts list shows all", view=view_id)
        return found

    def ruleset_of_view(self, view: ViewDefinition) -> Ruleset | None:
        """The ruleset whose slices a view has."""
        if view.ruleset_ref is None:
            return self.find_ruleset(view.entity_type)
        found = self.by_ref.get(view.ruleset_ref)
        return found if isinstance(found, Ruleset) else None

    def sink_rules(self, entity_type: str) -> tuple[SinkRule, ...]:
        """The rules that ship a type, in the order of their ids: of each id the one that applies, if it is ACTIVE."""
        return self._sink_rules_by_type.get(entity_type, ())

    @cached_property
    def active_sink_rules(self) -> dict[str, SinkRule]:
        """Every rule that ships, by its id, in the order of ids."""
        ids = sorted({each.id for each in self.of_kind(SinkRule)})
        found = {each: self.newest(each, SinkRule) for each in ids}
        return {key: rule for key, rule in found.items() if rule is not None and rule.status is Status.ACTIVE}

    def state_sources(self) -> tuple[StateSource, ...]:
        """The sources that apply, in the order of their ids."""
        ids = sorted({each.id for each in self.of_kind(StateSource)})
        found = [self.newest(each, StateSource) for each in ids]
        return tuple(each for each in found if each is not None and each.status is Status.ACTIVE)

    def dependants(self, entity_type: str, slice_type: str | None = None) -> tuple[Dependant, ...]:
        """What has to be rebuilt when a slice (or any) of an entity of this type changes."""
        return tuple(
            each
            for each in self._dependants
            if each.join.target_entity_type == entity_type and slice_type in (None, each.join.target_slice_type)
        )

    def build_order(self) -> tuple[str, ...]:
        """The entity types, each after those that it joins."""
        joined = {
            each: sorted(joined_types(self._rulesets[each])) if each in self._rulesets else []
            for each in self.entity_types
        }
        return tuple(TopologicalSorter(joined).static_order())

    @cached_property
    def by_ref(self) -> dict[ContractRef, Contract]:
        """Every contract, whatever its status."""
        return {each.ref: each for each in self.contracts}

    @cached_property
    def _schemas(self) -> dict[str, EntitySchema]:
        groups: dict[str, list[EntitySchema]] = {}
        for each in self.of_kind(EntitySchema):
            groups.setdefault(each.entity_type, []).append(each)
        found = {entity_type: _applying(group) for entity_type, group in groups.items()}
        return {entity_type: each for entity_type, each in found.items() if each is not None}

    @cached_property
    def _rulesets(self) -> dict[str, Ruleset]:
        groups: dict[str, list[Ruleset]] = {}
        for each in self.of_kind(Ruleset):
            groups.setdefault(each.entity_type, []).append(each)
        found: dict[str, Contract | None] = {entity_type: _applying(group) for entity_type, group in groups.items()}
        for entity_type, schema in self._schemas.items():
            if schema.ruleset_ref is not None:
                found[entity_type] = self.by_ref.get(schema.ruleset_ref)
        return {
            entity_type: each
            for entity_type, each in found.items()
            if isinstance(each, Ruleset) and each.entity_type == entity_type
        }

    @cached_property
    def _sink_rules_by_type(self) -> dict[str, tuple[SinkRule, ...]]:
        groups: dict[str, list[SinkRule]] = {}
        for rule in self.active_sink_rules.values():
            for entity_type in rule.entity_types:
                groups.setdefault(entity_type, []).append(rule)
        return {entity_type: tuple(rules) for entity_type, rules in groups.items()}

    @cached_property
    def _dependants(self) -> tuple[Dependant, ...]:
        rulesets = filter(None, map(self.find_ruleset, self.entity_types))
        return tuple(
            Dependant(ruleset.entity_type, definition.type, join, index.type, index.max_fanout)
            for ruleset in rulesets
            for definition in ruleset.slices
            for join in definition.joins
            for index in ruleset.indexes
            if index.references == join.target_entity_type and index.selector == join.source
        )


def joined_types(ruleset: Ruleset) -> set[str]:
    """The entity types that a ruleset joins."""
    return {join.target_entity_type for definition in ruleset.slices for join in definition.joins}


def _applying(contracts: Iterable[C]) -> C | None:
    found = list(contracts)
    for status in _PREFERRED:
        having = [each for each in found if each.status is status]
        if having:
            return max(having, key=lambda each: each.version)
    return None


def _index_of(ruleset: Ruleset | None, index: str) -> tuple[object, ...] | None:
    """What decides the entries of an index."""
    found = [] if ruleset is None else [each for each in ruleset.indexes if each.type == index]
    return (found[0].selector, found[0].references) if found else None


def _or_missing(found: C | None, kind: str, entity_type: str) -> C:
    if found is None:
        raise NotFound(
            f"there is no {kind} for the entity type {entity_type!r}",
            hint="analemma contracts list shows all",
            entity_type=entity_type,
        )
    return found
