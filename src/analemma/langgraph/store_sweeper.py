"""A thread that does something at intervals until it is stopped: sweeps what has expired from a LangGraph store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress

from analemma.errors import AnalemmaError, Invalid

logger = logging.getLogger(__name__)


class Sweeper:
    """At most one thread at a time."""

    def __init__(self, sweep: Callable[[], int]) -> None:
        self._sweep = sweep
        self._lock = threading.Lock()
        self._running: tuple[threading.Thread, threading.Event, Future[None]] | None = None

    def start(self, interval_s: float) -> Future[None]:
        """Done when the thread has ended; cancelling it ends the thread. One that runs already goes on as it is."""
        if not 0 < interval_s < threading.TIMEOUT_MAX:
            raise Invalid(f"not an interval: {interval_s} seconds", hint="give minutes, more than zero")
        with self._lock:
            if self._running is not None and self._running[0].is_alive():
                return self._running[2]
            stop = threading.Event()
            ended: Future[None] = Future()
            ended.add_done_callback(lambda future: stop.set())
            thread = threading.Thread(
                target=self._run, args=(interval_s, stop, ended), name="analemma-store-sweeper", daemon=True
            )
            self._running = (thread, stop, ended)
            thread.start()
            return ended

    def stop(self, timeout_s: float | None = None) -> bool:
        """Whether the thread has ended within the time given."""
        with self._lock:
            if self._running is None:
                return True
            thread, stop, _ = self._running
            stop.set()
            thread.join(timeout_s)
            return not thread.is_alive()

    def _run(self, interval_s: float, stop: threading.Event, ended: Future[None]) -> None:
        while not stop.wait(interval_s):
            try:
                count = self._sweep()
                if count:
                    logger.info("swept %d expired items", count)
            except AnalemmaError:
                # Nothing is lost: what has expired is not given out, and the next time comes.
                logger.exception("expired items could not be swept")
        # Unless it was cancelled.
        with suppress(InvalidStateError):
            ended.set_result(None)
