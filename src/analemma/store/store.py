"""An open store, and what all its tenants share."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from analemma.blocks.hardened import Hardened, ObjectMetrics
from analemma.blocks.port import ObjectStore, open_objects
from analemma.blocks.store import Lru
from analemma.canon.types import TypeRegistry, standard_registry
from analemma.catalog.object_places import BESIDE, catalog_beside, object_place
from analemma.catalog.object_places import MEMORY as IN_MEMORY
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.clock import Clock, Entropy, SystemClock, SystemEntropy
from analemma.context import StoreContext
from analemma.errors import Denied, Invalid
from analemma.settings import Settings, redact
from analemma.state.checkpoints import Pending
from analemma.store.tenant import Tenant as Tenant

# What only some programs use is imported by the property that makes it: a command that prints a log should not wait for
# the collector, nor a collector for payloads.
if TYPE_CHECKING:
    from analemma.archives.archives import Archives
    from analemma.archives.detachment import Detached
    from analemma.archives.volumes import Volumes
    from analemma.bag.bag import BagKernel
    from analemma.blocks.ownership import ObjectOwner, ObjectOwnership
    from analemma.catalog.leases import DatabaseClock
    from analemma.catalog.port import TenantId
    from analemma.flows.flows import Flows
    from analemma.flows.handlers import Handlers
    from analemma.flows.worker import RunWorker
    from analemma.gc.collector import Collector
    from analemma.gc.packing import Packing
    from analemma.outbox.handlers import Handler
    from analemma.outbox.tending import Outbox
    from analemma.outbox.worker import OutboxPollingWorker
    from analemma.payloads.foreign import ForeignObjects
    from analemma.payloads.payloads import Payloads
    from analemma.pipeline.backfill import Backfill, BackfillJobs, BackfillPlan, Kind, Scope
    from analemma.pipeline.contract_store import Contracts
    from analemma.pipeline.deploys import Deploys
    from analemma.pipeline.documents import KnownDocuments
    from analemma.pipeline.fanouts import Fanouts
    from analemma.pipeline.open_sinks import OpenSinks
    from analemma.pipeline.shipping import ShippedListener, ShipWorkflow
    from analemma.pipeline.sinks import Sinks
    from analemma.pipeline.tenant_pipeline import TenantPipeline
    from analemma.pipeline.versions import Versions
    from analemma.state.events import Sources, SourceWatch
    from analemma.store.workflow import Workflow

OBJECTS_DIRECTORY = "objects"


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds, over all tenants or in one."""

    tenants: int
    blocks: int
    logical_bytes: int
    stored_bytes: int
    manifests: int
    heads: int
    uploads: int


@dataclass(frozen=True, slots=True)
class Place:
    """What was opened."""

    url: str
    objects: str | None
    file: str | None
    """The database of an embedded store."""
    in_memory: bool = False

    @property
    def beside(self) -> Path | None:
        """Where an embedded store has its objects unless told otherwise."""
        return None if self.file is None else Path(self.file).absolute().parent / OBJECTS_DIRECTORY


