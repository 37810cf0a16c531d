"""Fanout: when slices changed that others join, those others are compiled again.

A change makes its entity's fanout begin, or go once around from where it is. It goes on page by page: each page is one
transaction that has the compiles, how far the fanout is and the event that makes it go on. Dependants are looked up
after the change was committed, and every compile checks what it joins when it writes; so whoever is not found has seen
the change already."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.entities import (
    DependantRow,
    EntityPlace,
    EntityRow,
    FanoutRow,
    FanoutStatus,
    Overtaken,
    find_entity,
)
from analemma.catalog.outbox.lanes import enqueue, settled_lane
from analemma.catalog.port import OutboxEvent
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.errors import AnalemmaError, NotFound, Unavailable
from analemma.failpoints import declare, hit
from analemma.outbox.handlers import Settle
from analemma.pipeline.events import DEFERRED_PRIORITY, Events
from analemma.pipeline.fanout_compiling import Page, PageCompiler
from analemma.pipeline.fanout_progress import Dependency, Progress, Walk, format_progress, parse_progress
from analemma.pipeline.fanout_results import FanoutResult, FanoutState, fanout_result
from analemma.pipeline.versions import parse_stored_version
from analemma.slicing.entity_key import EntityKey
from analemma.tracing import add_span_event, span

ASKED = declare("fanout.asked", "a change is counted inside the transaction, and its event not yet settled")
BEFORE_TRANSACTION = declare("fanout.before_transaction", "a page of dependants is evaluated, and nothing is written")
BEFORE_COMMIT = declare("fanout.before_commit", "a page of dependants is compiled inside the transaction")
AFTER_COMMIT = declare("fanout.after_commit", "a page of dependants is compiled, but nobody knows")

ATTEMPTS: Final = 100
"""Each that fails means that somebody else compiled one of the page."""
LONGEST_WAIT_S: Final = 0.1
ONE_BY_ONE_AFTER: Final = 2
"""A page that failed so often is not compiled together once more: each of it gets an event of its own."""

_MOVED: Final = (
    *("entity", "status", "seen", "step", "passes", "progress", "affected", "processed", "skipped", "failed", "alert"),
    "priority",
)

log = logging.getLogger("analemma.pipeline")


class FanoutWorkflow:
    """Has one tenant's entities follow what they join."""

    def __init__(
        self, context: Context, *, compiler: PageCompiler, contracts: Callable[[], ContractSet], events: Events
    ) -> None:
        self._context = context
        self._compiler = compiler
        self._contracts = contracts
        self._events = events

    def on_entity_change(
        self, entity_type: str, entity_id: str, version: str, *, within: Settle | None = None
    ) -> FanoutResult:
        """Slices of this entity have changed, with this version or since: whoever joins it is to follow. A worker sees
        to it; the answer says how far that is. `within` runs in the transaction that writes this down; where there is
        nobody to tell it does not run."""
        key, told = EntityKey(entity_type, self._context.tenant_name, entity_id), parse_stored_version(version)
        entity = find_entity(self._context.engine, self._context.tenant, EntityPlace(entity_type, entity_id))
        if entity is None or self._context.engine.one("any_dependant", target=entity.number) is None:
            # Whoever names it from now on has seen the change.
            return FanoutResult(key, FanoutState.NOTHING)

        def move(tx: Transaction) -> FanoutRow:
            now_us = self._context.clock.now_us()
            # The fanout that is under way will cover the change, or else one begins.
            asked = {"tenant": self._context.tenant, "entity": entity.number, "version": told, "now": now_us}
            (row,) = tx.rows(FanoutRow, "ask_fanout", **asked)
            # Also when one is under way: whatever became of its event, it goes on with this one.
            events = [self._continuing(key, row)]
            enqueue(tx, self._context.tenant, events, now_us=now_us, settling=settled_lane(within))
            hit(ASKED)
            if within is not None:
                within(tx)
            return row

        with span("analemma.fanout.ask", entity_type=entity_type):
            row = self._context.engine.write(move)
            self._context.wake()
            return fanout_result(key, row)

    def advance(
        self, entity_type: str, entity_id: str, step: int, *, attempts: int = 0, within: Settle | None = None
    ) -> FanoutResult:
        """Compile the next page of dependants, if the fanout is at this step; another event makes it go on from there.
        With `attempts` failures before, they are rather asked for one by one."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        entity = find_entity(self._context.engine, self._context.tenant, EntityPlace(entity_type, entity_id))
        row = None if entity is None else self._context.engine.row(FanoutRow, "fanout", entity=entity.number)
        if entity is None or row is None:
            return FanoutResult(key, FanoutState.NOTHING)
        if row.step != step or row.finished_at_us is not None:
            return fanout_result(key, row)
        with span("analemma.fanout", entity_type=entity_type):
            moved = self._advance(key, entity, row, attempts, within)
            self._context.wake()
            return fanout_result(key, moved)

    def resume(self, entity_type: str, entity_id: str) -> FanoutResult:
        """Have a fanout go on whose event was discarded; NotFound if the entity has none. Harmless if it goes on
        anyway."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        entity, row = self._found(key)

        def move(tx: Transaction) -> FanoutRow | None:
            held = tx.row(FanoutRow, "hold_fanout", entity=entity.number)
            if held is not None and held.finished_at_us is None:
                enqueue(tx, self._context.tenant, [self._continuing(key, held)], now_us=self._context.clock.now_us())
            return held

        row = self._context.engine.write(move) or row
        self._context.wake()
        return fanout_result(key, row)

    def run(self, entity_type: str, entity_id: str) -> FanoutResult:
        """Go on with an entity's fanout here and now, until it is done; NotFound if it has none. Workers may do so at
        the same time."""
        while True:
            _, row = self._found(EntityKey(entity_type, self._context.tenant_name, entity_id))
            if row.finished_at_us is not None:
                return fanout_result(EntityKey(entity_type, self._context.tenant_name, entity_id), row)
            self.advance(entity_type, entity_id, row.step)

    def result(self, entity_type: str, entity_id: str) -> FanoutResult:
        """How far an entity's fanout is, or how the last one ended; NotFound if there was none."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        return fanout_result(key, self._found(key)[1])

    def follow(self, entity_type: str, entity_id: str, *, within: Settle | None = None) -> None:
        """Compile one entity again, what is served of it and what is newest."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        entity = find_entity(self._context.engine, self._context.tenant, EntityPlace(entity_type, entity_id))
        if entity is not None:
            self._compiler.follow(key, entity.newest_compiled, entity.serving_version, within=within)

    def _found(self, key: EntityKey) -> tuple[EntityRow, FanoutRow]:
        entity = find_entity(self._context.engine, self._context.tenant, EntityPlace(key.type, key.id))
        row = None if entity is None else self._context.engine.row(FanoutRow, "fanout", entity=entity.number)
        if entity is None or row is None:
            raise NotFound(
                f"{key} has no fanout", hint="it begins when a slice of it changes that others join", entity=str(key)
            )
        return entity, row

    def _continuing(self, key: EntityKey, row: FanoutRow) -> OutboxEvent:
        return self._events.fanout_continued(key, row.version, row.step, deferred=row.status == "DEFERRED")

    def _advance(
        self, key: EntityKey, entity: EntityRow, row: FanoutRow, attempts: int, within: Settle | None
    ) -> FanoutRow:
        progress, passes = self._progress(entity, row)
        walk = progress.next
        listed, ended = ([], True) if walk is None else self._listed(entity, walk)
        stride = _Stride(row, progress, passes, walk, ended)
        if attempts >= ONE_BY_ONE_AFTER:
            page = Page({each.number: each for each in listed}, failed={each.number: each for each in listed})
        else:
            page = self._compiler.evaluate(listed)
        hit(BEFORE_TRANSACTION)
        try:
            for attempt in range(ATTEMPTS):
                try:
                    moved = self._context.engine.write(lambda tx: self._write(tx, key, stride, page, within))
                except Overtaken:
                    self._context.clock.sleep(random.uniform(0, min(LONGEST_WAIT_S, 0.001 * 2 ** min(attempt, 10))))
                    self._compiler.evaluate_again(page)
                    continue
                hit(AFTER_COMMIT)
                self._tell(key, row, moved)
                return moved
            raise Unavailable(f"those that follow {key} are being compiled all the time", hint="try again later")
        except AnalemmaError as exc:
            self._compiler.give_up(page, exc)
            raise

    def _progress(self, entity: EntityRow, row: FanoutRow) -> tuple[Progress, int]:
        """How far it is, with what changed since it was looked at last, and how many passes that makes."""
        progress = parse_progress(row.progress)
        if row.asked == row.seen:
            return progress, row.passes
        # Whatever the index: a ruleset of today may have others than the one that an entity was compiled by.
        found = self._context.engine.all("dependencies_of", target=entity.number)
        counts = {Dependency(*name): count for *name, count in found}
        names = counts.keys() | {walk.dependency for walk in progress.walks}
        return progress.again(counts, self._limits(names)), row.passes + 1

    def _limits(self, names: Iterable[Dependency]) -> dict[Dependency, int]:
        contracts = self._contracts()
        found: dict[Dependency, int] = {}
        for name in names:
            ruleset = contracts.find_ruleset(name.entity_type)
            indexes = () if ruleset is None else ruleset.indexes
            limits = [each.max_fanout for each in indexes if each.type == name.index_type]
            found[name] = next((each for each in limits if each is not None), self._context.settings.fanout_limit)
        return found

    def _listed(self, entity: EntityRow, walk: Walk) -> tuple[list[DependantRow], bool]:
        """The next page, and whether nobody is left behind it in this round."""
        quota = walk.quota(self._context.settings.fanout_page)
        rows = self._context.engine.all(
            "dependants",
            target=entity.number,
            entity_type=walk.dependency.entity_type,
            index_type=walk.dependency.index_type,
            after=walk.cursor,
            until=walk.until,
            limit=quota + 1,
        )
        found = [DependantRow(number, EntityPlace(kind, key), *versions) for number, kind, key, *versions in rows]
        return found[:quota], len(found) <= quota

    def _write(self, tx: Transaction, key: EntityKey, stride: _Stride, page: Page, within: Settle | None) -> FanoutRow:
        """One page; the fanout after it."""
        held = tx.row(FanoutRow, "hold_fanout", entity=stride.row.entity)
        if held is None or held.step != stride.row.step or held.finished_at_us is not None:
            # Somebody else went on with it. What was compiled here is compiled there.
            if within is not None:
                within(tx)
            return held or stride.row
        now_us = self._context.clock.now_us()
        # guard: fanout.asked
        after = after_page(held, stride.row.asked, stride.moved(page), stride.passes, now_us=now_us)
        events = [
            self._events.compile_requested(self._key(each), each.newest_compiled or 0, key)
            for each in page.failed.values()
        ]
        if after.finished_at_us is None:
            events.append(self._continuing(key, after))
        self._compiler.write(tx, page, events, now_us=now_us, settling=settled_lane(within))
        changed = {name: getattr(after, name) for name in _MOVED}
        tx.execute("move_fanout", **changed, updated_at=after.updated_at_us, finished_at=after.finished_at_us)
        if within is not None:
            within(tx)
        hit(BEFORE_COMMIT)
        return after

    def _key(self, row: DependantRow) -> EntityKey:
        return EntityKey(row.place.type, self._context.tenant_name, row.place.id)

    def _tell(self, key: EntityKey, before: FanoutRow, after: FanoutRow) -> None:
        facts: dict[str, Any] = {"entity": str(key), "affected": after.affected, "processed": after.processed}
        if after.alert is not None and before.alert is None:
            log.warning("fanout of %s: %s", key, after.alert)
            add_span_event("analemma.fanout.alert", alert=after.alert, **facts)
        if after.finished_at_us is not None and after.failed:
            log.warning(
                "%d of those that follow %s could not be compiled; see `analemma outbox dead`", after.failed, key
            )


