"""Runs in this process: one that was claimed, with the subflows that it waits for and whoever waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from analemma.catalog.engine.db import Transaction
from analemma.catalog.port import RowChange
from analemma.catalog.runs.runs import AFTER_CLAIM, RunRow, as_us, change_runs
from analemma.errors import AnalemmaError, Timeout, Unavailable
from analemma.failpoints import hit
from analemma.flows.continuing import Family, changed, moved, workflow_status
from analemma.flows.held_runs import Held, RunnerParts
from analemma.flows.run_kernel import Standing
from analemma.flows.running import Runner, Told
from analemma.flows.runs import RunError, error_of
from analemma.flows.subflows import end_strays
from analemma.machine import is_dead

FOREVER: Final = float("inf")


class Here:
    """Goes on with runs of one tenant."""

    def __init__(self, parts: RunnerParts, runner: Runner) -> None:
        self._parts = parts
        self._runner = runner

    def claim(self, row: RunRow, *beside: RowChange, failed: bool = False, gone: str | None = None) -> RunRow | None:
        """Hold a run, with what else changes then; None if somebody else does, or it is over. `gone` is a holder that
        is known to be dead."""
        parts = self._parts
        lease_us = as_us(parts.settings.run_lease_s)
        asked = {"holder": parts.holder, "lease": lease_us, "failed": int(failed), "gone": gone}

        def take(tx: Transaction) -> RunRow | None:
            claimed = tx.row(RunRow, "claim_run", run=row.number, **asked)
            if claimed is None or not beside:
                return claimed
            change_runs(tx, beside)
            # A deadline that began again is the claimed run's.
            return tx.row(RunRow, "run_of_number", number=row.number)

        claimed = parts.engine.write(take)
        hit(AFTER_CLAIM)
        return claimed

    def go_on(
        self,
        row: RunRow,
        *,
        standing: Standing | None = None,
        fresh: bool = False,
        executor: Any = None,
        longest_wait_s: float = FOREVER,
        told: Told | None = None,
        quietly: bool = False,
        stop: Callable[[], bool] = lambda: False,
        leaving: bool = False,
        here: bool = False,
    ) -> Held | None:
        """Run what was claimed. What cannot even be taken up, because its manifest is damaged or not its own, fails."""
        try:
            end_strays(self._parts, row)
            held = self._runner.hold(row, standing, fresh=fresh, executor=executor)
        except (Unavailable, Timeout) as exc:
            # Whoever is in the way of a lock may be so for a while.
            due_in_s = self._parts.settings.run_lease_s if isinstance(exc, Timeout) else 0.0
            self._parts.rows.release(row.number, row.fence, due_in_s=due_in_s)
            raise
        except AnalemmaError as exc:
            self.end(row, "FAILED", error_of(exc))
            if not quietly:
                raise
            return None
        held.here = here
        self._runner.go_on(held, longest_wait_s=longest_wait_s, told=told, stop=stop, leaving=leaving)
        return held

    def run(
        self,
        row: RunRow,
        *,
        standing: Standing | None = None,
        fresh: bool = False,
        executor: Any = None,
        told: Told | None = None,
        leaving: bool = False,
    ) -> None:
        """Run what was claimed, the subflows that it waits for, and whoever waits for it."""
        held = self.go_on(row, standing=standing, fresh=fresh, executor=executor, told=told, leaving=leaving, here=True)
        family = self.family(executor, told, leaving=leaving)
        if held is not None:
            family.below(held)
        family.above(row)

    def family(self, executor: Any, told: Told | None, *, leaving: bool = False) -> Family:
        """Runs what stands above and below one that is run here."""

        def claim(row: RunRow) -> RunRow | None:
            gone = row.holder if row.holder is not None and is_dead(row.holder) else None
            return self.claim(row, gone=gone)

        def go_on(row: RunRow, standing: Standing | None) -> Held | None:
            return self.go_on(
                row,
                standing=standing,
                fresh=standing is not None,
                executor=executor,
                told=told,
                quietly=True,
                leaving=leaving,
                here=True,
            )

        return Family(self._parts, claim, go_on)

    def end(self, row: RunRow, status: Literal["FAILED", "CANCELLED"], error: RunError | None = None) -> None:
        """End a run where it is, and say so beside its workflow."""
        kept = None if error is None else error.to_text()
        move, parts = moved(row, status, from_status=row.status, error=kept), self._parts
        changes = changed(parts, row, move)
        if status == "CANCELLED":
            parts.rows.cancel_children(row.number, lambda key: workflow_status(parts, key, "IDLE"), *changes)
        else:
            parts.rows.move(*changes)

    def go_on_if_possible(self, row: RunRow, told: Told | None) -> None:
        """Run on, unless what comes next is not here: then a worker that has it does."""
        claimed = self.claim(row) if row.status == "RUNNING" else None
        if claimed is not None:
            self.run(claimed, told=told, leaving=True)
        else:
            # It may be over with the decision, and somebody may wait for that.
            self.family(None, told, leaving=True).above(row)
