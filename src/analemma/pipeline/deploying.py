"""Deploying: a document is stored, compiled, served and shipped, and one row says how far that is.

Each transition is in the transaction that causes it: QUEUED in the one that stores the document, READY in the one that
writes the slices and asks the sinks, DONE in the one that records the last sink's answer. So whoever dies leaves a
state that is true, and an event by which another goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.deploys import (
    Cutover,
    DeployRow,
    DeployState,
    HeldEntity,
    add_deploy,
    advance,
    as_deploy,
    find_deploys,
    hold_entity,
    plan_cutover,
)
from analemma.catalog.entities.entities import find_entity
from analemma.catalog.entities.raws import Fate, Written
from analemma.catalog.leases import LeaseLost
from analemma.catalog.names import check_part
from analemma.catalog.outbox.admin import find_event
from analemma.catalog.outbox.lanes import enqueue
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import ContractRef
from analemma.errors import AnalemmaError, Conflict, Invalid, NotFound, OutcomeUnknown, Unavailable
from analemma.errors import Timeout as TimedOut
from analemma.failpoints import declare, hit
from analemma.outbox.failures import PERMANENT
from analemma.outbox.handlers import Settle
from analemma.pipeline.deploy_records import (
    Deploy,
    DeployError,
    ExplainedSink,
    Report,
    deploy_of,
    explained_slices,
    format_report,
)
from analemma.pipeline.deploy_serving import fail, serve
from analemma.pipeline.deploy_sinks import plan_sinks
from analemma.pipeline.documents import settle_payload
from analemma.pipeline.events import Events
from analemma.pipeline.ingest import IngestWorkflow, Prepared
from analemma.pipeline.slicing import CompileResult, SlicingWorkflow
from analemma.pipeline.versions import parse_stored_version
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import CompileMode
from analemma.slicing.tsid import Version, format_version
from analemma.tracing import span

STORED = declare("deploy.stored", "a document, its deploy and its event are written, nothing is committed")
BEGUN = declare("deploy.begun", "a deploy is RUNNING, and nothing is compiled")
MOVED = declare("deploy.moved", "a deploy's slices, cutover and next state are written, nothing is committed")
COMPILED = declare("deploy.compiled", "a deploy's slices are there, but whoever compiled does not know")
FAILED = declare("deploy.failed", "a deploy is FAILED, but whoever failed does not know")

COMPILING: Final = ("sync", "async")
CUTOVERS: Final = ("ready", "done")

_SYNC_PASSING = (Unavailable, TimedOut, Conflict, LeaseLost)
"""What a caller who compiles himself leaves to a worker; everything else fails the deploy. Conflict: somebody else was
first, or took a long upload for abandoned."""


class _Taken(Conflict):
    """Somebody else has the idempotency key."""


class RequiredJoinMissing(NotFound):
    """A deploy's document joins something that is not there, and its rules say that it must be."""


