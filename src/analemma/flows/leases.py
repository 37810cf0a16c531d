"""Runs that this process holds, and the thread that keeps them held while their segments take long."""

from __future__ import annotations

import logging
import threading
from typing import Final

from analemma.catalog.runs.runs import RunRows
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Timeout, Unavailable

log = logging.getLogger("analemma.flows")

LOOK_S: Final = 0.5
"""How often a node that asks whether it is cancelled makes us look."""


class RunLease:
    """One run in our hands. Whoever takes it over, or cancels it, raises its fence; we notice when we renew, when a
    node asks, and at the latest when we write."""

    def __init__(self, rows: RunRows, run: int, fence: int, *, lease_s: float, clock: Clock) -> None:
        self.run = run
        self.fence = fence
        self.lost = False
        self.lease_s = lease_s
        self._rows = rows
        self._clock = clock
        self._renewed_at = self._looked_at = clock.monotonic()

    @property
    def renewal_s(self) -> float | None:
        """How long a lease the next write should ask for; None: the one that there is will do."""
        return self.lease_s if self._clock.monotonic() - self._renewed_at > self.lease_s / 3 else None

    def renewed(self) -> None:
        """The lease is new."""
        self._renewed_at = self._looked_at = self._clock.monotonic()

    def renew(self) -> None:
        """Hold it longer, or notice that it is lost."""
        if not self.lost and not self._rows.renew(self.run, self.fence, lease_s=self.lease_s):
            self.lost = True
        self.renewed()

    def is_lost(self) -> bool:
        """Whether to stop; looks, if nobody has for a while."""
        if not self.lost and self._clock.monotonic() - self._looked_at > LOOK_S:
            self._looked_at = self._clock.monotonic()
            try:
                self.lost = not self._rows.is_held(self.run, self.fence)
            except (Unavailable, Timeout) as exc:
                # Whoever writes is told; a look that failed is no reason to fail the node.
                log.warning("nobody can say whether a run is still held: %s", exc)
        return self.lost


class Leases:
    """The leases of one process, renewed by one thread for as long as there are any."""

    def __init__(self, *, lease_s: float) -> None:
        self._every_s = lease_s / 3
        self._held: set[RunLease] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def hold(self, lease: RunLease) -> None:
        """Keep it, until it is dropped."""
        with self._changed:
            self._held.add(lease)
            # In a forked child the thread did not come along.
            if (self._thread is None or not self._thread.is_alive()) and not self._closed:
                self._thread = threading.Thread(target=self._renew, name="analemma-run-leases", daemon=True)
                self._thread.start()

    def drop(self, lease: RunLease) -> None:
        """It is over, or somebody else's."""
        with self._changed:
            self._held.discard(lease)

    def close(self) -> None:
        """Renew nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _renew(self) -> None:
        while True:
            with self._changed:
                # It may have been closed before this thread came to wait.
                self._changed.wait_for(lambda: self._closed, self._every_s)
                held = list(self._held)
                if self._closed or not held:
                    self._thread = None
                    return
            for lease in held:
                try:
                    lease.renew()
                except AnalemmaError as exc:
                    # Still ours, for as long as the lease lasts; the next round may do better.
                    log.warning("the lease of a run could not be renewed: %s", exc)
