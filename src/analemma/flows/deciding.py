"""Decisions that runs wait for: of a human step, and of an effect that nobody knows of. Each is made once."""

from __future__ import annotations

from typing import Any, Literal

from analemma.canon.nodes import BlockId
from analemma.canon.pointer import Operation
from analemma.catalog.port import PreparedBlocks, RowChange
from analemma.catalog.runs.effects import EffectRow, settle_effect
from analemma.catalog.runs.runs import FencedOut, RunRow, Status
from analemma.errors import Conflict, Denied, Invalid, Timeout
from analemma.flows.continuing import changed, moved
from analemma.flows.effects import DID_NOT, HAPPENED, result_row
from analemma.flows.held_runs import Held, RunnerParts
from analemma.flows.keeping import ended_segment, position_text
from analemma.flows.nodes import HumanNode
from analemma.flows.run_kernel import SegmentCommit, SegmentsInjected
from analemma.flows.running import Runner
from analemma.flows.runs import EFFECT, Waiting, error_of, read_error, read_waiting
from analemma.flows.walking import advance

Unknown = Literal["happened", "did not"]
"""What somebody has found out about an effect."""


def waiting_of(row: RunRow) -> Waiting:
    """What a run waits for; Conflict if for nothing that somebody could decide."""
    waiting = read_waiting(row)
    if row.status != "WAITING_HUMAN" or waiting is None:
        raise Conflict(f"the run {row.execution} is {row.status}", hint="there is nothing to decide")
    return waiting


class Deciding:
    """Makes decisions."""

    def __init__(self, parts: RunnerParts, runner: Runner) -> None:
        self._parts = parts
        self._runner = runner

    def decide(self, row: RunRow, choice: str, actor: str | None, payload: Any) -> None:
        """Commit a decision as what the segment came to, and let the run go on; FencedOut if somebody else decided."""
        waiting = waiting_of(row)
        if waiting.kind == EFFECT:
            assert waiting.effect is not None
            self.settle(row, waiting.effect, choice, payload)
        else:
            decided = False
            while not decided:
                try:
                    self._decide_step(self._runner.hold(row, entering=False), waiting, choice, actor, payload)
                    decided = True
                except SegmentsInjected:
                    # Behind what was the last segment: it is not the last any more.
                    continue

    def decide_late(self, row: RunRow) -> None:
        """Nobody decided in time: the default does, or the run fails."""
        waiting = waiting_of(row)
        if waiting.default is not None:
            self.decide(row, waiting.default, None, None)
            return
        late = Timeout(f"nobody decided {waiting.node} in time", hint="give the step a default")
        held = self._runner.hold(row, entering=False)
        error = error_of(late, waiting.segment, waiting.node)
        manifest, segment = held.standing.state.manifest, held.plan.segment(held.position.at or "")
        move = moved(row, "FAILED", from_status="WAITING_HUMAN", error=error.to_text())
        ended = ended_segment(held, segment, "FAILED", manifest, manifest, attempts=0, error=error)
        self._parts.rows.change_alone(changed(self._parts, row, move, ended))

    def _decide_step(self, held: Held, waiting: Waiting, choice: str, actor: str | None, payload: Any) -> None:
        parts, row = self._parts, held.row
        segment = held.plan.segment(held.position.at or "")
        ready = next(iter(held.nodes_of(segment)), None)
        if ready is None or not isinstance(ready.node, HumanNode) or ready.node.id != waiting.node:
            raise Denied(f"the run {row.execution} does not stand at {waiting.node}", hint="its manifest is another")
        decision = {"choice": choice, "actor": actor}
        if payload is not None:
            decision["payload"] = payload
        before = held.standing.state.manifest
        held.standing.state.apply([Operation("put", (ready.node.target,), decision)])
        after = advance(held.plan, held.position)
        over = after.at is None

        def rows(manifest: BlockId) -> list[RowChange]:
            place = position_text(after, held.standing.segments, held.plan.hash_version)
            status: Status = "COMPLETED" if over else "RUNNING"
            move = moved(row, status, from_status="WAITING_HUMAN", due_in_s=None if over else 0.0)
            move = move._replace(position=place, head=manifest)
            ended = ended_segment(held, segment, "COMPLETE" if over else "CONTINUE", before, manifest, attempts=0)
            return changed(parts, row, move, ended)

        said = f"{waiting.node}: {choice}" + ("" if actor is None else f", by {actor}")
        parts.kernel.commit_segment(
            held.standing, SegmentCommit(row.execution, held.plan.numbers[segment.id], rows, said, last=over)
        )

    def find_out(self, row: RunRow, unknown: Unknown, result: Any, *beside: RowChange) -> None:
        """Somebody has found out whether what a run failed because of happened; Conflict if it failed otherwise."""
        if unknown not in (HAPPENED, DID_NOT):
            raise Invalid(f"unknown is {unknown!r}", hint=f"{HAPPENED!r} or {DID_NOT!r}")
        error = read_error(row.error)
        if row.status != "FAILED" or error is None or error.effect is None:
            hint = "approve decides what it waits for" if row.status == "WAITING_HUMAN" else "leave out unknown"
            raise Conflict(f"the run {row.execution} did not fail because of an effect that nobody knows of", hint=hint)
        try:
            self.settle(row, error.effect, unknown, result, *beside)
        except FencedOut as exc:
            raise Conflict(f"the run {row.execution} was moved meanwhile", hint="look at where it stands") from exc

    def settle(self, row: RunRow, effect: str, choice: str, payload: Any, *beside: RowChange) -> None:
        """What is known of an effect from now on: that it happened, with the payload as its result, or did not. The run
        waits for that, or failed because nobody knew, and can go on."""
        parts = self._parts
        known, blocks = EffectRow(effect, "failed"), PreparedBlocks()
        if choice == HAPPENED:
            known, blocks = result_row(parts.kernel.trees, parts.blocks, row.key, row.execution, effect, payload)
        move = moved(row, "RUNNING", from_status=row.status, due_in_s=0.0)
        settle_effect(parts.engine, parts.tenant, move, known, blocks, *beside)
