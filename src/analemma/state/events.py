"""Which commits are told to the outbox: those of workflows that a STATE_SOURCE names, in the commit's own transaction.

A store without sources pays a look at the clock per commit, and a small query once a second at most."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Final

from analemma.canon.canonical_json import canonical_json
from analemma.catalog.engine.db import Engine
from analemma.catalog.entities.contracts import Generation, generation
from analemma.catalog.names import AGGREGATE_BYTES
from analemma.catalog.port import BranchKey, Head, OutboxEvent
from analemma.clock import Clock
from analemma.context import Context
from analemma.errors import Corrupt
from analemma.failpoints import declare, hit
from analemma.tracing import current_trace

AFTER_LOOK = declare("source.after_look", "it was looked which sources of state there are, and that is not kept yet")

STATE: Final = "STATE"
"""The lanes of branches: what happens to one is told in the order in which it happened."""
STATE_COMMITTED: Final = "StateCommitted"
STATE_REMOVED: Final = "StateRemoved"
PAYLOAD_VERSION: Final = "1.0"

KIND: Final = "STATE_SOURCE"
POLL_S: Final = 1.0
"""How long a process may go by sources that another has replaced."""

Sources = Callable[[str, BranchKey], bool]
"""Whether some source takes a branch of a tenant."""


class SourceWatch:
    """The sources of an open store, for all its tenants. Safe to share between threads."""

    def __init__(self, engine: Engine, load: Callable[[], Sources], *, clock: Clock) -> None:
        """`load` reads the contracts, which takes a while; it is called when there are sources, and others than
        before."""
        self._engine = engine
        self._load = load
        self._clock = clock
        self._known: tuple[Generation, Sources | None] | None = None
        self._asked_at = 0.0
        self.idle_until_s = -math.inf
        """Until then nobody needs to ask: there is nothing."""
        self._lock = threading.Lock()
        self._loads = 0

    def sources(self) -> Sources | None:
        """What there is; None: nothing."""
        known, now, loads = self._known, self._clock.monotonic(), self._loads
        if known is not None and now - self._asked_at < POLL_S:
            return known[1]
        newest = generation(self._engine)
        if known is None or known[0] != newest:
            has_any = self._engine.one("active_contract", kind=KIND) is not None
            known = newest, self._read() if has_any else None
        hit(AFTER_LOOK)
        with self._lock:
            # Not over what was loaded here since this thread looked.
            # guard: source.looked
            if self._loads == loads:
                self._known, self._asked_at = known, now
                self.idle_until_s = now + POLL_S if known[1] is None else -math.inf
        return known[1]

    def forget(self) -> None:
        """Look again at the next commit: contracts were loaded here."""
        with self._lock:
            self._loads += 1
            self._known, self.idle_until_s = None, -math.inf

    def _read(self) -> Sources:
        try:
            return self._load()
        except Corrupt:
            # Contracts that cannot be read must not keep anyone from saving. Everything is told, and whoever handles
            # that says what is wrong.
            return lambda tenant, key: True


class Announcer:
    """Tells of one tenant's commits."""

    def __init__(self, context: Context, watch: SourceWatch) -> None:
        self._tenant = context.tenant_name
        self._entropy = context.entropy
        self.watch = watch
        self.wake = context.wake

    def committed(self, heads: Iterable[Head]) -> tuple[OutboxEvent, ...]:
        """What is told with versions that become heads: an event for each whose branch a source takes."""
        return tuple(
            self._event(STATE_COMMITTED, head.key, manifestId=head.manifest.hex(), version=str(head.version))
            for head in self._taken(heads)
        )

    def removed(self, heads: Iterable[Head]) -> tuple[OutboxEvent, ...]:
        """What is told with branches that go: an event for each that a source takes."""
        return tuple(self._event(STATE_REMOVED, head.key) for head in self._taken(heads))

    def _taken(self, heads: Iterable[Head]) -> list[Head]:
        sources = self.watch.sources()
        return [] if sources is None else [head for head in heads if sources(self._tenant, head.key)]

    def _event(self, kind: str, key: BranchKey, **more: Any) -> OutboxEvent:
        payload = {
            "payloadVersion": PAYLOAD_VERSION,
            "tenantId": self._tenant,
            "ownerId": key.owner,
            "workflowId": key.workflow,
            "branch": key.branch,
            **more,
        }
        return OutboxEvent(
            self._entropy.random_bytes(16).hex(),
            STATE,
            lane_of(self._tenant, key),
            kind,
            canonical_json(payload),
            trace=current_trace(),
        )


def lane_of(tenant: str, key: BranchKey) -> str:
    """The aggregate id of a branch: one that people can read, if it is short enough for a lane."""
    parts = (each.replace("~", "~0").replace("/", "~1").replace("@", "~2") for each in key)
    owner, workflow, branch = parts
    text = f"{tenant}:{owner}/{workflow}@{branch}"
    if len(text.encode()) <= AGGREGATE_BYTES:
        return text
    return f"{tenant}:{sha256(text.encode()).hexdigest()}"
