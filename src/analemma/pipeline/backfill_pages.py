"""A page of a backfill: some entities of a shard, in order. What is done to them is committed together with how far the
shard has come, so a page may end anywhere, also with its process, and the next one goes on exactly there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.backfills import (
    RUNNING,
    BackfillEntity,
    Counts,
    EntityChoice,
    ErrorRow,
    ShardRow,
    scope_page,
    standing,
)
from analemma.catalog.entities.entities import Overtaken
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.admin import revive_event
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.port import OutboxEvent
from analemma.contracts.contract_set import ContractSet
from analemma.errors import AnalemmaError, Conflict, Internal
from analemma.failpoints import declare, hit
from analemma.pipeline.backfill_compiling import (
    PASSING,
    Batch,
    BatchCompiler,
    Item,
    cursor_of,
    items_of,
    read_cursor,
)
from analemma.pipeline.backfill_letters import letters_after, read_lane, write_lane
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.backfill_scope import (
    BackfillKind,
    BackfillOptions,
    BackfillScope,
    choice_of,
    ship_by_compile,
    sinks_of,
)
from analemma.pipeline.slicing import CompileResult
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.tsid import Version, format_version

BEFORE_TRANSACTION = declare("backfill.before_transaction", "a page of a backfill is evaluated, and nothing is written")
BEFORE_ADVANCE = declare("backfill.before_advance", "work and progress of a backfill are written, nothing is committed")
AFTER_ADVANCE = declare("backfill.after_advance", "work and progress of a backfill are committed, but nobody knows")

LONGEST_PAGE_S: Final = 2.0
"""A page ends soon after this, so that a pause is noticed, and progress seen."""
LONGEST_REASON: Final = 500
SAMPLED_ERRORS: Final = 20
"""So many of each shard's failures are written down; all are counted."""


@dataclass(frozen=True, slots=True)
class PageCall:
    """Which page. Plain data: it may go to another machine."""

    backfill: int
    fence: int
    shard: int
    kind: BackfillKind
    scope: BackfillScope
    options: BackfillOptions
    fingerprint: str
    """Of the rules that the backfill was planned with."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """What became of it."""

    counts: Counts
    finished: bool
    """Whether the shard has nothing more."""
    stopped: str | None = None
    """The state that the backfill was brought to meanwhile, or LOST."""


class ShardMoved(Conflict):
    """Somebody else runs the backfill, or nobody may any more: nothing of what was to go with it is written."""


class Advance(NamedTuple):
    """A shard's move."""

    backfill: int
    fence: int
    shard: int
    step: int
    """The one that it leaves."""
    cursor: str
    counts: Counts
    finished: bool = False
    errors: tuple[ErrorRow, ...] = ()


def advance_shard(tx: Transaction, advance: Advance) -> None:
    """Move a shard, in the transaction that does the work; ShardMoved, so that nothing of it stays, if it has moved or
    may not any more."""
    columns = {**advance._asdict(), **advance.counts._asdict()}
    del columns["counts"], columns["errors"]
    if tx.execute("advance_backfill", **columns) != 1:
        raise ShardMoved("the backfill was paused, cancelled, or taken over by another process")
    where = advance.backfill, advance.shard, advance.step
    tx.execute_many("add_backfill_error", [(*where, place, *each) for place, each in enumerate(advance.errors)])
    hit(BEFORE_ADVANCE)


def run_page(parts: TenantParts, call: PageCall) -> PageAnswer:
    """Go through a page of a shard, from where it stands."""
    return PageWorker(parts).page(call)


class PageWorker:
    """Works on pages of one tenant's backfills."""

    def __init__(self, parts: TenantParts) -> None:
        self._parts = parts

    def page(self, call: PageCall) -> PageAnswer:
        """Go through a page of a shard, from where it stands."""
        row = self._parts.engine.one("backfill_shard", backfill=call.backfill, shard=call.shard)
        if row is None or row[11] != call.fence:
            return PageAnswer(Counts(), False, "LOST")
        shard, finished, state = ShardRow(*row[:9]), bool(row[9]), row[10]
        if state != RUNNING or finished:
            return PageAnswer(Counts(), finished, None if finished else state)
        page = _Page(self._parts, call, shard)
        try:
            page.go()
        except ShardMoved:
            state = standing(self._parts.engine, call.backfill, call.fence) or "LOST"
            # Still running: an answer was lost, and what it was about is done. The next page reads where that is.
            return PageAnswer(page.counts, False, None if state == RUNNING else state)
        return PageAnswer(page.counts, page.finished)


