"""The view pipeline's part of an open store, for all tenants: contracts, events and their workers, fanouts, deploys,
backfills and sinks."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from analemma.catalog.contract_rows import ContractRows
from analemma.catalog.port import TenantId
from analemma.catalog.sql_catalog import SqlCatalog
from analemma.clock import Clock, Entropy
from analemma.errors import NotFound
from analemma.settings import Settings
from analemma.state.announcing import Sources, SourceWatch
from analemma.tenant import Tenant

# What only some programs use is imported by the property that makes it.
if TYPE_CHECKING:
    from analemma.catalog.channels import Channels
    from analemma.outbox.handlers import Handler
    from analemma.outbox.tending import Outbox
    from analemma.outbox.worker import OutboxPollingWorker
    from analemma.pipeline.backfill import Backfill, BackfillJobs, BackfillPlan, Kind, Scope
    from analemma.pipeline.contract_store import Contracts
    from analemma.pipeline.deploys import Deploys
    from analemma.pipeline.documents import KnownDocuments
    from analemma.pipeline.fanouts import Fanouts
    from analemma.pipeline.open_sinks import OpenSinks
    from analemma.pipeline.shipping import ShippedListener, ShipWorkflow
    from analemma.pipeline.sinks import Sinks
    from analemma.pipeline.versions import Versions


class AppPipeline(ABC):
    """What `App` has of the view pipeline."""

    settings: Settings
    catalog: SqlCatalog
    _clock: Clock
    _entropy: Entropy
    _lock: threading.RLock
    _versions: Versions | None
    _shipped_listeners: list[ShippedListener]

    @abstractmethod
    def tenant(self, name: str) -> Tenant:
        """One tenant's part of the store."""

    @property
    @abstractmethod
    def backfills(self) -> BackfillJobs:
        """The backfills of all tenants."""

    @abstractmethod
    def _holder(self) -> str:
        """What leases say of who holds them."""

    @property
    @abstractmethod
    def _beside(self) -> Path:
        """Where files lie that are named by relative paths."""

    @cached_property
    def contracts(self) -> Contracts:
        """The contracts of the store, for all tenants: `load(source)`, `current`, `list()`, `get(id, version)`."""
        from analemma.pipeline.contract_store import Contracts

        return Contracts(ContractRows(self.catalog.engine), clock=self._clock, loaded=self.source_watch.forget)

    @cached_property
    def _known_documents(self) -> KnownDocuments:
        """Documents that were read lately, of all tenants."""
        from analemma.pipeline.documents import KnownDocuments

        return KnownDocuments()

    @cached_property
    def source_watch(self) -> SourceWatch:
        """Which commits a STATE_SOURCE takes, of all tenants."""
        return SourceWatch(ContractRows(self.catalog.engine), self._sources, clock=self._clock)

    def _sources(self) -> Sources:
        from analemma.pipeline.state_sources import SourceMatcher

        return SourceMatcher(self.contracts.fresh().state_sources())

    @property
    def versions(self) -> Versions:
        """Makes the versions of entities, for all tenants."""
        with self._lock:
            if self._versions is None:
                from analemma.catalog.nodes import NodeLeases
                from analemma.pipeline.versions import Versions

                self._versions = Versions(
                    NodeLeases(self.catalog.engine),
                    holder=self._holder(),
                    clock=self._clock,
                    node=self.settings.version_node,
                )
            return self._versions

    @cached_property
    def outbox(self) -> Outbox:
        """The events of all tenants: `status()`, `failed()`, `dead_letters()`, `get(id)`, `replay()`, `discard()`,
        `housekeep()`."""
        from analemma.catalog.channels import Channels
        from analemma.catalog.outbox_tending import OutboxRows
        from analemma.outbox.tending import Outbox
        from analemma.pipeline.events import SHIP_REQUESTED
        from analemma.pipeline.ship_requests import force_request

        return Outbox(
            OutboxRows(self.catalog.engine),
            find_tenant=self.catalog.find_tenant,
            signal=self.catalog.wakeups.signal,
            settings=self.settings,
            clock=self._clock,
            entropy=self._entropy,
            channels=Channels(self.catalog.engine),
            copies={SHIP_REQUESTED: force_request},
        )

    @cached_property
    def fanouts(self) -> Fanouts:
        """The fanouts of all tenants: `status()`, `list()`, `alerts()`, `get(type, id)`, `resume(type, id)`,
        `housekeep()`."""
        from analemma.catalog.fanouts import FanoutRows
        from analemma.pipeline.fanouts import Fanouts

        return Fanouts(
            FanoutRows(self.catalog.engine),
            find_tenant=self.catalog.find_tenant,
            workflow=lambda name: self.tenant(name).pipeline.fanout,
            default_tenant=self.settings.tenant,
            keep_s=self.settings.fanout_keep_s,
            clock=self._clock,
        )

    @cached_property
    def deploys(self) -> Deploys:
        """The deploys of all tenants: `get(id)`, `list()`, `await_(id)`, `explain(id)`, `retry(id)`, `housekeep()`."""
        return self.open_deploys(None)

    def open_deploys(self, tenant: TenantId | None) -> Deploys:
        """The deploys of one tenant, or of all."""
        from analemma.pipeline.deploys import Deploys
        from analemma.pipeline.events import Events

        return Deploys(
            self.catalog.engine,
            tenant,
            events=Events(self._entropy),
            clock=self._clock,
            listen=self.catalog.wakeups.listen,
            wake=self.catalog.wakeups.signal,
            keep_s=self.settings.deploy_keep_s,
        )

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
        from analemma.catalog.outbox_claiming import OutboxClaims
        from analemma.outbox.worker import OutboxPollingWorker

        settings = self.settings
        number = None
        if tenant is not None and (number := self.catalog.find_tenant(tenant)) is None:
            raise NotFound(f"there is no tenant {tenant!r}", tenant=tenant)
        return OutboxPollingWorker(
            OutboxClaims(self.catalog.engine, lease_s=settings.outbox_lease_s),
            {**self._pipeline_handlers(), **(handlers or {})},
            listen=self.catalog.wakeups.listen,
            tenant=number,
            batches=self._shipping(),
            settings=settings,
            concurrency=concurrency,
        )

    @cached_property
    def sinks(self) -> Sinks:
        """The sinks of all tenants: `list()`, `health()`, `wake(id)`."""
        from analemma.catalog.channels import Channels
        from analemma.pipeline.sinks import Sinks

        return Sinks(
            Channels(self.catalog.engine),
            self._open_sinks,
            contracts=self.contracts.fresh,
            find_tenant=self.catalog.find_tenant,
            wake=self.catalog.wakeups.signal,
        )

    def on_shipped(self, listener: ShippedListener) -> None:
        """Have workers of this process tell what became of documents, in the transaction that records it."""
        self._shipped_listeners.append(listener)

    @cached_property
    def _open_sinks(self) -> OpenSinks:
        from analemma.pipeline.open_sinks import OpenSinks

        base = self._beside if self.settings.ship_base is None else Path(self.settings.ship_base)
        return OpenSinks(base=base, clock=self._clock)

    def _shipping(self) -> tuple[Channels, ShipWorkflow]:
        """What a worker needs to ship."""
        from analemma.catalog.channels import Channels
        from analemma.catalog.sink_states import SinkStates
        from analemma.pipeline.deploy_serving import DeployAnswers
        from analemma.pipeline.events import Events
        from analemma.pipeline.shipping import ShipWorkflow

        if not any(isinstance(each, DeployAnswers) for each in self._shipped_listeners):
            self._shipped_listeners.insert(0, DeployAnswers(Events(self._entropy), clock=self._clock))
        workflow = ShipWorkflow(
            SinkStates(self.catalog.engine),
            contracts=self.contracts.fresh,
            sinks=self._open_sinks,
            open_tenant=self.tenant,
            events=Events(self._entropy),
            clock=self._clock,
            listeners=self._shipped_listeners,
        )
        return Channels(self.catalog.engine), workflow

    def _pipeline_handlers(self) -> Mapping[str, Handler]:
        from analemma.pipeline.handlers import handlers
        from analemma.pipeline.state_handlers import state_handlers

        return {
            **handlers(lambda name: self.tenant(name).pipeline, max_attempts=self.settings.outbox_max_attempts),
            **state_handlers(lambda name: self.tenant(name).pipeline),
        }
