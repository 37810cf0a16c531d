"""What a long operation asks on its way: whether it may still go on, and who wants to hear how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from analemma.clock import Clock
from analemma.errors import Timeout

Phase = Literal["reading", "verifying", "writing"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an archive or a restore is."""

    phase: Phase
    files: int
    bytes: int
    total_bytes: int | None = None
    """Of the phase, where that is known."""


OnProgress = Callable[[Progress], None]

_EVERY_BYTES = 4 << 20
_EVERY_FILES = 256


class Job:
    """One archive or restore under way."""

    def __init__(
        self, *, clock: Clock, timeout_s: float, check: Callable[[], None], progress: OnProgress | None = None
    ) -> None:
        """`check` raises when the operation is no longer this worker's."""
        self.watched = progress is not None
        self._clock = clock
        self._timeout_s = timeout_s
        self._deadline = clock.monotonic() + timeout_s
        self._check = check
        self._progress = progress
        self._files = self._bytes = 0
        self._told = (0, 0)
        # Those who read ahead advance it too.
        self._lock = threading.RLock()

    def bind(self, check: Callable[[], None]) -> None:
        """From now on it is this that raises when the operation is no longer this worker's."""
        self._check = check

    def begin(self, phase: Phase, total_bytes: int | None = None) -> None:
        """The next phase."""
        self._phase: Phase = phase
        self._total = total_bytes
        self._files = self._bytes = 0
        self._tell()

    def advance(self, *, bytes: int = 0, files: int = 0) -> None:
        """So much is done; raises if it took too long or the operation was lost."""
        with self._lock:
            self._bytes += bytes
            self._files += files
            told_bytes, told_files = self._told
            if self._bytes - told_bytes >= _EVERY_BYTES or self._files - told_files >= _EVERY_FILES:
                self._tell()

    def _tell(self) -> None:
        self._told = (self._bytes, self._files)
        self._check()
        if self._clock.monotonic() > self._deadline:
            raise Timeout(f"it took longer than {self._timeout_s:g} s", hint="see the setting archive_timeout_s")
        if self._progress is not None:
            self._progress(Progress(self._phase, self._files, self._bytes, self._total))
