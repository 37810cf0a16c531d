"""Where a process gets versions from: a generator under a node number that it holds on lease."""

from __future__ import annotations

import threading
from typing import Final

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.entities.entities import MAXIMUM_VERSION
from analemma.catalog.leases import SECOND_US, database_clock
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Invalid, Limit
from analemma.slicing.tsid import Version, VersionGenerator, parse_version, version_time_ms

LEASE_S: Final = 3600
NODES: Final = 1024
FUTURE_MS: Final = 3_600_000
"""A version that lies further ahead is somebody's mistake, or his own numbering: it does not move our clock."""


class Versions:
    """Makes versions that no other process makes. Takes its node number when the first one is asked for: which one does
    not matter, and that of a process that crashed is free when its lease is over.

    A lease is renewed by whoever asks for a version when half of it is over; one that was not used in time is given up
    for another. Should two processes hold one number all the same, their versions could only meet in one entity, whose
    row decides."""

    def __init__(self, engine: Engine, *, holder: str, clock: Clock, node: int | None = None) -> None:
        self._engine = engine
        self._holder = holder
        self._clock = clock
        self._node = node
        self._lock = threading.Lock()
        self._generator: VersionGenerator | None = None
        self._leased: int | None = None
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
            leased, self._leased = self._leased, None
            generator, self._generator = self._generator, None
        if leased is not None and generator is not None:
            try:
                self._renew(leased, 0, generator.generate())
            except AnalemmaError:
                pass  # It ends by itself.

    def _current(self) -> VersionGenerator:
        now = self._clock.monotonic()
        generator = self._generator
        if generator is not None and now < self._renew_at:
            return generator
        with self._lock:
            if self._generator is None or now >= self._over_at:
                return self._take(now)
            if now >= self._renew_at:
                self._newest = max(self._newest, int(self._generator.generate()))
                if self._leased is None or not self._renew(self._leased, LEASE_S, self._newest):
                    return self._take(now)
                self._hold_from(now)
            return self._generator

    def _take(self, now: float) -> VersionGenerator:
        if self._generator is not None:
            self._newest = max(self._newest, int(self._generator.generate()))
        if self._node is None:
            node, newest = self._lease()
            self._leased = node
        else:
            # Whoever configured it says that nobody else has it.
            node, newest = self._node, self._newest
        self._generator = VersionGenerator(node=node, clock=self._clock)
        if newest:
            self._generator.observe(Version(newest))
        self._hold_from(now)
        return self._generator

    def _lease(self) -> tuple[int, int]:
        """A number that nobody else holds, and the newest version that was made under it, as far as is known."""

        def move(tx: Transaction) -> tuple[int, int] | None:
            now = database_clock(tx)
            free = tx.one("free_node", now=now)
            if free is None:
                raise Limit(
                    "no node number is free for making versions",
                    hint="close stores that are not used, or wait until the leases of crashed ones end",
                    nodes=NODES,
                )
            node, newest = free[0], max(self._newest, free[1])
            told = {"node": node, "holder": self._holder, "newest": newest, "now": now}
            taken = tx.execute("take_node", **told, until=now + LEASE_S * SECOND_US)
            return (node, newest) if taken else None

        # Another may be faster; there may be more.
        while (found := self._engine.write(move)) is None:
            pass
        return found

    def _renew(self, node: int, lease_s: int, newest: int) -> bool:
        """Hold on to a number for so long, or (0) give it back; False if another has it."""

        def move(tx: Transaction) -> bool:
            until = database_clock(tx) + lease_s * SECOND_US if lease_s else 0
            return tx.execute("renew_node", node=node, holder=self._holder, until=until, newest=newest) == 1

        return self._engine.write(move)

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
