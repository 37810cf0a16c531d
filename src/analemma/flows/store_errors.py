"""Errors of our own store, also those that go through a node: they say nothing of the node, and its run goes on
later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from analemma.errors import Timeout, Unavailable
from analemma.flows.runs import said


class StoreErrors:
    """Which errors the store raised while a node asked it; an error is told from those of others by its identity."""

    def __init__(self) -> None:
        self._noted: list[tuple[Unavailable | Timeout, bool]] = []

    @contextmanager
    def asking(self, *, at_once: bool = True) -> Iterator[None]:
        """Note what the store does not answer. Not `at_once`: the run is not to go on before a while."""
        try:
            yield
        except (Unavailable, Timeout) as exc:
            # Whoever is in the way of a lock may be so for a while.
            self._noted.append((exc, at_once and not isinstance(exc, Timeout)))
            raise

    def found(self, error: BaseException) -> StoreAway | None:
        """What an error means for the run, if it is the store's."""
        for noted, at_once in self._noted:
            if noted is error:
                return StoreAway(noted, at_once=at_once)
        return None


def time_is_over(execution: str) -> Timeout:
    """What a run is told whose own time is over: it fails. A Timeout of the store says nothing of the run."""
    message = f"the run {execution} took longer than it may"
    return Timeout(message, hint="raise limits.timeout_s", execution=execution)


def is_time_over(error: BaseException) -> bool:
    """Whether it is the run's own time that is over, and not the store that is late."""
    return isinstance(error, Timeout) and "execution" in error.facts


class StoreAway(Exception):
    """The store did not answer what a node asked of it. If trying again does not help, the run waits for it: nothing of
    the run is known to be wrong."""

    def __init__(self, error: Unavailable | Timeout, *, at_once: bool) -> None:
        super().__init__(said(error))
        self.error = error
        self.at_once = at_once
        """Whether whoever looks next may go on with the run."""
