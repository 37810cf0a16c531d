"""Which workflow handles which event. Effect and acknowledgement are one transaction, so each happens once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from analemma.errors import Invalid
from analemma.outbox.handlers import Event, Handler, Settle
from analemma.pipeline.events import COMPILE_REQUESTED, FANOUT_REQUESTED, RAW_DATA_INGESTED
from analemma.pipeline.fanout import FanoutWorkflow
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.pipeline.versions import parse_stored_version
from analemma.slicing.entity_key import EntityKey, parse_entity_key
from analemma.slicing.incremental import CompileMode


class TenantWorkflows(Protocol):
    """What handlers use of a tenant."""

    @property
    def slicing(self) -> SlicingWorkflow: ...

    @property
    def fanout(self) -> FanoutWorkflow: ...


def handlers(open_tenant: Callable[[str], TenantWorkflows]) -> Mapping[str, Handler]:
    """The pipeline's handlers by event type; `open_tenant` gives the workflows of a tenant by its name."""

    def compile_version(event: Event, settle: Settle) -> None:
        key, version = _named(event)
        slicing = open_tenant(event.tenant).slicing
        if not slicing.has_ruleset(key.type):
            return  # It is kept as it came; once there is a ruleset, `compile --all` makes slices of it.
        # Asked for because something that it joins changed, only what readers get has to follow.
        if event.type == COMPILE_REQUESTED and "cause" in event.payload:
            version = slicing.newest_compiled(key.type, key.id) or version
        slicing.compile(key.type, key.id, version, _mode(event), within=settle)

    def fan_out(event: Event, settle: Settle) -> None:
        key, version = _named(event)
        slice_types = event.payload.get("sliceTypes")
        if not isinstance(slice_types, list):
            raise Invalid(f"{event.type} {event.id} names no slices", event=event.id)
        cursor = event.payload.get("cursor", "0")
        if not isinstance(cursor, str) or re.fullmatch("[0-9]{1,18}", cursor) is None:
            raise Invalid(f"{event.type} {event.id} goes on from nowhere: {cursor!r}", event=event.id)
        open_tenant(event.tenant).fanout.execute(
            key, parse_stored_version(version), slice_types, int(cursor), within=settle
        )

    return {
        RAW_DATA_INGESTED: compile_version,
        COMPILE_REQUESTED: compile_version,
        FANOUT_REQUESTED: fan_out,
    }


def _named(event: Event) -> tuple[EntityKey, str]:
    key = parse_entity_key(event.payload.get("entityKey", ""))
    version: Any = event.payload.get("version")
    if key.tenant != event.tenant or not isinstance(version, str):
        raise Invalid(f"{event.type} {event.id} is of another tenant, or names no version", event=event.id)
    return key, version


def _mode(event: Event) -> CompileMode:
    asked = event.payload.get("compileMode", CompileMode.AUTO)
    try:
        return CompileMode(asked)
    except ValueError:
        raise Invalid(f"{event.type} {event.id} asks for the mode {asked!r}", event=event.id) from None
