"""Channels: lanes whose events are delivered in batches, to one receiver each, and how each channel is doing.

A channel whose receiver does not answer rests as a whole, for all workers: what is queued for it costs nothing then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.leases import database_clock
from analemma.catalog.outbox.lanes import ClaimedLane
from analemma.catalog.port import TenantId


class DueChannel(NamedTuple):
    """A channel that has something to deliver, and does not rest."""

    name: str
    failures: int
    """How often in a row nothing could be delivered; 0: it is well."""


class ChannelState(NamedTuple):
    """How a channel is doing. Times are the database's, in microseconds."""

    name: str
    rest_until_us: int
    failures: int
    since_us: int | None
    reason: str | None


class ChannelCounts(NamedTuple):
    """What a channel holds."""

    name: str
    undelivered: int
    lanes: int
    leased: int
    failed: int
    parked: int
    oldest_due_us: int | None


class ChannelFailure(NamedTuple):
    """What of a channel is tried again next, after it failed."""

    name: str
    due_us: int
    attempts: int
    reason: str | None


class Channels:
    """The channels of a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def now_us(self) -> int:
        """The time that rests and leases go by."""
        return database_clock(self._engine)

    def due(self, tenant: TenantId | None = None) -> list[DueChannel]:
        """Channels with something to deliver now."""
        return self._engine.rows(DueChannel, "due_channels", tenant=tenant)

    def rest(self, name: str, *, base_s: float, longest_s: float, asked_s: float | None, reason: str) -> float:
        """Leave a channel alone: twice as long with each failure in a row, and no shorter than it asked for; for how
        long. Workers that find the same failure while it rests already do not make it longer."""

        def move(tx: Transaction) -> float:
            rest_us = tx.value(
                "rest_channel",
                name=name,
                now=database_clock(tx),
                base=int(base_s * 1_000_000),
                longest=int(longest_s * 1_000_000),
                asked=int((asked_s or 0.0) * 1_000_000),
                reason=reason,
            )
            return int(rest_us) / 1_000_000

        return self._engine.write(move)

    def wake(self, name: str) -> bool:
        """A channel is well again; whether it was not."""
        return self._engine.execute("wake_channel", name=name) == 1

    def try_at_once(self, name: str) -> bool:
        """A channel is to be tried now, with all that waits for another try; whether it rested, or anything waited."""

        def move(tx: Transaction) -> bool:
            rested = tx.execute("wake_channel", name=name) == 1
            hastened = tx.execute("hasten_channel", name=name, now=database_clock(tx))
            return rested or hastened > 0

        return self._engine.write(move)

    def take_turn(self, name: str, duration_s: float) -> float:
        """Reserve the time that a delivery takes by the channel's rate, behind all that was reserved by any worker; how
        many seconds from now it begins."""

        def move(tx: Transaction) -> float:
            wait_us = tx.value("take_turn", name=name, now=database_clock(tx), duration=int(duration_s * 1_000_000))
            return max(0.0, float(wait_us) / 1_000_000)

        return self._engine.write(move)

    def states(self) -> dict[str, ChannelState]:
        """How every channel is doing that ever rested, by name."""
        return {state.name: state for state in self._engine.rows(ChannelState, "channels")}

    def counts(self, tenant: TenantId | None = None) -> dict[str, ChannelCounts]:
        """What every channel holds that holds anything, by name."""
        found = self._engine.rows(ChannelCounts, "channel_lanes", tenant=tenant)
        return {counts.name: counts for counts in found}

    def failures(self, tenant: TenantId | None = None) -> dict[str, ChannelFailure]:
        """What is tried again next of every channel of which something failed, by name."""
        found = self._engine.rows(ChannelFailure, "channel_failures", tenant=tenant)
        return {failure.name: failure for failure in found}

    def held(self, lanes: Sequence[ClaimedLane], *, least_s: float) -> list[bool]:
        """Which of these lanes are still ours, and will be for at least so long unless they are renewed."""
        least = int(least_s * 1_000_000)
        given = [(*lane.key, lane.fence) for lane in lanes]
        found = {row[0] for row in self._engine.all("held_lanes", lanes=given, least=least)}
        return [place in found for place in range(len(lanes))]
