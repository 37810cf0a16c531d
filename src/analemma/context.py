"""What the parts of an open store are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from analemma.errors import NotFound
from analemma.machine import holder_name

if TYPE_CHECKING:
    from analemma.blocks.port import ObjectStore
    from analemma.blocks.store import BlockStore
    from analemma.canon.trees import Trees
    from analemma.catalog.engine.db import Engine
    from analemma.catalog.port import TenantId
    from analemma.catalog.sql_catalog import SqlCatalog
    from analemma.clock import Clock, Entropy
    from analemma.settings import Settings


@dataclass(frozen=True)
class StoreContext:
    """An open store, as the parts see it that serve all its tenants."""

    catalog: SqlCatalog
    settings: Settings
    clock: Clock
    entropy: Entropy

    @property
    def engine(self) -> Engine:
        """The catalog's, for those who have rows of their own in it."""
        return self.catalog.engine

    def wake(self) -> None:
        """Tell workers that there are new events."""
        self.catalog.wakeups.signal()

    def tenant_number(self, name: str | None) -> TenantId | None:
        """The number of a tenant that there is; None, which is all of them, if none is named."""
        if name is None:
            return None
        number = self.catalog.find_tenant(name)
        if number is None:
            raise no_tenant(name)
        return number

    def new_holder(self) -> str:
        """What the leases of a part say of who holds them."""
        return holder_name(self.entropy.random_bytes(4).hex())


@dataclass(frozen=True)
class Context(StoreContext):
    """One tenant's part of an open store, as its parts see it."""

    tenant: TenantId
    tenant_name: str
    blocks: BlockStore
    trees: Trees
    objects: ObjectStore | None


def no_tenant(name: str) -> NotFound:
    """The error for a tenant that there is not."""
    return NotFound(f"there is no tenant {name!r}", hint="saving or ingesting something begins a tenant", tenant=name)
