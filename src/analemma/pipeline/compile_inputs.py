"""What a compile is made of, read in one go: raw documents, the slices there were, and those that are joined."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from analemma.catalog.entities.entities import EntityPlace
from analemma.catalog.entities.slices import (
    CompileRow,
    CompileStart,
    FoundSlice,
    Seen,
    SliceRow,
    WantedSlice,
    find_slices,
)
from analemma.context import Context
from analemma.contracts.models import Ruleset
from analemma.pipeline.dependencies import parse_dependencies
from analemma.pipeline.documents import DocumentReader, format_hash
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.evaluate import Tombstone, TombstoneReason
from analemma.slicing.incremental import CompileMode, Predecessor, SliceState
from analemma.slicing.joining import Dependency, Lookup, SliceContent, wanted_slices


@dataclass(frozen=True)
class CompileInputs:
    """Everything that decides what a compile makes."""

    raw: Document | None
    predecessor: Predecessor | None
    rows: Mapping[str, SliceRow]
    """The slices of the predecessor as they lie in the catalog."""
    joined: Mapping[EntityPlace, Seen | None]
    """Every other entity that was looked at; None: it has no row yet."""
    lookup: Lookup


@dataclass(frozen=True)
class Asking:
    """A compile whose slices are still to be found."""

    raw: Document | None
    before: Document | None
    base: CompileRow | None
    dependencies: Mapping[str, tuple[Dependency, ...]]
    own: list[WantedSlice]
    others: list[WantedSlice]

    @property
    def wanted(self) -> list[WantedSlice]:
        """All that is to be found, in the order in which `assemble` takes it."""
        return [*self.own, *self.others]


class InputReader:
    """Reads them for one tenant."""

    def __init__(self, context: Context, documents: DocumentReader) -> None:
        self._context = context
        self._documents = documents

    def read(self, ruleset: Ruleset, key: EntityKey, start: CompileStart, mode: CompileMode) -> CompileInputs:
        """All of it. What others compile meanwhile may be half in it: whoever writes has to compare."""
        asking = self.ask(ruleset, key, start, mode)
        return self.assemble(asking, self.find(asking.wanted))

    def find(self, wanted: Sequence[WantedSlice]) -> list[FoundSlice]:
        """What there is of each slice."""
        return find_slices(self._context.engine, self._context.tenant, wanted)

    def ask(self, ruleset: Ruleset, key: EntityKey, start: CompileStart, mode: CompileMode) -> Asking:
        """Which slices it takes, for `assemble` once they are found: those of many compiles are found in one go."""
        base = start.base
        raw = self._documents.raw(start.document)
        # In full, what was before is not looked at: it may be damaged, and all is well again with this.
        comparing = mode is not CompileMode.FULL and base is not None and base.fingerprint == ruleset.fingerprint
        before = self._documents.raw(start.base_document) if comparing else None
        dependencies = {} if base is None else parse_dependencies(base.dependencies, self._context.tenant_name)
        place = EntityPlace(key.type, key.id)
        own = [] if base is None else [WantedSlice(place, slice_type, base.version) for slice_type in dependencies]
        asked = wanted_slices(ruleset, key, raw)
        asked |= {(each.key, each.slice_type) for found in dependencies.values() for each in found}
        others = [WantedSlice(EntityPlace(other.type, other.id), slice_type) for other, slice_type in sorted(asked)]
        return Asking(raw, before, base, dependencies, own, others)

    def assemble(self, asking: Asking, found: Sequence[FoundSlice]) -> CompileInputs:
        """All of it, of what was found of each slice."""
        own, base, dependencies = asking.own, asking.base, asking.dependencies
        rows = {each.row.type: each.row for each in found[: len(own)] if each.row is not None}
        predecessor = None
        if base is not None:
            states = {
                slice_type: _state(rows[slice_type], dependencies[slice_type])
                for slice_type in dependencies
                if slice_type in rows
            }
            predecessor = Predecessor(asking.before, base.fingerprint, states)
        there = dict(zip(asking.others, found[len(own) :], strict=True))
        joined = {
            wanted.place: None if each.number is None else Seen(each.number, each.compile_seq)
            for wanted, each in there.items()
        }
        return CompileInputs(asking.raw, predecessor, rows, joined, self._lookup(there))

    def numbers(self, places: Collection[EntityPlace]) -> dict[EntityPlace, int]:
        """The numbers of those of these entities that have one."""
        wanted = [WantedSlice(place, "") for place in sorted(places)]
        found = self.find(wanted)
        return {each.place: there.number for each, there in zip(wanted, found, strict=True) if there.number is not None}

    def _lookup(self, there: Mapping[WantedSlice, FoundSlice]) -> Lookup:
        def lookup(key: EntityKey, slice_type: str) -> SliceContent | None:
            row = there[WantedSlice(EntityPlace(key.type, key.id), slice_type)].row
            if row is None or row.root is None or row.hash is None:
                return None
            return SliceContent(self._documents.slice(row.root, row.hash, f"{key}.{slice_type}"), format_hash(row.hash))

        return lookup


def _state(row: SliceRow, dependencies: tuple[Dependency, ...]) -> SliceState:
    gone = None if row.tombstone is None else Tombstone(TombstoneReason(row.tombstone), row.detail or "")
    return SliceState(None if row.hash is None else format_hash(row.hash), gone, dependencies)
