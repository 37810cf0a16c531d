"""The outbox as people see it: how it is doing, what failed, and what to do about that."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from analemma.catalog.engine.db import Transaction
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.admin import (
    BEFORE_EVERYTHING,
    ChannelState,
    EventFilter,
    OutboxEntry,
    channel_counts,
    channel_failures,
    channel_states,
    revive_event,
    stopped_events,
)
from analemma.catalog.outbox.lanes import LaneKey, enqueue
from analemma.catalog.port import OutboxEvent, TenantId
from analemma.context import StoreContext
from analemma.errors import Conflict, Invalid, NotFound
from analemma.failpoints import declare, hit

AFTER_HOUSEKEEPING = declare("outbox.after_housekeeping", "some of the rows that were settled long ago are deleted")

BATCH = 100
HOUSEKEEPING_BATCH = 1000
SECOND_US = 1_000_000
LONGEST_AGE_S = 1e10

Grade = Literal["ok", "warning"]


@dataclass(frozen=True, slots=True)
class OutboxStatus:
    """How the outbox is doing."""

    pending: int
    """Events that wait for their turn."""
    processing: int
    """Events in workers' hands: the next one of each lane under lease."""
    failed: int
    """Events that wait for another try."""
    dead: int
    """Events that were given up on and park their aggregate until somebody replays or discards them."""
    processed: int | None
    """Delivered events that housekeeping has not deleted yet; None if they were not counted."""
    discarded: int | None
    lanes: int
    """Aggregates with something undelivered."""
    parked: int
    stale: int
    """Lanes whose worker was not heard of since its lease ran out."""
    oldest_s: float | None
    """The age of the oldest event that waits for a worker."""
    health: Grade
    problems: tuple[str, ...]
    resting: tuple[str, ...] = ()
    """Channels that are left alone for a while, because their receivers do not answer."""
    failing: tuple[str, ...] = ()
    """Channels that do not rest, and of which something failed that is tried again."""

    def as_dict(self) -> dict[str, Any]:
        """The same for programs, with the counts under the names that rows have."""
        return {
            "counts": {
                "PENDING": self.pending,
                "PROCESSING": self.processing,
                "PROCESSED": self.processed,
                "FAILED": self.failed,
                "DEAD": self.dead,
            },
            "discarded": self.discarded,
            "lanes": self.lanes,
            "parked": self.parked,
            "stale": self.stale,
            "oldest_s": self.oldest_s,
            "health": self.health,
            "problems": list(self.problems),
            "resting": list(self.resting),
            "failing": list(self.failing),
        }


@dataclass(frozen=True, slots=True)
class OutboxPage:
    """Some entries, and where the next ones begin."""

    entries: list[OutboxEntry]
    cursor: str | None
    """For the next page; None if this is the last."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What `replay` did."""

    revived: int = 0
    """Events that are tried again in their place; their aggregates go on."""
    copied: int = 0
    """Events that were settled before, and are delivered again as new ones."""
    skipped: int = 0
    """Events that are under way anyway."""


