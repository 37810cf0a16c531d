"""What compiles would make, without writing: for dry runs, entity after entity, each seeing what those before it would
have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from analemma.canon.canonical_json import canonical_json
from analemma.catalog.entities.backfills import BackfillEntity, Counts, EntityChoice, scope_page
from analemma.catalog.entities.entities import EntityPlace
from analemma.catalog.entities.slices import compile_starts
from analemma.contracts.contract_set import ContractSet
from analemma.errors import NotFound
from analemma.pipeline.backfill_compiling import PASSING, versions_of
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.backfill_reports import SAMPLES, Sample
from analemma.pipeline.backfill_scope import (
    BackfillKind,
    BackfillOptions,
    BackfillScope,
    choice_of,
    ship_by_compile,
    sinks_of,
)
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import Compiled, Predecessor
from analemma.slicing.joining import Lookup, SliceContent

REMEMBERED_BYTES: Final = 256 << 20
"""Of slices that would change and that others join."""


@dataclass(frozen=True, slots=True)
class DryCall:
    """A page of a dry run. Plain data: it may go to another machine."""

    kind: BackfillKind
    scope: BackfillScope
    options: BackfillOptions
    type: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DryAnswer:
    """What a run would do there."""

    counts: Counts
    samples: tuple[Sample, ...]
    next: int | None
    """Where the next page begins; None: there is none."""


class Changed:
    """Slices that would change, of entities that others join."""

    def __init__(self, limit_bytes: int = REMEMBERED_BYTES) -> None:
        self._slices: dict[tuple[EntityKey, str], SliceContent | None] = {}
        self._left_bytes = limit_bytes
        self.complete = True
        """Whether all of them were remembered."""

    def put(self, key: EntityKey, slice_type: str, content: SliceContent | None) -> None:
        self._left_bytes -= 100 + (0 if content is None else len(canonical_json(content.data)))
        if self._left_bytes < 0:
            self.complete = False
        else:
            self._slices[key, slice_type] = content

    def over(self, lookup: Lookup) -> Lookup:
        """What a compile would find."""

        def find(key: EntityKey, slice_type: str) -> SliceContent | None:
            if (key, slice_type) in self._slices:
                return self._slices[key, slice_type]
            return lookup(key, slice_type)

        return find


def dry_page(parts: TenantParts, call: DryCall) -> DryAnswer:
    """Evaluate one page of a range of entities."""
    return DryRunner(parts).page(call)


class DryRunner:
    """Evaluates entities of one tenant."""

    def __init__(self, parts: TenantParts, changed: Changed | None = None) -> None:
        """With `changed`, entities see what those before them would have become."""
        self._parts = parts
        self._changed = changed

    def page(self, call: DryCall) -> DryAnswer:
        """One page of a range of entities."""
        parts, contracts = self._parts, self._parts.contracts()
        choice: EntityChoice = choice_of(call.scope, call.kind, call.type, contracts)
        limit = call.options.page
        entities = scope_page(parts.engine, parts.tenant, choice, first=call.first, last=call.last, limit=limit)
        counts = Counts()
        samples: list[Sample] = []
        for entity in entities:
            found, said = self._entity(call, contracts, entity)
            counts = counts.plus(found)
            if said and len(samples) < SAMPLES:
                samples.append(Sample(str(EntityKey(call.type, parts.tenant_name, entity.key)), said))
        following = entities[-1].number + 1 if len(entities) == limit else None
        return DryAnswer(counts, tuple(samples), following)

    def _entity(self, call: DryCall, contracts: ContractSet, entity: BackfillEntity) -> tuple[Counts, str]:
        sinks = sinks_of(call.scope, call.type, contracts)
        forced = len(sinks) if call.kind.ships else 0
        if not call.kind.compiles:
            return Counts(done=1, requested=forced), f"ship to {', '.join(sinks)}"
        ship = ship_by_compile(call.kind, call.scope, call.type, contracts)
        key = EntityKey(call.type, self._parts.tenant_name, entity.key)
        counts, said = Counts(done=1), []
        before: tuple[int, Compiled] | None = None
        for version in versions_of(self._parts.engine, entity, call.scope.versions):
            try:
                made, there, ships = self._version(call, contracts, key, version, before, ship)
            except PASSING:
                raise
            except Exception as exc:
                counts = counts.plus(Counts(failed=1))
                said.append(f"fail: {exc}")
                continue
            before = version, made
            if there:
                continue
            gone = [each.type for each in made.written if each.tombstone is not None]
            counts = counts.plus(Counts(0, 1, len(made.written), len(gone), len(ships), 0))
            said.append(f"write {', '.join(each.type for each in made.written) or 'what it was made by'}")
            if self._changed is not None and version >= (entity.serving_version or 0):
                for each in made.written:
                    content = None if each.data is None or each.hash is None else SliceContent(each.data, each.hash)
                    if contracts.dependants(key.type, each.type):
                        self._changed.put(key, each.type, content)
        # A run that fails at the last version asks no sink.
        if forced and not (said and said[-1].startswith("fail")):
            counts = counts.plus(Counts(requested=forced))
        return counts, "; ".join(said)

    def _version(
        self,
        call: DryCall,
        contracts: ContractSet,
        key: EntityKey,
        version: int,
        before: tuple[int, Compiled] | None,
        ship: Sequence[str] | None,
    ) -> tuple[Compiled, bool, tuple[str, ...]]:
        parts, mode = self._parts, call.options.mode
        ruleset = contracts.ruleset(key.type)
        (start,) = compile_starts(parts.engine, parts.tenant, [(EntityPlace(key.type, key.id), version)])
        if start is None or start.version is None:
            raise NotFound(f"{key} has no such version any more", hint="see how it was removed")
        inputs = parts.reader.read(ruleset, key, start, mode)
        if self._changed is not None:
            inputs = replace(inputs, lookup=self._changed.over(inputs.lookup))
        base = start.base
        if before is not None and (base is None or base.version <= before[0] < version):
            # The version before it would have been compiled by now.
            states = before[1].slices
            inputs = replace(inputs, predecessor=Predecessor(None, ruleset.fingerprint, states))
        return parts.slicing.evaluate(contracts, key, start, inputs, mode, ship)


def joins_within(types: Sequence[str], contracts: ContractSet) -> bool:
    """Whether entities of these types join others of them, so that what becomes of one depends on another."""
    joined: Mapping[str, set[str]] = {
        each: {found.entity_type for found in contracts.dependants(each)} for each in types
    }
    return any(joined[each] & set(types) for each in types)
