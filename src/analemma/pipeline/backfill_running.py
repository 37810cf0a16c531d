"""Runs a backfill: keeps its lease, hands out pages of its shards, and notices when it is to stop."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from analemma.catalog.engine.db import Engine, Transaction
from analemma.catalog.entities.backfills import RUNNING, BackfillRow, ShardRow, standing
from analemma.catalog.leases import SECOND_US, database_clock
from analemma.clock import Clock
from analemma.errors import AnalemmaError, Conflict, Internal, Timeout, Unavailable
from analemma.executors.port import Call, CallExecutor, Next, Outcome
from analemma.failpoints import declare, hit
from analemma.pipeline.backfill_pages import PageAnswer, PageCall
from analemma.pipeline.backfill_reports import BackfillPlan, Progress, Watch
from analemma.pipeline.backfill_scope import BackfillKind, load_options, load_scope

NOTICE_S: Final = 0.5
"""How soon it is noticed that somebody paused it, where no page notices."""
TELL_S: Final = 0.2
WINDOW_S: Final = 10.0
"""Rates are of this time."""
FAILURES: Final = 6
"""So often in a row the pages of one shard may fail because something does not answer."""
FIRST_WAIT_S: Final = 0.2

PASSING = (Unavailable, Timeout)

BEFORE_LEAVE = declare("backfill.before_leave", "a backfill is at its end, or paused, and nothing says so")

log = logging.getLogger("analemma.pipeline")


class Pace:
    """How far it is, how fast, and how long it will take."""

    def __init__(self, clock: Clock, total: int, done: int, failed: int, watch: Watch | None) -> None:
        self._clock = clock
        self._total = total
        self._done, self._failed = done, failed
        self._watch = watch
        self._seen = deque([(clock.monotonic(), done)])
        self._told_at = float("-inf")

    def add(self, done: int, failed: int = 0) -> None:
        """More is done."""
        self._done += done
        self._failed += failed
        now = self._clock.monotonic()
        self._seen.append((now, self._done))
        while len(self._seen) > 2 and self._seen[0][0] < now - WINDOW_S:
            self._seen.popleft()
        if now - self._told_at >= TELL_S:
            self.tell()

    def tell(self) -> None:
        """Say so."""
        if self._watch is None:
            return
        self._told_at = self._clock.monotonic()
        since, before = self._seen[0]
        took = self._told_at - since
        rate = (self._done - before) / took if took > 0 else 0.0
        left = max(0, self._total - self._done)
        eta_s = left / rate if rate > 0 else (0.0 if not left else None)
        self._watch(Progress(self._done, max(self._total, self._done), self._failed, rate, eta_s))


class BackfillRun:
    """One run of a backfill, from lease to end."""

    def __init__(
        self,
        engine: Engine,
        row: BackfillRow,
        fence: int,
        plan: BackfillPlan,
        *,
        lease_s: float,
        clock: Clock,
        executor: CallExecutor,
        page: Callable[[PageCall], PageAnswer],
        watch: Watch | None,
        stop: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._number = row.number
        self._fence = fence
        self._lease_s = lease_s
        self._clock = clock
        self._executor = executor
        self._page = page
        self._asked_to_stop = stop
        self._kind = BackfillKind(row.kind)
        self._scope = load_scope(row.scope)
        options = load_options(row.options)
        if options.rate is not None:
            # Small pages where it is to go slowly: not a rush and then silence.
            size = max(1, min(options.page, int(options.rate / 2)))
            options = type(options)(size, options.rate, options.mode)
        self._options = options
        self._fingerprints = {each.type: each.fingerprint for each in plan.types}
        self._waiting: deque[ShardRow] = deque(engine.rows(ShardRow, "backfill_shards", backfill=row.number))
        self._busy: dict[int, ShardRow] = {}
        self._failures: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._next_at = clock.monotonic()
        self._stopped: str | None = None
        self._error: AnalemmaError | None = None
        self._over = threading.Event()
        self._pace = Pace(clock, row.total, row.counts.done, row.counts.failed, watch)

    def go(self) -> None:
        """Work until it is done, or somebody stops it; raises what it failed with."""
        keeper = threading.Thread(target=self._keep, name="analemma-backfill-lease", daemon=True)
        keeper.start()
        try:
            for outcome in self._executor.run(self._next_call):
                self._settle(outcome)
            self._pace.tell()
        except BaseException as exc:
            self._end_keeping(keeper)
            self._leave_by_force(exc)
            raise
        self._end_keeping(keeper)
        self._leave()

    def _next_call(self) -> Call | Next:
        if self._asked_to_stop() and self._stopped is None:
            self._engine.execute("pause_backfill", number=self._number, reason="stopped by whoever ran it")
            self._stopped = "PAUSED"
        if self._stopped is not None or self._error is not None or not (self._waiting or self._busy):
            return Next.OVER
        now = self._clock.monotonic()
        if now < self._next_at:
            return Next.LATER
        level = min(each.level for each in (*self._waiting, *self._busy.values()))
        for shard in self._waiting:
            if shard.level == level and self._not_before.get(shard.shard, now) <= now:
                break
        else:
            return Next.LATER if self._waiting else Next.OVER
        self._waiting.remove(shard)
        self._busy[shard.shard] = shard
        if self._options.rate is not None:
            self._next_at = max(self._next_at, now - 1) + self._options.page / self._options.rate
        call = PageCall(
            self._number,
            self._fence,
            shard.shard,
            self._kind,
            self._scope,
            self._options,
            self._fingerprints.get(shard.type, ""),
        )
        return Call(self._page, (call,), shard)

    def _settle(self, outcome: Outcome) -> None:
        shard: ShardRow = outcome.call.tag
        del self._busy[shard.shard]
        if outcome.error is not None:
            self._failed(shard, outcome.error)
            return
        answer: PageAnswer = outcome.result
        self._failures.pop(shard.shard, None)
        self._pace.add(answer.counts.done, answer.counts.failed)
        if answer.stopped is not None:
            self._stopped = self._stopped or answer.stopped
        elif not answer.finished:
            # Behind the others: all shards come forward alike, and each has its own place in the database.
            self._waiting.append(shard)

    def _failed(self, shard: ShardRow, error: BaseException) -> None:
        failures = self._failures[shard.shard] = self._failures.get(shard.shard, 0) + 1
        if isinstance(error, PASSING) and failures < FAILURES:
            log.warning("a page of a backfill is tried again: %s", error)
            self._not_before[shard.shard] = self._clock.monotonic() + FIRST_WAIT_S * 2**failures
            self._waiting.append(shard)
        elif self._error is None:
            ours = isinstance(error, AnalemmaError)
            self._error = error if ours else Internal(f"{type(error).__name__}: {error}")  # type: ignore[assignment]

    def _keep(self) -> None:
        """Keep the lease, and notice what others say."""
        renewed = self._clock.monotonic()
        while not self._over.wait(min(NOTICE_S, self._lease_s / 3)):
            with suppress(AnalemmaError):
                if self._clock.monotonic() - renewed >= self._lease_s / 3:
                    state = self._engine.write(self._renew)
                    renewed = self._clock.monotonic()
                else:
                    state = standing(self._engine, self._number, self._fence)
                if state != RUNNING:
                    self._stopped = self._stopped or state or "LOST"

    def _end_keeping(self, keeper: threading.Thread) -> None:
        self._over.set()
        keeper.join()

    def _leave(self) -> None:
        if self._stopped == "LOST":
            raise Conflict("another process has taken the backfill over", hint="see `backfill status`")
        if self._error is not None:
            self._give_back("FAILED", self._error.message)
            raise self._error
        self._give_back("DONE", None)

    def _leave_by_force(self, exc: BaseException) -> None:
        """On the way out of something that matters more than what happens here."""
        with suppress(AnalemmaError):
            if isinstance(exc, AnalemmaError):
                self._give_back("FAILED", exc.message)
            else:
                self._give_back("PAUSED", f"interrupted: {type(exc).__name__}")

    def _renew(self, tx: Transaction) -> str | None:
        """Keep it; its state, or None if another has it now."""
        until = database_clock(tx) + int(self._lease_s * SECOND_US)
        if tx.execute("renew_backfill", number=self._number, fence=self._fence, until=until) != 1:
            return None
        return standing(tx, self._number, self._fence)

    def _give_back(self, state: str, reason: str | None) -> None:
        """In this state, unless somebody paused or cancelled it."""
        left = {"state": state, "reason": reason, "over": int(state in ("DONE", "FAILED"))}
        which = {"number": self._number, "fence": self._fence}
        hit(BEFORE_LEAVE)
        self._engine.write(lambda tx: tx.execute("leave_backfill", **which, **left, now=database_clock(tx)))
