"""Fanouts as people see them: which are under way, which have an alert, and how each is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

from analemma.catalog.entities.fanouts import FanoutRows, ListedFanout
from analemma.catalog.port import TenantId
from analemma.clock import Clock
from analemma.errors import Invalid, NotFound
from analemma.pipeline.cursors import decode_cursor, encode_cursor
from analemma.pipeline.fanout_results import FanoutResult, fanout_result
from analemma.slicing.entity_key import EntityKey

PAGE: Final = 100
LARGEST_PAGE: Final = 10_000
HOUSEKEEPING_BATCH: Final = 1000
SECOND_US: Final = 1_000_000


class FanoutVerbs(Protocol):
    """What is used of a tenant's workflow."""

    def result(self, entity_type: str, entity_id: str) -> FanoutResult: ...

    def resume(self, entity_type: str, entity_id: str) -> FanoutResult: ...


@dataclass(frozen=True, slots=True)
class FanoutPage:
    """Some fanouts, and where the next ones begin."""

    fanouts: tuple[FanoutResult, ...]
    cursor: str | None
    """For the next page; None if this is the last."""


@dataclass(frozen=True, slots=True)
class FanoutsStatus:
    """How fanouts are doing."""

    queued: int
    running: int
    deferred: int
    """Those of which all that is left is beyond its limit."""
    affected: int
    """How many entities those under way have to visit, as far as they were counted."""
    visited: int
    alerts: int
    """Fanouts with an alert, also those that are done."""
    alerts_under_way: int
    oldest_s: float | None
    """How long the oldest of them has been under way."""

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


class Fanouts:
    """The fanouts of all tenants. Where a tenant is named, only that one's are meant."""

    def __init__(
        self,
        rows: FanoutRows,
        *,
        find_tenant: Callable[[str], TenantId | None],
        workflow: Callable[[str], FanoutVerbs],
        default_tenant: str,
        keep_s: float,
        clock: Clock,
    ) -> None:
        self._rows = rows
        self._find_tenant = find_tenant
        self._workflow = workflow
        self._default_tenant = default_tenant
        self._keep_s = keep_s
        self._clock = clock

    def status(self, tenant: str | None = None) -> FanoutsStatus:
        """How many are under way, and how far they are."""
        counts, alerts, alerts_under_way = self._rows.counts(self._number(tenant))
        oldest_us = min((each.oldest_us for each in counts.values()), default=None)
        return FanoutsStatus(
            queued=counts["QUEUED"].fanouts if "QUEUED" in counts else 0,
            running=counts["RUNNING"].fanouts if "RUNNING" in counts else 0,
            deferred=counts["DEFERRED"].fanouts if "DEFERRED" in counts else 0,
            affected=sum(each.affected for each in counts.values()),
            visited=sum(each.visited for each in counts.values()),
            alerts=alerts,
            alerts_under_way=alerts_under_way,
            oldest_s=None if oldest_us is None else max(0.0, (self._clock.now_us() - oldest_us) / SECOND_US),
        )

    def list(
        self, tenant: str | None = None, *, under_way: bool = False, limit: int = PAGE, cursor: str | None = None
    ) -> FanoutPage:
        """Fanouts that are kept, or only those under way."""
        return self._page(tenant, limit, cursor, under_way=under_way)

    def alerts(self, tenant: str | None = None, *, limit: int = PAGE, cursor: str | None = None) -> FanoutPage:
        """Fanouts that went beyond a limit, until the entity's next one, or until they are no longer kept."""
        return self._page(tenant, limit, cursor, with_alert=True)

    def get(self, entity_type: str, entity_id: str, *, tenant: str | None = None) -> FanoutResult:
        """How far an entity's fanout is, or how the last one ended; NotFound if there is none."""
        return self._of(tenant).result(entity_type, entity_id)

    def resume(self, entity_type: str, entity_id: str, *, tenant: str | None = None) -> FanoutResult:
        """Have a fanout go on whose event was discarded; NotFound if there is none."""
        return self._of(tenant).resume(entity_type, entity_id)

    def housekeep(self, *, done_after_s: float | None = None, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete what was done longer ago than that, or than the settings say; how many."""
        keep_s = self._keep_s if done_after_s is None else done_after_s
        before_us = self._clock.now_us() - int(keep_s * SECOND_US)
        total = 0
        while not stop():
            deleted = self._rows.forget(finished_before_us=before_us, limit=HOUSEKEEPING_BATCH)
            total += deleted
            if deleted < HOUSEKEEPING_BATCH:
                break
        return total

    def _page(self, tenant: str | None, limit: int, cursor: str | None, **chosen: bool) -> FanoutPage:
        if not 1 <= limit <= LARGEST_PAGE:
            raise Invalid(f"a page of {limit}", hint=f"1 to {LARGEST_PAGE}")
        question = ("fanouts", tenant, *sorted(name for name, value in chosen.items() if value))
        after = 0 if cursor is None else decode_cursor(question, cursor)
        if not isinstance(after, int):
            raise Invalid("not a cursor of this query", hint="give the cursor of a page of the same query, unchanged")
        found = self._rows.page(tenant=self._number(tenant), after=after, limit=limit + 1, **chosen)
        more = len(found) > limit
        return FanoutPage(
            tuple(_told(each) for each in found[:limit]),
            encode_cursor(question, found[limit - 1].row.entity) if more else None,
        )

    def _of(self, tenant: str | None) -> FanoutVerbs:
        name = self._default_tenant if tenant is None else tenant
        self._number(name)
        return self._workflow(name)

    def _number(self, tenant: str | None) -> TenantId | None:
        if tenant is None:
            return None
        found = self._find_tenant(tenant)
        if found is None:
            raise NotFound(f"there is no tenant {tenant!r}", hint="ingesting something begins a tenant", tenant=tenant)
        return found


def _told(listed: ListedFanout) -> FanoutResult:
    return fanout_result(EntityKey(listed.place.type, listed.tenant, listed.place.id), listed.row)
