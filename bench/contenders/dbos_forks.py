"""DBOS: a workflow of recorded steps, forked by copying them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.contenders.base import Contender
from bench.workload import agent_step

PACKAGES = ("dbos",)


class DbosForks(Contender):
    """A finished workflow in DBOS's SQLite database. Forks are made by a client, so that nothing runs them
    meanwhile."""

    name = "DBOS fork_workflow"

    def __init__(self, place: Path, *, steps: int) -> None:
        from dbos import DBOS, DBOSClient, SetWorkflowID

        place.mkdir(exist_ok=True)
        url = f"sqlite:///{place / 'dbos.sqlite'}"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR"})

        def think(number: int) -> list[dict[str, Any]]:
            return agent_step(number).messages

        step = DBOS.step()(think)

        def talk() -> int:
            for number in range(steps):
                step(number)
            return steps

        workflow = DBOS.workflow()(talk)
        DBOS.launch()
        try:
            with SetWorkflowID("source"):
                workflow()
        finally:
            DBOS.destroy(destroy_registry=True)
        self._steps = steps
        self._client = DBOSClient(system_database_url=url)

    def branch(self, version: int) -> None:
        """A fork that keeps this many steps."""
        self._client.fork_workflow("source", version)

    def close(self) -> None:
        self._client.destroy()
