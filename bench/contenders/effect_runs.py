"""`python -m bench.contenders.effect_runs ours|dbos URL FILE STEPS ON_UNKNOWN`: one process that runs, or goes on with,
a workflow each of whose steps does something outside. It is made to be killed.

What happens outside is a line in a file: the key that the step has for it, and the number of the step."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

ANSWER_S: Final = 0.02
"""So long the answer of the outside is under way."""
NAME: Final = "effects"


def happen(file: Path, key: str, number: int) -> int:
    """Something outside happens, and somewhat later its answer arrives."""
    with file.open("a") as lines:
        lines.write(f"{key} {number}\n")
    time.sleep(ANSWER_S)
    return number


def run_ours(url: str, file: Path, steps: int, on_unknown: Any) -> None:
    """Begin, or go on with, a run; questions about what happened are answered by looking."""
    import analemma

    with analemma.open(url) as app:
        run = app.flows.run(
            make_flow(file, steps, on_unknown), {"n": 0}, workflow_id=NAME, owner_id="bench", idempotency_key=NAME
        )
        if run.status == "RUNNING":
            run = app.flows.resume(run.execution_id)
        while run.waiting is not None and run.waiting.effect is not None:
            done = any(line.split()[0].endswith(run.waiting.effect) for line in file.read_text().splitlines())
            run = app.flows.approve(run.execution_id, "happened" if done else "did not", actor="bench")
        if run.status != "COMPLETED":
            raise RuntimeError(f"the run is {run.status}: {run.error}")


def make_flow(file: Path, steps: int, on_unknown: Any) -> Any:
    """Steps that are segments of their own, each with one effect."""
    from analemma.flows.building import Flow

    flow = Flow(NAME, checkpoints="node", limits={"max_iterations": steps + 1})

    def step(number: int) -> Any:
        def act(state: Any, ctx: Any) -> dict[str, Any]:
            ctx.once("happen", lambda key: happen(file, key, number), on_unknown=on_unknown)
            return {"n": number}

        act.__name__ = f"step_{number}"
        return act

    for number in range(steps):
        flow.step(step(number), reads=["n"], writes=["n"])
    return flow


def run_dbos(url: str, file: Path, steps: int) -> None:
    """Begin, or go on with, a workflow; a step's key is made of the ids that DBOS has for it."""
    from dbos import DBOS, SetWorkflowID

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL", "run_admin_server": False})

    def act(number: int) -> int:
        return happen(file, f"{DBOS.workflow_id}:{DBOS.step_id}", number)

    act_step = DBOS.step()(act)

    def walk(steps: int) -> int:
        for number in range(steps):
            act_step(number)
        return steps

    workflow = DBOS.workflow()(walk)
    DBOS.launch()
    with SetWorkflowID(NAME):
        DBOS.start_workflow(workflow, steps).get_result()
    DBOS.destroy()


def main() -> None:
    who, url, file, steps, on_unknown = sys.argv[1:]
    if who == "ours":
        run_ours(url, Path(file), int(steps), on_unknown)
    else:
        run_dbos(url, Path(file), int(steps))


if __name__ == "__main__":
    main()
