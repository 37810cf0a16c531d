"""Compiles a version of an entity: in full, or from a predecessor by rebuilding only what a change touches.

Both ways lead to the same slices and index entries. What makes that so: read-sets come from the rules, a changed
dependency counts as a change, and a change that nothing accounts for is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from analemma.contracts.models import Ruleset
from analemma.errors import Invalid
from analemma.slicing.changes import ChangeKind, ChangeSet, Document, compare_documents
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.evaluate import BuiltSlice, Tombstone, TombstoneReason, evaluate_slice, tombstone_slice
from analemma.slicing.indexing import IndexEntry, index_entries
from analemma.slicing.joining import Dependency, Lookup, SliceContent, dependency_vector
from analemma.slicing.readsets import impact_of, refuse_unaccounted


class CompileMode(StrEnum):
    """How to compile. AUTO is INCREMENTAL where a predecessor allows it, otherwise FULL."""

    FULL = "FULL"
    INCREMENTAL = "INCREMENTAL"
    AUTO = "AUTO"


def parse_mode(text: str, allowed: Sequence[CompileMode] | None = None) -> CompileMode:
    """A mode as callers write it: `full`, or `FULL` as results print it; Invalid names those that are allowed.

    >>> parse_mode("full")
    <CompileMode.FULL: 'FULL'>
    """
    modes = (CompileMode.AUTO, CompileMode.FULL, CompileMode.INCREMENTAL) if allowed is None else allowed
    for mode in modes:
        if isinstance(text, str) and text.upper() == mode:
            return mode
    *others, last = (mode.lower() for mode in modes)
    raise Invalid(f"there is no mode {text!r} here", hint=f"{', '.join(others)} or {last}")


@dataclass(frozen=True, slots=True)
class SliceState:
    """What is known of a slice without its data."""

    hash: str | None
    tombstone: Tombstone | None
    dependencies: tuple[Dependency, ...] = ()


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The greatest version below that was compiled: what it was made of, and what it became."""

    raw: Document | None
    """None if that version was a delete."""
    fingerprint: str
    slices: Mapping[str, SliceState]


@dataclass(frozen=True)
class Compiled:
    """What a compile found, for the caller to store in one transaction."""

    mode: CompileMode
    """FULL or INCREMENTAL: what was done."""
    fingerprint: str
    changes: ChangeSet
    """Since the predecessor; from nothing, if there was none."""
    impacted: Mapping[str, tuple[str, ...]]
    """The slices that were rebuilt, each with why: changed pointers, changed dependencies, or how all of it changed."""
    built: tuple[BuiltSlice, ...]
    """What was rebuilt, in the ruleset's order."""
    written: tuple[BuiltSlice, ...]
    """Of those, the ones that differ from the predecessor's: the only rows to write."""
    slices: Mapping[str, SliceState]
    """Every slice after this compile, in the ruleset's order; those that the ruleset no longer has come last."""
    index_entries: tuple[IndexEntry, ...] | None
    """All entries of the entity, to replace the old ones; None if they cannot have changed."""
    dependencies: tuple[Dependency, ...] = field(default=())
    """The whole dependency vector, in the order of the keys."""


