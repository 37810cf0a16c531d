"""What the parts of an open store are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
class Context:
    """One tenant's part of an open store, as its parts see it."""

    catalog: SqlCatalog
    tenant: TenantId
    tenant_name: str
    settings: Settings
    blocks: BlockStore
    trees: Trees
    objects: ObjectStore | None
    clock: Clock
    entropy: Entropy

    @property
    def engine(self) -> Engine:
        """The catalog's, for those who have rows of their own in it."""
        return self.catalog.engine

    def wake(self) -> None:
        """Tell workers that there are new events."""
        self.catalog.wakeups.signal()
