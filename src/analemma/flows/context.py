"""What a node is given beside the state: effects that happen once, events, recorded time and chance, and facts."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Literal, Protocol

from analemma.catalog.engine.db import Transaction
from analemma.errors import Conflict, Invalid
from analemma.flows.nodes import AnyNode

OnUnknown = Literal["retry", "fail", "ask"]
"""What to do about an effect that was begun and of which nobody knows whether it happened: call the function again with
the same key, raise OutcomeUnknown, or ask a human."""

Settle = Callable[[Transaction, Any], None]
"""Says, in the transaction in which an effect happens, what came of it."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Cancelled(Conflict):
    """The run was cancelled, or is somebody else's by now; what the node does is not kept."""


class NodeContext(Protocol):
    """What a handler may use. `flows.context.Context` is the one that runs use."""

    node: AnyNode
    """The node as the document has it."""
    execution_id: str
    workflow_id: str
    owner_id: str
    node_id: str
    segment_id: str
    iterations: tuple[int, ...]
    """Of the loops around it, from the outside in; the first is 1."""
    item_index: int | None
    """Of the item or branch, inside a for_each or a parallel_group."""
    incarnation: int
    manifest_id: str
    """The version that the segment began with."""
    attempt: int
    """1, and one more with every retry."""
    mock: bool | Mapping[str, Any]
    """Whether llm and http nodes are to give their recorded or stub answers; and perhaps which."""
    logger: logging.LoggerAdapter[logging.Logger]

    @property
    def iteration(self) -> int:
        """Of the innermost loop; 0 outside of loops."""

    @property
    def deadline(self) -> float | None:
        """When the attempt has to be over, as `time.monotonic` tells time."""

    @property
    def cancelled(self) -> bool:
        """Whether to stop: nothing that is done from here on will be kept."""

    def check_cancelled(self) -> None:
        """Raise Cancelled if so."""

    def once(self, name: str, function: Callable[[str], Any], *, on_unknown: OnUnknown = "retry") -> Any:
        """The function's answer, called with a key that never changes: once, as far as that is possible, however often
        the segment runs. What it answered is recorded, and given back from then on without calling it.

        If it raises, it did not happen, and is called again by the next attempt. Whether it did is not known after the
        end of the process, OutcomeUnknown, a TimeoutError or a ConnectionError: then the next attempt does what
        `on_unknown` says. retry: call it again, under the same key. fail: OutcomeUnknown. ask: the run waits for
        somebody who knows."""

    async def once_async(
        self, name: str, function: Callable[[str], Awaitable[Any]], *, on_unknown: OnUnknown = "retry"
    ) -> Any:
        """The same for a coroutine function."""

    def once_here(self, name: str, function: Callable[[Settle], Any]) -> Any:
        """The function's answer, which it records itself, by calling what it is given in the transaction in which it
        does what it does in this store: exactly once, whatever happens."""

    def reading(self, name: str, function: Callable[[], Any], *, here: bool = False) -> Any:
        """The function's answer, recorded, so that it is the same when the segment runs again. For what changes nothing
        and may be another the next time. `here`: it asks this store, and where that is away the node has not failed."""

    def emit(self, event: Mapping[str, Any]) -> None:
        """An event for the outbox, in the transaction of the segment's commit: `type`, `payload`, and where it has them
        `aggregate_type`, `aggregate_id`, `priority`, `idempotency_key`."""

    def now(self) -> datetime:
        """The time, recorded: the same when the segment runs again. A later call gives a later time."""

    def random(self) -> float:
        """A number from 0 up to 1, recorded."""

    def uuid(self) -> uuid.UUID:
        """A new UUID, recorded."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Where in which run a node is."""

    execution_id: str
    workflow_id: str
    owner_id: str
    segment_id: str
    manifest_id: str
    incarnation: int
    iterations: tuple[int, ...] = ()
    item_index: int | None = None
    mock: bool | Mapping[str, Any] = False


@dataclass(frozen=True, slots=True)
class Chance:
    """What a node's time and chance are derived from; recorded when it is first asked for."""

    seed: int
    at_us: int


