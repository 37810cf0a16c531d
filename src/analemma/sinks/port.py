"""What a sink is: it takes the newest states of documents and answers for each of them.

A document's states are counted by its `ship_seq`. A sink must never go from one to a smaller one. Where the sink itself
can see to that, `guards` is True; where it cannot, whoever ships must compare before it ships, and keep what it
compares with. The same `ship_seq` again is a re-ship, which is carried out: sinks lose things, and people restore them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from analemma.errors import Invalid

MAXIMUM_SHIP_SEQ: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SinkDocument:
    """One state of one document, or (without a body) that it is gone."""

    doc_id: str
    """What the sink knows it by; has no version in it."""
    ship_seq: int
    body: Mapping[str, Any] | None
    """JSON; None: delete."""
    tenant: str
    entity_key: str
    """`TYPE#tenant#id`."""
    version: int

    def __post_init__(self) -> None:
        if not isinstance(self.doc_id, str) or not self.doc_id:
            raise Invalid("a document's id is text, and not empty")
        if type(self.ship_seq) is not int or not 0 <= self.ship_seq <= MAXIMUM_SHIP_SEQ:
            raise Invalid(f"not a ship_seq: {self.ship_seq!r}", hint="it is an integer from 0 to 2**63 - 1")
        if self.body is not None and not isinstance(self.body, Mapping):
            raise Invalid(f"the body of a document is an object, not {type(self.body).__name__}")

    @property
    def is_delete(self) -> bool:
        """Whether this says that the document is gone."""
        return self.body is None

    @property
    def entity_type(self) -> str:
        """The first part of the entity's key."""
        return self.entity_key.partition("#")[0]


class Outcome(StrEnum):
    """What became of one document."""

    SHIPPED = "shipped"
    """The sink has it, durably as far as the sink can tell."""
    STALE = "stale"
    """The sink has a newer state, or the same batch does: nothing was changed, and nothing is left to do."""
    RETRY = "retry"
    """It failed, or nobody knows; the same again may work, and does no harm if it worked before."""
    REFUSED = "refused"
    """The sink will never take this document as it is."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """The answer for one document."""

    outcome: Outcome
    reason: str | None = None
    """For people, in one line and without secrets; of RETRY and REFUSED."""
    after_s: float | None = None
    """How long the sink asked to be left alone; None: it did not say."""
    is_down: bool = False
    """Of RETRY: it is not about this document, the place as a whole does not answer or asks to be left alone."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do for this document."""
        return self.outcome in (Outcome.SHIPPED, Outcome.STALE)


SHIPPED: Final = Shipped(Outcome.SHIPPED)
STALE: Final = Shipped(Outcome.STALE)


def retry(reason: str, after_s: float | None = None, *, is_down: bool = False) -> Shipped:
    """It may work later."""
    return Shipped(Outcome.RETRY, one_line(reason), after_s, is_down)


def refused(reason: str) -> Shipped:
    """It will not work later either."""
    return Shipped(Outcome.REFUSED, one_line(reason))


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a sink would take documents now."""

    is_healthy: bool
    detail: str
    """For people, in one line and without secrets."""


class Sink(Protocol):
    """A place that documents are shipped to. Threads may share it. Implement `batching.BatchingSink` rather than this,
    and pass `analemma.testing.sinks.SinkSuite`.

    What the sink says about documents is in the answers; errors are raised only for what the caller did wrong, such as
    using a sink that is closed."""

    @property
    def guards(self) -> bool:
        """Whether the sink itself keeps an older state from replacing a newer one, whoever writes at the same time. If
        not, the caller has to know what it shipped."""

    @property
    def remembers_deletes(self) -> bool:
        """Whether an older state that comes after a delete is STALE. If not, the caller has to know what it deleted."""

    def ship(self, document: SinkDocument) -> Shipped:
        """Ship one document, or delete it if it has no body."""

    def ship_batch(self, documents: Sequence[SinkDocument]) -> tuple[Shipped, ...]:
        """One answer per document, in their order. They may fail one by one: retry those that say so, and no others."""

    def delete(self, document: SinkDocument) -> Shipped:
        """Delete the document, whatever its body. One that the sink does not have is SHIPPED."""

    def health(self) -> Health:
        """Ask the sink whether it would take documents; does not raise."""

    def close(self) -> None:
        """Give back connections and files; safe to call twice."""


def one_line(text: str, longest: int = 300) -> str:
    """Text of a sink, fit for a log."""
    line = " ".join(text.split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= longest else line[: longest - 3] + "..."
