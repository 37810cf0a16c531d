"""Deploys as rows: each with its state, the sinks it waits for, and the history of its transitions; and the cutover, by
which readers who name no version get another one.

Every transition is a compare-and-set of the state that it leaves and of the attempt that it belongs to, written with
its line of history by whoever causes it, in his transaction. Whoever also holds the entity takes that first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, NamedTuple

from analemma.catalog.engine.db import Engine, Statements, Transaction
from analemma.catalog.port import TenantId
from analemma.errors import Conflict, Internal
from analemma.failpoints import declare, hit

AFTER_HOUSEKEEPING = declare("deploy.after_housekeeping", "some of the deploys that were over long ago are deleted")

BEHIND_ALL = (1 << 63) - 1
HOUSEKEEPING_BATCH = 200


class DeployState(StrEnum):
    """How far a deploy is."""

    QUEUED = "QUEUED"
    """The document is stored, and nobody has begun to compile it."""
    RUNNING = "RUNNING"
    """It is being compiled, or somebody died while he did and another goes on."""
    READY = "READY"
    """Its slices are there."""
    SINKING = "SINKING"
    """Sinks were asked to take it, and not all have answered."""
    DONE = "DONE"
    """All of them have, or none was to be asked."""
    FAILED = "FAILED"
    """It stopped, and goes on when somebody retries it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself."""
        return self in (DeployState.DONE, DeployState.FAILED)

    @property
    def is_compiled(self) -> bool:
        """Whether the slices are there."""
        return self in (DeployState.READY, DeployState.SINKING, DeployState.DONE)


_Q, _RUN, _READY, _SINK, _DONE, _FAIL = DeployState

TRANSITIONS: Final[Mapping[DeployState, frozenset[DeployState]]] = MappingProxyType(
    {
        # A worker that dies again and again over one event fails the deploy before it has begun.
        _Q: frozenset({_RUN, _FAIL}),
        _RUN: frozenset({_READY, _FAIL}),
        _READY: frozenset({_SINK, _DONE}),
        _SINK: frozenset({_DONE, _FAIL}),
        _DONE: frozenset(),
        _FAIL: frozenset({_Q}),
    }
)
"""What may follow each state."""


def check_transition(before: DeployState, after: DeployState) -> None:
    """Raise Conflict unless the one state may follow the other."""
    if after not in TRANSITIONS[before]:
        raise Conflict(
            f"a deploy that is {before} does not become {after}",
            hint=_hint(before, after),
            state=before.value,
            wanted=after.value,
        )


def _hint(before: DeployState, after: DeployState) -> str:
    if after is DeployState.QUEUED:
        return "only a FAILED one is retried" if before is not DeployState.DONE else "it is done: deploy again"
    allowed = ", ".join(sorted(TRANSITIONS[before]))
    return f"it may become {allowed}" if allowed else "nothing follows DONE: deploy again"


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
    ship_seq: int | None = None
    served: bool = False
    superseded_by: int | None = None
    error: str | None = None
    """JSON."""
    report: str | None = None
    """JSON."""
    idempotency_key: str | None = None
    fingerprint: bytes | None = None
    created_at_us: int = 0
    updated_at_us: int = 0
    finished_at_us: int | None = None


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


def add_deploy(tx: Transaction, new: DeployRow, states: Sequence[DeployState], *, now_us: int) -> DeployRow | None:
    """Add a deploy that went through these states, the first of which is QUEUED; as it is then, or None if its key is
    taken."""
    new = new._replace(state=states[-1], created_at_us=now_us, updated_at_us=now_us)
    columns = {name: getattr(new, name) for name in _ADDED}
    number = tx.row(int, "add_deploy", state=new.state.value, now=now_us, **columns)
    if number is None:
        return None
    _add_steps(tx, number, 1, _steps(None, states), now_us=now_us)
    return new._replace(number=number)


def find_deploys(source: Statements, tenant: TenantId | None, id: str) -> list[DeployRow]:
    """The deploy of this id in a tenant; or those of all tenants, in each of which there is one at most."""
    if tenant is None:
        return source.rows(as_deploy, "deploys_by_id", id=id)
    return source.rows(as_deploy, "deploy_by_id", tenant=tenant, id=id)


def advance(
    tx: Transaction,
    deploy: DeployRow,
    *states: DeployState,
    now_us: int,
    reason: str | None = None,
    asked: Sequence[str] | None = None,
    **changes: Any,
) -> DeployRow | None:
    """Move a deploy through these states at once, with what else changes of its row; as it is then, or None and nothing
    is written if it is no longer where it was. Conflict for a transition that there is not. The reason is of the last
    one. With `asked`, these sink rules are waited for from now on, to take what has the deploy's ship_seq, and of an
    earlier attempt only those that have answered are kept."""
    steps = _steps(deploy.state, states, reason)
    finished = now_us if states[-1].is_over else None
    after = deploy._replace(state=states[-1], updated_at_us=now_us, finished_at_us=finished, **changes)
    row = {name: getattr(after, name) for name in _MOVED}
    row |= {"state": after.state.value, "before": deploy.state.value, "before_attempt": deploy.attempt}
    if tx.execute("move_deploy", **row, now=now_us, finished_at=finished) != 1:
        return None
    forget = asked is not None and deploy.attempt > 1
    _add_steps(tx, deploy.number, after.attempt, steps, now_us=now_us, forget=forget, seq=after.ship_seq, asked=asked)
    return after


def hold_waiting_deploys(tx: Transaction, entities: Collection[int]) -> list[DeployRow]:
    """The deploys of entities that wait for sinks, by entity and version, held."""
    return tx.rows(as_deploy, "waiting_deploys", entities=sorted(set(entities)))


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


NO_LANE = LaneLeft(False, False, None, None)


def lanes_left(
    source: Engine | Transaction, tenant: TenantId, aggregate_type: str, ids: Collection[str]
) -> Mapping[str, LaneLeft]:
    """What is left in lanes of a type, by their ids."""
    rows = source.all("lanes_left", tenant=tenant, aggregatetype=aggregate_type, ids=ids)
    found = {row[0]: LaneLeft(bool(row[1]), bool(row[2]), *row[3:]) for row in rows}
    return {id: found.get(id, NO_LANE) for id in ids}


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


class Cutover(NamedTuple):
    """What became of one."""

    served: bool
    """Whether the version is served now."""
    moved: bool
    """Whether it was not before."""
    superseded_by: int | None
    """The newer version that is compiled already, if that is why it is not served."""
    changed: tuple[str, ...] = ()
    """The slices that readers get something else of."""


class HeldEntity(NamedTuple):
    """An entity that nobody else changes until the transaction ends."""

    newest_compiled: int | None
    serving_version: int | None
    ship_seq: int


def hold_entities(tx: Transaction, entities: Collection[int]) -> dict[int, HeldEntity]:
    """Hold entities, before anything else that the transaction holds; where each stands."""
    rows = tx.all("hold_served", entities=sorted(set(entities)))
    return {row[0]: HeldEntity(*row[1:]) for row in rows}


def hold_entity(tx: Transaction, entity: int) -> HeldEntity:
    """Hold an entity, before anything else that the transaction holds."""
    return hold_entities(tx, [entity])[entity]


def plan_cutover(tx: Transaction, entity: int, held: HeldEntity, version: int, joined: Collection[str]) -> Cutover:
    """What serving a version from now on comes to; it is not done if a newer one is compiled: sinks follow the newest
    one that is, so what is served and what they have would part ways. `joined` are the slices that others may join.
    Nothing is written."""
    newest, serving, _ = held
    if serving == version:
        return Cutover(True, False, None)
    if newest is None or newest < version:
        raise Internal(f"version {version} of entity {entity} is to be served and is not compiled")
    if newest > version:  # guard: deploy.newest
        return Cutover(False, False, newest)
    changed = tx.all("slices_that_differ", entity=entity, types=sorted(joined), before=serving, version=version)
    return Cutover(True, True, None, tuple(row[0] for row in changed))


_ADDED = (
    *("tenant", "id", "entity", "version", "created", "compiling", "ship", "cutover", "event"),
    *("idempotency_key", "fingerprint"),
)
_MOVED = ("number", "attempt", "event", "ship_seq", "served", "superseded_by", "error", "report")


def _add_steps(
    tx: Transaction,
    number: int,
    attempt: int,
    steps: Sequence[SimpleNamespace],
    *,
    now_us: int,
    forget: bool = False,
    seq: int | None = None,
    asked: Sequence[str] | None = None,
) -> None:
    given = {"number": number, "attempt": attempt, "steps": steps, "ship_seq": seq, "asked": asked or ()}
    tx.call("add_deploy_steps", SimpleNamespace(**given, now=now_us, forget=int(forget)))


def _steps(
    before: DeployState | None, states: Sequence[DeployState], reason: str | None = None
) -> list[SimpleNamespace]:
    """Each transition, the last one with the reason; Conflict for one that there is not."""
    steps = []
    for state in states:
        if before is not None:
            check_transition(before, state)
        left, why = None if before is None else before.value, reason if state is states[-1] else None
        steps.append(SimpleNamespace(before=left, state=state.value, reason=why))
        before = state
    return steps


def as_deploy(*row: Any) -> DeployRow:
    """A deploy of its columns."""
    found = DeployRow(*row)
    return found._replace(state=DeployState(found.state), created=bool(found.created), served=bool(found.served))
