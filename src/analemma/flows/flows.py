"""The verbs on runs: begin, go on, decide, cancel, run again, look."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final, get_args

from analemma.canon.nodes import BlockId
from analemma.catalog.leases import database_clock
from analemma.catalog.runs.queues import tidy_lanes
from analemma.catalog.runs.runs import LAST, FencedOut, RunRow, SegmentRow, Status
from analemma.errors import AnalemmaError, Conflict, Denied, Invalid, NotFound, Timeout, Unavailable
from analemma.flows.beginning import Beginning, Mock, RunsOn, workflow_of
from analemma.flows.continuing import beginning_again, changed, moved
from analemma.flows.deciding import Deciding, Unknown, waiting_of
from analemma.flows.handlers import HasFunctions
from analemma.flows.held_runs import RunnerParts
from analemma.flows.partitioning import partition
from analemma.flows.queueing import Queues, check_delay
from analemma.flows.reading import read_workflow
from analemma.flows.recording import recorded_answers
from analemma.flows.rerunning import Rerunning
from analemma.flows.running import Runner, Told
from analemma.flows.running_here import FOREVER, Here
from analemma.flows.runs import Run, RunSegment, error_of, run_of_row, segment_of_row
from analemma.flows.scheduling import Schedules
from analemma.machine import is_dead
from analemma.state.arguments import MAIN, check_name

log = logging.getLogger("analemma.flows")

MOST_TRIES: Final = 20
MOST_ROWS: Final = 1000
"""A page of runs, at most."""
STATUSES: Final[tuple[str, ...]] = get_args(Status)


class Flows:
    """Runs of one tenant. Safe to share between threads.

    >>> import analemma
    >>> from analemma.flows.building import Flow
    >>> flow = Flow("hello")
    >>> @flow.step(reads=["name"], writes=["greeting"])
    ... def greet(state, ctx):
    ...     return {"greeting": f"hello {state['name']}"}
    >>> app = analemma.open("sqlite:///:memory:")
    >>> run = app.flows.run(flow, {"name": "ann"}, workflow_id="h-1", owner_id="ann")
    >>> run.status, run.state["greeting"], [segment.segment_id for segment in run.segments]
    ('COMPLETED', 'hello ann', ['greet'])
    >>> app.close()
    """

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts
        self._runner = Runner(parts)
        self._beginning = Beginning(parts)
        self._deciding = Deciding(parts, self._runner)
        self._rerunning = Rerunning(parts)
        self._here = Here(parts, self._runner)
        self._claim, self._continue = self._here.claim, self._here.go_on
        self.handlers = parts.handlers
        """The functions of this program, and what nodes of each type do: `add`, `add_all`, `allow`, `bind`."""

    @cached_property
    def queues(self) -> Queues:
        """The queues that runs may wait in: `set()`, `list()`, `get()`, `remove()`."""
        return Queues(self._parts)

    @cached_property
    def schedules(self) -> Schedules:
        """What is run when: `add()`, `list()`, `get()`, `pause()`, `resume()`, `remove()`, `run_now()`."""
        return Schedules(self._parts, view=self._view)

    def register(self, flow: HasFunctions | RunsOn) -> None:
        """Make a flow's functions and its document known, so that runs of it can go on here, and subflows can run it;
        or a document alone."""
        if isinstance(flow, HasFunctions):
            self.handlers.add_all(flow)
        else:
            self.handlers.add_document(workflow_of(flow))

    def run(
        self,
        flow: RunsOn,
        input: Mapping[str, Any] | None = None,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        idempotency_key: str | None = None,
        executor: Any = None,
        mock: Mock = False,
        trigger: Mapping[str, Any] | None = None,
        wait: bool = True,
        told: Told | None = None,
    ) -> Run:
        """Begin a run and, unless told not to `wait`, run it here until it is over or waits for somebody.

        The input is applied over the state that the workflow has. The same `idempotency_key` gives the same run,
        however often it is asked for; Conflict for another document or input under it. A run that fails does not raise:
        its `status` and `error` say so."""
        asked = self._beginning.asked(
            flow,
            input,
            workflow_id=workflow_id,
            owner_id=owner_id,
            branch=branch,
            idempotency_key=idempotency_key,
            executor=executor if wait else _by_name(executor),
            mock=mock,
            trigger=trigger,
        )
        row, standing = self._beginning.begin(asked, here=wait)
        if standing is None or not wait:
            return self._view(row)
        held = self._runner.hold(row, standing, fresh=True, executor=executor)
        held.here = True
        self._runner.go_on(held, told=told)
        if held.begun is not None:
            self._here.family(executor, told).below(held)
        return self.get(row.execution)

    def start(
        self,
        flow: RunsOn,
        input: Mapping[str, Any] | None = None,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        idempotency_key: str | None = None,
        executor: str | None = None,
        mock: Mock = False,
        trigger: Mapping[str, Any] | None = None,
        queue: str = "",
        priority: int = 0,
        delay_s: float = 0.0,
    ) -> Run:
        """Begin a run, and leave it to a worker. In a `queue`, runs of a higher `priority` come first."""
        check_delay(delay_s)
        asked = self._beginning.asked(
            flow,
            input,
            workflow_id=workflow_id,
            owner_id=owner_id,
            branch=branch,
            idempotency_key=idempotency_key,
            executor=_by_name(executor),
            mock=mock,
            trigger=trigger,
            queue=queue,
            priority=priority,
            delay_s=delay_s,
        )
        return self._view(self._beginning.begin(asked, here=False)[0])

    def resume(
        self,
        execution_id: str,
        *,
        executor: Any = None,
        take_over: bool = False,
        unknown: Unknown | None = None,
        result: Any = None,
        segment_config: Mapping[str, Any] | None = None,
        workflow_config: Mapping[str, Any] | None = None,
        wait: bool = True,
        told: Told | None = None,
    ) -> Run:
        """Go on with a run that failed, or whose worker died, from where it stands.

        One that is over, or waits for somebody, is given back as it is. Conflict while somebody works on it: its worker
        may be slow and not dead. A worker on this machine that is dead is known to be; otherwise `take_over` says that
        it is, and what it still does is refused.

        A run that failed because nobody knows whether an effect happened (`on_unknown="fail"`) goes on when somebody
        has found out: with `unknown` "happened", and perhaps its `result`, or "did not", and then it is called.

        With `segment_config`, that is what the next segment is thought to be, and with `workflow_config` the whole
        document (as callers used to pass it): Denied, and nothing is run, if the run's manifest says otherwise."""
        row = self._row(execution_id)
        self._check_given(row, segment_config, workflow_config)
        if unknown is None and result is not None:
            raise Invalid("there is a result, and nothing that it is of", hint="say unknown='happened' with it")
        if unknown is not None:
            if wait:
                self._runner.check_functions(row)
            self._deciding.find_out(row, unknown, result, *beginning_again(self._parts, row))
            if not wait:
                return self.get(execution_id)
            # From here on a worker may have it, which then goes on with what was found out.
            row, take_over = self._row(execution_id), False
        if row.status in ("COMPLETED", "CANCELLED", "WAITING_HUMAN"):
            return self._view(row)
        if not wait:
            if row.holder is None:
                waiting = row.waiting if row.status == "RUNNING" else None
                # One that nobody has begun is still to be: its queue counts it then, and so does its time.
                status: Status = "PENDING" if row.status == "PENDING" else "RUNNING"
                move = moved(row, status, from_status=row.status, due_in_s=0.0, waiting=waiting)
                self._parts.rows.move(*changed(self._parts, row, move), *beginning_again(self._parts, row))
            return self.get(execution_id)
        gone = row.holder if row.holder is not None and (take_over or is_dead(row.holder)) else None
        claimed = self._claim(row, *beginning_again(self._parts, row), failed=True, gone=gone)
        if claimed is None:
            row = self._row(execution_id)
            if unknown is not None or row.status in ("COMPLETED", "CANCELLED", "WAITING_HUMAN"):
                return self._view(row)
            raise Conflict(
                f"the run {execution_id} is being run by {row.holder}",
                hint="wait, or say take_over if that worker is dead",
                holder=row.holder,
            )
        self._here.run(claimed, executor=executor, told=told)
        return self.get(execution_id)

    def approve(
        self,
        execution_id: str,
        choice: str,
        actor: str,
        payload: Any = None,
        *,
        wait: bool = True,
        told: Told | None = None,
    ) -> Run:
        """Decide what a run waits for, once: a second decision is a Conflict.

        The decision is committed as what the human step came to: `choice`, `actor` and perhaps `payload`, in its field.
        Then, if told to `wait`, the run goes on here, where this program has what it needs for that; else a worker goes
        on."""
        row = self._row(execution_id)
        waiting = waiting_of(row)
        if choice not in waiting.choices:
            raise Invalid(
                f"{choice!r} is not among the choices", hint=", ".join(waiting.choices), choices=waiting.choices
            )
        check_name(actor, "actor")
        try:
            self._deciding.decide(row, choice, actor, payload)
        except FencedOut as exc:
            raise Conflict(f"the run {execution_id} was decided already", hint="look at where it stands") from exc
        if wait:
            self._here.go_on_if_possible(self._row(execution_id), told)
        return self.get(execution_id)

    def cancel(self, execution_id: str) -> Run:
        """End a run, and the subflows that it waits for. What a worker that is at it does from here on is refused; what
        it committed stays."""
        for _ in range(MOST_TRIES):
            row = self._row(execution_id)
            if row.status == "CANCELLED":
                return self._view(row)
            if row.status in ("COMPLETED", "FAILED"):
                raise Conflict(f"the run {execution_id} is {row.status}", hint="there is nothing to cancel")
            try:
                self._here.end(row, "CANCELLED")
                return self.get(execution_id)
            except FencedOut:
                continue
        raise Conflict(f"the run {execution_id} changes hands too fast", hint="try again")

    def rerun(
        self,
        execution_id: str,
        *,
        from_segment: int | str | None = None,
        from_version: int | None = None,
        fork: bool | str = False,
        executor: Any = None,
        wait: bool = True,
        told: Told | None = None,
    ) -> Run:
        """Go on from an earlier point: before the last execution of a segment (by its number or id), or from a version.

        In place, the state of then becomes the newest version again, and the run goes on in another incarnation: its
        effects are others. With `fork`, the run stays as it is, and another goes on, on a branch of its own, which may
        be named."""
        row = self._row(execution_id)
        at = self._rerunning.point(row, self._segment_rows(row), from_segment, from_version)
        try:
            if fork is False:
                row, standing = self._rerunning.in_place(row, at)
            else:
                row, standing = self._rerunning.forked(row, at, None if fork is True else fork)
        except FencedOut as exc:
            raise Conflict(f"the run {execution_id} was moved meanwhile", hint="look at where it stands") from exc
        claimed = self._claim(row) if wait else None
        if claimed is not None:
            self._here.run(claimed, standing=standing, fresh=True, executor=executor, told=told)
        return self.get(row.execution)

    def get(self, execution_id: str) -> Run:
        """One run."""
        return self._view(self._row(execution_id))

    def runs(
        self,
        *,
        status: str | None = None,
        workflow_id: str | None = None,
        owner_id: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> list[Run]:
        """A page of runs, newest first; `after` is the `number` of the last run of the page before."""
        if status is not None and status not in STATUSES:
            raise Invalid(f"no run is {status!r}", hint=", ".join(STATUSES))
        if type(limit) is not int or not 1 <= limit <= MOST_ROWS:
            raise Invalid(f"a page of {limit}", hint=f"ask for 1 to {MOST_ROWS}")
        chosen = {"status": status or "", "workflow": workflow_id or "", "owner": owner_id or "", "name": name or ""}
        asked = {"tenant": self._parts.tenant, "before": LAST if after is None else after, "limit": limit, **chosen}
        return [self._view(row) for row in self._parts.engine.rows(RunRow, "runs", **asked)]

    def recorded(self, execution_id: str) -> dict[str, Any]:
        """What models and hosts answered a run, by node: to be kept as JSON, and given to `run` as `mock`."""
        return recorded_answers(self._parts, self._row(execution_id))

    def forget(self, older_than_s: float) -> int:
        """Delete the records of runs that ended so long ago, with those of their effects; how many. Versions stay."""
        before = database_clock(self._parts.engine) - round(older_than_s * 1_000_000)
        forgotten = 0
        while count := self._parts.rows.forget(ended_before_us=before):
            forgotten += count
        tidy_lanes(self._parts.engine, self._parts.tenant)
        return forgotten

    def work_on(
        self,
        row: RunRow,
        *,
        longest_wait_s: float = FOREVER,
        told: Told | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """For workers: do what is to be done about a run that was claimed."""
        try:
            if row.status == "WAITING_HUMAN":
                if not self._decided_late(row):
                    return
                # In a queue it is due from here on, and gets a place when it is its turn.
                claimed = self._claim(row) if row.queue == "" else None
                if claimed is None:
                    return
                row = claimed
            self._continue(row, longest_wait_s=longest_wait_s, told=told, quietly=True, stop=stop)
        except FencedOut:
            # Somebody decided, cancelled or took over meanwhile.
            return

    def _decided_late(self, row: RunRow) -> bool:
        """Whether what nobody decided in time is decided; if that cannot even be said, the run fails."""
        try:
            self._deciding.decide_late(row)
            return True
        except (Unavailable, Timeout, FencedOut):
            # Of the store: the lease runs out, and somebody looks again.
            raise
        except AnalemmaError as exc:
            log.warning("run %s cannot be decided: %s", row.execution, exc)
            self._here.end(row, "FAILED", error_of(exc))
            return False

    def close(self) -> None:
        """Renew no lease any more."""
        self._parts.leases.close()

    def _row(self, execution_id: str) -> RunRow:
        row = self._parts.rows.get(check_name(execution_id, "execution"))
        if row is None:
            raise NotFound(f"there is no run {execution_id}", hint="runs() lists them", execution=execution_id)
        return row

    def _view(self, row: RunRow) -> Run:
        def state() -> dict[str, Any]:
            return self._parts.kernel.load_state(row.head.hex())

        def segments() -> tuple[RunSegment, ...]:
            return tuple(map(segment_of_row, self._segment_rows(row)))

        return run_of_row(row, state, segments)

    def _segment_rows(self, row: RunRow) -> list[SegmentRow]:
        behind = {"incarnation": row.incarnation, "after": -1}
        pages = self._parts.engine.pages("run_segments", behind, limit=MOST_ROWS, run=row.number)
        return [SegmentRow(*each) for page in pages for each in page]

    def _check_given(
        self, row: RunRow, segment_config: Mapping[str, Any] | None, workflow_config: Mapping[str, Any] | None
    ) -> None:
        """Denied unless what a caller brings along is what the run's manifest says."""
        if segment_config is None and workflow_config is None:
            return
        kernel = self._parts.kernel
        standing = kernel.newest(row.key, BlockId(row.document), row.head)
        at = json.loads(row.position)["at"]
        if segment_config is None and workflow_config is not None:
            warnings.warn("the whole document was passed; a run needs none", DeprecationWarning, stacklevel=3)
            plan = partition(read_workflow(workflow_config))
            if at not in plan.numbers:
                raise Denied(f"the document has no segment {at}", hint="nothing was run", segment=at)
            segment_config = plan.segment(at).config
        kernel.check_config(standing, kernel.plan(standing).plan.numbers.get(at, -1), segment_config or {})


def _by_name(executor: Any) -> str | None:
    if executor is not None and not isinstance(executor, str):
        raise Invalid(
            f"a {type(executor).__name__} cannot be left to a worker",
            hint="name the executor by a text, as processes:4",
        )
    return executor
