"""Which events of states lead to which entities."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Protocol

from analemma.canon.nodes import BlockId
from analemma.catalog.names import check_key
from analemma.catalog.port import BranchKey
from analemma.errors import Invalid
from analemma.outbox.handlers import Event, Handler, Settle
from analemma.pipeline.state_sources import StateSourceWorkflow
from analemma.state.events import STATE_COMMITTED, STATE_REMOVED

_MANIFEST = re.compile("[0-9a-f]{64}")


class TenantSources(Protocol):
    """What handlers use of a tenant."""

    @property
    def sources(self) -> StateSourceWorkflow: ...


def state_handlers(open_tenant: Callable[[str], TenantSources]) -> Mapping[str, Handler]:
    """The handlers of state events by event type; `open_tenant` gives the workflows of a tenant by its name."""

    def take(event: Event, settle: Settle) -> None:
        key, manifest = _key(event), event.payload.get("manifestId")
        if not isinstance(manifest, str) or _MANIFEST.fullmatch(manifest) is None:
            raise Invalid(f"{event.type} {event.id} names no version", event=event.id)
        open_tenant(event.tenant).sources.on_commit(key, BlockId(bytes.fromhex(manifest)), within=settle)

    def forget(event: Event, settle: Settle) -> None:
        open_tenant(event.tenant).sources.on_removal(_key(event), within=settle)

    return {STATE_COMMITTED: take, STATE_REMOVED: forget}


def _key(event: Event) -> BranchKey:
    payload = event.payload
    if payload.get("tenantId") != event.tenant:
        raise Invalid(f"{event.type} {event.id} is of another tenant", event=event.id)
    key = BranchKey(payload.get("ownerId", ""), payload.get("workflowId", ""), payload.get("branch", ""))
    try:
        check_key(key)
    except TypeError:
        # Such as a list: nothing that can be looked up.
        raise Invalid(f"{event.type} {event.id} names no branch", event=event.id) from None
    return key
