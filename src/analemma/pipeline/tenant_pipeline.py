"""One tenant's pipeline: its workflows, made of the same parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from analemma.catalog.deploys import DeployRows
from analemma.catalog.raws import Raws
from analemma.catalog.slices import Slices
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.pipeline.contract_store import Contracts
from analemma.pipeline.deploy_records import HeldBack
from analemma.pipeline.deploying import DeployWorkflow
from analemma.pipeline.documents import DocumentReader, KnownDocuments
from analemma.pipeline.events import Events
from analemma.pipeline.fanout import FanoutWorkflow
from analemma.pipeline.fanout_compiling import PageCompiler
from analemma.pipeline.ingest import IngestWorkflow
from analemma.pipeline.reading import SliceReader
from analemma.pipeline.ship_requests import ShipRequests
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.pipeline.state_sources import StateSourceWorkflow
from analemma.pipeline.versions import Versions


class TenantPipeline:
    """The workflows of one tenant."""

    def __init__(
        self,
        context: Context,
        contracts_of_store: Contracts,
        *,
        versions: Versions,
        held_back: Callable[[Collection[int]], Mapping[int, HeldBack]],
        known: KnownDocuments,
    ) -> None:
        engine, tenant, name = context.engine, context.tenant, context.tenant_name
        blocks, trees, clock, wake = context.blocks, context.trees, context.clock, context.wake
        settings, fresh_contracts = context.settings, contracts_of_store.fresh
        events, slices = Events(context.entropy), Slices(engine, tenant)

        def contracts() -> ContractSet:
            return contracts_of_store.current

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
            fresh_contracts=fresh_contracts,
            blocks=blocks,
            trees=trees,
            known=known,
            events=events,
            clock=clock,
            wake=wake,
        )
        self.fanout = FanoutWorkflow(
            engine,
            tenant,
            name,
            compiler=PageCompiler(
                engine,
                tenant,
                name,
                slicing=self.slicing,
                slices=slices,
                contracts=contracts,
                fresh_contracts=fresh_contracts,
                blocks=blocks,
                documents=DocumentReader(trees, known),
            ),
            contracts=contracts,
            events=events,
            clock=clock,
            wake=wake,
            settings=settings,
        )
        self.reader = SliceReader(slices, trees, name, held_back)
        self.deploying = DeployWorkflow(
            engine,
            tenant,
            name,
            rows=DeployRows(engine, tenant),
            contracts=contracts,
            ingest=self.ingest,
            slicing=self.slicing,
            events=events,
            clock=clock,
            wake=wake,
            max_attempts=settings.outbox_max_attempts,
        )
        self.documents = DocumentReader(trees, known)
        self.shipping = ShipRequests(engine, tenant, name, contracts=contracts, events=events, clock=clock, wake=wake)
        self.sources = StateSourceWorkflow(
            engine,
            tenant,
            name,
            contracts=contracts,
            loaded_at_us=lambda: contracts_of_store.loaded_at_us,
            ingest=self.ingest,
            blocks=blocks,
            clock=clock,
        )
