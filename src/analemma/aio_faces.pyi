"""What `analemma.aio` derives, for type checkers. Written by `python -m tests.docs.aio_faces`."""

from typing import Any, Literal, overload

from analemma.aio import Async, AsyncContracts, AsyncDeploys, AsyncFlows, AsyncTenant, hop, manage, stream
from analemma.archives.archives import Archives
from analemma.bag.bag import BagKernel, SmartStateBag
from analemma.catalog.port import BranchKey, Version
from analemma.flows.flows import Flows
from analemma.flows.queueing import Queues
from analemma.flows.scheduling import Schedules
from analemma.payloads.payloads import Payloads
from analemma.pipeline.backfill import Backfill, BackfillJobs, BackfillPlan, Kind, Scope
from analemma.pipeline.contract_store import Contracts
from analemma.pipeline.deploys import Deploys
from analemma.pipeline.entity_handle import Entity
from analemma.pipeline.fanouts import Fanouts
from analemma.pipeline.querying import EntityView
from analemma.pipeline.sinks import Sinks
from analemma.slicing.entity_key import EntityKey
from analemma.state.arguments import DeltaUpdate
from analemma.state.checkpoints import Ticket
from analemma.state.history import Rollback
from analemma.state.records import Commit
from analemma.store.revisions import Revision
from analemma.store.store import Store
from analemma.store.tenant import Tenant
from analemma.store.workflow import Why, Workflow, WorkflowTicket, WorkflowVersion
from collections.abc import Iterable, Mapping

class AppFace(Async[Store]):
    adopt_objects = hop(Store.adopt_objects)
    archives: AsyncArchives
    @overload
    async def backfill(
        self, scope: Scope = None, *, kind: Kind = 'raw_to_slice', dry_run: Literal[True], **options: Any
    ) -> BackfillPlan: ...
    @overload
    async def backfill(
        self, scope: Scope = None, *, kind: Kind = 'raw_to_slice', dry_run: Literal[False] = False, **options: Any
    ) -> Backfill: ...
    backfills: AsyncBackfills
    collector = hop(Store.collector)
    contracts: AsyncContracts
    default: AsyncTenant
    deploys: AsyncDeploys
    detach_objects = hop(Store.detach_objects)
    fanouts: AsyncFanouts
    flows: AsyncFlows
    info = hop(Store.info)
    kernel: AsyncKernel
    objects_owner = hop(Store.objects_owner)
    on_shipped = hop(Store.on_shipped)
    open_deploys = hop(Store.open_deploys)
    payloads: AsyncPayloads
    run_worker = hop(Store.run_worker)
    sinks: AsyncSinks
    stats = hop(Store.stats)
    tenant_names = hop(Store.tenant_names)
    worker = hop(Store.worker)

class AsyncView(Async[EntityView]):
    count = hop(EntityView.count)
    every = stream(EntityView.every)
    get = hop(EntityView.get)
    id: str
    many = hop(EntityView.many)
    range = hop(EntityView.range)
    search = hop(EntityView.search)

class AsyncEntity(Async[Entity]):
    compile = hop(Entity.compile)
    delete = hop(Entity.delete)
    deploy = hop(Entity.deploy)
    ingest = hop(Entity.ingest)
    key: EntityKey
    slices = hop(Entity.slices)

class AsyncWorkflow(Async[Workflow]):
    async def at(self, revision: Revision) -> AsyncWorkflowVersion: ...
    blame = hop(Workflow.blame)
    async def branch(self, name: str, *, at: Revision | None = None, message: str | None = None) -> AsyncWorkflow: ...
    branches = hop(Workflow.branches)
    async def checkpoint(
        self, changes: Mapping[str, Any] | DeltaUpdate, *, delete: Iterable[str] = (), key: str | None = None, message:
        str | None = None, why: Why | None = None, metadata: Mapping[str, Any] | None = None, execution: str | None =
        None, segment: int | None = None
    ) -> AsyncWorkflowTicket: ...
    delete = hop(Workflow.delete)
    delete_branch = hop(Workflow.delete_branch)
    deleted = hop(Workflow.deleted)
    diff = hop(Workflow.diff)
    edit = manage(Workflow.edit)
    get = hop(Workflow.get)
    key: BranchKey
    load = hop(Workflow.load)
    log = stream(Workflow.log)
    merge = hop(Workflow.merge)
    rollback = hop(Workflow.rollback)
    save = hop(Workflow.save)
    tag = hop(Workflow.tag)
    tags = hop(Workflow.tags)
    undelete = hop(Workflow.undelete)
    undelete_branch = hop(Workflow.undelete_branch)
    untag = hop(Workflow.untag)
    update = hop(Workflow.update)
    verify = hop(Workflow.verify)
    watch = stream(Workflow.watch)

