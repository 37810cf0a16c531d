"""Agents save their state; their runs become views and a file, with no glue code between the two.

    python examples/agent_runs/agent_runs.py [STORE]

The contracts are in contracts.yaml beside this file. Without STORE, everything is in a directory that is removed at the
end; with one, look at it afterwards: `analemma view search view.run.v1 status FAILED --tenant agents -u STORE`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import analemma

CONTRACTS = Path(__file__).with_name("contracts.yaml")
GOALS = {"1": "plan a trip", "2": "sort the mail", "3": "read the news"}


def work(kernel: Any, run: str) -> None:
    """One agent: a state that grows with every step, most of which is nobody else's business."""
    name = {"workflow_id": f"runs/{run}", "owner_id": "ann"}
    kernel.save_state_delta(
        {
            "runId": run,
            "goal": GOALS[run],
            "status": "RUNNING",
            "messages": [],
            "credentials": {"token": "s3cret"},
            "progress": {"steps": 0, "last": "started"},
        },
        **name,
    )
    for step in range(1, 4):
        kernel.save_state_delta({"/messages/-": {"role": "assistant", "content": f"thought {step}" * 50}}, **name)
        kernel.save_state_delta({"progress": {"steps": step, "last": f"finished step {step}"}}, **name)
    kernel.save_state_delta({"status": "FAILED" if run == "2" else "COMPLETED"}, **name)


def main(store: Path) -> None:
    """Save states, let a worker deliver what they became, and look at both ends."""
    os.environ["AGENT_RUNS_OUT"] = str(store / "out")
    with analemma.open(store) as app:
        app.contracts.load(CONTRACTS)
        agents = app.tenant("agents")
        for run in GOALS:
            work(agents.kernel, run)

        # A worker of its own would do this all the time: `analemma worker`.
        app.worker().drain()

        runs = agents.view("view.run.v1")
        for status in ("COMPLETED", "FAILED"):
            found = runs.search("status", status)
            print(f"{status}: {', '.join(sorted(each.entity_id for each in found))}")
        print("ann-2:", json.dumps(runs.get("ann-2").data, sort_keys=True))

        # Back to an earlier version: what that one said is ingested again, as a new version of the entity.
        agents.kernel.rollback_to_version(workflow_id="runs/2", owner_id="ann", version=3)
        app.worker().drain()
        print("rolled back:", runs.get("ann-2").data["SUMMARY"]["status"])

        lines = (store / "out" / "runs-agents.jsonl").read_text(encoding="utf-8").splitlines()
        newest = {line["docId"]: line["body"] for line in map(json.loads, lines)}
        print(f"the file has {len(newest)} documents; agents__ann-2 is {newest['agents__ann-2']['status']}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(prefix="analemma-agent-runs-") as directory:
            main(Path(directory) / "store")
