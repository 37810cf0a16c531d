"""One tenant's pipeline: its workflows, made of the same parts."""

from __future__ import annotations

from collections.abc import Callable

from analemma.canon.tree import Trees
from analemma.catalog.engine import Engine
from analemma.catalog.port import TenantId
from analemma.catalog.raws import Raws
from analemma.catalog.slices import Slices
from analemma.clock import Clock, Entropy
from analemma.contracts.contract_set import ContractSet
from analemma.pipeline.documents import KnownDocuments
from analemma.pipeline.events import Events
from analemma.pipeline.fanout import FanoutWorkflow
from analemma.pipeline.ingest import IngestWorkflow
from analemma.pipeline.reading import SliceReader
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.pipeline.versions import Versions
from analemma.state.block_store import BlockStore


class TenantPipeline:
    """The workflows of one tenant. `wake` is called after a commit that added events."""

    def __init__(
        self,
        engine: Engine,
        tenant: TenantId,
        name: str,
        *,
        contracts: Callable[[], ContractSet],
        blocks: BlockStore,
        trees: Trees,
        versions: Versions,
        clock: Clock,
        entropy: Entropy,
        wake: Callable[[], None],
    ) -> None:
        events, slices, known = Events(entropy), Slices(engine, tenant), KnownDocuments()
        self.ingest = IngestWorkflow(
            Raws(engine, tenant),
            name,
            contracts=contracts,
            blocks=blocks,
            trees=trees,
            known=known,
            versions=versions,
            events=events,
            clock=clock,
            wake=wake,
        )
        self.slicing = SlicingWorkflow(
            engine,
            tenant,
            name,
            slices=slices,
            contracts=contracts,
            blocks=blocks,
            trees=trees,
            known=known,
            events=events,
            clock=clock,
            wake=wake,
        )
        self.fanout = FanoutWorkflow(engine, tenant, name, events=events, clock=clock, wake=wake)
        self.reader = SliceReader(slices, trees, name)
