"""Fanout: when slices changed that others join, those others are compiled again. They are found after the change was
committed, a page at a time; each page is one transaction that also says where the next begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from analemma.catalog.dependants import dependants
from analemma.catalog.engine import Engine, Transaction
from analemma.catalog.entities import EntityPlace, find_entity
from analemma.catalog.outbox_producing import enqueue
from analemma.catalog.port import OutboxEvent, TenantId
from analemma.clock import Clock
from analemma.failpoints import declare, hit
from analemma.outbox.handlers import Settle
from analemma.pipeline.events import Events
from analemma.slicing.entity_key import EntityKey
from analemma.tracing import span

BEFORE_COMMIT = declare("fanout.before_commit", "a page of dependants is told inside the transaction")
AFTER_COMMIT = declare("fanout.after_commit", "a page of dependants is told, but nobody knows")

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class FanoutResult:
    """What one page did."""

    requested: int
    """How many compiles were asked for."""
    finished: bool
    """Whether there is no further page."""


class FanoutWorkflow:
    """Finds the dependants of one tenant's entities."""

    def __init__(
        self,
        engine: Engine,
        tenant: TenantId,
        tenant_name: str,
        *,
        events: Events,
        clock: Clock,
        wake: Callable[[], None],
        page: int = PAGE,
    ) -> None:
        self._engine = engine
        self._tenant = tenant
        self._tenant_name = tenant_name
        self._events = events
        self._clock = clock
        self._wake = wake
        self._page = page

    def execute(
        self,
        key: EntityKey,
        version: int,
        slice_types: Sequence[str],
        after: int = 0,
        *,
        within: Settle | None = None,
    ) -> FanoutResult:
        """Ask for compiles of a page of those that name the entity in an index; `after` is where the page before it
        ended. One that does not join these slices finds nothing to do."""

        def move(tx: Transaction) -> FanoutResult:
            entity = find_entity(tx, self._tenant, EntityPlace(key.type, key.id))
            told = [] if entity is None else dependants(tx, entity.number, after=after, limit=self._page)
            finished = len(told) < self._page
            made: list[OutboxEvent] = [
                self._events.compile_requested(
                    EntityKey(row.place.type, self._tenant_name, row.place.id), row.newest_compiled, key
                )
                for row in told
                if row.newest_compiled is not None
            ]
            requested = len(made)
            if not finished:
                made.append(self._events.fanout_requested(key, version, list(slice_types), told[-1].number))
            enqueue(tx, self._tenant, made, now_us=self._clock.now_us())
            if within is not None:
                within(tx)
            hit(BEFORE_COMMIT)
            return FanoutResult(requested, finished)

        with span("analemma.fanout", entity_type=key.type):
            done = self._engine.write(move)
            hit(AFTER_COMMIT)
            self._wake()
            return done
