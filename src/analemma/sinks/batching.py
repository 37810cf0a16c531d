"""What all sinks share: each document is encoded and judged by itself, and a batch has each document once.

A batch is what one statement or request carries, so one document that cannot be encoded, or stands in it twice, would
be the end of all the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

import orjson

from analemma.errors import Unavailable
from analemma.sinks.port import STALE, Health, Outcome, Shipped, SinkDocument, refused
from analemma.sinks.settings import SinkContext, SinkSettings

MAXIMUM_BODY_BYTES = 64 << 20
"""What no sink is asked to take in one piece."""


_DOC_ID = attrgetter("doc_id")


class Parcel(NamedTuple):
    """A document, ready for a sink."""

    document: SinkDocument
    body: bytes | None
    """Its JSON in UTF-8, on one line; None: delete."""

    @property
    def size(self) -> int:
        """About how many bytes it adds to a request."""
        return len(self.document.doc_id) + len(self.body or b"")


class BatchingSink(ABC):
    """A sink that says how a batch without duplicates is sent; the rest of the port follows from that."""

    settings_class: ClassVar[type[SinkSettings]]
    guards: bool = False
    remembers_deletes: bool = False

    def __init__(self) -> None:
        self._closed = False

    @classmethod
    @abstractmethod
    def open(cls, settings: Any, context: SinkContext) -> Self:
        """Make the sink of checked settings. It need not be reachable yet, or every worker would fail with it."""

    @abstractmethod
    def send(self, parcels: Sequence[Parcel]) -> list[Shipped]:
        """One answer per parcel. No two parcels are of the same document; there is at least one."""

    @abstractmethod
    def check_health(self) -> Health:
        """Ask the sink."""

    def refuse(self, parcel: Parcel) -> str | None:
        """Why the sink could never take this; None if it might."""
        return None

    def fits(self, parcels: Sequence[Parcel]) -> bool:
        """Whether the sink might take all of these; overridden where that can be told of all at once."""
        return not any(map(self.refuse, parcels))

    def identity(self, document: SinkDocument) -> Hashable:
        """What tells it from other documents: equal ones would be written to the same place."""
        return document.doc_id

    def release(self) -> None:
        """Give back what is held; called once."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ship(self, document: SinkDocument) -> Shipped:
        return self.ship_batch([document])[0]

    def delete(self, document: SinkDocument) -> Shipped:
        return self.ship(replace(document, body=None))

    def ship_batch(self, documents: Sequence[SinkDocument]) -> tuple[Shipped, ...]:
        if self._closed:
            raise Unavailable("the sink is closed", hint="open it again")
        # Nearly always all of them are fit to be sent, and each stands there once.
        whole = pack_all(documents)
        if whole and self.fits(whole) and not self._has_twins(documents):
            return tuple(self.send(whole))
        answers: dict[int, Shipped] = {}
        parcels: dict[int, Parcel] = {}
        for position, document in enumerate(documents):
            packed = pack(document)
            reason = packed if isinstance(packed, str) else self.refuse(packed)
            if reason is None and isinstance(packed, Parcel):
                parcels[position] = packed
            else:
                answers[position] = refused(reason or "")
        self._send_newest_first(parcels, answers)
        return tuple(answers[position] for position in range(len(documents)))

    def health(self) -> Health:
        if self._closed:
            return Health(False, "the sink is closed")
        return self.check_health()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.release()

    def _has_twins(self, documents: Sequence[SinkDocument]) -> bool:
        # Documents of different ids are different ones, wherever they go.
        if len(set(map(_DOC_ID, documents))) == len(documents):
            return False
        return len(set(map(self.identity, documents))) < len(documents)

    def _send_newest_first(self, parcels: Mapping[int, Parcel], answers: dict[int, Shipped]) -> None:
        """Send the newest state of each document, and of equal ones the last: if the sink takes it, the others are
        stale."""
        by_identity: dict[Hashable, list[int]] = {}
        for position, parcel in parcels.items():
            by_identity.setdefault(self.identity(parcel.document), []).append(position)
        waiting = list(by_identity.values())
        for positions in waiting:
            positions.sort(key=lambda position: (parcels[position].document.ship_seq, position), reverse=True)
        while waiting:
            found = self.send([parcels[positions[0]] for positions in waiting])
            for positions, answer in zip(waiting, found, strict=True):
                _settle(parcels, positions, answer, answers)
            waiting = [positions for positions in waiting if positions]