class AsyncWorkflowVersion(Async[WorkflowVersion]):
    get = hop(WorkflowVersion.get)
    load = hop(WorkflowVersion.load)
    manifest_id: str
    metadata: dict[str, Any] | None
    row: Version
    version: int
    why: dict[str, Any] | None

class AsyncWorkflowTicket(Async[WorkflowTicket]):
    look = hop(WorkflowTicket.look)
    ticket: Ticket
    wait = hop(WorkflowTicket.wait)

class AsyncArchives(Async[Archives]):
    adopt = hop(Archives.adopt)
    archive = hop(Archives.archive)
    create = hop(Archives.create)
    delete = hop(Archives.delete)
    gc_is_due = hop(Archives.gc_is_due)
    gc_plan = hop(Archives.gc_plan)
    gc_run = hop(Archives.gc_run)
    get = hop(Archives.get)
    list = stream(Archives.list)
    on_start = hop(Archives.on_start)
    on_stop = hop(Archives.on_stop)
    purge = hop(Archives.purge)
    reconcile = hop(Archives.reconcile)
    recover = hop(Archives.recover)
    restore = hop(Archives.restore)
    start = hop(Archives.start)
    stop = hop(Archives.stop)
    undelete = hop(Archives.undelete)
    unit = hop(Archives.unit)

class AsyncBackfills(Async[BackfillJobs]):
    cancel = hop(BackfillJobs.cancel)
    create = hop(BackfillJobs.create)
    execute = hop(BackfillJobs.execute)
    get = hop(BackfillJobs.get)
    list = hop(BackfillJobs.list)
    needed = hop(BackfillJobs.needed)
    pause = hop(BackfillJobs.pause)
    plan = hop(BackfillJobs.plan)
    resume = hop(BackfillJobs.resume)
    run = hop(BackfillJobs.run)
    verify = hop(BackfillJobs.verify)

class ContractsFace(Async[Contracts]):
    fresh = hop(Contracts.fresh)
    get = hop(Contracts.get)
    list = hop(Contracts.list)
    load = hop(Contracts.load)

class TenantFace(Async[Tenant]):
    archives: AsyncArchives
    backfill_sources = hop(Tenant.backfill_sources)
    close = hop(Tenant.close)
    compile = hop(Tenant.compile)
    delete = hop(Tenant.delete)
    deploy = hop(Tenant.deploy)
    deploys: AsyncDeploys
    flows: AsyncFlows
    head = hop(Tenant.head)
    ingest = hop(Tenant.ingest)
    ingest_many = hop(Tenant.ingest_many)
    kernel: AsyncKernel
    manifest = hop(Tenant.manifest)
    name: str
    payloads: AsyncPayloads
    ship = hop(Tenant.ship)
    slices = hop(Tenant.slices)
    source_problems = hop(Tenant.source_problems)
    state_sources = hop(Tenant.state_sources)
    verify = hop(Tenant.verify)

class DeploysFace(Async[Deploys]):
    explain = hop(Deploys.explain)
    get = hop(Deploys.get)
    housekeep = hop(Deploys.housekeep)
    list = hop(Deploys.list)
    retry = hop(Deploys.retry)

class AsyncFanouts(Async[Fanouts]):
    alerts = hop(Fanouts.alerts)
    get = hop(Fanouts.get)
    housekeep = hop(Fanouts.housekeep)
    list = hop(Fanouts.list)
    resume = hop(Fanouts.resume)
    status = hop(Fanouts.status)

class FlowsFace(Async[Flows]):
    approve = hop(Flows.approve)
    cancel = hop(Flows.cancel)
    close = hop(Flows.close)
    forget = hop(Flows.forget)
    get = hop(Flows.get)
    queues: AsyncQueues
    recorded = hop(Flows.recorded)
    register = hop(Flows.register)
    rerun = hop(Flows.rerun)
    resume = hop(Flows.resume)
    run = hop(Flows.run)
    runs = hop(Flows.runs)
    schedules: AsyncSchedules
    start = hop(Flows.start)
    work_on = hop(Flows.work_on)

