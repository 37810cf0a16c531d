"""One tenant's part of an open store: its verbs, each made of its parts when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from analemma.blocks.store import BlockStore
from analemma.canon.nodes import BlockId
from analemma.canon.read import NodeCache
from analemma.canon.trees import Trees
from analemma.catalog.port import BranchKey, Head
from analemma.context import Context
from analemma.errors import Invalid
from analemma.state.arguments import MAIN, branch_key
from analemma.state.checkpoints import Pending
from analemma.state.commits import Commits
from analemma.state.events import Announcer
from analemma.state.records import Manifest

# What only some programs use is imported by the property that makes it: a command that prints a log should not wait for
# the collector, nor a collector for payloads.
if TYPE_CHECKING:
    from analemma.archives.archives import Archives
    from analemma.bag.bag import BagKernel
    from analemma.catalog.entities.contracts import SourceProblem
    from analemma.contracts.models import ContractRef
    from analemma.flows.flows import Flows
    from analemma.flows.remote_tasks import Elsewhere
    from analemma.gc.packing import Packing
    from analemma.payloads.payloads import Payloads
    from analemma.pipeline.deploy_records import Deploy
    from analemma.pipeline.deploys import Deploys
    from analemma.pipeline.documents import DocumentReader
    from analemma.pipeline.entity_handle import Entity
    from analemma.pipeline.ingest import IngestedItem, IngestResult
    from analemma.pipeline.querying import EntityView, QueryViewWorkflow
    from analemma.pipeline.reading import Slice
    from analemma.pipeline.ship_requests import Shipping
    from analemma.pipeline.slicing import CompileResult
    from analemma.pipeline.state_sources import SourceBackfill, SourceStatus
    from analemma.pipeline.tenant_pipeline import TenantPipeline
    from analemma.state.segments import Injection, Placed
    from analemma.state.verify import Report
    from analemma.store.store import App
    from analemma.store.workflow import Workflow


class Tenant:
    """One isolation boundary: its own rows, blocks and deduplication."""

    name: str

    def __init__(self, app: App, name: str) -> None:
        self.name = name
        self.id = app.catalog.tenant(name)
        self._app = app
        clock, entropy = app.context.clock, app.context.entropy
        self.blocks = BlockStore(
            app.catalog,
            self.id,
            objects=app.objects,
            cache=app.cache,
            pack_threshold_bytes=app.settings.pack_threshold_bytes,
            clock=clock,
            entropy=entropy,
        )
        self.trees = Trees(self.blocks.fetch, app.types, app.settings.unknown_types, NodeCache())
        self.context = Context(
            **vars(app.context),
            tenant=self.id,
            tenant_name=name,
            blocks=self.blocks,
            trees=self.trees,
            objects=app.objects,
        )
        """What its parts are made of."""
        self.committer = Commits(self.context, Announcer(self.context, app.source_watch))
        self.checkpoints = Pending(self.context, self.committer)
        self.committer.pending = self.checkpoints

    @cached_property
    def kernel(self) -> BagKernel:
        """The verbs on this tenant's state."""
        from analemma.bag.bag import BagKernel

        return BagKernel(self.context, self.committer, self._place_segment)

    def workflow(self, name: str, *, owner: str | None = None) -> Workflow:
        """A handle on one workflow, with all that can be done with its versions. Nothing is read, and nothing begun.
        The owner is the one that the settings name, if not another."""
        from analemma.store.workflow import Workflow

        return Workflow(self.kernel, branch_key(self._owner(owner), name, MAIN))

    def _owner(self, named: str | None) -> str:
        found = self.context.settings.owner if named is None else named
        if found is None:
            raise Invalid("no owner is named", hint="pass owner=..., or set ANALEMMA_OWNER")
        return found

    def _place_segment(self, injection: Injection) -> Placed | None:
        from analemma.flows.injection import place_segment

        return place_segment(injection, self.context)

    @cached_property
    def payloads(self) -> Payloads:
        """This tenant's states on their way between functions."""
        from analemma.payloads.payloads import Payloads

        return Payloads(self.context, self.kernel, self._app.foreign)

    @cached_property
    def packing(self) -> Packing:
        """Moves this tenant's blocks between the database and packs."""
        from analemma.gc.packing import Packing

        return Packing(self.context)

    @cached_property
    def views(self) -> QueryViewWorkflow:
        """The workflow that answers this tenant's views."""
        from analemma.pipeline.querying import QueryViewWorkflow

        contracts = self._app.contracts
        return QueryViewWorkflow(
            self.context,
            lambda: contracts.current,
            lambda numbers: self.deploys._held_back(numbers),
        )

    def view(self, view_id: str, version: str | None = None) -> EntityView:
        """One view: `get(entity_id)`, `many([...])`, `range()`, `search(index, value)`, `count()`."""
        return self.views.view(view_id, version)

    def entity(self, entity_type: str, entity_id: str) -> Entity:
        """One entity: `ingest(payload)`, `deploy(payload)`, `compile()`, `slices()`, `delete()`."""
        from analemma.pipeline.entity_handle import Entity
        from analemma.slicing.entity_key import EntityKey

        return Entity(self, EntityKey(entity_type, self.name, entity_id))

    @cached_property
    def pipeline(self) -> TenantPipeline:
        """The workflows that take this tenant's documents in and compile them."""
        from analemma.pipeline.tenant_pipeline import TenantPipeline

        app = self._app
        return TenantPipeline(
            self.context,
            app.contracts,
            versions=app.versions,
            held_back=lambda numbers: self.deploys._held_back(numbers),
            known=app._known_documents.of(self.id),
        )

    def ingest(
        self,
        entity_type: str,
        entity_id: str,
        payload: Any,
        *,
        version: str | None = None,
        schema: str | ContractRef | None = None,
    ) -> IngestResult:
        """Store a document as a version of its entity, unless the newest version is the same; a worker compiles it.

        `version` and `schema` are chosen unless named. Invalid for a document that its schema refuses, Conflict if the
        version named is there with other content."""
        return self.pipeline.ingest.execute(entity_type, entity_id, payload, version=version, schema=schema)

    def deploy(
        self,
        entity_type: str,
        entity_id: str,
        payload: Any,
        *,
        compile: str = "sync",
        ship: Sequence[str] | None = None,
        cutover: str = "ready",
        version: str | None = None,
        schema: str | ContractRef | None = None,
        idempotency_key: str | None = None,
    ) -> Deploy:
        """Store a document, and have it compiled, served and shipped; how far that is.

        `compile`: sync, in this call; async, by a worker. `ship`: the sink rules to ship it by; None, every one that
        matches; [], none. `cutover`: ready, readers get it once it is compiled; done, once all its sinks have answered.
        The same `idempotency_key` gives the same deploy. `deploys.await_(id)` waits, `deploys.explain(id)` says why."""
        return self.pipeline.deploying.deploy(
            entity_type,
            entity_id,
            payload,
            compile=compile,
            ship=ship,
            cutover=cutover,
            version=version,
            schema=schema,
            idempotency_key=idempotency_key,
        )

    @cached_property
    def deploys(self) -> Deploys:
        """This tenant's deploys: `get(id)`, `list()`, `await_(id)`, `explain(id)`, `retry(id)`."""
        return self._app.open_deploys(self.id)

    def ingest_many(self, items: Iterable[tuple[str, str, Any]], *, batch: int = 100) -> list[IngestedItem]:
        """Store many documents, each as (entity type, id, payload), `batch` of them in a transaction; what became of
        each: created, unchanged or refused."""
        return self.pipeline.ingest.execute_many(items, batch=batch)

    def delete(self, entity_type: str, entity_id: str, *, version: str | None = None) -> IngestResult:
        """Store that an entity is no more, as a version of it: older versions stay. NotFound if it never was; once
        deleted, it stays as it is."""
        return self.pipeline.ingest.delete(entity_type, entity_id, version=version)

    def compile(
        self,
        entity_type: str,
        entity_id: str,
        version: str | None = None,
        mode: str = "auto",
    ) -> CompileResult:
        """Compile a version, or the newest one, to slices and index entries, now; a worker does so by itself.

        `mode` is auto, full or incremental, also in capitals, as results print it: the last is a Conflict if there is
        nothing to begin with. NotFound without such a version."""
        from analemma.slicing.incremental import parse_mode

        return self.pipeline.slicing.compile(entity_type, entity_id, version, parse_mode(mode))

    def slices(self, entity_type: str, entity_id: str, version: str | None = None) -> dict[str, Slice]:
        """What a version, or the one that is served, was compiled to, by slice type; NotFound if it was not compiled,
        Corrupt if a slice is not what its hash says."""
        return self.pipeline.reader.read(entity_type, entity_id, version)

    @property
    def documents(self) -> DocumentReader:
        """Reads this tenant's documents."""
        return self.pipeline.documents

    def ship(
        self, entity_type: str, entity_id: str, *, sinks: Sequence[str] | None = None, force: bool = True
    ) -> Shipping:
        """Have a worker ship the newest compiled state of an entity, to the sinks of these rules or of all that ship
        its type; with `force`, also to those that are known to have it."""
        return self.pipeline.shipping.request(entity_type, entity_id, sinks=sinks, force=force)

    def state_sources(self) -> list[SourceStatus]:
        """The STATE_SOURCE contracts that apply here, and how many workflows each follows."""
        return self.pipeline.sources.statuses()

    def source_problems(self, source: str | None = None, *, limit: int = 100) -> list[SourceProblem]:
        """States of workflows that became no entity, of all sources or of one, each with the reason."""
        return self.pipeline.sources.problems(source, limit=limit)

    def backfill_sources(self, source: str | None = None, *, dry_run: bool = False) -> SourceBackfill:
        """Ingest the newest states of the workflows that sources, or one of them, take: those that were there before
        their source. With `dry_run`, only count them. NotFound if there is no such source."""
        return self.pipeline.sources.backfill(source, dry_run=dry_run)

    @cached_property
    def flows(self) -> Flows:
        """This tenant's runs of workflows."""
        from analemma.catalog.runs.runs import RunRows
        from analemma.flows.flows import Flows
        from analemma.flows.handlers import Handlers
        from analemma.flows.held_runs import RunnerParts
        from analemma.flows.leases import Leases
        from analemma.flows.node_types.standard import bind_standard_types
        from analemma.flows.run_kernel import RunKernel
        from analemma.flows.segment_types import SEGMENT_RUNNERS

        app, context = self._app, self.context
        handlers = Handlers(parent=app.handlers)
        bind_standard_types(handlers, self, app.settings, clock=context.clock, entropy=context.entropy)
        kernel = RunKernel(self.context, self.committer)
        return Flows(
            RunnerParts(
                **vars(context),
                kernel=kernel,
                rows=RunRows(context.engine, self.id, key_keep_us=context.catalog.key_keep_us),
                leases=Leases(lease_s=app.settings.run_lease_s),
                handlers=handlers,
                segment_runners=SEGMENT_RUNNERS,
                holder=context.new_holder(),
                elsewhere=self._flows_elsewhere,
            )
        )

    def _flows_elsewhere(self) -> Elsewhere:
        from analemma.store.remote import flows_elsewhere

        return flows_elsewhere(self._app)

    def close(self) -> None:
        """End what runs in the background; the app calls it."""
        if "flows" in self.__dict__:
            self.flows.close()

    @cached_property
    def archives(self) -> Archives:
        """This tenant's workspaces, in and out of object storage."""
        from analemma.archives.archives import Archives
        from analemma.archives.parts import Parts
        from analemma.archives.places import store_paths
        from analemma.archives.volumes import DirectoryVolumes
        from analemma.catalog.archives.workspaces import SqlWorkspaces

        context, place = self.context, self._app._place
        return Archives(
            Parts(
                **vars(context),
                rows=SqlWorkspaces(context.engine, self.id),
                store_id=context.catalog.store_id(),
                holder=context.new_holder(),
                ownership=self._app.ownership,
                volumes=self._app.volumes or DirectoryVolumes(),
                store_paths=store_paths(place.url, place.objects, place.file),
            )
        )

    def head(self, key: BranchKey) -> Head | None:
        """Where a branch stands."""
        return self.context.catalog.head(self.id, key)

    def manifest(self, manifest: BlockId) -> Manifest:
        """What a version's manifest says."""
        return self.committer.manifest(manifest)

    def verify(self, key: BranchKey) -> Report:
        """Re-hash a branch's journal, its head's manifest and every block below."""
        from analemma.state.verify import verify_branch

        return verify_branch(self.context.catalog, self.id, self.blocks, key)
