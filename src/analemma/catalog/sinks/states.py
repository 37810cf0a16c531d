"""What is to be shipped, and what each sink was sent: the newest compiled state of entities, read in one snapshot with
what is known of the sink; and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.entities.slices import SliceRow
from analemma.catalog.port import TenantId


class WantedShip(NamedTuple):
    """An entity whose state a sink is to get, as a document of an id."""

    tenant: TenantId
    type: str
    id: str
    place: str
    """Tells documents of one id apart, where the sink does; otherwise ''."""
    doc_id: str


@dataclass(frozen=True, slots=True)
class ShipState:
    """Where an entity stands, and a sink with it."""

    number: int | None
    """None: there is no such entity."""
    version: int | None
    """The newest that is compiled; None: none is."""
    ship_seq: int
    owner: int | None
    """Whose the document is that the sink has; None: it has none that is known of."""
    held_seq: int
    """What the sink has of it; -1: it was taken, and nothing is known to be shipped."""
    slices: list[SliceRow] = field(default_factory=list)
    """Those of the version, in the order of the ruleset that it was compiled by."""


class ShippedRow(NamedTuple):
    """What became of one document: shipped to a sink, found stale there, or refused by it."""

    tenant: TenantId
    entity: int
    sink: str
    """The id of the rule."""
    place: str
    doc_id: str
    version: int
    ship_seq: int
    """Of the state that was shipped; every request up to this one is answered by it."""
    deleted: bool
    outcome: Literal["shipped", "stale", "refused"]
    reason: str | None = None
    """Of what was refused."""


class EntitySinkState(NamedTuple):
    """What a sink is known to have of an entity."""

    sink: str
    version: int
    ship_seq: int


def read_ship_states(
    source: Statements, sink: str, slice_types: Sequence[str] | None, wanted: Sequence[WantedShip]
) -> list[ShipState]:
    """Where each stands, in one snapshot; only slices of these types, or all."""
    found = [ShipState(None, None, 0, None, -1)] * len(wanted)
    before = -1
    for row in source.all("ship_states", sink=sink, slice_types=slice_types, wanted=[tuple(each) for each in wanted]):
        at = row[0]
        if at != before:
            before = at
            found[at] = ShipState(row[1], row[2], row[3] or 0, row[4], row[5])
        if row[6] is not None:
            found[at].slices.append(SliceRow(*row[6:]))
    return found


def record_shipped(tx: Transaction, rows: Sequence[ShippedRow], *, now_us: int) -> None:
    """Write down what sinks have; never less than what is known, and never of a document that is another entity's."""
    known = sorted((row for row in rows if row.outcome != "refused"), key=lambda row: row[2:5])
    if not known:
        return
    tx.execute("record_shipped", now=now_us, documents=[(*row[:7], int(row.deleted)) for row in known])