def pack_all(documents: Sequence[SinkDocument]) -> list[Parcel] | None:
    """All of them, several times as fast as one by one; None if any of them needs to be looked at."""
    try:
        for name in ("doc_id", "tenant", "entity_key"):
            together = "".join(map(attrgetter(name), documents))
            if not together.isascii():
                together.encode()
        dumps = orjson.dumps
        parcels = [Parcel(each, None if each.body is None else dumps(each.body)) for each in documents]
    except (TypeError, ValueError, RecursionError):
        return None
    longest = max((len(parcel.body or b"") for parcel in parcels), default=0)
    return parcels if longest <= MAXIMUM_BODY_BYTES else None


def pack(document: SinkDocument) -> Parcel | str:
    """The document ready for a sink, or why it cannot be."""
    names = (document.doc_id, document.tenant, document.entity_key)
    # Nearly always ASCII, which is cheap to see.
    if not all(map(str.isascii, names)):
        try:
            "".join(names).encode()
        except UnicodeEncodeError:
            return "the document's id, tenant or key has a lone surrogate"
    if document.body is None:
        return Parcel(document, None)
    try:
        body = orjson.dumps(document.body if type(document.body) is dict else dict(document.body))
    except (TypeError, ValueError, RecursionError) as exc:
        return f"the body is not JSON: {exc}"
    if len(body) > MAXIMUM_BODY_BYTES:
        return f"the body has {len(body)} bytes, more than {MAXIMUM_BODY_BYTES}"
    return Parcel(document, body)


class PlaceIsDown(Exception):
    """Raised where a request is sent: the place does not answer, or asks to be left alone. Whatever else was to be sent
    would wait for nothing."""

    def __init__(self, answer: Shipped) -> None:
        super().__init__(answer.reason)
        self.answer = replace(answer, is_down=True)


Send = Callable[[Sequence[Parcel]], list[Shipped] | Shipped]
"""Sends one request: an answer per parcel, or one for all of them."""

ROOM_FOR_FACTS = 200
"""What surrounds a document in a request: its counters and the names of everything."""


def in_chunks(parcels: Sequence[Parcel], *, most: int, most_bytes: int) -> Iterator[Sequence[Parcel]]:
    """The parcels in order, cut into pieces that one request may carry; a large one goes alone."""
    start = 0
    total = 0
    for position, parcel in enumerate(parcels):
        size = parcel.size + ROOM_FOR_FACTS
        if position > start and (position - start >= most or total + size > most_bytes):
            yield parcels[start:position]
            start, total = position, 0
        total += size
    if start < len(parcels):
        yield parcels[start:]


def send_chunks(chunks: Iterable[Sequence[Parcel]], send: Send) -> list[Shipped]:
    """Send one chunk after the other. When the place is down, the rest is answered like what found it down."""
    answers: list[Shipped] = []
    down: Shipped | None = None
    for chunk in chunks:
        if down is None:
            try:
                answers += send_by_halves(chunk, send)
                continue
            except PlaceIsDown as exc:
                down = exc.answer
        answers += [down] * len(chunk)
    return answers


def send_by_halves(parcels: Sequence[Parcel], send: Send) -> list[Shipped]:
    """Send them together. If all of them are refused with one answer, some may be innocent: each half is sent by
    itself, down to single ones."""
    answer = send(parcels)
    if isinstance(answer, list):
        return answer
    if answer.outcome is not Outcome.REFUSED or len(parcels) == 1:
        return [answer] * len(parcels)
    middle = len(parcels) // 2
    return send_by_halves(parcels[:middle], send) + send_by_halves(parcels[middle:], send)


def _settle(parcels: Mapping[int, Parcel], positions: list[int], answer: Shipped, answers: dict[int, Shipped]) -> None:
    """Write down the answer for the first of the positions and for those that it settles; leave the others."""
    if answer.outcome is Outcome.REFUSED:
        # The state before it may still be worth having.
        answers[positions.pop(0)] = answer
        return
    newest = parcels[positions[0]].document.ship_seq
    for position in positions:
        answers[position] = answer if parcels[position].document.ship_seq == newest else STALE
    positions.clear()
