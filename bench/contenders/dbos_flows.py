"""DBOS: workflows whose steps are recorded one by one."""

from __future__ import annotations

from typing import Any

from bench.contenders.base import Contender

PACKAGES = ("dbos",)


class DbosFlows(Contender):
    """A running DBOS on a database of its own."""

    name = "DBOS"

    def __init__(self, url: str) -> None:
        from dbos import DBOS

        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL", "run_admin_server": False})
        self._dbos = DBOS
        # It leaves SQLite's journal as it is.
        self.remark = "; SQLite not in WAL" if url.startswith("sqlite") else ""

        def nothing(number: int) -> int:
            return number

        def change(state: dict[str, Any], number: int) -> dict[str, Any]:
            return {**state, "n": number}

        nothing_step, change_step = DBOS.step()(nothing), DBOS.step()(change)

        def walk(steps: int) -> int:
            for number in range(steps):
                nothing_step(number)
            return steps

        def grow(state: dict[str, Any], steps: int) -> int:
            for number in range(steps):
                state = change_step(state, number)
            return int(state["n"])

        self._walk, self._grow = DBOS.workflow()(walk), DBOS.workflow()(grow)
        DBOS.launch()

    def steps(self, count: int) -> None:
        """So many steps that do nothing."""
        self._walk(count)

    def changes(self, state: dict[str, Any], count: int) -> None:
        """So many steps, each of which gives the state with one field changed."""
        self._grow(state, count)

    def close(self) -> None:
        self._dbos.destroy(destroy_registry=True)