def compile_entity(
    ruleset: Ruleset,
    key: EntityKey,
    raw: Document | None,
    lookup: Lookup,
    *,
    predecessor: Predecessor | None = None,
    mode: CompileMode = CompileMode.AUTO,
    keeps: bool = False,
) -> Compiled:
    """Compile one version; `raw` is None for a delete. Nothing is written: what is to be written is in the answer.

    `keeps`: what the ruleset does not account for may change, as the schema says."""
    lookup = _once(lookup)
    impacted: dict[str, tuple[str, ...]]
    changes = compare_documents(None if predecessor is None else predecessor.raw, raw)
    usable = predecessor is not None and predecessor.fingerprint == ruleset.fingerprint
    if predecessor is None or not usable or mode is CompileMode.FULL:
        impacted = {each.type: (CompileMode.FULL.value,) for each in ruleset.slices}
        return _compile(ruleset, key, raw, lookup, predecessor, CompileMode.FULL, changes, impacted, indexes=True)
    if changes.kind in (ChangeKind.CREATE, ChangeKind.DELETE):
        impacted = {each.type: (changes.kind.value,) for each in ruleset.slices}
        return _compile(
            ruleset, key, raw, lookup, predecessor, CompileMode.INCREMENTAL, changes, impacted, indexes=True
        )
    if not keeps:
        refuse_unaccounted(ruleset, changes)
    impact = impact_of(ruleset, changes.paths)
    impacted = dict(impact.slices)
    for slice_type, stale in _stale(predecessor, lookup).items():
        impacted[slice_type] = (*impacted.get(slice_type, ()), *stale)
    return _compile(
        ruleset, key, raw, lookup, predecessor, CompileMode.INCREMENTAL, changes, impacted, indexes=impact.indexes
    )


def _compile(
    ruleset: Ruleset,
    key: EntityKey,
    raw: Document | None,
    lookup: Lookup,
    predecessor: Predecessor | None,
    mode: CompileMode,
    changes: ChangeSet,
    impacted: Mapping[str, tuple[str, ...]],
    *,
    indexes: bool,
) -> Compiled:
    before = {} if predecessor is None else predecessor.slices
    built: list[BuiltSlice] = []
    states: dict[str, SliceState] = {}
    for definition in ruleset.slices:
        # A slice that the predecessor does not have is built, whatever changed.
        if definition.type in impacted or definition.type not in before:
            made = evaluate_slice(definition, key, raw, lookup)
            built.append(made)
            states[definition.type] = _state(made)
        else:
            states[definition.type] = before[definition.type]
    for made in _vanished(ruleset, before):
        built.append(made)
        states[made.type] = _state(made)
    return Compiled(
        mode=mode,
        fingerprint=ruleset.fingerprint,
        changes=changes,
        impacted=impacted,
        built=tuple(built),
        written=tuple(each for each in built if _differs(each, before.get(each.type))),
        slices=states,
        index_entries=index_entries(ruleset, key, raw) if indexes else None,
        dependencies=dependency_vector(each for state in states.values() for each in state.dependencies),
    )


def _vanished(ruleset: Ruleset, before: Mapping[str, SliceState]) -> Iterable[BuiltSlice]:
    """Slices of an older ruleset that this one does not have."""
    for slice_type in sorted(before.keys() - ruleset.slices_by_type.keys()):
        # One that is gone already keeps its reason: it does not vanish again with every version.
        gone = before[slice_type].tombstone
        detail = f"{ruleset.ref} has no slice {slice_type}"
        made = tombstone_slice(slice_type, TombstoneReason.NOT_IN_RULESET, detail)
        yield made if gone is None else replace(made, tombstone=gone)


def _stale(predecessor: Predecessor, lookup: Lookup) -> dict[str, list[str]]:
    """The slices whose dependencies are no longer what they were built from."""
    found: dict[str, list[str]] = {}
    for slice_type, state in predecessor.slices.items():
        for dependency in state.dependencies:
            now = lookup(dependency.key, dependency.slice_type)
            if dependency.hash != (None if now is None else now.hash):
                found.setdefault(slice_type, []).append(f"{dependency.key}.{dependency.slice_type}")
    return found


def _state(built: BuiltSlice) -> SliceState:
    return SliceState(built.hash, built.tombstone, built.dependencies)


def _differs(built: BuiltSlice, before: SliceState | None) -> bool:
    return before is None or (before.hash, before.tombstone) != (built.hash, built.tombstone)


def _once(lookup: Lookup) -> Lookup:
    """Asks only once for each slice, so that one compile sees one state of it."""
    seen: dict[tuple[EntityKey, str], SliceContent | None] = {}

    def find(key: EntityKey, slice_type: str) -> SliceContent | None:
        asked = (key, slice_type)
        if asked not in seen:
            seen[asked] = lookup(key, slice_type)
        return seen[asked]

    return find
