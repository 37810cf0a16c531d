"""Work on a store from other processes: what they are told is where the store is and plain data; each opens the store
once, and keeps it open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analemma.errors import Invalid
from analemma.flows.remote_tasks import BatchCall, Elsewhere, run_batch_call
from analemma.flows.tasks import BatchAnswer
from analemma.pipeline.backfill import BackfillJobs, Remote
from analemma.pipeline.backfill_parts import TenantParts, tenant_parts
from analemma.settings import Settings
from analemma.store.functions import Kept
from analemma.store.open import open_app
from analemma.store.store import App


def place_of(app: App) -> Settings:
    """Settings that open the same store in other processes; Invalid for one that only this process has. They have the
    passwords that the URLs have: whoever runs the cluster sees them."""
    url, objects, file = app._place.url, app._place.objects, app._place.file
    if app._place.in_memory or (objects is not None and objects.startswith("memory:")):
        raise Invalid(
            "a store in memory is of this process only", hint="use threads, or a store in a directory or on a server"
        )
    if file is not None:
        # Elsewhere, another directory may be the current one.
        url = f"sqlite:///{quote(str(Path(file).absolute()))}"
    if objects is not None and "://" not in objects:
        objects = str(Path(objects).absolute())
    return Settings(**{**vars(app.settings), "url": url, "objects": objects})


def _open_parts(at: tuple[Settings, str]) -> TenantParts:
    app = _STORES.get(at[0])
    return tenant_parts(app.tenant(at[1]).context, app.contracts)


_STORES: Kept[Settings, App] = Kept(lambda place: open_app(settings=place, create=False))
_PARTS: Kept[tuple[Settings, str], TenantParts] = Kept(_open_parts)


def work_on_page(place: Settings, tenant: str, work: Callable[[TenantParts, Any], Any], call: Any) -> Any:
    """What a function makes of a page of a backfill, in whatever process this is."""
    return work(_PARTS.get((place, tenant)), call)


def run_flow_tasks(place: Settings, tenant: str, call: BatchCall) -> BatchAnswer:
    """Tasks of a group of a run."""
    return run_batch_call(_STORES.get(place).tenant(tenant).flows._parts, call)


def flows_elsewhere(app: App) -> Elsewhere:
    """How tasks of an open store's runs get to other processes."""
    return Elsewhere(run_flow_tasks, place_of(app))


def open_backfills(app: App) -> BackfillJobs:
    """The backfills of an open store."""
    return BackfillJobs(
        app.context,
        open_tenant=lambda name: tenant_parts(app.tenant(name).context, app.contracts),
        contracts=app.contracts.fresh,
        remote=Remote(lambda: place_of(app), work_on_page),
    )