class DeployWorkflow:
    """Takes one tenant's deploys through their states."""

    def __init__(
        self,
        context: Context,
        *,
        contracts: Callable[[], ContractSet],
        ingest: IngestWorkflow,
        slicing: SlicingWorkflow,
        events: Events,
    ) -> None:
        self._context = context
        self._contracts = contracts
        self._ingest = ingest
        self._slicing = slicing
        self._events = events

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
        """Store a document, and have it compiled, served and shipped.

        What cannot be a deploy is refused before anything is stored. What fails later is in the deploy: FAILED, with
        the reason."""
        with span("analemma.deploy", entity_type=entity_type, compile=compile, cutover=cutover):
            key = EntityKey(entity_type, self._context.tenant_name, entity_id)
            if compile not in COMPILING:
                raise Invalid(f"compile={compile!r}", hint="sync: in this call; async: by a worker")
            if cutover not in CUTOVERS:
                raise Invalid(f"cutover={cutover!r}", hint="ready: once it is compiled; done: once all sinks answered")
            if idempotency_key is not None:
                check_part(idempotency_key, "idempotency key")
            if version is not None:
                parse_stored_version(version)
            named = _named_sinks(ship)
            asked = [key, payload, version, None if schema is None else str(schema), compile, named, cutover]
            new = DeployRow(
                number=0,
                tenant=self._context.tenant,
                tenant_name=key.tenant,
                id=self._events.new_id(),
                entity=0,
                type=key.type,
                key=key.id,
                version=0,
                created=True,
                state=DeployState.QUEUED,
                compiling=compile,
                ship=None if named is None else json.dumps(named),
                cutover=cutover,
                attempt=1,
                event=self._events.new_id(),
                idempotency_key=idempotency_key,
                fingerprint=None if idempotency_key is None else _fingerprint(*asked),
            )
            # Before anything is asked of contracts: those of today may refuse what was deployed, or check it otherwise.
            row = self._known(new)
            if row is None:
                contracts = self._contracts()
                # Not a deploy that can only fail.
                contracts.ruleset(key.type)
                _check_sinks(contracts, key, named)
                row = self._store(key, self._ingest.prepare(key, payload, version=version, schema=schema), new)
            if row.compiling == "sync" and row.state in (DeployState.QUEUED, DeployState.RUNNING):
                row = self._run_here(row)
            return deploy_of(row)

    def handle(self, key: EntityKey, version: int, id: str, *, event: str, attempts: int, settle: Settle) -> bool:
        """Go on with a deploy for an event that has failed so often; False if there is no such deploy any more.

        One that failed is tried again if somebody replays its event: that is an attempt of its own."""
        row = self._find(id)
        if row is None:
            return False
        if (row.type, row.key, row.version) != (key.type, key.id, version):
            raise Invalid(f"deploy {id} is of another entity, or of another version", deploy=id)
        if row.state is DeployState.FAILED and self._is_replayed(row, event):
            row = self._replay(row, event)
        # One that was retried has an event of its own, behind this one in the lane.
        if row.event == event:
            self.run(row, settle=settle, last=attempts + 1 >= self._context.settings.outbox_max_attempts)
        return True

    def _is_replayed(self, deploy: DeployRow, event: str) -> bool:
        """Whether an event of a deploy that failed was delivered because somebody wants that. Replayed when it was
        settled, an event has another name; and what is left of a call that failed comes when the deploy has none."""
        if deploy.event == event:
            return True
        own = find_event(self._context.engine, self._context.tenant, deploy.event)
        return own is not None and own.processed_at_us is not None

    def _replay(self, deploy: DeployRow, event: str) -> DeployRow:
        now_us, attempt = self._context.clock.now_us(), deploy.attempt + 1
        queued = self._context.engine.write(
            lambda tx: advance(tx, deploy, DeployState.QUEUED, now_us=now_us, attempt=attempt, event=event, error=None)
        )
        return queued or self._again(deploy)

    def run(self, deploy: DeployRow, *, settle: Settle | None = None, last: bool = False) -> DeployRow:
        """Compile a deploy that is QUEUED, or whose compile somebody began; as it is then. One that is beyond that is
        left as it is. `last`: there is no other try, so whatever happens fails it."""
        if deploy.state is DeployState.QUEUED:
            deploy = self._begin(deploy)
        if deploy.state is not DeployState.RUNNING:
            return deploy
        try:
            after = self._compile(deploy, settle)
        except Exception as exc:
            passing = isinstance(exc, _SYNC_PASSING) if settle is None else not isinstance(exc, PERMANENT)
            # Whoever deploys hears of it now. What is missing may come in a minute or never; a retry finds out.
            passing = passing and not isinstance(exc, RequiredJoinMissing)
            if isinstance(exc, LeaseLost) or (passing and not last):
                raise
            if settle is None and not isinstance(exc, AnalemmaError):
                raise
            after = self._fail(deploy, DeployError.of(exc), settle)
        return after or self._again(deploy)

    def _run_here(self, deploy: DeployRow) -> DeployRow:
        try:
            return self.run(deploy)
        except AnalemmaError as exc:
            # It is stored: whoever hears of this can see what becomes of it.
            exc.facts["deploy"] = deploy.id
            raise
        finally:
            # Not before: a worker would have begun to compile the same.
            self._context.wake()

    def _known(self, new: DeployRow) -> DeployRow | None:
        if new.idempotency_key is None:
            return None
        asked = {"tenant": self._context.tenant, "idempotency_key": new.idempotency_key}
        found = self._context.engine.row(as_deploy, "deploy_by_key", **asked)
        if found is not None and found.fingerprint != new.fingerprint:  # guard: deploy.key
            raise Conflict(
                f"the idempotency key {new.idempotency_key!r} was used for another deploy",
                hint="a key is for one request: use another key",
                idempotency_key=new.idempotency_key,
                deploy=found.id,
            )
        return found

    def _store(self, key: EntityKey, prepared: Prepared, new: DeployRow) -> DeployRow:
        states = [DeployState.QUEUED]
        if new.compiling == "sync":
            # Whoever stores it is about to compile it.
            states.append(DeployState.RUNNING)

        added: list[DeployRow] = []

        def told(tx: Transaction, written: Written) -> None:
            if written.fate not in (Fate.CREATED, Fate.UNCHANGED):
                return
            entity = find_entity(tx, self._context.tenant, prepared.raw.place)
            assert entity is not None
            created = written.fate is Fate.CREATED
            made = new._replace(entity=entity.number, version=written.version, created=created)
            now_us = self._context.clock.now_us()
            stored = add_deploy(tx, made, states, now_us=now_us)
            if stored is None:
                raise _Taken(f"the idempotency key {new.idempotency_key!r} is taken")
            # Of transactions that are tried again, the last one counts.
            added[:] = [stored]
            if not created:
                event = self._events.deploy_requested(key, written.version, new.event, new.id)
                enqueue(tx, self._context.tenant, [event], now_us=now_us)
            hit(STORED)

        try:
            self._ingest.store(
                key,
                prepared,
                event=lambda version: self._events.raw_data_ingested(key, version, new.event, deploy=new.id),
                told=told,
                # Whoever compiles it here wakes workers when that is done.
                wake=False,
            )
        except _Taken:
            found = self._find(new.id) or self._known(new)
            if found is None:
                raise Unavailable(f"the deploy under {new.idempotency_key!r} is gone", hint="try again") from None
            return found
        except OutcomeUnknown as exc:
            found = self._stored_after_all(new.id)
            if found is None:
                exc.facts["deploy"] = new.id
                raise
            added[:] = [found]
        if new.compiling == "async":
            self._context.wake()
        return added[0]

    def _stored_after_all(self, id: str) -> DeployRow | None:
        try:
            return self._find(id)
        except (Unavailable, TimedOut):
            return None  # Whoever asked looks for himself, once it can be asked again.

    def _begin(self, deploy: DeployRow) -> DeployRow:
        now_us = self._context.clock.now_us()
        begun = self._context.engine.write(lambda tx: advance(tx, deploy, DeployState.RUNNING, now_us=now_us))
        hit(BEGUN)
        return begun or self._again(deploy)

    def _compile(self, deploy: DeployRow, settle: Settle | None) -> DeployRow | None:
        """Compile it, and move it on in the same transaction; as it is then, None if somebody else moved it."""
        after: list[DeployRow | None] = [None]
        used: list[ContractSet] = []

        def move_on(tx: Transaction, result: CompileResult, held: HeldEntity) -> None:
            # Of transactions that are tried again, the last one counts; and of contracts, those it was compiled by.
            after[0] = self._move_on(tx, used[-1], deploy, result, held, alone=settle is None)

        result = self._slicing.compile(
            deploy.type,
            deploy.key,
            format_version(Version(deploy.version)),
            CompileMode.AUTO,
            within=settle,
            ship=None if deploy.ship is None else json.loads(deploy.ship),
            serve=deploy.cutover == "ready",
            standing=move_on,
            using=used.append,
        )
        if result.up_to_date:

            def move_on_alone(tx: Transaction) -> None:
                move_on(tx, result, hold_entity(tx, deploy.entity))
                if settle is not None:
                    settle(tx)

            self._context.engine.write(move_on_alone)
        hit(COMPILED)
        if settle is not None:
            self._context.wake()
        return after[0]

    def _move_on(
        self,
        tx: Transaction,
        contracts: ContractSet,
        deploy: DeployRow,
        result: CompileResult,
        held: HeldEntity,
        *,
        alone: bool,
    ) -> DeployRow | None:
        """What is compiled becomes READY, and SINKING or DONE at once; as it is then, or None and nothing is done if
        somebody else saw to that. RequiredJoinMissing, and nothing of the compile is written, if it lacks a slice."""
        _check_joins(deploy, result)
        assert held.newest_compiled is not None
        now_us, superseded = self._context.clock.now_us(), held.newest_compiled > deploy.version
        sinks, events = plan_sinks(
            tx, contracts, self._events, deploy, result, ship_seq=held.ship_seq, superseded=superseded
        )
        asked = [each.rule for each in sinks if each.asked]
        planned = None
        changes: dict[str, Any] = {"ship_seq": held.ship_seq}
        if alone:
            # Its event is still to be delivered. Should a sink have failed it by then, that is no other attempt.
            changes["event"] = self._events.new_id()
        if deploy.cutover == "ready" or not asked:
            planned = plan_cutover(tx, deploy.entity, held, deploy.version, (*result.written, *result.unchanged))
            changes |= {"served": planned.served, "superseded_by": planned.superseded_by}
        report = _report(str(contracts.ruleset(deploy.type).ref), result, sinks, planned)
        moved = advance(
            tx,
            deploy,
            DeployState.READY,
            DeployState.SINKING if asked else DeployState.DONE,
            now_us=now_us,
            reason="superseded" if not asked and planned is not None and not planned.served else None,
            asked=asked,
            report=format_report(report),
            **changes,
        )
        if moved is None:
            return None
        enqueue(tx, self._context.tenant, events, now_us=now_us)
        if planned is not None:
            serve(tx, moved, held, planned, self._events, now_us=now_us)
        hit(MOVED)
        return moved

    def _fail(self, deploy: DeployRow, error: DeployError, settle: Settle | None) -> DeployRow | None:
        if settle is None:
            # Its event is still to be delivered: that is no attempt of its own at what failed here.
            deploy = deploy._replace(event=self._events.new_id())

        def give_up(tx: Transaction) -> DeployRow | None:
            failed = fail(tx, deploy, error, now_us=self._context.clock.now_us())
            if settle is not None:
                settle(tx)
            return failed

        failed = self._context.engine.write(give_up)
        hit(FAILED)
        if settle is not None:
            self._context.wake()
        return failed

    def _find(self, id: str) -> DeployRow | None:
        return next(iter(find_deploys(self._context.engine, self._context.tenant, id)), None)

    def _again(self, deploy: DeployRow) -> DeployRow:
        found = self._find(deploy.id)
        if found is None:
            raise NotFound(f"deploy {deploy.id} is gone", hint="housekeeping deletes what was over long ago")
        return found


