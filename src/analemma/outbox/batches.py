"""What a handler of batches is given, and what it answers.

Events of a channel are delivered to one receiver, those of many aggregates together. Of each aggregate a batch has the
first events that are not settled, in order. They are settled in one transaction, with whatever the handler adds to it,
after the handler has answered; until then they come again, to this worker or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from analemma.catalog.engine.db import Transaction
from analemma.outbox.handlers import Event

Request = TypeVar("Request")
"""What an event asks for, as its handler reads it."""

Delivery = Sequence[Request]
"""What one aggregate has for the channel: the first of its events that are not settled, in order; at least one."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why an aggregate's events are not settled."""

    reason: str
    """In one line and without secrets."""
    is_permanent: bool = False
    """Trying again does not help: its first event becomes a dead letter."""
    after_s: float | None = None
    """Not before so long."""
    is_counted: bool = True
    """Whether it was an attempt, of which there are so many."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Why the receiver as a whole is to be left alone for a while: it was not the fault of what it was sent."""

    reason: str
    after_s: float | None = None
    """How long it asked for, at least."""


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What became of a batch."""

    failed: Mapping[int, Failed] = field(default_factory=dict)
    """By position; all others are done."""
    rest: Rest | None = None
    """With it, what failed is tried again without being counted as an attempt, unless it failed for good."""
    within: Callable[[Transaction], None] | None = None
    """Runs in the transaction that settles."""
    is_proof: bool = True
    """Whether the receiver was asked, so that its answer says that it is well."""


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """How a channel is delivered."""

    most: int
    """Aggregates in a batch."""
    per_second: float | None = None
    """How many aggregates all workers together may deliver in a second; None: as many as they can."""


class StillOurs(Protocol):
    """Asks whether leases are held."""

    def __call__(self, *, least_s: float) -> Sequence[bool]:
        """For each delivery whether nobody else has taken it over, nor can within so long (or half a lease, if that is
        less)."""


class BatchHandler(Protocol[Request]):
    """Delivers what channels hold. One thread per channel calls it at a time; other processes may call theirs."""

    def plan(self, channel: str) -> ChannelPlan:
        """How a channel is delivered, as it is configured now."""

    def read(self, channel: str, event: Event) -> Request:
        """What an event asks for; Invalid if that cannot be told. Then it becomes a dead letter, and what its aggregate
        has behind it waits."""

    def deliver(self, channel: str, deliveries: Sequence[Delivery[Request]], still_ours: StillOurs) -> BatchAnswer:
        """Deliver a batch. What it raises is the failure of the receiver as a whole, which is left alone for a
        while."""
