"""Shipping: the newest compiled states of entities go to sinks, in batches, one call per sink at a time.

A request only says that an entity has something new for a sink. What is shipped is the entity's state of when it is
shipped, read in one snapshot with its `ship_seq`; so whatever was requested before that is answered by it, and requests
that come faster than a sink takes documents become one. What was shipped is recorded in the transaction that settles
the requests, after the sink has answered. If that does not come about, the same state is shipped once more, which does
no harm.

Where a sink cannot see to it that an older state never replaces a newer one, three things do: an entity and a sink have
a lane that one worker has on lease; the lease is looked at again when everything is ready to be sent; and `sink_state`
says what the sink has. If the lease is lost when the sink has answered, somebody may have shipped a newer state before:
then the newest is shipped once more."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from analemma.catalog.engine.db import Transaction
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.port import OutboxEvent, TenantId
from analemma.catalog.sinks.states import ShippedRow, ShipState, WantedShip, read_ship_states, record_shipped
from analemma.context import StoreContext
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import SinkRule
from analemma.errors import AnalemmaError, Internal, Unavailable
from analemma.failpoints import declare, hit
from analemma.outbox.batches import BatchAnswer, ChannelPlan, Delivery, Failed, Rest, StillOurs
from analemma.outbox.failures import PERMANENT, clean
from analemma.outbox.handlers import Event
from analemma.pipeline.documents import DocumentReader
from analemma.pipeline.events import Events
from analemma.pipeline.open_sinks import OpenSinks, why
from analemma.pipeline.ship_requests import ShipRequest, read_request
from analemma.sinks.port import Outcome, Shipped, Sink, SinkDocument
from analemma.slicing.entity_key import EntityKey
from analemma.tracing import span

AFTER_READ = declare("ship.after_read", "documents are read and made, and the sink was not asked")
AFTER_ANSWER = declare("ship.after_answer", "the sink has answered, and nothing of it is recorded")
BEFORE_SETTLE = declare(
    "ship.before_settle", "what was shipped is recorded inside the transaction, and nothing settled"
)

LEAST_LEASE: Final = 0.25
"""Of the time that a call may take: with less of its lease left, a lane is not shipped to a sink that does not
guard."""
LONGEST_LEAST_S: Final = 5.0

log = logging.getLogger("analemma.ship")

ShippedListener = Callable[[Transaction, Sequence[ShippedRow]], None]
"""Hears what became of documents, in the transaction that records it and settles the requests; may run again if that is
retried. Rows are in the order of entities' numbers: locks on entities are to be taken in this order. Register with
`app.on_shipped(listener)`. A request that is covered by what the sink has is told as "stale"."""


class ShippingTenant(Protocol):
    """What shipping uses of a tenant."""

    @property
    def id(self) -> TenantId: ...

    @property
    def documents(self) -> DocumentReader: ...


@dataclass(slots=True)
class _Batch:
    """What is known of a batch so far, by the positions of deliveries."""

    rule: SinkRule
    failed: dict[int, Failed] = field(default_factory=dict)
    rows: list[ShippedRow] = field(default_factory=list)
    covered: list[ShippedRow] = field(default_factory=list)
    """What the sink was not asked about, because it has that."""
    overtaken: list[tuple[TenantId, EntityKey, ShipState]] = field(default_factory=list)
    """What was sent though somebody else may have sent something newer before."""
    rest: Rest | None = None
    was_asked: bool = False

    def fail(self, at: int, reason: str, *, is_permanent: bool = False, after_s: float | None = None) -> None:
        self.failed[at] = Failed(reason, is_permanent=is_permanent, after_s=after_s)

    def fail_foreign(self, at: int, want: WantedShip, state: ShipState) -> None:
        """The document is another entity's."""
        said = f"the document {want.doc_id!a} of {self.rule.id} is that of another entity"
        self.fail(at, f"{said}: have the rule's docId tell them apart", is_permanent=True)
        self.rows.append(_row(self.rule, want, state, "refused", self.failed[at].reason))


