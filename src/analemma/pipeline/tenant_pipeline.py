"""One tenant's pipeline: its workflows, made of the same parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from analemma.blocks.store import BlockStore
from analemma.canon.trees import Trees
from analemma.catalog.deploys import DeployRows
from analemma.catalog.engine import Engine
from analemma.catalog.port import TenantId
from analemma.catalog.raws import Raws
from analemma.catalog.slices import Slices
from analemma.clock import Clock, Entropy
from analemma.contracts.contract_set import ContractSet
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
from analemma.settings import Settings


class TenantPipeline:
    """The workflows of one tenant. `wake` is called after a commit that added events."""

    def __init__(
        self,
        engine: Engine,
        tenant: TenantId,
        name: str,
        *,
        contracts: Callable[[], ContractSet],
        fresh_contracts: Callable[[], ContractSet],
        contracts_loaded_at_us: Callable[[], int],
        blocks: BlockStore,
        trees: Trees,
        versions: Versions,
        clock: Clock,
        entropy: Entropy,
        wake: Callable[[], None],
        held_back: Callable[[Collection[int]], Mapping[int, HeldBack]] = lambda _: {},
        known: KnownDocuments | None = None,
        settings: Settings,
    ) -> None:
        events, slices = Events(entropy), Slices(engine, tenant)
        known = KnownDocuments() if known is None else known
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
            loaded_at_us=contracts_loaded_at_us,
            ingest=self.ingest,
            blocks=blocks,
            clock=clock,
        )
