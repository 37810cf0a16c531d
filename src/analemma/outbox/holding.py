"""The lanes that a worker holds, and their leases, which are renewed for as long as they are worked on; whose they
are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from analemma.catalog.engine.db import Engine
from analemma.catalog.outbox.claims import ClaimedLane, OutboxClaims
from analemma.catalog.port import TenantId


class HeldLanes:
    """Lanes under lease. Threads may share it; one of them renews."""

    def __init__(self, claims: OutboxClaims, *, lease_s: float, in_line_s: float) -> None:
        """`in_line_s` is how long to wait at a time for lanes that are being written to."""
        self._claims = claims
        self._lease_s = lease_s
        self._in_line_s = in_line_s
        self._lock = threading.Lock()
        self._lanes: dict[int, ClaimedLane] = {}
        self._unrenewed: list[ClaimedLane] = []

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lanes: Iterable[ClaimedLane]) -> None:
        """These are worked on."""
        with self._lock:
            self._lanes.update((id(lane), lane) for lane in lanes)

    def remove(self, lanes: Iterable[ClaimedLane]) -> None:
        """These are no longer."""
        with self._lock:
            for lane in lanes:
                self._lanes.pop(id(lane), None)

    def clear(self) -> None:
        """Nothing is."""
        with self._lock:
            self._lanes.clear()
            self._unrenewed = []

    def renew(self, renewed: float) -> float:
        """Renew all leases, if that is due, or those that are left over; when all were renewed for the last time."""
        if time.monotonic() - renewed >= self._lease_s / 3:
            renewed = time.monotonic()
            with self._lock:
                held = list(self._lanes.values())
            self._unrenewed = self._claims.renew(held)
        elif self._unrenewed:
            with self._lock:
                left = [lane for lane in self._unrenewed if id(lane) in self._lanes]
            self._unrenewed = self._claims.renew(left, wait_s=self._in_line_s)
        return renewed


class TenantNames:
    """What tenants are called, by their numbers; asked for again when one is not known."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._names: dict[int, str] = {}

    def of(self, tenant: TenantId) -> str:
        """The name of a tenant."""
        name = self._names.get(tenant)
        if name is None:
            self._names = dict(self._engine.all("tenant_names"))
            name = self._names[tenant]
        return name
