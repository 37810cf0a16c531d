"""Fanouts as people see them: which are under way, which have an alert, and how each is doing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from analemma.catalog.entities.entities import FanoutRow
from analemma.context import StoreContext
from analemma.errors import Invalid
from analemma.pipeline.cursors import decode_cursor, encode_cursor
from analemma.pipeline.fanout_results import FanoutResult, fanout_result
from analemma.slicing.entity_key import EntityKey

if TYPE_CHECKING:
    from analemma.pipeline.fanout import FanoutWorkflow

PAGE: Final = 100
LARGEST_PAGE: Final = 10_000
HOUSEKEEPING_BATCH: Final = 1000
SECOND_US: Final = 1_000_000
_QUESTIONS: Final = {"fanouts": (), "fanouts_under_way": ("under_way",), "alerted_fanouts": ("with_alert",)}
"""What tells cursors of each statement's pages from those of the others."""


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

    def __init__(self, context: StoreContext, workflow: Callable[[str], FanoutWorkflow]) -> None:
        """`workflow` gives that of a tenant."""
        self._context = context
        self._engine = context.engine
        self._workflow = workflow

    def status(self, tenant: str | None = None) -> FanoutsStatus:
        """How many are under way, and how far they are."""
        number = self._context.tenant_number(tenant)
        # By status: how many, how many entities they have to visit, how many they have visited, and since when.
        counts = {status: tuple(row) for status, *row in self._engine.all("fanout_counts", tenant=number)}
        ((alerts, alerts_under_way),) = self._engine.all("fanout_alert_count", tenant=number)
        oldest_us = min((each[3] for each in counts.values()), default=None)
        return FanoutsStatus(
            queued=counts.get("QUEUED", (0,))[0],
            running=counts.get("RUNNING", (0,))[0],
            deferred=counts.get("DEFERRED", (0,))[0],
            affected=sum(int(each[1]) for each in counts.values()),
            visited=sum(int(each[2]) for each in counts.values()),
            alerts=alerts,
            alerts_under_way=alerts_under_way,
            oldest_s=None if oldest_us is None else max(0.0, (self._context.clock.now_us() - oldest_us) / SECOND_US),
        )

    def list(
        self, tenant: str | None = None, *, under_way: bool = False, limit: int = PAGE, cursor: str | None = None
    ) -> FanoutPage:
        """Fanouts that are kept, or only those under way."""
        return self._page(tenant, limit, cursor, "fanouts_under_way" if under_way else "fanouts")

    def alerts(self, tenant: str | None = None, *, limit: int = PAGE, cursor: str | None = None) -> FanoutPage:
        """Fanouts that went beyond a limit, until the entity's next one, or until they are no longer kept."""
        return self._page(tenant, limit, cursor, "alerted_fanouts")

    def get(self, entity_type: str, entity_id: str, *, tenant: str | None = None) -> FanoutResult:
        """How far an entity's fanout is, or how the last one ended; NotFound if there is none."""
        return self._of(tenant).result(entity_type, entity_id)

    def resume(self, entity_type: str, entity_id: str, *, tenant: str | None = None) -> FanoutResult:
        """Have a fanout go on whose event was discarded; NotFound if there is none."""
        return self._of(tenant).resume(entity_type, entity_id)

    def housekeep(self, *, done_after_s: float | None = None, stop: Callable[[], bool] = lambda: False) -> int:
        """Delete what was done longer ago than that, or than the settings say; how many."""
        keep_s = self._context.settings.fanout_keep_s if done_after_s is None else done_after_s
        before_us = self._context.clock.now_us() - int(keep_s * SECOND_US)
        total = 0
        while not stop():
            deleted = self._engine.execute("forget_fanouts", before=before_us, limit=HOUSEKEEPING_BATCH)
            total += deleted
            if deleted < HOUSEKEEPING_BATCH:
                break
        return total

    def _page(self, tenant: str | None, limit: int, cursor: str | None, statement: str) -> FanoutPage:
        if not 1 <= limit <= LARGEST_PAGE:
            raise Invalid(f"a page of {limit}", hint=f"1 to {LARGEST_PAGE}")
        question = ("fanouts", tenant, *_QUESTIONS[statement])
        after = 0 if cursor is None else decode_cursor(question, cursor)
        if not isinstance(after, int):
            raise Invalid("not a cursor of this query", hint="give the cursor of a page of the same query, unchanged")
        found = self._engine.all(statement, tenant=self._context.tenant_number(tenant), after=after, limit=limit + 1)
        rows = [(EntityKey(kind, name, key), FanoutRow(*row)) for name, kind, key, *row in found[:limit]]
        following = encode_cursor(question, rows[-1][1].entity) if len(found) > limit else None
        return FanoutPage(tuple(fanout_result(key, row) for key, row in rows), following)

    def _of(self, tenant: str | None) -> FanoutWorkflow:
        name = self._context.settings.tenant if tenant is None else tenant
        self._context.tenant_number(name)
        return self._workflow(name)
