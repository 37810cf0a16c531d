"""Channels: lanes whose events are delivered in batches, to one receiver each, and how each channel is doing.

A channel whose receiver does not answer rests as a whole, for all workers: what is queued for it costs nothing then."""

from __future__ import annotations

from typing import NamedTuple

from analemma.catalog.engine.db import Statements
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


def due_channels(source: Statements, tenant: TenantId | None) -> list[DueChannel]:
    """Channels with something to deliver now."""
    return source.rows(DueChannel, "due_channels", tenant=tenant)


def channel_states(source: Statements) -> dict[str, ChannelState]:
    """How every channel is doing that ever rested, by name."""
    return {state.name: state for state in source.rows(ChannelState, "channels")}


def channel_counts(source: Statements, tenant: TenantId | None) -> dict[str, ChannelCounts]:
    """What every channel holds that holds anything, by name."""
    return {counts.name: counts for counts in source.rows(ChannelCounts, "channel_lanes", tenant=tenant)}


def channel_failures(source: Statements, tenant: TenantId | None) -> dict[str, ChannelFailure]:
    """What is tried again next of every channel of which something failed, by name."""
    return {failure.name: failure for failure in source.rows(ChannelFailure, "channel_failures", tenant=tenant)}
