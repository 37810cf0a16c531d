"""Index entries while the newest compiled version of an entity is not the one that is served: those of both are kept,
and each says of which it is. Readers find the served one's; whoever looks for dependants finds both."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from analemma.catalog.engine.db import Transaction
from analemma.catalog.port import TenantId

NEWEST_ONLY: Final = 1
SERVED_ONLY: Final = 2
"""What `waiting` is of an entry that only one of the two versions has; 0: both have it."""


class Entry(Protocol):
    """An index entry; `target` is an entity's number."""

    @property
    def type(self) -> str: ...

    @property
    def value(self) -> str: ...

    @property
    def target(self) -> int | None: ...


def write_parted_entries(
    tx: Transaction, tenant: TenantId, entity_type: str, entity: int, entries: Iterable[Entry], *, newest: bool
) -> None:
    """These are the entries of the newest compiled version, which is not served, or of the served one, which is not the
    newest: those of the other one stay."""
    told = [[each.type, each.value, each.target or 0] for each in entries]
    own, other = (NEWEST_ONLY, SERVED_ONLY) if newest else (SERVED_ONLY, NEWEST_ONLY)
    place = {"tenant": tenant, "entity_type": entity_type, "entity": entity}
    if tx.dialect == "postgres":
        tx.execute("part_entries", **place, entries=told, own=own, other=other)
        return
    tx.execute("drop_waiting_entries", entity=entity, entries=told, own=own)
    tx.execute("keep_waiting_entries", entity=entity, entries=told, other=other)
    tx.execute("share_waiting_entries", entity=entity, entries=told, other=other)
    tx.execute("add_waiting_entries", **place, entries=told, own=own)


def settle_entries(tx: Transaction, entity: int) -> None:
    """The newest compiled version is served from now on: its entries are the only ones."""
    tx.execute("drop_left_entries", entity=entity)
    tx.execute("settle_entries", entity=entity)