class ShipWorkflow:
    """Ships for all tenants of a store: a handler of batches, whose channels are the ids of sink rules."""

    def __init__(
        self,
        context: StoreContext,
        *,
        contracts: Callable[[], ContractSet],
        sinks: OpenSinks,
        open_tenant: Callable[[str], ShippingTenant],
        listeners: Sequence[ShippedListener],
    ) -> None:
        """`contracts` gives what applies now, not a second ago: a rule that is not there ships nothing."""
        self._engine = context.engine
        self._contracts = contracts
        self._sinks = sinks
        self._open_tenant = open_tenant
        self._events = Events(context.entropy)
        self._clock = context.clock
        self._listeners = listeners

    def plan(self, channel: str) -> ChannelPlan:
        """How much a rule's sink is sent at once."""
        rule = self._contracts().active_sink_rules.get(channel)
        return ChannelPlan(1000) if rule is None else ChannelPlan(rule.batch_size, rule.per_second)

    def read(self, channel: str, event: Event) -> ShipRequest:
        """What an event asks for, if it is a request to ship by this rule."""
        return read_request(channel, event)

    def deliver(self, channel: str, deliveries: Sequence[Delivery[ShipRequest]], still_ours: StillOurs) -> BatchAnswer:
        """Ship what the entities of these requests are now; one call of the sink."""
        rule = self._contracts().active_sink_rules.get(channel)
        if rule is None:
            # Documents of a rule that is gone stay where they are; whoever wants them away knows where.
            # Nothing stands in the way either: what is queued need not be dropped by tens.
            log.info("nothing is shipped by %s, which is no active sink rule", channel)
            return BatchAnswer()
        with span("analemma.ship", sink=channel, documents=len(deliveries)):
            try:
                return self._deliver(rule, deliveries, still_ours)
            except AnalemmaError:
                raise
            except BaseException as exc:
                # It may come from a sink's library, and its text is told on and written down: it may hold anything.
                places = [f"{each.filename}:{each.lineno}" for each in traceback.extract_tb(exc.__traceback__)]
                log.error("shipping by %s failed (%s) at %s", channel, type(exc).__name__, ", ".join(places))
                raise Unavailable(
                    f"shipping by {channel} failed ({type(exc).__name__})", hint="the log says where"
                ) from None

    def _deliver(
        self, rule: SinkRule, deliveries: Sequence[Delivery[ShipRequest]], still_ours: StillOurs
    ) -> BatchAnswer:
        batch = _Batch(rule)
        # Entities that the rule does not ship, because it has changed, are left as they are.
        requests = {at: each for at, each in enumerate(deliveries) if each[0].key.type in rule.entity_types}
        tenants = {name: self._open_tenant(name) for name in {each[0].key.tenant for each in requests.values()}}
        wanted = {at: _wanted(rule, each[0].key, tenants[each[0].key.tenant].id) for at, each in requests.items()}
        states = read_ship_states(self._engine, rule.id, rule.slice_types, list(wanted.values()))
        ready: dict[int, ShipState] = {}
        for (at, want), state in zip(wanted.items(), states, strict=True):
            if self._is_to_ship(batch, at, requests[at], want, state):
                ready[at] = state
        self._take_documents(batch, ready, wanted)
        keys = {at: requests[at][0].key for at in ready}
        bodies = self._bodies(batch, ready, keys, tenants)
        documents = {at: _document(keys[at], wanted[at], ready[at], body) for at, body in bodies.items()}
        if documents:
            hit(AFTER_READ)
            self._ship(batch, documents, wanted, ready, still_ours)
            hit(AFTER_ANSWER)
        return BatchAnswer(batch.failed, batch.rest, self._settling(batch), is_proof=batch.was_asked)

    def _is_to_ship(
        self, batch: _Batch, at: int, requests: Delivery[ShipRequest], want: WantedShip, state: ShipState
    ) -> bool:
        """Whether the sink has to be asked."""
        if state.number is None or state.version is None:
            return False  # There is nothing to ship, and there never was.
        if state.owner is None:
            return True
        if state.owner != state.number:
            batch.fail_foreign(at, want, state)
            return False
        is_covered = state.held_seq > state.ship_seq or (  # guard: shipped.covered
            state.held_seq == state.ship_seq and not any(each.is_forced for each in requests)
        )
        if is_covered:
            batch.covered.append(_row(batch.rule, want, state, "stale"))
        return not is_covered

    def _take_documents(self, batch: _Batch, ready: dict[int, ShipState], wanted: Mapping[int, WantedShip]) -> None:
        """Write down whose each document is that is shipped for the first time, before anybody can ship another's under
        its id; leaves in `ready` what is ours to ship."""
        first = sorted((at for at, state in ready.items() if state.owner is None), key=lambda at: ready[at].number or 0)
        chosen: dict[tuple[str, str], int] = {}
        for at in first:
            chosen.setdefault((wanted[at].place, wanted[at].doc_id), at)
        taken = [(wanted[at], ready[at]) for at in chosen.values()]
        owners = self._take(batch.rule.id, taken) if taken else {}
        ours = {at for key, at in chosen.items() if owners[key] == ready[at].number}
        for at in first:
            if at not in ours:
                batch.fail_foreign(at, wanted[at], ready.pop(at))

    def _take(self, sink: str, wanted: Sequence[tuple[WantedShip, ShipState]]) -> dict[tuple[str, str], int]:
        """Whose each of these documents is: nobody's become those of these entities. No document is named twice."""
        ordered = sorted(wanted, key=lambda each: each[0][3:])
        rows = [(want.place, want.doc_id, want.tenant, state.number, state.version) for want, state in ordered]
        asked = {"sink": sink, "now": self._clock.now_us(), "documents": rows}
        taken = self._engine.write(lambda tx: tx.all("take_documents", **asked))
        return {(place, doc_id): int(owner) for place, doc_id, owner in taken}

    def _bodies(
        self,
        batch: _Batch,
        ready: Mapping[int, ShipState],
        keys: Mapping[int, EntityKey],
        tenants: Mapping[str, ShippingTenant],
    ) -> dict[int, dict[str, Any] | None]:
        """The documents, by position; None for one that is to be deleted, because none of its slices is there."""
        by_tenant: dict[str, list[int]] = {}
        for at in ready:
            by_tenant.setdefault(keys[at].tenant, []).append(at)
        found: dict[int, dict[str, Any] | None] = {}
        for name, positions in by_tenant.items():
            reader = tenants[name].documents
            chosen = [(at, keys[at], ready[at]) for at in positions]
            try:
                found |= _merge(reader, chosen)
            except AnalemmaError:
                # One is damaged, perhaps; the others are not to suffer.
                for each in chosen:
                    try:
                        found |= _merge(reader, [each])
                    except AnalemmaError as exc:
                        batch.fail(each[0], f"{exc.kind}: {exc.message}", is_permanent=isinstance(exc, PERMANENT))
        return dict(sorted(found.items()))

    def _ship(
        self,
        batch: _Batch,
        documents: dict[int, SinkDocument],
        wanted: Mapping[int, WantedShip],
        states: Mapping[int, ShipState],
        still_ours: StillOurs,
    ) -> None:
        rule = batch.rule
        with self._sinks.use(rule) as sink:
            is_safe = sink.guards and sink.remembers_deletes
            if not is_safe:
                ours = still_ours(least_s=min(rule.timeout_ms / 1000 * LEAST_LEASE, LONGEST_LEAST_S))
                for at in [at for at in documents if not ours[at]]:  # guard: shipped.lease
                    del documents[at]
                    batch.failed[at] = Failed("the lease was lost, or nearly over, before shipping", is_counted=False)
            answers = self._ask(batch, sink, list(documents.values()))
        if documents and not is_safe:
            # Whoever took a lane over before the sink took ours may have shipped before us; later, he ships after us.
            ours = still_ours(least_s=0)
            for at, document in documents.items():
                if not ours[at]:  # guard: shipped.overtaken
                    key = EntityKey(wanted[at].type, document.tenant, wanted[at].id)
                    batch.overtaken.append((wanted[at].tenant, key, states[at]))
        for at, answer in zip(documents, answers, strict=True):
            self._settle(batch, at, answer, wanted[at], states[at])
        down = [each for each in answers if each.outcome is Outcome.RETRY]
        if any(each.is_down for each in down) or (len(down) == len(answers) > 1):
            reason = clean(down[0].reason or "the sink answers nothing but that it is to be tried again")
            batch.rest = Rest(reason, max((each.after_s or 0.0 for each in down), default=0.0) or None)

    def _ask(self, batch: _Batch, sink: Sink, documents: list[SinkDocument]) -> tuple[Shipped, ...]:
        if not documents:
            return ()
        batch.was_asked = True
        try:
            answers = sink.ship_batch(documents)
        except Exception as exc:
            # Nobody knows what it took; and its text may hold anything.
            log.warning("the sink of %s raised %s", batch.rule.id, type(exc).__name__)
            answer = Shipped(Outcome.RETRY, why(exc), is_down=True)
            return (answer,) * len(documents)
        if len(answers) != len(documents):
            raise Internal(f"the sink of {batch.rule.id} gave {len(answers)} answers for {len(documents)} documents")
        return answers

    def _settle(self, batch: _Batch, at: int, answer: Shipped, want: WantedShip, state: ShipState) -> None:
        if answer.is_done:
            batch.rows.append(_row(batch.rule, want, state, answer.outcome.value))
            return
        reason = answer.reason or answer.outcome.value
        is_refused = answer.outcome is Outcome.REFUSED
        if is_refused:
            batch.rows.append(_row(batch.rule, want, state, "refused", reason))
        batch.fail(at, reason, is_permanent=is_refused, after_s=answer.after_s)

    def _settling(self, batch: _Batch) -> Callable[[Transaction], None] | None:
        if not (batch.rows or batch.covered or batch.overtaken):
            return None
        told = sorted(batch.rows + batch.covered, key=lambda row: row.entity)

        def settle(tx: Transaction) -> None:
            # Listeners first: they may lock entities, and lanes come after those, everywhere.
            if told:
                for listener in self._listeners:
                    listener(tx, told)
            record_shipped(tx, batch.rows, now_us=self._clock.now_us())
            self._request_again(tx, batch)
            hit(BEFORE_SETTLE)

        return settle

    def _request_again(self, tx: Transaction, batch: _Batch) -> None:
        by_tenant: dict[TenantId, list[OutboxEvent]] = {}
        for tenant, key, state in batch.overtaken:
            assert state.version is not None
            made = self._events.ship_requested(key, state.version, state.ship_seq, batch.rule.id, force=True)
            by_tenant.setdefault(tenant, []).append(made)
        for tenant, events in sorted(by_tenant.items()):
            log.warning("%d documents of %s are shipped once more, whose leases were lost", len(events), batch.rule.id)
            enqueue(tx, tenant, events, now_us=self._clock.now_us())


