"""Where a process gets versions from: a generator under a node number that it holds on lease."""

from __future__ import annotations

import threading
from typing import Final

from analemma.catalog.entities.entities import MAXIMUM_VERSION
from analemma.catalog.leases import NodeLease, NodeLeases
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Invalid
from analemma.slicing.tsid import Version, VersionGenerator, parse_version, version_time_ms

LEASE_S: Final = 3600.0
FUTURE_MS: Final = 3_600_000
"""A version that lies further ahead is somebody's mistake, or his own numbering: it does not move our clock."""


class Versions:
    """Makes versions that no other process makes. Takes its node number when the first one is asked for.

    A lease is renewed by whoever asks for a version when half of it is over; one that was not used in time is given up
    for another. Should two processes hold one number all the same, their versions could only meet in one entity, whose
    row decides."""

    def __init__(self, leases: NodeLeases, *, holder: str, clock: Clock, node: int | None = None) -> None:
        self._leases = leases
        self._holder = holder
        self._clock = clock
        self._node = node
        self._lock = threading.Lock()
        self._generator: VersionGenerator | None = None
        self._lease: NodeLease | None = None
        self._renew_at = 0.0
        self._over_at = 0.0
        self._newest = 0

    def generate(self) -> Version:
        """The next version."""
        return self._current().generate()

    def observe(self, version: int) -> None:
        """Be ahead of a version that was seen, unless it lies absurdly far in the future."""
        if version_time_ms(Version(version)) <= self._clock.now_us() // 1000 + FUTURE_MS:
            with self._lock:
                self._newest = max(self._newest, version)
                generator = self._generator
            # One that is made later begins behind it. None is made here: whoever tells of a version has stored it.
            if generator is not None:
                generator.observe(Version(version))

    def close(self) -> None:
        """Give the node number back."""
        with self._lock:
            lease, self._lease = self._lease, None
            generator, self._generator = self._generator, None
        if lease is not None and generator is not None and self._node is None:
            try:
                self._leases.release(lease, self._holder, newest=generator.generate())
            except AnalemmaError:
                pass  # It ends by itself.

    def _current(self) -> VersionGenerator:
        now = self._clock.monotonic()
        generator = self._generator
        if generator is not None and now < self._renew_at:
            return generator
        with self._lock:
            if self._generator is None or self._lease is None or now >= self._over_at:
                return self._take(now)
            if now >= self._renew_at:
                self._newest = max(self._newest, int(self._generator.generate()))
                if not self._leases.renew(self._lease, self._holder, LEASE_S, newest=self._newest):
                    return self._take(now)
                self._hold_from(now)
            return self._generator

    def _take(self, now: float) -> VersionGenerator:
        if self._generator is not None:
            self._newest = max(self._newest, int(self._generator.generate()))
        if self._node is None:
            self._lease = self._leases.take(self._holder, LEASE_S, newest=self._newest)
            node, newest = self._lease
        else:
            # Whoever configured it says that nobody else has it.
            self._lease, node, newest = NodeLease(self._node, 0), self._node, self._newest
        self._generator = VersionGenerator(node=node, clock=self._clock)
        if newest:
            self._generator.observe(Version(newest))
        self._hold_from(now)
        return self._generator

    def _hold_from(self, now: float) -> None:
        # By the time before the database was asked: our lease never seems longer to us than it is.
        fixed = self._node is not None
        self._renew_at = float("inf") if fixed else now + LEASE_S / 2
        self._over_at = float("inf") if fixed else now + LEASE_S * 0.9


def parse_stored_version(text: str) -> int:
    """A caller's version, of those that the catalog can hold."""
    version = parse_version(text)
    if version > MAXIMUM_VERSION:
        raise Invalid(f"the version {text} is beyond what a store holds", hint="versions begin with 0 to 7")
    return version
