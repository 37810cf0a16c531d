"""What backfills need of a tenant, and events that let live traffic go first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from analemma.canon.read import NodeCache
from analemma.canon.trees import Trees
from analemma.catalog.port import OutboxEvent
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.pipeline.compile_inputs import InputReader
from analemma.pipeline.contract_store import Contracts
from analemma.pipeline.documents import DocumentReader, KnownDocuments
from analemma.pipeline.events import DEFERRED_PRIORITY, Events
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.slicing.entity_key import EntityKey


@dataclass(frozen=True)
class TenantParts(Context):
    """One tenant, as backfills see it: with contracts that are never behind, and events that wait for others'."""

    contracts: Callable[[], ContractSet]
    slicing: SlicingWorkflow
    reader: InputReader
    documents: DocumentReader
    """What compiles are made of; documents that were read before may be known."""
    plain_trees: Trees
    """Reads the store itself, whatever is cached."""
    events: DeferredEvents


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


def tenant_parts(context: Context, loaded: Contracts) -> TenantParts:
    """What a backfill works with in one tenant."""
    trees, known = context.trees, KnownDocuments()
    events, documents = DeferredEvents(context.entropy), DocumentReader(trees, known)

    def contracts() -> ContractSet:
        found = loaded.fresh()
        return found if found.contracts else loaded.current

    slicing = SlicingWorkflow(
        context,
        # What `contracts` has just read, at the beginning of each page.
        contracts=lambda: loaded.current,
        fresh_contracts=contracts,
        known=known,
        events=events,
    )
    return TenantParts(
        **vars(context),
        contracts=contracts,
        slicing=slicing,
        reader=InputReader(context, documents),
        documents=documents,
        plain_trees=Trees(context.blocks.read_uncached, trees.registry, context.settings.unknown_types, NodeCache()),
        events=events,
    )
