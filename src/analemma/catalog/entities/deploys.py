"""Deploys as rows: each with its state, the sinks it waits for, and the history of its transitions.

Every transition is a compare-and-set of the state that it leaves and of the attempt that it belongs to, written with
its line of history by whoever causes it, in his transaction. Whoever also holds the entity takes that first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.entities.deploy_states import DeployState, check_transition
from analemma.catalog.outbox.lanes import LaneKey
from analemma.catalog.port import TenantId
from analemma.failpoints import declare, hit

AFTER_HOUSEKEEPING = declare("deploy.after_housekeeping", "some of the deploys that were over long ago are deleted")

BEHIND_ALL = (1 << 63) - 1
HOUSEKEEPING_BATCH = 200


class DeployRow(NamedTuple):
    """A deploy as it lies in the catalog."""

    number: int
    tenant: TenantId
    tenant_name: str
    id: str
    entity: int
    type: str
    key: str
    version: int
    created: bool
    state: DeployState
    compiling: str
    ship: str | None
    """JSON list of sink rules; None: every one that matches."""
    cutover: str
    attempt: int
    event: str
    ship_seq: int | None
    served: bool
    superseded_by: int | None
    error: str | None
    """JSON."""
    report: str | None
    """JSON."""
    idempotency_key: str | None
    fingerprint: bytes | None
    created_at_us: int
    updated_at_us: int
    finished_at_us: int | None


class NewDeploy(NamedTuple):
    """A deploy that begins."""

    id: str
    entity: int
    version: int
    created: bool
    compiling: str
    ship: str | None
    cutover: str
    event: str
    idempotency_key: str | None
    fingerprint: bytes | None


class SinkRow(NamedTuple):
    """A sink that a deploy waits for, or waited for."""

    rule: str
    state: str
    """WAITING, ANSWERED or FAILED."""
    ship_seq: int
    answered_seq: int | None
    reason: str | None
    asked_at_us: int
    answered_at_us: int | None


class StepRow(NamedTuple):
    """A transition that took place."""

    before: DeployState | None
    state: DeployState
    attempt: int
    reason: str | None
    at_us: int


class DeployRows:
    """One tenant's deploys."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant

    def find(self, id: str) -> DeployRow | None:
        """The deploy of this id."""
        found = find_deploys(self._engine, self._tenant, id)
        return found[0] if found else None

    def find_by_key(self, idempotency_key: str) -> DeployRow | None:
        """The deploy that was asked for under a key."""
        return self._engine.row(_deploy, "deploy_by_key", tenant=self._tenant, idempotency_key=idempotency_key)

    def add(self, tx: Transaction, new: NewDeploy, states: Sequence[DeployState], *, now_us: int) -> int | None:
        """Add a deploy that went through these states, the first of which is QUEUED; its number, or None if its key is
        taken."""
        number = tx.row(int, "add_deploy", tenant=self._tenant, state=states[-1].value, now=now_us, **new._asdict())
        if number is not None:
            tx.call("add_deploy_steps", _Steps(number, now_us, 1, _steps(None, states)))
        return number


def list_deploys(
    source: Statements,
    tenant: TenantId | None,
    *,
    state: DeployState | None = None,
    entity: int | None = None,
    entity_type: str | None = None,
    before: int = BEHIND_ALL,
    limit: int,
) -> list[DeployRow]:
    """A page of those that match, of a tenant or of all, newest first, before a number."""
    return source.rows(
        _deploy,
        "list_deploys",
        tenant=tenant,
        state=None if state is None else state.value,
        entity=entity,
        type=entity_type,
        before=before,
        limit=limit,
    )


def find_deploys(source: Statements, tenant: TenantId | None, id: str) -> list[DeployRow]:
    """The deploy of this id in a tenant; or those of all tenants, in each of which there is one at most."""
    if tenant is None:
        return source.rows(_deploy, "deploys_by_id", id=id)
    return source.rows(_deploy, "deploy_by_id", tenant=tenant, id=id)


def move(
    tx: Transaction, deploy: DeployRow, state: DeployState, *, now_us: int, reason: str | None = None, **changes: Any
) -> DeployRow | None:
    """Move a deploy to another state, with what else changes of its row; as it is then, or None and nothing is written
    if it is no longer where it was. Conflict for a transition that there is not."""
    return advance(tx, deploy, [state], now_us=now_us, reason=reason, **changes)