@dataclass(frozen=True, slots=True)
class _Stride:
    """A page, seen from the fanout: where it was, and where it goes."""

    row: FanoutRow
    """When the page was read."""
    progress: Progress
    passes: int
    walk: Walk | None
    """Whom the page is of; None: nobody is left."""
    ended: bool

    def moved(self, page: Page) -> Progress:
        if self.walk is None:
            return self.progress
        return self.progress.moved(self.walk.after(list(page.rows), page.counts, ended=self.ended))


def after_page(held: FanoutRow, seen: int, progress: Progress, passes: int, *, now_us: int) -> FanoutRow:
    """The row of a fanout that is held, after a page that covered the changes up to `seen`."""
    # What was asked since the page was read is covered by going around once more.
    done = progress.next is None and held.asked == seen
    status: FanoutStatus = "DONE" if done else "DEFERRED" if progress.deferred else "RUNNING"
    counts = progress.counts
    return held._replace(
        status=status,
        seen=seen,
        step=held.step + 1,
        passes=passes,
        progress=format_progress(progress),
        affected=progress.affected,
        processed=counts.processed,
        skipped=counts.skipped,
        failed=counts.failed,
        alert=held.alert or _alert(progress),
        priority=DEFERRED_PRIORITY if status == "DEFERRED" else 0,
        updated_at_us=now_us,
        finished_at_us=now_us if done else None,
    )


def _alert(progress: Progress) -> str | None:
    """What is to be known about those that are left for later."""
    said = [
        f"{walk.affected} {walk.dependency} follow it, of which {walk.limit} at once and the others when there is time"
        for walk in progress.beyond
    ]
    return "; ".join(said) or None
