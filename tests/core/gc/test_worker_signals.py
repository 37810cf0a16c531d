"""The background worker may be stopped by a signal handler at any place of its loop."""

from __future__ import annotations

import threading
import time

from tests.core.entry_points.gc import Job, Worker
from tests.interrupting import interrupt

HOUR_S = 3600


class Clock:
    """This machine's."""

    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def test_a_signal_may_stop_it_at_any_place() -> None:
    """Also while it holds a lock of what it waits with."""
    for place in range(30):
        worker = Worker([Job("none", HOUR_S, lambda stop: None)], clock=Clock(), tell=lambda job, said: None)
        thread = threading.Thread(target=interrupt, args=(worker.run, worker.stop, place), daemon=True)
        thread.start()
        # Where the signal did not come, because there is no such place.
        thread.join(0.05)
        ending = threading.Thread(target=worker.stop, daemon=True)
        ending.start()
        ending.join(10)
        thread.join(30)
        assert not thread.is_alive()