def advance(
    tx: Transaction,
    deploy: DeployRow,
    states: Sequence[DeployState],
    *,
    now_us: int,
    reason: str | None = None,
    asked: Sequence[str] | None = None,
    **changes: Any,
) -> DeployRow | None:
    """Move a deploy through states at once, as `move` does; the reason is of the last one. With `asked`, these sink
    rules are waited for from now on, to take what has the deploy's ship_seq, and of an earlier attempt only those that
    have answered are kept."""
    steps = _steps(deploy.state, states, reason)
    state = states[-1]
    finished = now_us if state.is_over else None
    after = deploy._replace(state=state, updated_at_us=now_us, finished_at_us=finished, **changes)
    row = {
        "number": deploy.number,
        "before": deploy.state.value,
        "before_attempt": deploy.attempt,
        "state": state.value,
        "attempt": after.attempt,
        "event": after.event,
        "ship_seq": after.ship_seq,
        "served": after.served,
        "superseded_by": after.superseded_by,
        "error": after.error,
        "report": after.report,
        "now": now_us,
        "finished_at": finished,
    }
    if tx.execute("move_deploy", **row) != 1:
        return None
    forget = asked is not None and deploy.attempt > 1
    tx.call(
        "add_deploy_steps",
        _Steps(deploy.number, now_us, after.attempt, steps, int(forget), after.ship_seq, asked or ()),
    )
    return after


def finish_deploys(tx: Transaction, deploys: Sequence[DeployRow], *, now_us: int) -> None:
    """Deploys that are held, and whose sinks have all answered, are DONE; nothing else of them changes."""
    tx.call("finish_deploys", _Finished(now_us, [each.number for each in deploys]))


def find_sinks(source: Statements, number: int) -> list[SinkRow]:
    """The sinks of a deploy."""
    return source.rows(SinkRow, "deploy_sinks", deploy=number)


def find_steps(source: Statements, number: int) -> list[StepRow]:
    """The history of a deploy."""
    return source.rows(_step, "deploy_steps", deploy=number)


def find_sinks_of(source: Transaction, numbers: Collection[int]) -> dict[int, list[SinkRow]]:
    """The sinks of deploys, by the number of the deploy."""
    found: dict[int, list[SinkRow]] = {number: [] for number in numbers}
    for number, *row in source.all("sinks_of_deploys", deploys=sorted(set(numbers))):
        found[number].append(SinkRow(*row))
    return found


def deploying_entities(tx: Transaction, entities: Collection[int]) -> list[int]:
    """Those of these entities that have deploys which wait for sinks, in order."""
    return [row[0] for row in tx.all("deploying_entities", entities=sorted(set(entities)))]


def hold_waiting_deploys(tx: Transaction, entities: Collection[int]) -> list[DeployRow]:
    """The deploys of entities that wait for sinks, by entity and version, held."""
    return tx.rows(_deploy, "waiting_deploys", entities=sorted(set(entities)))


class SinkAnswer(NamedTuple):
    """What a sink made of an entity as it was at a ship_seq: whoever waited for that, or for less, has his answer."""

    entity: int
    rule: str
    ship_seq: int
    is_refused: bool
    reason: str | None


def answer_sinks(tx: Transaction, answers: Iterable[SinkAnswer], *, now_us: int) -> None:
    """Write down what sinks answered to those who wait."""
    tx.call("answer_deploy_sinks", _Answers(now_us, list(answers)))


def find_unfinished(source: Engine, entities: Collection[int]) -> dict[int, DeployRow]:
    """The newest deploys of entities, by entity, without those that are DONE."""
    rows = source.rows(_deploy, "unfinished_deploys", entities=sorted(set(entities)))
    return {row.entity: row for row in rows}


class LaneLeft(NamedTuple):
    """What is left to deliver in a lane."""

    left: bool
    parked: bool
    """Whether the first of it is dead, and stops the others."""
    first: str | None
    """Its id."""
    reason: str | None
    """Why it failed, if it did."""
    attempts: int = 0
    """How often it was tried and failed."""
    retry_us: int | None = None
    """When it is tried again, if it failed."""


