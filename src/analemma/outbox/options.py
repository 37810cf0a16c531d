"""What a worker is given and what it gives back: how it is to work, whom it hears, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

from analemma.errors import Invalid
from analemma.outbox.failures import RetryPolicy


class Listener(Protocol):
    """Hears that something may be due."""

    def wait(self, seconds: float) -> bool:
        """Wait for a wake-up, at most so long."""

    def wake(self) -> None:
        """End a wait."""

    def close(self) -> None:
        """Hear nothing more."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works."""

    concurrency: int = 4
    batch: int = 2000
    """Events per claim, at most."""
    lease_s: float = 30.0
    poll_busy_s: float = 0.1
    poll_idle_s: float = 1.0
    retries: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise Invalid(f"a worker with {self.concurrency} threads", hint="give it one or more")


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a worker did."""

    delivered: int = 0
    failed: int = 0
    """Failures that will be tried again."""
    dead: int = 0
    lost: int = 0
    """Lanes that were taken over by another worker before this one was done with them."""
    polls: int = 0
    """How often it looked for something to do."""

    def plus(self, **more: int) -> Delivered:
        return replace(self, **{name: getattr(self, name) + count for name, count in more.items()})
