"""Builds slices from scratch: the same document, ruleset and dependencies always give the same hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from analemma.contracts.models import Ruleset, Slice
from analemma.slicing.changes import Document, content_hash
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.indexing import IndexEntry, index_entries
from analemma.slicing.joining import Dependency, Lookup, dependency_vector, join_document
from analemma.slicing.rules import apply_rules


class TombstoneReason(StrEnum):
    """Why a slice is not there."""

    DELETED = "DELETED"
    REQUIRED_JOIN_MISSING = "REQUIRED_JOIN_MISSING"
    NOT_IN_RULESET = "NOT_IN_RULESET"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What stands where a slice is not."""

    reason: TombstoneReason
    detail: str


@dataclass(frozen=True, slots=True)
class BuiltSlice:
    """A slice, or the tombstone in its place. Its data shares parts with the raw document: not to be changed."""

    type: str
    data: Document | None
    hash: str | None
    tombstone: Tombstone | None
    dependencies: tuple[Dependency, ...] = ()


@dataclass(frozen=True)
class Evaluation:
    """Everything that an entity's raw document becomes."""

    slices: Mapping[str, BuiltSlice]
    """In the ruleset's order."""
    index_entries: tuple[IndexEntry, ...]

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """The dependency vector, in the order of the keys."""
        return dependency_vector(each for built in self.slices.values() for each in built.dependencies)


def evaluate(ruleset: Ruleset, key: EntityKey, raw: Document | None, lookup: Lookup) -> Evaluation:
    """All slices and index entries of an entity; `raw` is None for one that was deleted."""
    slices = {each.type: evaluate_slice(each, key, raw, lookup) for each in ruleset.slices}
    return Evaluation(slices, index_entries(ruleset, key, raw))


def evaluate_slice(definition: Slice, key: EntityKey, raw: Document | None, lookup: Lookup) -> BuiltSlice:
    """One slice of an entity."""
    if raw is None:
        return tombstone_slice(definition.type, TombstoneReason.DELETED, f"{key} was deleted")
    joined = join_document(definition, key, raw, lookup)
    if joined.missing is not None:
        reason = TombstoneReason.REQUIRED_JOIN_MISSING
        return tombstone_slice(definition.type, reason, joined.missing, joined.dependencies)
    data = apply_rules(definition.rules, joined.document)
    for join in definition.added_joins:
        if join.name in joined.document:
            data[join.name] = joined.document[join.name]
    return BuiltSlice(definition.type, data, content_hash(data), None, joined.dependencies)


def tombstone_slice(
    slice_type: str, reason: TombstoneReason, detail: str, dependencies: tuple[Dependency, ...] = ()
) -> BuiltSlice:
    """The tombstone of a slice."""
    return BuiltSlice(slice_type, None, None, Tombstone(reason, detail), dependencies)
