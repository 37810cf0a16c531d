"""What backfills need of a tenant, and events that let live traffic go first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from analemma.blocks.store import BlockStore
from analemma.canon.trees import Trees
from analemma.catalog.engine import Engine
from analemma.catalog.port import OutboxEvent, TenantId
from analemma.catalog.slices import Slices
from analemma.clock import Clock
from analemma.contracts.contract_set import ContractSet
from analemma.pipeline.compile_inputs import InputReader
from analemma.pipeline.documents import DocumentReader
from analemma.pipeline.events import DEFERRED_PRIORITY, Events
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.slicing.entity_key import EntityKey


@dataclass(frozen=True)
class TenantParts:
    """One tenant, as backfills see it."""

    engine: Engine
    tenant: TenantId
    name: str
    contracts: Callable[[], ContractSet]
    slicing: SlicingWorkflow
    """Whose events wait for those of everybody else."""
    slices: Slices
    reader: InputReader
    documents: DocumentReader
    """What compiles are made of; documents that were read before may be known."""
    blocks: BlockStore
    plain_trees: Trees
    """Reads the store itself, whatever is cached."""
    events: DeferredEvents
    clock: Clock
    wake: Callable[[], None]


class DeferredEvents(Events):
    """Events that are delivered when nothing else is."""

    def ship_requested(
        self,
        key: EntityKey,
        version: int,
        ship_seq: int,
        sink: str,
        *,
        force: bool = False,
        priority: int = DEFERRED_PRIORITY,
    ) -> OutboxEvent:
        return super().ship_requested(key, version, ship_seq, sink, force=force, priority=DEFERRED_PRIORITY)

    def _event(
        self, aggregate: str, kind: str, key: EntityKey, version: int, event_id: str, **more: Any
    ) -> OutboxEvent:
        made = super()._event(aggregate, kind, key, version, event_id, **more)
        return replace(made, priority=DEFERRED_PRIORITY)