class DeployEvent(NamedTuple):
    """What became of the event that has a deploy compiled."""

    status: str
    processed_at_us: int | None
    reason: str | None
    aggregate_type: str
    aggregate_id: str
    seq: int
    attempts: int
    tenant: TenantId

    @property
    def is_dead(self) -> bool:
        """Whether it was given up on, and nobody has done anything about that."""
        return self.status == "DEAD" and self.processed_at_us is None

    @property
    def lane(self) -> LaneKey:
        """Where it is."""
        return LaneKey(self.tenant, self.aggregate_type, self.aggregate_id)


NO_LANE = LaneLeft(False, False, None, None)


def lanes_left(
    source: Engine | Transaction, tenant: TenantId, aggregate_type: str, ids: Collection[str]
) -> Mapping[str, LaneLeft]:
    """What is left in lanes of a type, by their ids."""
    rows = source.all("lanes_left", tenant=tenant, aggregatetype=aggregate_type, ids=ids)
    found = {row[0]: LaneLeft(bool(row[1]), bool(row[2]), *row[3:]) for row in rows}
    return {id: found.get(id, NO_LANE) for id in ids}


class SliceSince(NamedTuple):
    """That a slice was written from some version on."""

    version: int
    """The last one."""
    again: bool
    """Whether a version was compiled again, and the slice became something else by that."""


def slices_since(source: Statements, entity: int, since: int, version: int) -> dict[str, SliceSince]:
    """The slices of an entity that were written from one version up to another, by their types."""
    rows = source.all("slices_since", entity=entity, since=since, version=version)
    return {row[0]: SliceSince(row[1], bool(row[2])) for row in rows}


def find_event(source: Statements, tenant: TenantId, id: str) -> DeployEvent | None:
    """The event of this id; None if housekeeping deleted it."""
    return source.row(DeployEvent, "deploy_event", tenant=tenant, id=id)


def drop_old_deploys(engine: Engine, *, before_us: int) -> int:
    """Delete a batch of deploys, of all tenants, that were over before a time; how many. One that failed stays until a
    newer version is compiled: nothing else says that its version was never compiled, or never came to its sinks."""

    def drop(tx: Transaction) -> int:
        numbers = [row[0] for row in tx.all("old_deploys", before=before_us, limit=HOUSEKEEPING_BATCH)]
        if not numbers:
            return 0
        gone = [row[0] for row in tx.all("drop_deploys", numbers=sorted(set(numbers)), before=before_us)]
        tx.execute("drop_deploy_sinks", numbers=gone)
        tx.execute("drop_deploy_steps", numbers=gone)
        return len(gone)

    dropped = engine.write(drop)
    hit(AFTER_HOUSEKEEPING)
    return dropped


class _Step(NamedTuple):
    before: str | None
    state: str
    reason: str | None


class _Steps(NamedTuple):
    """What `add_deploy_steps` takes."""

    number: int
    now: int
    attempt: int
    steps: Sequence[_Step]
    forget: int = 0
    ship_seq: int | None = None
    asked: Sequence[str] = ()


class _Finished(NamedTuple):
    """What `finish_deploys` takes."""

    now: int
    numbers: Sequence[int]


class _Answers(NamedTuple):
    """What `answer_deploy_sinks` takes."""

    now: int
    answers: Sequence[SinkAnswer]


def _steps(before: DeployState | None, states: Sequence[DeployState], reason: str | None = None) -> list[_Step]:
    """Each transition, the last one with the reason; Conflict for one that there is not."""
    steps: list[_Step] = []
    for state in states:
        if before is not None:
            check_transition(before, state)
        told = None if before is None else before.value
        steps.append(_Step(told, state.value, reason if state is states[-1] else None))
        before = state
    return steps


def _step(before: str | None, state: str, attempt: int, reason: str | None, at_us: int) -> StepRow:
    return StepRow(None if before is None else DeployState(before), DeployState(state), attempt, reason, at_us)


def _deploy(*row: Any) -> DeployRow:
    found = DeployRow(*row)
    return found._replace(state=DeployState(found.state), created=bool(found.created), served=bool(found.served))
