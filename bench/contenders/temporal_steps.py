"""The workflow that Temporal runs: activities that do nothing, one after the other. Apart from its contender, because
Temporal wants to find both at the top level of a module, and may not be installed."""

from __future__ import annotations

from datetime import timedelta

from temporalio import activity, workflow


@activity.defn  # type: ignore[untyped-decorator]
async def nothing(number: int) -> int:
    """One step."""
    return number


@workflow.defn
class Walk:
    """So many steps."""

    @workflow.run  # type: ignore[untyped-decorator]
    async def run(self, steps: int) -> int:
        """One after the other, each recorded before the next begins."""
        for number in range(steps):
            await workflow.execute_activity(nothing, number, start_to_close_timeout=timedelta(seconds=60))
        return steps
