"""Compiles a page of entities together: read in a few queries, evaluated outside of any transaction, written in one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from analemma.blocks.store import Carried
from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.entities.backfills import BackfillEntity, Counts, StoredEntry, stored_entries
from analemma.catalog.entities.entities import EntityPlace, add_placeholders
from analemma.catalog.entities.slices import (
    PAGE_WRITTEN,
    CompileStart,
    CompileWrite,
    compile_starts,
    find_overtaken,
    write_compiles,
)
from analemma.catalog.port import OutboxEvent
from analemma.contracts.contract_set import ContractSet
from analemma.errors import Conflict, Corrupt, NotFound, OutcomeUnknown, Timeout, Unavailable
from analemma.failpoints import hit
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.compile_inputs import Asking
from analemma.pipeline.events import SHIP_REQUESTED
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import Compiled, CompileMode

PASSING: Final = (Unavailable, Timeout, OutcomeUnknown)
"""Not the fault of the entity at which they happen: the page is tried again."""

START: Final = "[0,null]"


class Item(NamedTuple):
    """A version to compile."""

    entity: BackfillEntity
    version: int
    last: bool
    """Whether the entity is done with it."""
    alone: bool
    """Whether it is to be compiled by itself: the entity has several, or is served from another than its newest."""

    @property
    def cursor(self) -> str:
        """Where the shard stands when that is done."""
        return cursor_of(self.entity.number, None if self.last else self.version)


def cursor_of(number: int, version: int | None) -> str:
    """Everything up to this entity is done, or (with a version) of the entity everything up to that."""
    return json.dumps([number, version])


def read_cursor(cursor: str) -> tuple[int, int | None]:
    """The number of an entity, and the version up to which it is done; None: it is done."""
    number, version = json.loads(cursor)
    return number, version


def versions_of(source: Statements, entity: BackfillEntity, versions: str) -> list[int]:
    """The versions of an entity that are to be compiled, oldest first."""
    if versions == "all":
        return [row[0] for row in source.all("raw_versions", entity=entity.number)]
    # The served one is another, for now, while a deploy waits for its sinks; otherwise the newest takes its place.
    parted = entity.serving_version is not None and entity.serving_version != entity.newest_compiled
    served = {entity.serving_version} if parted and entity.serving_version is not None else set()
    return sorted({entity.newest_raw, *served})


def items_of(source: Statements, entities: Sequence[BackfillEntity], versions: str, cursor: str) -> list[Item]:
    """What is to be compiled of these entities, and was not yet."""
    number, after = read_cursor(cursor)
    found = []
    for entity in entities:
        wanted = versions_of(source, entity, versions)
        parted = entity.serving_version != entity.newest_compiled
        for version in wanted:
            if entity.number == number and after is not None and version <= after:
                continue
            found.append(Item(entity, version, version == wanted[-1], parted or len(wanted) > 1))
    return found


@dataclass(frozen=True)
class Batch:
    """Items that were evaluated."""

    items: Sequence[Item]
    writes: Mapping[int, CompileWrite]
    """By entity; what is up to date has none."""
    failed: Mapping[int, Exception]

    def before(self, number: int) -> Batch:
        """Those before an entity."""
        kept = [item for item in self.items if item.entity.number < number]
        numbers = {item.entity.number for item in kept}
        writes = {each: write for each, write in self.writes.items() if each in numbers}
        return Batch(kept, writes, {each: exc for each, exc in self.failed.items() if each in numbers})

    @property
    def requested(self) -> int:
        """How often sinks are asked to ship what has changed."""
        return sum(event.type == SHIP_REQUESTED for write in self.writes.values() for event in write.events)

    def counts(self) -> Counts:
        slices = [
            each
            for write in self.writes.values()
            for each in write.slices
            if (each.version, each.revision) == (write.row.version, write.row.revision)
        ]
        return Counts(
            done=len(self.items),
            changed=len(self.writes),
            slices=len(slices),
            tombstones=sum(each.tombstone is not None for each in slices),
            failed=len(self.failed),
        )


@dataclass
class BatchCompiler:
    """Compiles entities of one type, each once."""

    parts: TenantParts
    entity_type: str
    contracts: ContractSet
    mode: CompileMode
    ship: Sequence[str] | None
    _carried: Carried = field(default_factory=Carried)

    def evaluate(self, items: Sequence[Item]) -> Batch:
        """What is to be written of them."""
        writes: dict[int, CompileWrite] = {}
        failed: dict[int, Exception] = {}
        asked = self._ask(items, failed)
        wanted = list({each for _, _, asking in asked for each in asking.wanted})
        found = dict(zip(wanted, self.parts.reader.find(wanted), strict=True))
        missing = {each.place for _, _, asking in asked for each in asking.others if found[each].number is None}
        if missing:
            # There must be something to lock of everyone who is joined, as with a single compile.
            add_placeholders(self.parts.engine, self.parts.tenant, missing)
            found = dict(zip(wanted, self.parts.reader.find(wanted), strict=True))
        entries: dict[int, list[StoredEntry]] = {}
        if self.mode is CompileMode.FULL:
            entries = stored_entries(self.parts.engine, [start.number for _, start, _ in asked])
        made: dict[EntityKey, Compiled] | None = {} if self.mode is CompileMode.FULL else None
        for item, start, asking in asked:
            number = item.entity.number
            try:
                inputs = self.parts.reader.assemble(asking, [found[each] for each in asking.wanted])
                write = self.parts.slicing.follow(
                    self.contracts,
                    self._key(item),
                    start,
                    inputs,
                    self._carried,
                    mode=self.mode,
                    ship=self.ship,
                    serve=True,
                    entries=entries.get(number),
                    made=made,
                )
            except PASSING:
                raise
            except Exception as exc:
                failed[number] = exc
                continue
            if write is not None:
                writes[number] = write
        if made:
            self.parts.slicing.bodies.repair(made)
        return Batch(items, writes, failed)

    def writing(self, batch: Batch, events: Sequence[OutboxEvent]) -> Callable[[Transaction], None]:
        """What writes all of it, with these events, in a transaction; Overtaken, and nothing is written, if somebody
        else compiled one of them meanwhile."""
        writes = list(batch.writes.values())

        def write(tx: Transaction) -> None:
            write_compiles(tx, self.parts.tenant, writes, events, now_us=self.parts.clock.now_us())
            hit(PAGE_WRITTEN)

        return write

    def before_overtaken(self, batch: Batch) -> Batch:
        """Those of a batch that was overtaken that come before the first of whom that is so."""
        return batch.before(min(find_overtaken(self.parts.engine, list(batch.writes.values()))))

    def give_up(self, error: Exception) -> None:
        """Have collected what was uploaded for nothing."""
        self.parts.blocks.give_up(self._carried.uploads, error)

    def give_up_rest(self, batch: Batch) -> None:
        """The same of what is not in a batch that was written."""
        used = {upload for write in batch.writes.values() for upload in write.uploads}
        rest = [each for each in self._carried.uploads if each not in used]
        self.parts.blocks.give_up(rest, Conflict("compiled by somebody else meanwhile"))

    def _ask(self, items: Sequence[Item], failed: dict[int, Exception]) -> list[tuple[Item, CompileStart, Asking]]:
        parts, ruleset = self.parts, self.contracts.ruleset(self.entity_type)
        wanted = [(EntityPlace(self.entity_type, item.entity.key), item.version) for item in items]
        starts = compile_starts(parts.engine, parts.tenant, wanted)
        try:
            parts.documents.read_ahead([each.document for each in starts if each and each.document])
        except (Corrupt, NotFound):
            pass  # Whoever needs what is damaged finds out.
        asked = []
        for item, start in zip(items, starts, strict=True):
            try:
                if start is None or start.version is None:
                    raise NotFound("the version is not there any more", hint="see how it was removed")
                asked.append((item, start, parts.reader.ask(ruleset, self._key(item), start, self.mode)))
            except PASSING:
                raise
            except Exception as exc:
                failed[item.entity.number] = exc
        return asked

    def _key(self, item: Item) -> EntityKey:
        return EntityKey(self.entity_type, self.parts.tenant_name, item.entity.key)
