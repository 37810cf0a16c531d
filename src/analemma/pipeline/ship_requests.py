"""Requests to ship: how events ask for it, and how people do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from analemma.canon.canonical_json import canonical_json
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.entities import EntityPlace, EntityRow, find_entity
from analemma.catalog.outbox.lanes import enqueue
from analemma.catalog.port import OutboxEvent
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.errors import Invalid, NotFound
from analemma.outbox.handlers import Event
from analemma.pipeline.events import SHIP_CHANGED, SHIP_FORCED, SHIP_REQUESTED, SLICE, Events, ship_lane
from analemma.pipeline.versions import parse_stored_version
from analemma.slicing.entity_key import EntityKey, parse_entity_key
from analemma.slicing.tsid import Version, format_version

_SHIP_SEQ: Final = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class ShipRequest:
    """What an event asks for."""

    key: EntityKey
    is_forced: bool
    """Whether the state is to be shipped also if the sink is known to have it."""


def read_request(channel: str, event: Event) -> ShipRequest:
    """What an event asks for; Invalid unless it is a request to ship by this rule, in the lane of its entity: others
    can write to the table too."""
    payload = event.payload
    key = parse_entity_key(payload.get("entityKey", ""))
    version: Any = payload.get("version")
    ship_seq: Any = payload.get("shipSeq")
    mode = payload.get("shipMode", SHIP_CHANGED)
    if event.type != SHIP_REQUESTED or payload.get("sink") != channel or mode not in (SHIP_CHANGED, SHIP_FORCED):
        raise Invalid(f"{event.type} {event.id} is no request to ship by {channel}", event=event.id)
    if (event.aggregate_type, event.aggregate_id) != (SLICE, ship_lane(key, channel)) or key.tenant != event.tenant:
        raise Invalid(f"{event.type} {event.id} is not in the lane of its entity and sink", event=event.id)
    if not isinstance(version, str) or not isinstance(ship_seq, str) or _SHIP_SEQ.fullmatch(ship_seq) is None:
        raise Invalid(f"{event.type} {event.id} names no version or no shipSeq", event=event.id)
    parse_stored_version(version)
    return ShipRequest(key, mode == SHIP_FORCED)


def force_request(payload: bytes) -> bytes:
    """A request that was carried out, as somebody asks for it again: the sink is known to have that, and is meant."""
    try:
        found = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload
    return canonical_json({**found, "shipMode": SHIP_FORCED}) if isinstance(found, dict) else payload


@dataclass(frozen=True, slots=True)
class Shipping:
    """What was asked for: a worker ships it."""

    entity: str
    version: str
    ship_seq: int
    sinks: tuple[str, ...]
    """The rules that were asked."""


class ShipRequests:
    """Asks for one tenant's entities to be shipped."""

    def __init__(self, context: Context, *, contracts: Callable[[], ContractSet], events: Events) -> None:
        self._context = context
        self._contracts = contracts
        self._events = events

    def request(
        self, entity_type: str, entity_id: str, *, sinks: Sequence[str] | None = None, force: bool = True
    ) -> Shipping:
        """Have the newest compiled state shipped to the sinks of these rules, or of all that ship the type. With
        `force`, also to those that are known to have it. NotFound for what is not there, not compiled, or not
        shipped."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        chosen = self.rules_for(entity_type, sinks)

        def move(tx: Transaction) -> EntityRow:
            found = find_entity(tx, self._context.tenant, EntityPlace(key.type, key.id))
            if found is None or found.newest_raw is None:
                raise NotFound(f"there is no {key}", hint="ids keep their case", entity=str(key))
            if found.newest_compiled is None:
                raise NotFound(f"{key} is not compiled", hint="compile it, or run a worker", entity=str(key))
            self.enqueue(tx, [(key, found.newest_compiled, found.ship_seq)], chosen, force=force)
            return found

        entity = self._context.engine.write(move)
        self._context.wake()
        assert entity.newest_compiled is not None
        return Shipping(str(key), format_version(Version(entity.newest_compiled)), entity.ship_seq, chosen)

    def rules_for(self, entity_type: str, sinks: Sequence[str] | None) -> tuple[str, ...]:
        """The ids of the rules that ship a type: these, or all; NotFound if there is none, or one of these is none."""
        rules = [each.id for each in self._contracts().sink_rules(entity_type)]
        # Gone through once: a second time, a generator would be empty, and nothing be asked.
        named = None if sinks is None else list(sinks)
        unknown = [each for each in named or () if each not in rules]
        if unknown or not rules:
            what = f"no sink rule {unknown[0]}" if unknown else "no sink rule"
            hint = f"there are {', '.join(rules)}" if rules else "load a SINKRULE that is ACTIVE"
            raise NotFound(f"{what} ships entities of type {entity_type}", hint=hint, entity_type=entity_type)
        return tuple(rules if named is None else dict.fromkeys(named))

    def enqueue(
        self,
        tx: Transaction,
        entities: Iterable[tuple[EntityKey, int, int]],
        sinks: Sequence[str],
        *,
        force: bool = True,
        priority: int = 0,
    ) -> int:
        """Ask for many entities, each with its newest compiled version and its ship_seq, in somebody's transaction; how
        many requests that are. Wake workers after the commit."""
        made: list[OutboxEvent] = [
            self._events.ship_requested(key, version, ship_seq, sink, force=force, priority=priority)
            for key, version, ship_seq in entities
            for sink in sinks
        ]
        enqueue(tx, self._context.tenant, made, now_us=self._context.clock.now_us())
        return len(made)