def _report(ruleset: str, result: CompileResult, sinks: Sequence[ExplainedSink], done: Cutover | None) -> Report:
    return Report(
        ruleset=ruleset,
        mode=result.mode.value,
        revision=result.revision,
        up_to_date=result.up_to_date,
        slices=explained_slices(result.written, result.unchanged, result.tombstones, dict(result.impacted)),
        sinks=tuple(sinks),
        told=() if done is None else done.changed,
    )


def _fingerprint(key: EntityKey, payload: Any, *rest: Any) -> bytes:
    """What tells one request from another under an idempotency key: what was asked, whatever contracts make of it."""
    _, text = settle_payload(payload)
    return hashlib.sha256(canonical_json([str(key), hashlib.sha256(text).hexdigest(), *rest])).digest()


def _check_joins(deploy: DeployRow, result: CompileResult) -> None:
    """Raise RequiredJoinMissing for a compile that readers and sinks of a deploy must not get: of a slice that the
    document is to have there would be a tombstone. An ingest is content with that; a deploy promises the document."""
    missing = result.missing_joins
    if missing:
        raise RequiredJoinMissing(
            f"{deploy.type} {deploy.key} lacks {', '.join(f'{kind} ({why})' for kind, why in missing.items())}",
            hint="ingest or deploy what it joins, then retry the deploy; readers and sinks keep what they had",
            slices=tuple(missing),
        )


def _named_sinks(ship: Sequence[str] | None) -> list[str] | None:
    """The sink rules that a caller names, each once, in order."""
    if ship is None:
        return None
    # Gone through once: a second time, a generator would be empty, and nothing be shipped.
    named = None if isinstance(ship, str) or not isinstance(ship, Iterable) else list(ship)
    if named is None or not all(isinstance(each, str) for each in named):
        raise Invalid("ship is not a list of sink rules", hint="None: every one that matches; []: none")
    return sorted(set(named))


def _check_sinks(contracts: ContractSet, key: EntityKey, named: Sequence[str] | None) -> None:
    there = {each.id for each in contracts.sink_rules(key.type)}
    for each in named or ():
        if each not in there:
            raise NotFound(
                f"no sink rule {each!r} ships entities of type {key.type}",
                hint=f"there are {', '.join(sorted(there))}" if there else "load a SINKRULE",
                sink=each,
            )
