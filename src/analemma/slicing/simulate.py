"""What a change of contracts would do to given documents: which slices would come, go or change, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from analemma.contracts.contract_set import ContractSet
from analemma.contracts.payloads import check_payload
from analemma.errors import Invalid
from analemma.slicing.changes import Document, compare_documents
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.evaluate import BuiltSlice, Evaluation, evaluate
from analemma.slicing.joining import SliceContent


class SliceEffect(StrEnum):
    """What would become of a slice."""

    ADDED = "ADDED"
    REMOVED = "REMOVED"
    CHANGED = "CHANGED"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class SimulatedSlice:
    """One slice, before and after."""

    type: str
    effect: SliceEffect
    pointers: tuple[str, ...]
    """Where its data would change."""
    reason: str | None
    """Why it would not be there."""


@dataclass(frozen=True, slots=True)
class SimulatedEntity:
    """One document, before and after."""

    key: EntityKey
    slices: tuple[SimulatedSlice, ...]
    index_entries_added: int
    index_entries_removed: int
    problem: str | None
    """Why the new contracts would refuse the document."""

    @property
    def changed(self) -> bool:
        """Whether anything would be different."""
        effects = any(each.effect is not SliceEffect.UNCHANGED for each in self.slices)
        return effects or self.problem is not None or bool(self.index_entries_added or self.index_entries_removed)


def simulate(
    before: ContractSet | None, after: ContractSet, documents: Mapping[EntityKey, Document]
) -> tuple[SimulatedEntity, ...]:
    """Slice every document by both sets. Joins find what is among the documents; without `before`, all is new."""
    old = {} if before is None else evaluate_all(before, documents)
    new = evaluate_all(after, documents)
    nothing = Evaluation({}, ())
    found = []
    for key in sorted(documents):
        was, is_now = old.get(key, nothing), new.get(key, nothing)
        types = [*is_now.slices, *(each for each in was.slices if each not in is_now.slices)]
        entries = (set(was.index_entries), set(is_now.index_entries))
        found.append(
            SimulatedEntity(
                key,
                tuple(_compare(each, was.slices.get(each), is_now.slices.get(each)) for each in types),
                len(entries[1] - entries[0]),
                len(entries[0] - entries[1]),
                _refusal(after, key, documents[key]),
            )
        )
    return tuple(found)


def evaluate_all(contracts: ContractSet, documents: Mapping[EntityKey, Document]) -> dict[EntityKey, Evaluation]:
    """Slice documents that may join each other; what has no ruleset is left out."""
    made: dict[EntityKey, Evaluation] = {}

    def lookup(key: EntityKey, slice_type: str) -> SliceContent | None:
        found = made[key].slices.get(slice_type) if key in made else None
        return (
            None if found is None or found.data is None or found.hash is None else SliceContent(found.data, found.hash)
        )

    # Joins go in no circle, so whatever is joined was made before.
    for entity_type in contracts.build_order():
        ruleset = contracts.find_ruleset(entity_type)
        for key in sorted(documents) if ruleset is not None else ():
            if ruleset is not None and key.type == entity_type:
                made[key] = evaluate(ruleset, key, documents[key], lookup)
    return made


def _compare(slice_type: str, before: BuiltSlice | None, after: BuiltSlice | None) -> SimulatedSlice:
    old = None if before is None else before.data
    new = None if after is None else after.data
    reason = after.tombstone.detail if after is not None and after.tombstone is not None else None
    if old is None and new is None:
        return SimulatedSlice(slice_type, SliceEffect.UNCHANGED, (), reason)
    if old is None:
        return SimulatedSlice(slice_type, SliceEffect.ADDED, (), None)
    if new is None:
        return SimulatedSlice(slice_type, SliceEffect.REMOVED, (), reason)
    changes = compare_documents(old, new).changes
    effect = SliceEffect.CHANGED if changes else SliceEffect.UNCHANGED
    return SimulatedSlice(slice_type, effect, tuple(change.pointer for change in changes), None)


def _refusal(contracts: ContractSet, key: EntityKey, document: Document) -> str | None:
    schema = contracts.find_schema(key.type)
    if schema is None:
        return f"there is no ENTITY_SCHEMA for {key.type}"
    try:
        check_payload(schema, document, contracts.find_ruleset(key.type))
    except Invalid as exc:
        return exc.message
    return None


def totals(entities: Sequence[SimulatedEntity]) -> dict[str, int]:
    """How many slices each effect has."""
    effects = [each.effect for entity in entities for each in entity.slices]
    return {effect.value: effects.count(effect) for effect in SliceEffect}
