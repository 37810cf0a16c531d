"""What a worker does for checkpoints: apply those that a process left behind when it died."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analemma.catalog.port import TenantId
from analemma.errors import AnalemmaError
from analemma.gc.worker import Job, Stop

if TYPE_CHECKING:
    from analemma.store.store import App

EVERY_S = 30.0
LONGEST_S = 5.0
"""A worker that is asked to stop waits for one tenant's at most so long; what is left stays pending."""


def pending_checkpoints(app: App, tenant: str | None = None) -> dict[str, int]:
    """How many checkpoints are pending in each tenant that has any, or in one."""
    tenants = [(TenantId(row[0]), str(row[1])) for row in app.catalog.engine.all("tenant_names")]
    counts = {name: app.catalog.pending_count(number) for number, name in tenants if tenant in (None, name)}
    return {name: count for name, count in counts.items() if count}


def checkpoint_job(app: App, tenant: str | None) -> Job:
    """Applying what is pending, whoever made it. Where its process lives, that is done at once and nothing is left."""

    def apply(stop: Stop) -> str | None:
        settled = 0
        in_the_way: AnalemmaError | None = None
        for name in pending_checkpoints(app, tenant):
            if stop():
                break
            try:
                settled += app.tenant(name).checkpoints.drain(timeout_s=LONGEST_S)
            except AnalemmaError as exc:
                # Tenants share nothing: what is wrong in one keeps no other from being served.
                in_the_way = exc
        if in_the_way is not None:
            raise in_the_way
        # Applied, or failed because they do not fit: their tickets say which.
        return f"{settled} settled that were pending" if settled else None

    return Job("checkpoints", EVERY_S, apply)