class Outbox:
    """The outbox of all tenants. Where a tenant is named, only that one's events are meant."""

    def __init__(
        self,
        context: StoreContext,
        copies: Mapping[str, Callable[[bytes], bytes]],
    ) -> None:
        """`copies` has, by types of events, what the payload of one becomes that is delivered again."""
        self._context = context
        self._engine = context.engine
        self._settings = context.settings
        self._copies = copies

    def status(self, tenant: str | None = None, *, count_processed: bool = True) -> OutboxStatus:
        """Counts, ages and whether they are in order. Counting what was processed reads all of it; without that, only
        what is under way is read."""
        number = self._context.tenant_number(tenant)
        left, lanes, leased, stale, failed, parked = self._engine.all("outbox_lanes", tenant=number)[0]
        oldest_us = self._engine.value("outbox_oldest", tenant=number)
        processed, discarded = self._engine.all("outbox_settled", tenant=number)[0] if count_processed else (None, None)
        oldest_s = None if oldest_us is None else max(0.0, (database_clock(self._engine) - oldest_us) / SECOND_US)
        pending = left - leased - failed - parked
        silent = [state for state in channel_states(self._engine).values() if state.failures]
        resting = self._resting(number, silent)
        failing = self._failing(number, silent)
        problems = self._problems(pending, oldest_s, stale, parked) + resting + failing
        return OutboxStatus(
            pending=pending,
            processing=leased,
            failed=failed,
            dead=parked,
            processed=processed,
            discarded=discarded,
            lanes=lanes,
            parked=parked,
            stale=stale,
            oldest_s=oldest_s,
            health="warning" if problems else "ok",
            problems=problems,
            resting=tuple(text.split()[0] for text in resting),
            failing=tuple(text.split()[0] for text in failing),
        )

    def get(self, id: str, *, tenant: str | None = None) -> OutboxEntry:
        """One event; NotFound if there is none of this id, or none any more. Ids are unique in a tenant: Conflict if
        several have it and none is named."""
        return self._event(id, self._context.tenant_number(tenant))

    def failed(
        self,
        *,
        tenant: str | None = None,
        type: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> OutboxPage:
        """Events that failed and wait for another try, a page at a time."""
        chosen = self._filter(tenant, type, aggregate_type, aggregate_id)
        return self._page("failed_events", chosen, limit, cursor)

    def dead_letters(
        self,
        *,
        tenant: str | None = None,
        type: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> OutboxPage:
        """Events that were given up on and park their aggregate, a page at a time."""
        chosen = self._filter(tenant, type, aggregate_type, aggregate_id)
        return self._page("dead_letters", chosen, limit, cursor)

    def replay(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        tenant: str | None = None,
        type: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
    ) -> Replayed:
        """Deliver events again: those named, or all dead letters that match.

        One that failed or is dead is tried again in its place, with all its attempts before it, and its aggregate goes
        on behind it. One that was settled is added again at the end of its aggregate, under a new id and idempotency
        key, so that nobody takes it for the old one."""
        done = Replayed()
        for event in self._chosen(ids, self._filter(tenant, type, aggregate_type, aggregate_id)):
            done = self._replay(event, done)
        self._context.wake()
        return done

    def discard(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        tenant: str | None = None,
        type: str | None = None,
        aggregate_type: str | None = None,
        aggregate_id: str | None = None,
        reason: str | None = None,
    ) -> int:
        """Give up events that failed or are dead, those named or all dead letters that match; how many.

        The row stays, dead and settled, until housekeeping deletes it; its aggregate goes on behind it. Conflict for a
        named event that is not what its aggregate waits for."""
        count = 0
        for event in self._chosen(ids, self._filter(tenant, type, aggregate_type, aggregate_id)):
            said = "discarded" if reason is None else f"discarded: {reason}"
            if self._discard(event, f"{event.failure_reason}; {said}" if event.failure_reason else said):
                count += 1
            elif ids is not None:
                raise Conflict(
                    f"event {event.id} cannot be discarded: it is {event.status}",
                    hint="only what failed or is dead can be, while no worker is at it",
                )
        self._context.wake()
        return count

    def housekeep(
        self,
        *,
        processed_after_s: float | None = None,
        dead_after_s: float | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> int:
        """Delete rows that were delivered, or given up by a person, longer ago than the settings say; how many. Nothing
        that is not settled is ever deleted."""
        now = database_clock(self._engine)
        processed_s = self._settings.outbox_keep_processed_s if processed_after_s is None else processed_after_s
        dead_s = self._settings.outbox_keep_dead_s if dead_after_s is None else dead_after_s
        if not all(abs(each) <= LONGEST_AGE_S for each in (processed_s, dead_s)):
            raise Invalid(f"rows settled {processed_s} s and {dead_s} s ago", hint="give ages in seconds")
        count = 0
        while not stop():
            deleted = self._engine.execute(
                "housekeep_outbox",
                processed_before=now - int(processed_s * SECOND_US),
                dead_before=now - int(dead_s * SECOND_US),
                limit=HOUSEKEEPING_BATCH,
            )
            hit(AFTER_HOUSEKEEPING)
            count += deleted
            if deleted < HOUSEKEEPING_BATCH:
                break
        return count

    def _replay(self, event: OutboxEntry, done: Replayed) -> Replayed:
        if event.processed_at_us is not None:
            self._deliver_again(event)
            return Replayed(done.revived, done.copied + 1, done.skipped)
        if self._engine.write(lambda tx: revive_event(tx, event.lane, event.seq, now_us=database_clock(tx))):
            return Replayed(done.revived + 1, done.copied, done.skipped)
        return Replayed(done.revived, done.copied, done.skipped + 1)

    def _page(
        self,
        statement: Literal["dead_letters", "failed_events"],
        chosen: EventFilter,
        limit: int,
        cursor: str | None,
    ) -> OutboxPage:
        if not 1 <= limit <= 10_000:
            raise Invalid(f"a page of {limit}", hint="ask for 1 to 10,000 entries")
        # One more than was asked for, to know whether there is a next page.
        events = stopped_events(self._engine, statement, chosen, after=_after(cursor), limit=limit + 1)
        shown = events[:limit]
        return OutboxPage(shown, _cursor(shown[-1].lane) if len(events) > limit else None)

    def _deliver_again(self, event: OutboxEntry) -> None:
        """Add a copy of a settled event at the end of its lane."""
        # Ids are random, so whoever asks twice gets two.
        id = f"{event.id[:64]}-{self._context.entropy.random_bytes(8).hex()}"
        copied = self._copies.get(event.type)
        copy = OutboxEvent(
            id=id,
            aggregate_type=event.aggregate_type,
            aggregate_id=event.aggregate_id,
            type=event.type,
            payload=event.payload if copied is None else copied(event.payload),
            # Under a key of its own: consumers know the old one.
            idempotency_key=None if event.idempotency_key is None else f"{event.idempotency_key}#{id}",
            priority=event.priority,
            trace=event.trace,
        )
        now_us = self._context.clock.now_us()
        self._engine.write(lambda tx: enqueue(tx, event.tenant_number, [copy], now_us=now_us))

    def _discard(self, event: OutboxEntry, reason: str) -> bool:
        """Have a lane go on behind an event; False if it did not stop there."""
        place = {**event.lane._asdict(), "seq": event.seq}

        def move(tx: Transaction) -> bool:
            now = database_clock(tx)
            if tx.execute("release_lane", **place, done=event.seq, now=now) != 1:
                return False
            return tx.execute("discard_event", **place, now=now, reason=reason) == 1

        return self._engine.write(move)

    def _chosen(self, ids: str | Sequence[str] | None, chosen: EventFilter) -> list[OutboxEntry]:
        """Read first and acted upon afterwards: what an action brings about is not acted upon again."""
        if ids is not None:
            if chosen != EventFilter(chosen.tenant):
                raise Invalid(
                    "events are named, and others are described", hint="give ids, or what all dead letters must match"
                )
            return [self._event(id, chosen.tenant) for id in ([ids] if isinstance(ids, str) else ids)]
        found: list[OutboxEntry] = []
        after = BEFORE_EVERYTHING
        while page := stopped_events(self._engine, "dead_letters", chosen, after=after, limit=BATCH):
            found += page
            after = page[-1].lane
        return found

    def _event(self, id: str, tenant: TenantId | None) -> OutboxEntry:
        found = self._engine.rows(OutboxEntry, "outbox_event", id=id, tenant=tenant)
        if not found:
            raise NotFound(f"there is no event {id!r}", hint="housekeeping deletes what was settled long ago", id=id)
        if len(found) > 1:
            names = sorted(event.tenant for event in found)
            raise Conflict(f"{len(found)} tenants have an event {id!r}", hint="name the tenant", id=id, tenants=names)
        return found[0]

    def _filter(
        self, tenant: str | None, type: str | None, aggregate_type: str | None, aggregate_id: str | None
    ) -> EventFilter:
        return EventFilter(self._context.tenant_number(tenant), type, aggregate_type, aggregate_id)

    def _resting(self, tenant: TenantId | None, silent: Sequence[ChannelState]) -> tuple[str, ...]:
        """What is wrong with each channel that did not answer, beginning with its name. A tenant hears of those that
        hold something of its own, and not what they said: it may have been about another's."""
        if tenant is not None:
            counts = channel_counts(self._engine, tenant)
            return tuple(f"{each.name} did not answer {each.failures} times" for each in silent if each.name in counts)
        return tuple(f"{state.name} did not answer {state.failures} times: {state.reason}" for state in silent)

    def _failing(self, tenant: TenantId | None, silent: Sequence[ChannelState]) -> tuple[str, ...]:
        """What is tried again of each other channel, and why, beginning with its name; to a tenant, of its own."""
        resting = {state.name for state in silent}
        found = [each for each in channel_failures(self._engine, tenant).values() if each.name not in resting]
        now_us = database_clock(self._engine)
        return tuple(
            f"{each.name} fails: {each.reason}; it is tried again "
            f"{'at once' if each.due_us <= now_us else f'in {(each.due_us - now_us) / SECOND_US:.0f} s'}"
            for each in found
        )

    def _problems(self, pending: int, oldest_s: float | None, stale: int, dead: int) -> tuple[str, ...]:
        limits = self._settings
        found = []
        if pending > limits.outbox_warn_pending:
            found.append(f"{pending} events are pending (more than {limits.outbox_warn_pending})")
        if oldest_s is not None and oldest_s > limits.outbox_warn_oldest_s:
            found.append(f"the oldest waits for {oldest_s:.0f} s (more than {limits.outbox_warn_oldest_s:.0f})")
        if stale > limits.outbox_warn_stale:
            found.append(f"{stale} lanes have a lease that ran out (more than {limits.outbox_warn_stale})")
        if dead > limits.outbox_warn_dead:
            found.append(told_dead(dead))
        return tuple(found)


def told_dead(count: int) -> str:
    """How many events are dead, in words."""
    return "1 event is dead and parks its aggregate" if count == 1 else f"{count} events are dead and park theirs"


def _cursor(lane: LaneKey) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(list(lane))).decode()


def _after(cursor: str | None) -> LaneKey:
    if cursor is None:
        return BEFORE_EVERYTHING
    try:
        tenant, aggregate_type, aggregate_id = orjson.loads(base64.urlsafe_b64decode(cursor.encode()))
        if type(tenant) is not int or not (isinstance(aggregate_type, str) and isinstance(aggregate_id, str)):
            raise ValueError("not the key of a lane")
        if not 0 <= tenant < 2**31 or "\0" in aggregate_type + aggregate_id:
            raise ValueError("not a key that a lane can have")
    except (binascii.Error, ValueError, TypeError) as exc:
        raise Invalid(f"not a cursor: {cursor!r}", hint="use the one that the page before gave") from exc
    return LaneKey(TenantId(tenant), aggregate_type, aggregate_id)
