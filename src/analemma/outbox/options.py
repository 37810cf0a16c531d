"""What a worker is given and what it gives back: whom it hears, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol


class Listener(Protocol):
    """Hears that something may be due."""

    def wait(self, seconds: float) -> bool:
        """Wait for a wake-up, at most so long."""

    def wake(self) -> None:
        """End a wait."""

    def close(self) -> None:
        """Hear nothing more."""


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
