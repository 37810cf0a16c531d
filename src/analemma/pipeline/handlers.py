"""Which workflow handles which event. Effect and acknowledgement are one transaction, so each happens once."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from analemma.catalog.leases import LeaseLost
from analemma.errors import Invalid
from analemma.outbox.failures import PERMANENT, describe
from analemma.outbox.handlers import Event, Handler, Settle
from analemma.pipeline.deploying import DeployWorkflow
from analemma.pipeline.events import COMPILE_REQUESTED, FANOUT_CONTINUED, FANOUT_REQUESTED, RAW_DATA_INGESTED
from analemma.pipeline.fanout import FanoutWorkflow
from analemma.pipeline.slicing import SlicingWorkflow
from analemma.pipeline.versions import parse_stored_version
from analemma.slicing.entity_key import EntityKey, parse_entity_key
from analemma.slicing.incremental import CompileMode

log = logging.getLogger("analemma.pipeline")


class TenantWorkflows(Protocol):
    """What handlers use of a tenant."""

    @property
    def slicing(self) -> SlicingWorkflow: ...

    @property
    def fanout(self) -> FanoutWorkflow: ...

    @property
    def deploying(self) -> DeployWorkflow: ...


def handlers(open_tenant: Callable[[str], TenantWorkflows], *, max_attempts: int) -> Mapping[str, Handler]:
    """The pipeline's handlers by event type; `open_tenant` gives the workflows of a tenant by its name. A worker tries
    an event `max_attempts` times."""

    def compile_version(event: Event, settle: Settle) -> None:
        """Compile. What cannot be compiled is left to a newer version behind it, as a sink that refused a document is
        sent the newer one."""
        key, version = _named(event)
        # Dead before the newer one came, perhaps because workers died of it: it is not tried once more.
        if event.attempts >= max_attempts and left_to_newer(event, key, version, None, settle):
            return
        if "deployId" in event.payload and _deployed(open_tenant(event.tenant).deploying, event, key, version, settle):
            return
        slicing = open_tenant(event.tenant).slicing
        if not slicing.has_ruleset(key.type):
            return  # It is kept as it came; once there is a ruleset, `compile --all` makes slices of it.
        try:
            if event.type == COMPILE_REQUESTED and "cause" in event.payload:
                # Something that it joins changed: only what readers and sinks get has to follow.
                open_tenant(event.tenant).fanout.follow(key.type, key.id, within=settle)
            else:
                slicing.compile(key.type, key.id, version, _mode(event), within=settle)
        except LeaseLost:
            raise
        except Exception as exc:
            is_last = isinstance(exc, PERMANENT) or event.attempts + 1 >= max_attempts
            if not is_last or not left_to_newer(event, key, version, describe(exc), settle):
                raise

    def left_to_newer(event: Event, key: EntityKey, version: str, failure: str | None, settle: Settle) -> bool:
        slicing = open_tenant(event.tenant).slicing
        newer = slicing.overtaking(key, version)
        if newer is None:
            return False
        slicing.give_up(event, failure, newer=newer, settle=settle)
        why = f"it failed {event.attempts} times" if failure is None else failure
        log.error("version %s of %s is given up, and version %s takes its place: %s", version, key, newer, why)
        return True

    def fan_out(event: Event, settle: Settle) -> None:
        key, version = _named(event)
        open_tenant(event.tenant).fanout.on_entity_change(key.type, key.id, version, within=settle)

    def go_on(event: Event, settle: Settle) -> None:
        key, _ = _named(event)
        step = event.payload.get("step")
        if not isinstance(step, str) or re.fullmatch("[0-9]{1,18}", step) is None:
            raise Invalid(f"{event.type} {event.id} goes on from nowhere: {step!r}", event=event.id)
        open_tenant(event.tenant).fanout.advance(key.type, key.id, int(step), attempts=event.attempts, within=settle)

    return {
        RAW_DATA_INGESTED: compile_version,
        COMPILE_REQUESTED: compile_version,
        FANOUT_REQUESTED: fan_out,
        FANOUT_CONTINUED: go_on,
    }


def _deployed(deploying: DeployWorkflow, event: Event, key: EntityKey, version: str, settle: Settle) -> bool:
    """Go on with the deploy that an event is of; False if that is gone, and only the version is left."""
    deploy = event.payload["deployId"]
    if not isinstance(deploy, str) or re.fullmatch("[0-9a-f]{32}", deploy) is None:
        raise Invalid(f"{event.type} {event.id} is of no deploy: {deploy!r}", event=event.id)
    return deploying.handle(
        key, parse_stored_version(version), deploy, event=event.id, attempts=event.attempts, settle=settle
    )


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
