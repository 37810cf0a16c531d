"""One tenant's pipeline: its workflows, made of the same parts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

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
        events = Events(context.entropy)
        documents, fresh_contracts = DocumentReader(context.trees, known), contracts_of_store.fresh

        def contracts() -> ContractSet:
            return contracts_of_store.current

        self.ingest = IngestWorkflow(context, contracts=contracts, known=known, versions=versions, events=events)
        self.slicing = SlicingWorkflow(
            context, contracts=contracts, fresh_contracts=fresh_contracts, known=known, events=events
        )
        compiler = PageCompiler(
            context,
            slicing=self.slicing,
            contracts=contracts,
            fresh_contracts=fresh_contracts,
            documents=documents,
        )
        self.fanout = FanoutWorkflow(context, compiler=compiler, contracts=contracts, events=events)
        self.reader = SliceReader(context, held_back)
        self.deploying = DeployWorkflow(
            context, contracts=contracts, ingest=self.ingest, slicing=self.slicing, events=events
        )
        self.documents = documents
        self.shipping = ShipRequests(context, contracts=contracts, events=events)
        self.sources = StateSourceWorkflow(
            context, contracts=contracts, loaded_at_us=lambda: contracts_of_store.loaded_at_us, ingest=self.ingest
        )
