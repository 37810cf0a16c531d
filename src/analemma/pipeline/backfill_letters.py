"""Dead letters within a scope: which there are, from where on."""

from __future__ import annotations

import json
from typing import Final

from analemma.catalog.outbox.admin import EventFilter, OutboxEntry, stopped_events
from analemma.catalog.outbox.lanes import LaneKey
from analemma.catalog.port import TenantId
from analemma.errors import Invalid
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.backfill_scope import BackfillScope
from analemma.slicing.entity_key import EntityKey, parse_entity_key

LETTERS_START: Final = '["",""]'


def read_lane(tenant: TenantId, cursor: str) -> LaneKey:
    """The lane that a cursor names."""
    aggregate_type, aggregate_id = json.loads(cursor)
    return LaneKey(tenant, aggregate_type, aggregate_id)


def write_lane(lane: LaneKey) -> str:
    """A cursor for what comes after a lane."""
    return json.dumps([lane.aggregate_type, lane.aggregate_id])


def letters_after(
    parts: TenantParts, scope: BackfillScope, after: LaneKey, limit: int
) -> tuple[list[OutboxEntry], LaneKey, bool]:
    """Some dead letters of a scope, behind which lane that was, and whether there may be more."""
    page = stopped_events(parts.engine, "dead_letters", EventFilter(parts.tenant), after=after, limit=limit)
    chosen = [each for each in page if _is_meant(parts.tenant_name, scope, each)]
    return chosen, page[-1].lane if page else after, len(page) == limit


def _is_meant(tenant: str, scope: BackfillScope, letter: OutboxEntry) -> bool:
    if scope.events and letter.type not in scope.events:
        return False
    if not scope.types and scope.ids is None and not scope.prefix:
        return True
    key = _entity(tenant, letter)
    return (
        key is not None
        and (not scope.types or key.type in scope.types)
        and (scope.ids is None or key.id in scope.ids)
        and key.id.startswith(scope.prefix)
    )


def _entity(tenant: str, letter: OutboxEntry) -> EntityKey | None:
    """Whose event it is. What the payload says may be what killed it; the lane is ours."""
    owner, colon, key = letter.lane.aggregate_id.partition(":")
    try:
        # Lanes of one sink, or of a fanout, have its name behind the key.
        found = parse_entity_key("#".join(key.split("#")[:3]))
    except Invalid:
        return None
    return found if colon and owner == tenant == found.tenant else None