class NodeEffects(Protocol):
    """Where effects of one attempt of one node are recorded."""

    def once(self, name: str, function: Callable[[str], Any], on_unknown: OnUnknown) -> Any:
        """See `NodeContext.once`."""

    async def once_async(self, name: str, function: Callable[[str], Awaitable[Any]], on_unknown: OnUnknown) -> Any:
        """See `NodeContext.once_async`."""

    def once_here(self, name: str, function: Callable[[Settle], Any]) -> Any:
        """See `NodeContext.once_here`."""

    def reading(self, name: str, function: Callable[[], Any], *, here: bool = False) -> Any:
        """See `NodeContext.reading`."""

    def chance(self) -> Chance:
        """What was recorded for the node, or is from now on."""

    def emit(self, event: Mapping[str, Any]) -> None:
        """Keep an event for the commit."""


class Context:
    """The context of one attempt of one node. An attempt that timed out leaves it closed: whatever still runs with it
    can do nothing more."""

    def __init__(
        self,
        node: AnyNode,
        facts: Facts,
        effects: NodeEffects,
        *,
        attempt: int = 1,
        deadline: float | None = None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stopping` says whether the run was cancelled, or is somebody else's by now."""
        self.node = node
        self.node_id = node.id
        self.execution_id = facts.execution_id
        self.workflow_id = facts.workflow_id
        self.owner_id = facts.owner_id
        self.segment_id = facts.segment_id
        self.manifest_id = facts.manifest_id
        self.incarnation = facts.incarnation
        self.iterations = facts.iterations
        self.item_index = facts.item_index
        self.mock = facts.mock
        self.attempt = attempt
        self._effects = effects
        self._deadline = deadline
        self._stopping = stopping
        self._closed = False
        self._chance: Chance | None = None
        self._generator: Random | None = None
        self._times = 0

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """Writes log records that say where they come from."""
        where = {"execution_id": self.execution_id, "segment_id": self.segment_id, "node_id": self.node_id}
        return logging.LoggerAdapter(logging.getLogger("analemma.flows.node"), where)

    @property
    def iteration(self) -> int:
        return self.iterations[-1] if self.iterations else 0

    @property
    def deadline(self) -> float | None:
        return self._deadline

    @property
    def cancelled(self) -> bool:
        return self._closed or self._stopping()

    def check_cancelled(self) -> None:
        if self.cancelled:
            raise Cancelled(f"the run {self.execution_id} does not go on here", execution=self.execution_id)

    def once(self, name: str, function: Callable[[str], Any], *, on_unknown: OnUnknown = "retry") -> Any:
        self._check_effect(name, on_unknown)
        return self._effects.once(name, function, on_unknown)

    async def once_async(
        self, name: str, function: Callable[[str], Awaitable[Any]], *, on_unknown: OnUnknown = "retry"
    ) -> Any:
        self._check_effect(name, on_unknown)
        return await self._effects.once_async(name, function, on_unknown)

    def once_here(self, name: str, function: Callable[[Settle], Any]) -> Any:
        self._check_effect(name, "retry")
        return self._effects.once_here(name, function)

    def reading(self, name: str, function: Callable[[], Any], *, here: bool = False) -> Any:
        self._check_effect(name, "retry")
        return self._effects.reading(name, function, here=here)

    def emit(self, event: Mapping[str, Any]) -> None:
        self.check_cancelled()
        self._effects.emit(event)

    def now(self) -> datetime:
        at_us = self._recorded().at_us + self._times
        self._times += 1
        return EPOCH + timedelta(microseconds=at_us)

    def random(self) -> float:
        return self.generator.random()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.generator.getrandbits(128), version=4)

    @property
    def generator(self) -> Random:
        """Recorded chance in all its forms: `ctx.generator.choice([...])`."""
        if self._generator is None:
            self._generator = Random(self._recorded().seed)
        return self._generator

    def close(self) -> None:
        """From here on, everything but facts raises Cancelled."""
        self._closed = True

    def _recorded(self) -> Chance:
        if self._chance is None:
            self.check_cancelled()
            self._chance = self._effects.chance()
        return self._chance

    def _check_effect(self, name: Any, on_unknown: Any) -> None:
        self.check_cancelled()
        if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
            raise Invalid(f"{name!r} names no effect", hint="name it by a short text, as charge-card")
        if on_unknown not in ("retry", "fail", "ask"):
            raise Invalid(f"on_unknown is {on_unknown!r}", hint="retry, fail or ask")
