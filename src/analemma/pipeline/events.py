"""The events of the pipeline: which lane each goes to, and what it says. Events name things; data stays where it is."""

from __future__ import annotations

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

RAW_DATA: Final = "RAW_DATA"
"""Everything that makes an entity be compiled is in one lane of its own: one compile at a time, in order."""
CHANGESET: Final = "CHANGESET"

PAYLOAD_VERSION: Final = "1.0"


class Events:
    """Makes events of one tenant's entities."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def new_id(self) -> str:
        """An event's id, which stays the same however often the event is sent."""
        return self._entropy.random_bytes(16).hex()

    def raw_data_ingested(self, key: EntityKey, version: int, event_id: str) -> OutboxEvent:
        """There is a version to compile."""
        return self._event(RAW_DATA, RAW_DATA_INGESTED, key, version, event_id)

    def compile_requested(self, key: EntityKey, version: int, cause: EntityKey) -> OutboxEvent:
        """What this entity joins has changed."""
        more = {"cause": str(cause), "compileMode": "AUTO"}
        return self._event(RAW_DATA, COMPILE_REQUESTED, key, version, self.new_id(), **more)

    def fanout_requested(self, key: EntityKey, version: int, slice_types: list[str], after: int = 0) -> OutboxEvent:
        """Slices changed that others join; `after` says how far their dependants were told already."""
        more: dict[str, Any] = {"sliceTypes": slice_types}
        if after:
            more["cursor"] = str(after)
        return self._event(CHANGESET, FANOUT_REQUESTED, key, version, self.new_id(), **more)

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