class Store:
    """An open store. Safe to share between threads; close it, or use it as a context manager."""

    def __init__(
        self,
        catalog: SqlCatalog,
        objects: ObjectStore | None,
        settings: Settings,
        *,
        place: Place,
        shared_place: str | None = None,
        registry: TypeRegistry | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
    ) -> None:
        self.settings = settings
        self.types = registry or standard_registry()
        """The types this program can store; register your own classes here."""
        self.catalog = catalog
        self.object_metrics = ObjectMetrics()
        self._place = place
        self.context = StoreContext(catalog, settings, clock or SystemClock(), entropy or SystemEntropy())
        """What its parts are made of."""
        self.ownership: ObjectOwnership | None = None
        """Whose the objects are; None if they are the store's own in any case, or there are none."""
        self.objects = None if objects is None else self._owned(self._hardened(objects), shared_place)
        self.volumes: Volumes | None = None
        """Where the files of workspaces are, if not in directories; set it before `archives` is first used."""
        self._tenants: dict[str, Tenant] = {}
        self._shipped_listeners: list[ShippedListener] = []
        self._lock = threading.RLock()
        if settings.payload_s3_buckets is not None:
            _ = self.foreign  # Refused now, and not with the first payload.

    def __repr__(self) -> str:
        return f"<analemma.Store on {redact(self._place.url)}, tenant {self.settings.tenant}>"

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tenant(self, name: str) -> Tenant:
        """One tenant's part of the store, made if it is new. Nothing is shared between tenants, not even equal
        blocks."""
        with self._lock:
            if name not in self._tenants:
                self._tenants[name] = Tenant(self, name)
            return self._tenants[name]

    @cached_property
    def default(self) -> Tenant:
        """The tenant that the settings name (`default` unless told otherwise)."""
        return self.tenant(self.settings.tenant)

    def workflow(self, name: str, *, owner: str | None = None) -> Workflow:
        """A handle on one workflow of the default tenant: `save()`, `load()`, `log()`, `diff()` and so on. Nothing is
        read, and nothing begun. The owner is the one that the settings name, if not another."""
        return self.default.workflow(name, owner=owner)

    @cached_property
    def kernel(self) -> BagKernel:
        """The state kernel of the default tenant."""
        return self.default.kernel

    @property
    def checkpoints(self) -> Pending:
        """What is pending in the default tenant: `drain()`, `forget(older_than_s)`, `pending`."""
        return self.default.checkpoints

    @property
    def payloads(self) -> Payloads:
        """The payloads of the default tenant."""
        return self.default.payloads

    @property
    def packing(self) -> Packing:
        """Where the default tenant's blocks lie: `pack()`, `repack()`, `vacuum()`."""
        return self.default.packing

    @property
    def archives(self) -> Archives:
        """The workspaces of the default tenant, and their archives."""
        return self.default.archives

    @cached_property
    def backfills(self) -> BackfillJobs:
        """The backfills of all tenants: `plan()`, `create()`, `run(id)`, `get(id)`, `list()`, `pause(id)`,
        `resume(id)`, `cancel(id)`, `needed()`, `verify()`."""
        from analemma.store.remote import open_backfills

        return open_backfills(self)

    @cached_property
    def handlers(self) -> Handlers:
        """What nodes of workflows do, for all tenants: functions by name, and handlers by node type."""
        from analemma.flows.handlers import Handlers

        return Handlers()

    def run_worker(self, concurrency: int | None = None, *, tenant: str | None = None) -> RunWorker:
        """A worker that goes on with runs, of one tenant or of all: `run()`, `drain()`, `stop()`."""
        from analemma.flows.worker import RunWorker

        number = self.context.tenant_number(tenant)
        return RunWorker(self.context, lambda name: self.tenant(name).flows, tenant=number, concurrency=concurrency)

    @property
    def flows(self) -> Flows:
        """The runs of the default tenant: `run()`, `start()`, `resume()`, `approve()`, `cancel()`, `rerun()`, `runs()`,
        `get()`."""
        return self.default.flows

    @cached_property
    def contracts(self) -> Contracts:
        """The contracts of the store, for all tenants: `load(source)`, `current`, `list()`, `get(id, version)`."""
        from analemma.pipeline.contract_store import Contracts

        return Contracts(self.catalog.engine, clock=self.context.clock, loaded=self.source_watch.forget)

    @cached_property
    def _known_documents(self) -> KnownDocuments:
        """Documents that were read lately, of all tenants."""
        from analemma.pipeline.documents import KnownDocuments

        return KnownDocuments()

    @cached_property
    def source_watch(self) -> SourceWatch:
        """Which commits a STATE_SOURCE takes, of all tenants."""
        from analemma.state.events import SourceWatch

        return SourceWatch(self.catalog.engine, self._sources, clock=self.context.clock)

    def _sources(self) -> Sources:
        from analemma.pipeline.state_sources import SourceMatcher

        return SourceMatcher(self.contracts.fresh().state_sources())

    @cached_property
    def versions(self) -> Versions:
        """Makes the versions of entities, for all tenants."""
        from analemma.pipeline.versions import Versions

        return Versions(
            self.catalog.engine,
            holder=self.context.new_holder(),
            clock=self.context.clock,
            node=self.settings.version_node,
        )

    @cached_property
    def outbox(self) -> Outbox:
        """The events of all tenants: `status()`, `failed()`, `dead_letters()`, `get(id)`, `replay()`, `discard()`,
        `housekeep()`."""
        from analemma.outbox.tending import Outbox
        from analemma.pipeline.events import SHIP_REQUESTED
        from analemma.pipeline.ship_requests import force_request

        return Outbox(self.context, copies={SHIP_REQUESTED: force_request})

    @cached_property
    def fanouts(self) -> Fanouts:
        """The fanouts of all tenants: `status()`, `list()`, `alerts()`, `get(type, id)`, `resume(type, id)`,
        `housekeep()`."""
        from analemma.pipeline.fanouts import Fanouts

        return Fanouts(self.context, lambda name: self.tenant(name).pipeline.fanout)

    @cached_property
    def deploys(self) -> Deploys:
        """The deploys of all tenants: `get(id)`, `list()`, `await_(id)`, `explain(id)`, `retry(id)`, `housekeep()`."""
        return self.open_deploys(None)

    def open_deploys(self, tenant: TenantId | None) -> Deploys:
        """The deploys of one tenant, or of all."""
        from analemma.pipeline.deploys import Deploys

        return Deploys(self.context, tenant)

    @overload
    def backfill(
        self, scope: Scope = None, *, kind: Kind = "raw_to_slice", dry_run: Literal[True], **options: Any
    ) -> BackfillPlan: ...

    @overload
    def backfill(
        self, scope: Scope = None, *, kind: Kind = "raw_to_slice", dry_run: Literal[False] = False, **options: Any
    ) -> Backfill: ...

    def backfill(
        self, scope: Scope = None, *, kind: Kind = "raw_to_slice", dry_run: bool = False, **options: Any
    ) -> Backfill | BackfillPlan:
        """Compile, or ship, all entities of a scope again, or replay its dead letters: durably, each entity once. With
        `dry_run`, only what would change. Options are those of `backfills.execute`, or of `backfills.plan`: `executor`,
        `verify`, `rate`, `mode`, `watch` and so on."""
        if dry_run:
            return self.backfills.plan(scope, kind, **options)
        return self.backfills.execute(scope, kind, **options)

    def worker(
        self,
        concurrency: int | None = None,
        *,
        tenant: str | None = None,
        handlers: Mapping[str, Handler] | None = None,
    ) -> OutboxPollingWorker:
        """A worker that delivers events, of one tenant or of all: `run()`, `drain()`, `stop()`. `handlers`, by event
        type, are added to those of the view pipeline."""
        from analemma.outbox.worker import OutboxPollingWorker
        from analemma.pipeline.handlers import handlers as pipeline_handlers
        from analemma.pipeline.state_handlers import state_handlers

        def pipeline(name: str) -> TenantPipeline:
            return self.tenant(name).pipeline

        documents = pipeline_handlers(pipeline, max_attempts=self.settings.outbox_max_attempts)
        return OutboxPollingWorker(
            self.context,
            {**documents, **state_handlers(pipeline), **(handlers or {})},
            tenant=self.context.tenant_number(tenant),
            batches=self._shipping(),
            concurrency=concurrency,
        )

    @cached_property
    def sinks(self) -> Sinks:
        """The sinks of all tenants: `list()`, `health()`, `wake(id)`."""
        from analemma.pipeline.sinks import Sinks

        return Sinks(self.context, self._open_sinks, self.contracts.fresh)

    def on_shipped(self, listener: ShippedListener) -> None:
        """Have workers of this process tell what became of documents, in the transaction that records it."""
        self._shipped_listeners.append(listener)

    @cached_property
    def _open_sinks(self) -> OpenSinks:
        from analemma.pipeline.open_sinks import OpenSinks

        base, place = self.settings.ship_base, self._place
        if base is None and place.file is not None and not place.in_memory:
            base = os.path.dirname(os.path.abspath(place.file))
        return OpenSinks(base=Path(base or ""), clock=self.context.clock)

    def _shipping(self) -> ShipWorkflow:
        """What a worker needs to ship."""
        from analemma.pipeline.deploy_serving import DeployAnswers
        from analemma.pipeline.events import Events
        from analemma.pipeline.shipping import ShipWorkflow

        if not any(isinstance(each, DeployAnswers) for each in self._shipped_listeners):
            self._shipped_listeners.insert(0, DeployAnswers(Events(self.context.entropy), clock=self.context.clock))
        return ShipWorkflow(
            self.context,
            contracts=self.contracts.fresh,
            sinks=self._open_sinks,
            open_tenant=self.tenant,
            listeners=self._shipped_listeners,
        )

    @cached_property
    def gc(self) -> Collector:
        """The collector, for all tenants: `plan()`, `run()`, `status()`, `failures()`, `retry()`."""
        return self.collector()

    def collector(self, *, database_clock: DatabaseClock | None = None) -> Collector:
        """A collector whose leases, grace and ages go by another clock than the database's, for tests."""
        from analemma.catalog.leases import database_clock as its_own_clock
        from analemma.gc.collector import Collector

        return Collector(
            self.context,
            objects=self.objects,
            ownership=self.ownership,
            open_kernel=lambda name: self.tenant(name).kernel,
            database_clock=database_clock or its_own_clock,
        )

    def tenant_names(self) -> list[str]:
        """Every tenant that there is, in order."""
        return sorted(str(row[1]) for row in self.catalog.engine.all("tenant_names"))

    def stats(self, tenant: str | None = None) -> Stats:
        """How many blocks there are, what they hold (logical bytes) and what they take (stored bytes)."""
        number = self.context.tenant_number(tenant)
        return Stats(
            tenants=1 if number is not None else int(self.catalog.engine.value("tenant_count")),
            **self.catalog.stats(number)._asdict(),
        )

    def info(self) -> dict[str, str | int]:
        """Where everything is, without secrets."""
        return {
            "backend": "postgresql" if self._place.file is None else "sqlite",
            "url": redact(self._place.url),
            "objects": "in the catalog" if self._place.objects is None else redact(self._place.objects),
            "store_id": self.catalog.store_id(),
            "schema_version": int(self.catalog.engine.value("schema_version")),
        }

    def objects_owner(self) -> ObjectOwner | None:
        """Whose the objects are, this catalog's or those of one that it may be a copy of; None without objects."""
        if self.objects is None:
            return None
        from analemma.blocks.ownership import ObjectOwner

        if self.ownership is None:
            return ObjectOwner("own", 0, "the store's own")
        return self.ownership.owner()

    def adopt_objects(self) -> ObjectOwner:
        """Make the objects this catalog's for good: whichever it is a copy of collects and deletes none any more.
        Invalid if they are in its own directory, or there are none."""
        return self._shared_objects().adopt()

    def detach_objects(self, to: str | None = None, *, forget: bool = False) -> Detached:
        """Give this catalog, which may be a copy, objects of its own: copy all that it needs `to` another place, or
        `forget` them, if it needs none. Nothing is deleted. The store is to be opened again afterwards, with the new
        place; nobody else may be writing to it meanwhile."""
        from analemma.archives.detachment import Detachment

        self._shared_objects()
        assert self.objects is not None
        detachment = Detachment(self.catalog, self.objects)
        if (to is None) == (not forget):
            raise Invalid("either a new place, or nothing, is to be kept", hint="give --to URL, or --forget")
        if to is None:
            return detachment.forget()
        place = object_place(to, self._place.beside)
        if place in (IN_MEMORY, self.catalog.objects_place()):
            raise Invalid(f"the objects cannot go to {to}", hint="name another bucket, prefix or directory", to=place)
        target = self._hardened(open_objects(to, create=False))
        try:
            new = None if place == BESIDE else self._ownership(target, place)
            if new is not None and (owner := new.owner()).state == "other":
                raise Denied(
                    f"the objects at {place} are another catalog's", hint="name a place of its own", owner=owner.detail
                )
            detached = detachment.copy_to(target, place)
            if new is not None:
                new.take_turn()
            return detached
        finally:
            target.close()

    def _shared_objects(self) -> ObjectOwnership:
        if self.ownership is None:
            raise Invalid(
                "the objects of this store are its own", hint="only objects at a place that was named have an owner"
            )
        return self.ownership

    @property
    def migrated(self) -> list[str]:
        """The migrations that opening the store applied."""
        return self.catalog.migrated

    def close(self) -> None:
        """Apply what is pending of this process's checkpoints, as far as `checkpoint_close_s` allows, then give back
        connections and files; safe to call twice."""
        with ExitStack() as closing:
            closing.callback(self.catalog.close)
            if self.objects is not None:
                closing.callback(self.objects.close)
            for part in ("foreign", "cache", "versions", "_open_sinks"):
                if part in self.__dict__:
                    closing.callback(self.__dict__[part].close)
            for tenant in list(self._tenants.values()):
                closing.callback(tenant.checkpoints.close, self.settings.checkpoint_close_s)
                closing.callback(tenant.close)

    @cached_property
    def cache(self) -> Lru:
        """Verified blocks, kept near."""
        if self.settings.redis_url is None:
            return Lru(self.settings.cache_bytes)
        from analemma.blocks.redis_tier import RedisTier

        store, ttl_s = self.catalog.store_id(), self.settings.redis_ttl_s
        return Lru(self.settings.cache_bytes, RedisTier(self.settings.redis_url, store, ttl_s=ttl_s))

    @cached_property
    def foreign(self) -> ForeignObjects:
        """The objects of other programs that payloads may point to: none, unless the settings list their buckets."""
        from analemma.payloads.foreign import ForeignObjects, parse_buckets

        buckets = parse_buckets(self.settings.payload_s3_buckets)
        return ForeignObjects(buckets, lambda url: self._hardened(open_objects(url)))

    def _owned(self, objects: ObjectStore, place: str | None) -> ObjectStore:
        """Objects at a place that other catalogs may be opened with, too, are deleted by their owner only."""
        if place is None:
            return objects
        from analemma.blocks.ownership import OwnedObjects

        self.ownership = self._ownership(objects, place)
        return OwnedObjects(objects, self.ownership)

    def _ownership(self, objects: ObjectStore, place: str) -> ObjectOwnership:
        from analemma.blocks.ownership import ObjectOwnership

        return ObjectOwnership(self.catalog.engine, objects, place, self.context.entropy, inside=catalog_beside(place))

    def _hardened(self, objects: ObjectStore) -> ObjectStore:
        return Hardened(
            objects,
            self.object_metrics,
            tries=self.settings.object_retries,
            first_wait_s=self.settings.object_retry_base_s,
            clock=self.context.clock,
        )


App = Store
"""The name that it had first."""
