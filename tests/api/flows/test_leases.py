"""Leases of runs: closing does not wait for the next renewal."""

from __future__ import annotations

import threading
from typing import cast

from analemma.catalog.runs import RunRows
from analemma.clock import SystemClock
from analemma.flows.leases import Lease, Leases

LONG_S = 3600.0


def test_closing_does_not_wait_for_the_next_renewal() -> None:
    """Whether the thread that renews waits already or only begins to."""
    for _ in range(50):
        leases = Leases(lease_s=LONG_S)
        leases.hold(Lease(cast(RunRows, None), 1, 1, lease_s=LONG_S, clock=SystemClock()))
        closing = threading.Thread(target=leases.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
