"""The events of the pipeline: which lane each goes to, and what it says. Events name things; data stays where it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.catalog.port import OutboxEvent
from analemma.clock import Entropy
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.tsid import Version, format_version
from analemma.tracing import current_trace

RAW_DATA_INGESTED: Final = "RawDataIngested"
COMPILE_REQUESTED: Final = "CompileRequested"
FANOUT_REQUESTED: Final = "FanoutRequested"
FANOUT_CONTINUED: Final = "FanoutContinued"
SHIP_REQUESTED: Final = "ShipRequested"

RAW_DATA: Final = "RAW_DATA"
"""Everything that makes an entity be compiled is in one lane of its own: one compile at a time, in order."""
CHANGESET: Final = "CHANGESET"
SLICE: Final = "SLICE"
"""What is to be shipped: one lane per entity and sink rule, and the rule's id as channel, so that sinks do not wait for
each other."""

SHIP_CHANGED: Final = "CHANGED"
SHIP_FORCED: Final = "FORCED"
"""Ship modes. FORCED ships also what the sink is known to have."""

DEFERRED_PRIORITY: Final = 100
"""Of what comes after everything else."""

PAYLOAD_VERSION: Final = "1.0"


class Events:
    """Makes events of one tenant's entities."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def new_id(self) -> str:
        """An event's id, which stays the same however often the event is sent."""
        return self._entropy.random_bytes(16).hex()

    def raw_data_ingested(
        self, key: EntityKey, version: int, event_id: str, *, deploy: str | None = None
    ) -> OutboxEvent:
        """There is a version to compile, perhaps as part of a deploy."""
        more = {} if deploy is None else {"deployId": deploy}
        return self._event(RAW_DATA, RAW_DATA_INGESTED, key, version, event_id, **more)

    def deploy_requested(self, key: EntityKey, version: int, event_id: str, deploy: str) -> OutboxEvent:
        """A deploy is to go on with a version that is there."""
        more = {"deployId": deploy, "compileMode": "AUTO"}
        return self._event(RAW_DATA, COMPILE_REQUESTED, key, version, event_id, **more)

    def compile_requested(self, key: EntityKey, version: int, cause: EntityKey) -> OutboxEvent:
        """What this entity joins has changed."""
        more = {"cause": str(cause), "compileMode": "AUTO"}
        return self._event(RAW_DATA, COMPILE_REQUESTED, key, version, self.new_id(), **more)

    def fanout_requested(self, key: EntityKey, version: int, slice_types: list[str]) -> OutboxEvent:
        """Slices changed that others join."""
        return self._event(CHANGESET, FANOUT_REQUESTED, key, version, self.new_id(), sliceTypes=slice_types)

    def fanout_continued(self, key: EntityKey, version: int, step: int, *, deferred: bool = False) -> OutboxEvent:
        """The fanout of this entity is to go on, if it is at this step. What is beyond its limit waits in a lane of its
        own, behind everything else."""
        made = self._event(CHANGESET, FANOUT_CONTINUED, key, version, self.new_id(), step=str(step))
        # Ids have no '#' in them.
        lane = f"{made.aggregate_id}#{'deferred' if deferred else 'fanout'}"
        return replace(made, aggregate_id=lane, priority=DEFERRED_PRIORITY if deferred else 0)

    def ship_requested(
        self, key: EntityKey, version: int, ship_seq: int, sink: str, *, force: bool = False, priority: int = 0
    ) -> OutboxEvent:
        """A sink is to get the entity's newest compiled state; `sink` is the id of the rule. What is shipped is the
        state of when it is shipped, of this `ship_seq` or a greater one."""
        more = {"shipSeq": str(ship_seq), "sink": sink, "shipMode": SHIP_FORCED if force else SHIP_CHANGED}
        made = self._event(SLICE, SHIP_REQUESTED, key, version, self.new_id(), **more)
        return replace(made, aggregate_id=ship_lane(key, sink), channel=sink, priority=priority)

    def _event(
        self, aggregate: str, kind: str, key: EntityKey, version: int, event_id: str, **more: Any
    ) -> OutboxEvent:
        payload = {
            "payloadVersion": PAYLOAD_VERSION,
            "tenantId": key.tenant,
            "entityKey": str(key),
            "version": format_version(Version(version)),
            **more,
        }
        lane = f"{key.tenant}:{key}"
        return OutboxEvent(event_id, aggregate, lane, kind, canonical_json(payload), trace=current_trace())


def ship_lane(key: EntityKey, sink: str) -> str:
    """The lane in which an entity is shipped by a rule; ids of entities have no `#` in them."""
    return f"{key.tenant}:{key}#{sink}"
