"""Compiles a page of dependants: read, evaluated and written together, each with its own outcome.

What all of them are made of is read in a few queries and evaluated outside of any transaction. Whoever was compiled by
somebody else meanwhile is evaluated again; whoever cannot be compiled is left to an event of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from analemma.blocks.store import Carried
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.entities import DependantRow, EntityPlace, add_placeholders
from analemma.catalog.entities.slices import (
    PAGE_WRITTEN,
    CompileStart,
    CompileWrite,
    FoundSlice,
    WantedSlice,
    compile_starts,
    find_overtaken,
    write_compiles,
)
from analemma.catalog.outbox.lanes import LaneKey
from analemma.catalog.port import OutboxEvent
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.errors import AnalemmaError, Conflict, Corrupt, NotFound, OutcomeUnknown, Timeout, Unavailable
from analemma.failpoints import hit
from analemma.outbox.handlers import Settle
from analemma.pipeline.compile_inputs import Asking, InputReader
from analemma.pipeline.documents import DocumentReader
from analemma.pipeline.fanout_progress import Counts
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import CompileMode
from analemma.slicing.tsid import Version, format_version

PASSING = (Unavailable, Timeout, Conflict, OutcomeUnknown)
"""Not the fault of the entity at which they happen: the whole page is tried again."""

log = logging.getLogger("analemma.pipeline")


@dataclass(slots=True)
class Page:
    """Dependants on their way."""

    rows: dict[int, DependantRow]
    writes: dict[int, CompileWrite] = field(default_factory=dict)
    compiled: set[int] = field(default_factory=set)
    """Written already, one by one."""
    failed: dict[int, DependantRow] = field(default_factory=dict)
    carried: Carried = field(default_factory=Carried)

    @property
    def counts(self) -> Counts:
        """What becomes of them, once it is written."""
        processed, failed = len(self.writes) + len(self.compiled), len(self.failed)
        return Counts(processed, len(self.rows) - processed - failed, failed)


class PageCompiler:
    """Compiles pages of one tenant's entities."""

    def __init__(
        self,
        context: Context,
        *,
        slicing: SlicingWorkflow,
        contracts: Callable[[], ContractSet],
        fresh_contracts: Callable[[], ContractSet],
        documents: DocumentReader,
    ) -> None:
        self._context = context
        self._slicing = slicing
        self._contracts = contracts
        self._fresh_contracts = fresh_contracts
        self._documents = documents
        self._reader = InputReader(context, documents)

    def evaluate(self, rows: Sequence[DependantRow]) -> Page:
        """What is to be written of them."""
        page = Page({row.number: row for row in rows})
        parted = [row for row in rows if row.serving_version != row.newest_compiled]
        for row in parted:
            self._follow_both(page, row)
        chosen = [row for row in rows if row.serving_version == row.newest_compiled]
        self._evaluate(page, self._contracts(), chosen)
        return page

    def write(
        self,
        tx: Transaction,
        page: Page,
        events: Sequence[OutboxEvent],
        *,
        now_us: int,
        settling: LaneKey | None = None,
    ) -> None:
        """Write all of it, with these events; Overtaken, and the transaction must be undone, if somebody else compiled
        one of them meanwhile."""
        writes = list(page.writes.values())
        write_compiles(tx, self._context.tenant, writes, events, now_us=now_us, settling=settling)
        hit(PAGE_WRITTEN)

    def evaluate_again(self, page: Page) -> None:
        """Those that were overtaken, from what they are now, by the contracts of now: others may be why."""
        overtaken = find_overtaken(self._context.engine, list(page.writes.values()))
        for number in overtaken:
            del page.writes[number]
        self._evaluate(page, self._fresh_contracts(), [page.rows[number] for number in overtaken])

    def give_up(self, page: Page, error: Exception) -> None:
        """Have collected what was uploaded for nothing."""
        self._context.blocks.give_up(page.carried.uploads, error)

    def follow(self, key: EntityKey, newest: int | None, serving: int | None, *, within: Settle | None = None) -> bool:
        """Compile what is served and what is newest, one after the other; whether there was something to write.
        `within` runs in the transaction of the last one, if that writes."""
        versions = sorted({each for each in (newest, serving) if each is not None})
        written = False
        for each in versions:
            done = self._slicing.compile(
                key.type,
                key.id,
                format_version(Version(each)),
                CompileMode.AUTO,
                within=within if each == versions[-1] else None,
                serve=False,
            )
            written = written or not done.up_to_date
        return written

    def _follow_both(self, page: Page, row: DependantRow) -> None:
        """One whose newest version is not the one that is served: both have to follow."""
        key = EntityKey(row.place.type, self._context.tenant_name, row.place.id)
        try:
            if self._contracts().find_ruleset(key.type) and self.follow(key, row.newest_compiled, row.serving_version):
                page.compiled.add(row.number)
        except PASSING:
            raise
        except Exception as exc:
            self._fail(page, row, exc)

    def _evaluate(self, page: Page, contracts: ContractSet, rows: Sequence[DependantRow]) -> None:
        chosen = [row for row in rows if contracts.find_ruleset(row.place.type) is not None]
        asked = self._ask(page, contracts, chosen)
        found = self._find({wanted for _, _, asking in asked for wanted in asking.wanted})
        if self._add_missing(asked, found):
            found = self._find(set(found))
        for row, start, asking in asked:
            key = EntityKey(row.place.type, self._context.tenant_name, row.place.id)
            try:
                inputs = self._reader.assemble(asking, [found[wanted] for wanted in asking.wanted])
                write = self._slicing.follow(contracts, key, start, inputs, page.carried)
            except PASSING:
                raise
            except Exception as exc:
                self._fail(page, row, exc)
                continue
            if write is not None:
                page.writes[row.number] = write

    def _ask(
        self, page: Page, contracts: ContractSet, rows: Sequence[DependantRow]
    ) -> list[tuple[DependantRow, CompileStart, Asking]]:
        rows = [row for row in rows if row.newest_compiled is not None]
        wanted = [(row.place, row.newest_compiled) for row in rows]
        starts = compile_starts(self._context.engine, self._context.tenant, wanted)
        self._read_ahead(start for start in starts if start is not None)
        asked: list[tuple[DependantRow, CompileStart, Asking]] = []
        for row, start in zip(rows, starts, strict=True):
            if start is None or start.version is None:
                continue
            if start.newest_compiled != start.version or start.serving_version != start.version:
                # It has moved on since it was listed: as one whose versions are two, it is compiled by itself.
                self._follow_both(
                    page, row._replace(newest_compiled=start.newest_compiled, serving_version=start.serving_version)
                )
                continue
            key = EntityKey(row.place.type, self._context.tenant_name, row.place.id)
            try:
                ruleset = contracts.ruleset(key.type)
                asked.append((row, start, self._reader.ask(ruleset, key, start, CompileMode.AUTO)))
            except PASSING:
                raise
            except Exception as exc:
                self._fail(page, row, exc)
        return asked

    def _read_ahead(self, starts: Iterable[CompileStart]) -> None:
        """Have documents near, in one query."""
        documents = [each for start in starts for each in (start.document, start.base_document) if each is not None]
        try:
            self._documents.read_ahead(documents)
        except (Corrupt, NotFound):
            pass  # Whoever needs what is damaged finds out.

    def _find(self, wanted: set[WantedSlice]) -> dict[WantedSlice, FoundSlice]:
        chosen = list(wanted)
        return dict(zip(chosen, self._reader.find(chosen), strict=True))

    def _add_missing(
        self, asked: Sequence[tuple[DependantRow, CompileStart, Asking]], found: dict[WantedSlice, FoundSlice]
    ) -> bool:
        """There must be something to lock of everyone who is joined, as with a single compile."""
        missing: set[EntityPlace] = {
            wanted.place for _, _, asking in asked for wanted in asking.others if found[wanted].number is None
        }
        if missing:
            add_placeholders(self._context.engine, self._context.tenant, missing)
        return bool(missing)

    def _fail(self, page: Page, row: DependantRow, error: Exception) -> None:
        said = error.kind if isinstance(error, AnalemmaError) else type(error).__name__
        log.warning("%s#%s does not follow what it joins: %s: %s", row.place.type, row.place.id, said, error)
        page.failed[row.number] = row