class _Page:
    """One page on its way."""

    def __init__(self, parts: TenantParts, call: PageCall, shard: ShardRow) -> None:
        self._parts = parts
        self._call = call
        self._shard = shard
        self._step = shard.step
        self._cursor = shard.cursor
        self.counts = Counts()
        """Of what is committed."""
        self.finished = False

    def go(self) -> None:
        kind = self._call.kind
        if kind is BackfillKind.DEAD_LETTERS:
            self._revive_letters()
            return
        contracts = self._parts.contracts()
        choice = choice_of(self._call.scope, kind, self._shard.type, contracts)
        if choice.fingerprint != self._call.fingerprint:
            raise Conflict(
                f"the rules of {choice.type} are not those that the backfill was planned with",
                hint="cancel it and plan another; with stale only, it takes up what is left",
            )
        entities = self._entities(choice)
        finished = len(entities) < self._call.options.page
        if kind is BackfillKind.SLICE_TO_SINK:
            self._ship(entities, contracts, finished)
        else:
            self._compile(entities, contracts, finished)

    def _entities(self, choice: EntityChoice) -> list[BackfillEntity]:
        number, whole = read_cursor(self._cursor)[0], read_cursor(self._cursor)[1] is None
        parts, shard = self._parts, self._shard
        return scope_page(
            parts.engine,
            parts.tenant,
            choice,
            first=max(shard.first, number + whole),
            last=shard.last,
            limit=self._call.options.page,
        )

    def _compile(self, entities: Sequence[BackfillEntity], contracts: ContractSet, finished: bool) -> None:
        """Those with one version together, others by themselves; in their order, for the cursor is one place."""
        clock = self._parts.clock
        ends_at = clock.monotonic() + LONGEST_PAGE_S
        items = items_of(self._parts.engine, entities, self._call.scope.versions, self._cursor)
        at, one_by_one = 0, False
        while at < len(items):
            if at and clock.monotonic() >= ends_at:
                return
            if not items[at].alone and not one_by_one:
                together = [items[at]]
                while at + len(together) < len(items) and not items[at + len(together)].alone:
                    together.append(items[at + len(together)])
                ends = finished and at + len(together) == len(items)
                try:
                    written = self._compile_together(together, contracts, ends)
                except ShardMoved:
                    raise
                except (Conflict, Internal):
                    # Rows of one of them contradict what is to be written. By itself, each of the others is written.
                    written, one_by_one = 0, True
                at += written
                if written == len(together):
                    continue
                if self._parts.contracts().loaded_at_us != contracts.loaded_at_us:
                    # All that is left would be overtaken as well. The next page goes by those that are loaded now.
                    return
            # The first that is left was compiled by somebody else at the same time: by itself it is compiled until it
            # succeeds.
            self._compile_alone(items[at], contracts, finished and at + 1 == len(items))
            at += 1
        if finished and not self.finished:
            self._write(self._advance(self._cursor, Counts(), True, []))

    def _compile_together(self, items: Sequence[Item], contracts: ContractSet, ends: bool) -> int:
        """Compile as many as nobody else comes between, from the first on, in one transaction; how many."""
        parts, call = self._parts, self._call
        compiler = BatchCompiler(
            parts, self._shard.type, contracts, mode=call.options.mode, ship=self._asked_by_compile(contracts)
        )
        try:
            batch = compiler.evaluate(items)
            while batch.items:
                advance, events = self._batch_advance(batch, contracts, ends)
                try:
                    self._write(advance, compiler.writing(batch, events))
                except Overtaken:
                    batch, ends = compiler.before_overtaken(batch), False
                    continue
                if batch.writes or events:
                    parts.wake()
                break
        except AnalemmaError as exc:
            compiler.give_up(exc)
            raise
        compiler.give_up_rest(batch)
        return len(batch.items)

    def _batch_advance(self, batch: Batch, contracts: ContractSet, ends: bool) -> tuple[Advance, list[OutboxEvent]]:
        events: list[OutboxEvent] = []
        if self._call.kind is BackfillKind.FULL:
            for item in batch.items:
                if item.entity.number not in batch.failed:
                    write = batch.writes.get(item.entity.number)
                    seq = item.entity.ship_seq if write is None else write.ship_seq
                    events += self._forced(item.entity, item.version, seq, contracts)
        counts = batch.counts()._replace(requested=batch.requested + len(events))
        errors = [
            (item, batch.failed[item.entity.number]) for item in batch.items if item.entity.number in batch.failed
        ]
        return self._advance(batch.items[-1].cursor, counts, ends, errors), events

    def _compile_alone(self, item: Item, contracts: ContractSet, ends: bool) -> None:
        entity, done = item.entity, Counts(done=int(item.last))

        def settle(tx: Transaction, result: CompileResult) -> None:
            """In the transaction of the compile."""
            counts = done._replace(
                changed=1,
                slices=len(result.written),
                tombstones=sum(each in result.tombstones for each in result.written),
                requested=len(result.ships),
            )
            events = self._forced_once(item, result.ship_seq, contracts)
            enqueue(tx, self._parts.tenant, events, now_us=self._parts.clock.now_us())
            made = self._advance(item.cursor, counts._replace(requested=counts.requested + len(events)), ends, [])
            moves.append(made)
            advance_shard(tx, made)

        moves: list[Advance] = []
        try:
            result = self._parts.slicing.compile(
                self._shard.type,
                entity.key,
                format_version(Version(item.version)),
                self._call.options.mode,
                ship=self._asked_by_compile(contracts),
                written=settle,
            )
        except (ShardMoved, *PASSING):
            raise
        except Exception as exc:
            failed = self._advance(item.cursor, done._replace(failed=1), ends, [(item, exc)])
            self._write(failed)
            return
        if result.up_to_date:
            events = self._forced_once(item, result.ship_seq, contracts)
            plain = self._advance(item.cursor, done._replace(requested=len(events)), ends, [])
            now_us = self._parts.clock.now_us()
            self._write(plain, lambda tx: enqueue(tx, self._parts.tenant, events, now_us=now_us))
            if events:
                self._parts.wake()
        else:
            self._moved(moves[-1])

    def _asked_by_compile(self, contracts: ContractSet) -> Sequence[str] | None:
        return ship_by_compile(self._call.kind, self._call.scope, self._shard.type, contracts)

    def _forced(self, entity: BackfillEntity, version: int, seq: int, contracts: ContractSet) -> list[OutboxEvent]:
        key = EntityKey(self._shard.type, self._parts.tenant_name, entity.key)
        sinks = sinks_of(self._call.scope, self._shard.type, contracts)
        return [self._parts.events.ship_requested(key, version, seq, each, force=True) for each in sinks]

    def _forced_once(self, item: Item, seq: int, contracts: ContractSet) -> list[OutboxEvent]:
        if self._call.kind is not BackfillKind.FULL or not item.last:
            return []
        return self._forced(item.entity, item.version, seq, contracts)

    def _ship(self, entities: Sequence[BackfillEntity], contracts: ContractSet, finished: bool) -> None:
        events = [
            event
            for each in entities
            if each.newest_compiled is not None
            for event in self._forced(each, each.newest_compiled, each.ship_seq, contracts)
        ]
        cursor = cursor_of(entities[-1].number, None) if entities else self._cursor
        advance = self._advance(cursor, Counts(done=len(entities), requested=len(events)), finished, [])
        now_us = self._parts.clock.now_us()
        self._write(advance, lambda tx: enqueue(tx, self._parts.tenant, events, now_us=now_us))
        if events:
            self._parts.wake()

    def _revive_letters(self) -> None:
        parts, limit = self._parts, self._call.options.page
        letters, after, more = letters_after(parts, self._call.scope, read_lane(parts.tenant, self._cursor), limit)
        revived = 0

        def work(tx: Transaction) -> None:
            nonlocal revived
            now_us = database_clock(tx)
            revived = sum(revive_event(tx, each.lane, each.seq, now_us=now_us) for each in letters)
            counts = Counts(done=len(letters), changed=revived)
            advance_shard(tx, self._advance(write_lane(after), counts, not more, []))

        parts.engine.write(work)
        self._moved(self._advance(write_lane(after), Counts(done=len(letters), changed=revived), not more, []))
        if revived:
            parts.wake()

    def _advance(
        self, cursor: str, counts: Counts, finished: bool, errors: Iterable[tuple[Item, Exception]]
    ) -> Advance:
        call = self._call
        room = max(0, SAMPLED_ERRORS - self._shard.failed - self.counts.failed)
        told = [_error(self._shard.type, self._parts.tenant_name, item, exc) for item, exc in errors][:room]
        return Advance(call.backfill, call.fence, call.shard, self._step, cursor, counts, finished, tuple(told))

    def _write(self, advance: Advance, work: Callable[[Transaction], None] | None = None) -> None:
        """Move the shard in a transaction of its own, with some work."""

        def move(tx: Transaction) -> None:
            if work is not None:
                work(tx)
            advance_shard(tx, advance)

        hit(BEFORE_TRANSACTION)
        self._parts.engine.write(move)
        hit(AFTER_ADVANCE)
        self._moved(advance)

    def _moved(self, advance: Advance) -> None:
        self._step += 1
        self._cursor = advance.cursor
        self.counts = self.counts.plus(advance.counts)
        self.finished = advance.finished


def _error(entity_type: str, tenant: str, item: Item, exc: Exception) -> ErrorRow:
    kind = exc.kind if isinstance(exc, AnalemmaError) else "internal"
    said = exc.message if isinstance(exc, AnalemmaError) else f"{type(exc).__name__}: {exc}"
    plain = " ".join(said.encode(errors="backslashreplace").decode().replace("\0", "").split())
    key = f"{entity_type}#{tenant}#{item.entity.key}@{format_version(Version(item.version))}"
    return ErrorRow(key, kind, plain[:LONGEST_REASON])