class AsyncKernel(Async[BagKernel]):
    blame = hop(BagKernel.blame)
    branches = hop(BagKernel.branches)
    checkpoint_async = hop(BagKernel.checkpoint_async)
    children = hop(BagKernel.children)
    create_manifest = hop(BagKernel.create_manifest)
    decide = hop(BagKernel.decide)
    decisions = hop(BagKernel.decisions)
    delete = hop(BagKernel.delete)
    deleted = hop(BagKernel.deleted)
    diff = hop(BagKernel.diff)
    expire = hop(BagKernel.expire)
    expire_all = hop(BagKernel.expire_all)
    fork = hop(BagKernel.fork)
    get_manifest = hop(BagKernel.get_manifest)
    get_retention = hop(BagKernel.get_retention)
    get_workflow = hop(BagKernel.get_workflow)
    history = hop(BagKernel.history)
    inject_dynamic_segment = hop(BagKernel.inject_dynamic_segment)
    last_safe_manifest = hop(BagKernel.last_safe_manifest)
    list_workflows = hop(BagKernel.list_workflows)
    load_fields = hop(BagKernel.load_fields)
    @overload
    async def load_latest_state(
        self, *, workflow_id: str, owner_id: str, execution_id: str | None = None, branch: str = 'main', lazy:
        Literal[False] = False
    ) -> dict[str, Any]: ...
    @overload
    async def load_latest_state(
        self, *, workflow_id: str, owner_id: str, execution_id: str | None = None, branch: str = 'main', lazy:
        Literal[True]
    ) -> SmartStateBag: ...
    load_segment_manifest = hop(BagKernel.load_segment_manifest)
    @overload
    async def load_state(
        self, manifest_id: str, *, owner_id: str | None = None, lazy: Literal[False] = False
    ) -> dict[str, Any]: ...
    @overload
    async def load_state(
        self, manifest_id: str, *, owner_id: str | None = None, lazy: Literal[True]
    ) -> SmartStateBag: ...
    load_state_with_consistency = hop(BagKernel.load_state_with_consistency)
    load_workflow_config = hop(BagKernel.load_workflow_config)
    merge = hop(BagKernel.merge)
    pin = hop(BagKernel.pin)
    pins = hop(BagKernel.pins)
    @overload
    async def rollback_to_last_safe(
        self, *, workflow_id: str, owner_id: str, branch: str = 'main', preview: Literal[False] = False,
        previous_manifest_id: str | None = None, deep: bool = False
    ) -> Commit: ...
    @overload
    async def rollback_to_last_safe(
        self, *, workflow_id: str, owner_id: str, branch: str = 'main', preview: Literal[True], previous_manifest_id:
        str | None = None, deep: bool = False
    ) -> Rollback: ...
    @overload
    async def rollback_to_version(
        self, *, workflow_id: str, owner_id: str, version: int, branch: str = 'main', preview: Literal[False] = False,
        previous_manifest_id: str | None = None, deep: bool = False
    ) -> Commit: ...
    @overload
    async def rollback_to_version(
        self, *, workflow_id: str, owner_id: str, version: int, branch: str = 'main', preview: Literal[True],
        previous_manifest_id: str | None = None, deep: bool = False
    ) -> Rollback: ...
    save = hop(BagKernel.save)
    save_state_delta = hop(BagKernel.save_state_delta)
    session = manage(BagKernel.session)
    set_retention = hop(BagKernel.set_retention)
    set_workflow = hop(BagKernel.set_workflow)
    tag = hop(BagKernel.tag)
    tags = hop(BagKernel.tags)
    ticket = hop(BagKernel.ticket)
    undelete = hop(BagKernel.undelete)
    unpin = hop(BagKernel.unpin)
    untag = hop(BagKernel.untag)
    update = hop(BagKernel.update)
    verify = hop(BagKernel.verify)
    verify_manifest_integrity = hop(BagKernel.verify_manifest_integrity)
    verify_segment_config = hop(BagKernel.verify_segment_config)
    wait_for = hop(BagKernel.wait_for)
    watch = stream(BagKernel.watch)

class AsyncPayloads(Async[Payloads]):
    dehydrate = hop(Payloads.dehydrate)
    filter_event_payload = hop(Payloads.filter_event_payload)
    hydrate = hop(Payloads.hydrate)
    leases = hop(Payloads.leases)
    load_fields_selective = hop(Payloads.load_fields_selective)
    release = hop(Payloads.release)

class AsyncSinks(Async[Sinks]):
    health = hop(Sinks.health)
    list = hop(Sinks.list)
    wake = hop(Sinks.wake)

class AsyncQueues(Async[Queues]):
    get = hop(Queues.get)
    list = hop(Queues.list)
    remove = hop(Queues.remove)
    set = hop(Queues.set)

class AsyncSchedules(Async[Schedules]):
    add = hop(Schedules.add)
    get = hop(Schedules.get)
    list = hop(Schedules.list)
    pause = hop(Schedules.pause)
    remove = hop(Schedules.remove)
    resume = hop(Schedules.resume)
    run_now = hop(Schedules.run_now)
    tend = hop(Schedules.tend)
    tend_one = hop(Schedules.tend_one)