def _wanted(rule: SinkRule, key: EntityKey, tenant: TenantId) -> WantedShip:
    doc_id = rule.document_id.render({"tenantId": key.tenant, "entityType": key.type, "entityId": key.id})
    return WantedShip(tenant, key.type, key.id, _place(rule, key), doc_id)


def _place(rule: SinkRule, key: EntityKey) -> str:
    """What tells documents of one id apart: the tenant and the type, where the target has places of their own for
    them."""
    parts = [("tenantId", key.tenant), ("entityType", key.type)]
    return "#".join(value for name, value in parts if name in rule.target_placeholders)


def _merge(
    reader: DocumentReader, chosen: Sequence[tuple[int, EntityKey, ShipState]]
) -> dict[int, dict[str, Any] | None]:
    wanted = [
        (row.root, row.hash, f"{key}.{row.type}")
        for _, key, state in chosen
        for row in state.slices
        if row.root is not None and row.hash is not None
    ]
    slices = iter(reader.slices(wanted))
    merged: dict[int, dict[str, Any] | None] = {}
    for at, _, state in chosen:
        body: dict[str, Any] | None = None
        for row in state.slices:
            if row.root is not None:
                body = {**(body or {}), **_own(next(slices))}
        merged[at] = body
    return merged


def _own(value: Any) -> Any:
    """A copy: sinks are others' programs, and what is read here is kept for compiles and for the next sink."""
    if type(value) is dict:
        return {name: _own(member) for name, member in value.items()}
    return [_own(member) for member in value] if type(value) is list else value


def _document(key: EntityKey, want: WantedShip, state: ShipState, body: dict[str, Any] | None) -> SinkDocument:
    assert state.version is not None
    return SinkDocument(want.doc_id, state.ship_seq, body, key.tenant, str(key), state.version)


def _row(rule: SinkRule, want: WantedShip, state: ShipState, outcome: Any, reason: str | None = None) -> ShippedRow:
    assert state.number is not None and state.version is not None
    is_deleted = all(row.root is None for row in state.slices)
    return ShippedRow(
        want.tenant,
        state.number,
        rule.id,
        want.place,
        want.doc_id,
        state.version,
        state.ship_seq,
        is_deleted,
        outcome,
        # Others write it down in the transaction that settles the request.
        None if reason is None else clean(reason),
    )
