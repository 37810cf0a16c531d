"""Running a plan: one segment after the other, each ended by one commit that also says where the run stands.

docs/design/flows.md says what holds at every moment, whoever dies."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from random import Random
from typing import Any

from analemma.canon.nodes import BlockId
from analemma.catalog.port import RowChange
from analemma.catalog.runs.effects import RunRecords
from analemma.catalog.runs.runs import FencedOut, Move, RunRow, SegmentStatus, Status, as_us
from analemma.errors import AnalemmaError, Denied, Timeout, Unavailable
from analemma.failpoints import declare, hit
from analemma.flows.calling import Caller
from analemma.flows.context import Cancelled, Facts
from analemma.flows.continuing import changed, moved
from analemma.flows.effects import AskHuman, SegmentEffects
from analemma.flows.held_runs import Held, RunnerParts
from analemma.flows.keeping import ended_segment, position_text
from analemma.flows.leases import RunLease
from analemma.flows.run_kernel import SegmentCommit, Standing, check_place
from analemma.flows.runs import RETRY, RunError, Waiting, error_of, read_waiting
from analemma.flows.segment_running import (
    Ended,
    Ending,
    Follows,
    NodeFailed,
    SegmentRun,
    SegmentRunner,
    Sleeps,
    TryLater,
    Waits,
    missing_functions,
)
from analemma.flows.segments import Segment
from analemma.flows.store_errors import StoreAway, is_time_over
from analemma.flows.walking import Position, advance, entered, iterations_at, position_from

BEFORE_SEGMENT = declare("run.before_segment", "a segment is about to run, and nothing of it was done")
AFTER_SEGMENT = declare("run.after_segment", "a segment has run, and nothing of it is committed")

log = logging.getLogger("analemma.flows")

Told = Callable[[str, SegmentStatus, RunError | None], None]
"""Hears of each segment that ended: its id, what came of it, and why."""


class Runner:
    """Runs what it is given, in the thread that calls it."""

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self._chance = Random(int.from_bytes(parts.entropy.random_bytes(8), "big"))

    def hold(
        self,
        row: RunRow,
        standing: Standing | None = None,
        *,
        fresh: bool = False,
        executor: Any = None,
        entering: bool = True,
    ) -> Held:
        """Take up a run: where it stands, and its plan, verified. `standing` is known where it was just committed. Not
        `entering`: its segment has begun, so that nothing that was injected before it comes first."""
        parts = self._parts
        lease = RunLease(parts.rows, row.number, row.fence, lease_s=parts.settings.run_lease_s, clock=parts.clock)
        if standing is None:
            standing = parts.kernel.newest(row.key, BlockId(row.document), row.head)
        kept = json.loads(row.position)
        ready = parts.kernel.plan(standing)
        plan = ready.plan
        position = position_from(kept)
        check_place(plan, position)
        if entering and kept.get("segments") != standing.segments.hex():
            # Others were injected since; those before the segment at hand come first.
            position = entered(plan, position, kept.get("hash_version", 0))
        options = json.loads(row.options)
        deadline = None
        if row.deadline_us is not None:
            deadline = parts.clock.monotonic() + (row.deadline_us - row.updated_at_us) / 1_000_000
        return Held(
            row,
            lease,
            standing,
            ready,
            position,
            row.head,
            fresh,
            deadline=deadline,
            executor=executor if executor is not None else options.get("executor"),
            options=options,
            waiting=read_waiting(row),
        )

    def go_on(
        self,
        held: Held,
        *,
        longest_wait_s: float = float("inf"),
        told: Told | None = None,
        stop: Callable[[], bool] = lambda: False,
        leaving: bool = False,
    ) -> None:
        """Run segments until the run is over, waits, or is somebody else's; asked to `stop`, leave the rest to others
        after the segment at hand. `leaving`: also before a segment whose functions this program does not have."""
        unanswered: StoreAway | None = None
        try:
            self._parts.leases.hold(held.lease)
            with Caller(self._parts.clock) as caller:
                while held.position.at is not None:
                    if leaving and self._missing(held) is not None:
                        self._let_go(held)
                        break
                    if not self._one(held, caller, longest_wait_s, told):
                        break
                    if stop():
                        self._let_go(held)
                        break
        except FencedOut as exc:
            log.warning("run %s goes on elsewhere, or was cancelled: %s", held.row.execution, exc.message)
            # Still ours, if it was not the run that was refused: then it must not wait for a lease that goes on.
            self._let_go(held, due_in_s=held.lease.lease_s)
            held.lease.lost = True
        except StoreAway as exc:
            self._let_go(held, due_in_s=0.0 if exc.at_once else held.lease.lease_s)
            unanswered = exc
        except (Unavailable, KeyboardInterrupt):
            # The program ends, or the store is away: whoever looks next need not wait for the lease.
            self._let_go(held)
            raise
        except BaseException:
            # A defect, or what is locked by somebody: it may well be there the next time. Not at once, again and again.
            self._let_go(held, due_in_s=held.lease.lease_s)
            raise
        finally:
            self._parts.leases.drop(held.lease)
        if unanswered is not None:
            # Not while what holds it is handled, or each would be the other's cause.
            raise unanswered.error

    def _one(self, held: Held, caller: Caller, longest_wait_s: float, told: Told | None) -> bool:
        """Run one segment and commit it; whether there is more to do."""
        segment = held.plan.segment(held.position.at or "")
        began = self._parts.clock.monotonic()
        hit(BEFORE_SEGMENT)
        run: SegmentRun | None = None
        ending: Ending
        try:
            run = self._segment_run(held, segment, caller, longest_wait_s)
            run.check()
            ending = self._runner_of(segment)(run)
            after = advance(held.plan, held.position, ending.outcome) if isinstance(ending, Ended) else held.position
        except AskHuman as asked:
            ending, after = Waits(asked.question(segment.id)), held.position
        except TryLater as later:
            waiting = Waiting(RETRY, segment.id, later.node, attempt=later.attempt)
            ending, after = Sleeps(later.seconds, waiting), held.position
        except (Cancelled, FencedOut) as exc:
            if not self._parts.rows.is_held(held.row.number, held.row.fence):
                raise FencedOut(exc.message) from exc
            # The run is ours: what was refused was something that its node tried to do.
            return self._failed(held, segment, exc, run, began, told)
        except Exception as exc:
            if isinstance(exc, StoreAway | Unavailable | Timeout) and not is_time_over(exc):
                # Not from a node or an executor, whose errors are NodeFailed: our own store is away or late, as it may
                # be at the commit.
                raise
            return self._failed(held, segment, exc, run, began, told)
        hit(AFTER_SEGMENT)
        if isinstance(ending, Sleeps):
            self._sleep(held, ending)
            return False
        if isinstance(ending, Follows):
            assert run is not None
            self._follow(held, segment, ending, round((self._parts.clock.monotonic() - began) * 1_000_000))
            held.begun = run.begun
            if told is not None:
                told(segment.id, "PAUSED", None)
            return False
        status: SegmentStatus = "PAUSED"
        if isinstance(ending, Ended):
            status = "COMPLETE" if after.at is None else "CONTINUE"
        took_us = round((self._parts.clock.monotonic() - began) * 1_000_000)
        try:
            injected = self._commit(held, segment, run, ending, after, status, took_us)
        except (FencedOut, Unavailable, Timeout):
            # Timeout: whoever lost the run may still hold what the commit waits for. That passes.
            raise
        except AnalemmaError as exc:
            # What it changed does not fit what is there by now, or cannot be stored.
            return self._failed(held, segment, exc, run, began, told)
        if told is not None:
            told(segment.id, status, None)
        return status == "CONTINUE" and (not injected or self._enter(held, told))

    def _enter(self, held: Held, told: Told | None) -> bool:
        """After a commit: take notice of segments that were injected meanwhile; whether the run can go on. What was
        committed stays, so that one that cannot fails where it stands by now."""
        before, began = held.plan.segment(held.position.at or ""), self._parts.clock.monotonic()
        try:
            ready = self._parts.kernel.plan(held.standing)
            check_place(ready.plan, held.position)
            position = entered(ready.plan, held.position, held.plan.hash_version)
        except (Unavailable, Timeout):
            raise
        # guard: run.unreadable
        except Exception as exc:
            return self._failed(held, before, exc, None, began, told)
        held.ready, held.position, held.kept_position = ready, position, None
        return True

    def check_functions(self, row: RunRow) -> None:
        """Raise what is wrong if this program does not have what a run that failed calls next."""
        missing = self._missing(self.hold(row, entering=False)) if row.status == "FAILED" else None
        if missing is not None:
            raise missing

    def _missing(self, held: Held) -> Exception | None:
        """Why this program cannot run the segment at hand, if it does not have what that calls."""
        segment = held.plan.segment(held.position.at or "")
        return missing_functions(self._parts.handlers, held.nodes_of(segment))

    def _failed(
        self,
        held: Held,
        segment: Segment,
        error: Exception,
        run: SegmentRun | None,
        began: float,
        told: Told | None,
    ) -> bool:
        """The run failed, and does not go on."""
        kept = self._fail(held, segment, error, run, began)
        if told is not None:
            told(segment.id, "FAILED", kept)
        return False

    def _segment_run(self, held: Held, segment: Segment, caller: Caller, longest_wait_s: float) -> SegmentRun:
        parts, row = self._parts, held.row
        state = held.standing.state
        facts = Facts(
            row.execution,
            row.workflow,
            row.owner,
            segment.id,
            state.manifest.hex(),
            row.incarnation,
            iterations_at(held.plan, held.position),
            mock=held.options.get("mock", False),
        )
        effects = SegmentEffects(
            RunRecords(parts.engine, parts.tenant, row),
            facts,
            path=segment.id,
            tenant=parts.tenant_name,
            trees=parts.kernel.trees,
            blocks=parts.blocks,
            clock=parts.clock,
            entropy=parts.entropy,
            fresh=held.fresh,
        )
        waiting = held.waiting
        tried = {waiting.node: waiting.attempt} if waiting is not None and waiting.kind == RETRY else {}
        return SegmentRun(
            held.plan,
            segment,
            held.position,
            held.nodes_of(segment),
            facts,
            state,
            effects,
            parts.handlers,
            caller,
            parts.clock,
            self._chance,
            held.lease.is_lost,
            deadline=held.deadline,
            longest_wait_s=longest_wait_s,
            first_attempt=tried,
            trigger=held.options.get("trigger"),
            executor=held.executor,
            row=row,
            parts=parts,
            fresh=held.fresh,
            waiting=waiting,
            here=held.here,
            max_parallel=held.ready.max_parallel,
        )

    def _runner_of(self, segment: Segment) -> SegmentRunner:
        found = self._parts.segment_runners.get(segment.type)
        if found is None:
            raise Denied(
                f"segment {segment.id} is of the type {segment.type}, which nothing here runs",
                hint="run it with a version of the program that knows it",
                segment=segment.id,
            )
        return found

    def _commit(
        self,
        held: Held,
        segment: Segment,
        run: SegmentRun | None,
        ending: Ended | Waits,
        after: Position,
        status: SegmentStatus,
        took_us: int,
    ) -> bool:
        """Everything that the segment did, and where the run stands, together; whether the run's segments are others
        from here on."""
        parts, before = self._parts, held.standing.state.manifest
        over, waits = status == "COMPLETE", isinstance(ending, Waits)
        run_status: Status = "WAITING_HUMAN" if waits else "COMPLETED" if over else "RUNNING"
        due_in_s = ending.timeout_s if isinstance(ending, Waits) else None if over else held.lease.renewal_s
        segments = held.standing.segments
        kept_position = position_text(after, segments, held.plan.hash_version)

        def rows(manifest: BlockId) -> list[RowChange]:
            move = Move(
                held.row.number,
                held.row.fence,
                kept_position,
                held.own if manifest == before else manifest,
                run_status,
                held.row.incarnation,
                waiting=ending.waiting.to_text() if isinstance(ending, Waits) else None,
                kept=not (over or waits),
                due_in=as_us(due_in_s),
            )
            ended = ended_segment(
                held, segment, status, before, manifest, attempts=1 if run is None else run.attempts, took_us=took_us
            )
            return changed(parts, held.row, move, ended)

        if run is not None and not waits and (run.state.is_changed or run.events):
            commit = SegmentCommit(
                held.row.execution, held.plan.numbers[segment.id], rows, run.message, tuple(run.events), last=over
            )
            held.standing = parts.kernel.commit_segment(held.standing, commit)
            held.own = held.standing.state.manifest
        else:
            parts.rows.change_alone(rows(before))
            if run_status == "RUNNING":
                # Only now: nobody injects anything before a segment that a run that is held stands at.
                held.standing = parts.kernel.with_injected(held.standing)
        if due_in_s is not None:
            held.lease.renewed()
        held.position, held.fresh, held.waiting, held.status = after, True, None, run_status
        # As it was written, with the list that it is a place in: others that were injected are not entered yet.
        held.kept_position = after, kept_position
        return held.standing.segments != segments

    def _fail(self, held: Held, segment: Segment, error: Exception, run: SegmentRun | None, began: float) -> RunError:
        """Say that the run failed, and why. It stays where it was, and can be resumed."""
        parts, manifest = self._parts, held.standing.state.manifest
        node, attempts, cause, effect = None, 1 if run is None else run.attempts, error, None
        if isinstance(error, NodeFailed) and isinstance(error.__cause__, Exception):
            node, attempts, cause, effect = error.node, error.attempts, error.__cause__, error.effect
        told = error_of(cause, segment.id, node, attempts, effect)
        # Our own errors say all there is to say.
        where = None if isinstance(cause, AnalemmaError) else cause
        log.warning("run %s failed in segment %s: %s", held.row.execution, segment.id, told.message, exc_info=where)
        move = _leaving(held, "FAILED", error=told.to_text())
        took_us = round((parts.clock.monotonic() - began) * 1_000_000)
        ended = ended_segment(
            held, segment, "FAILED", manifest, manifest, attempts=attempts, took_us=took_us, error=told
        )
        parts.rows.change_alone(changed(parts, held.row, move, ended))
        held.status = "FAILED"
        return told

    def _sleep(self, held: Held, ending: Sleeps) -> None:
        """Let go of the run until its time comes."""
        waiting = None if ending.waiting is None else ending.waiting.to_text()
        move = _leaving(held, "RUNNING", waiting=waiting, due_in=as_us(ending.seconds))
        self._parts.rows.move(*changed(self._parts, held.row, move))

    def _follow(self, held: Held, segment: Segment, ending: Follows, took_us: int) -> None:
        """Let go of the run until another has ended, which may be by now."""
        parts, manifest = self._parts, held.standing.state.manifest
        move = _leaving(held, "RUNNING", waiting=ending.waiting.to_text(), due_in=as_us(ending.timeout_s))
        ended = ended_segment(held, segment, "PAUSED", manifest, manifest, attempts=0, took_us=took_us)
        # It does not wait, if the one that it waits for has ended.
        look = RowChange("look_at_child", {"run": held.row.number, "child": ending.child}, None)
        parts.rows.change_alone([*changed(parts, held.row, move, ended), look])

    def _let_go(self, held: Held, *, due_in_s: float = 0.0) -> None:
        try:
            self._parts.rows.release(held.row.number, held.row.fence, due_in_s=due_in_s)
        except AnalemmaError as exc:
            log.warning("run %s could not be released: %s", held.row.execution, exc)


def _leaving(
    held: Held, status: Status, *, waiting: str | None = None, error: str | None = None, due_in: int | None = None
) -> Move:
    """The run where it stands, and nobody's from then on."""
    move = moved(held.row, status, waiting=waiting, error=error)
    return move._replace(position=held.position_text(), head=held.own, raised=False, due_in=due_in)
