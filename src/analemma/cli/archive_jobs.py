"""What a worker does for workspaces: finish what was interrupted, and collect archives that nobody needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from analemma.errors import AnalemmaError, Conflict, Unavailable
from analemma.gc.worker import LONGEST_WAIT_S, Job, Stop

if TYPE_CHECKING:
    from analemma.archives.archives import Archives

Tenants = Callable[[], Sequence[tuple[str, "Archives"]]]


def archive_jobs(tenants: Tenants, *, interval_s: float, always: bool = False) -> list[Job]:
    """Finishing operations of volumes that this machine has, every minute or more often; and collecting archives in
    each tenant where nobody has for the interval. With `always`, whether or not that is due."""

    def reconcile(stop: Stop) -> str | None:
        said = []
        for tenant, archives in tenants():
            if stop():
                break
            for each in archives.reconcile(only_here=True):
                end = f"failed: {each.error}" if each.error else each.status or "purged"
                said.append(f"{each.operation} of {tenant}/{each.workspace} was interrupted: {end}")
        return "; ".join(said) or None

    def run(stop: Stop) -> str | None:
        said = []
        failed: AnalemmaError | None = None
        for tenant, archives in tenants():
            if stop():
                break
            if not always and not archives.gc_is_due(interval_s):
                continue
            try:
                report = archives.gc_run(stop=stop)
            except Conflict as exc:
                said.append(f"tenant {tenant}: left to another: {exc}")
            except AnalemmaError as exc:
                # Tenants share nothing: what is wrong in one keeps no other from being collected.
                failed = exc
                said.append(f"tenant {tenant}: failed: {exc}")
            else:
                if report.counts.units or report.counts.missing or not report.ok:
                    said.append(report.describe())
        if failed is not None:
            raise Unavailable("\n".join(said)) from failed
        return "\n".join(said) or None

    poll_s = min(LONGEST_WAIT_S, interval_s)
    return [Job("workspaces", poll_s, reconcile), Job("archives", poll_s, run)]
