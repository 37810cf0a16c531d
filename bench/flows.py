"""Runs of workflows beside DBOS and Temporal, in turns: steps that do nothing, steps that change a counter, and steps
that change a field of a state of 1 MB; and what happens twice outside when processes are killed. Each of our steps is a
segment of its own, as durable when it ends as theirs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import analemma
from analemma.flows.building import Flow
from bench.contenders.base import Contender, missing
from bench.contenders.dbos_flows import PACKAGES, DbosFlows
from bench.contenders.temporal_flows import TemporalFlows, temporal_missing
from bench.flow_effects import effect_rows
from bench.harness import Row, temporary_folder
from bench.workload import prose
from tests.servers import PostgresServer, postgres_missing

GOAL = 3.0
LARGE_FIELDS = 250
LARGE_FIELD_BYTES = 4000
LARGE_STEPS = 100


def run(quick: bool) -> Iterator[Row]:
    """On both databases, with whichever peers there are."""
    steps, rounds = (200, 3) if quick else (400, 7)
    with temporary_folder() as folder:
        yield from on_database("SQLite", str(folder / "ours"), f"sqlite:///{folder / 'dbos.db'}", steps, rounds)
    reason = postgres_missing()
    if reason is not None:
        yield Row.skip("flow steps, PostgreSQL", reason)
    else:
        server = PostgresServer(durable=True)
        try:
            yield from on_database("PostgreSQL", server.create_database(), server.create_database(), steps, rounds)
        finally:
            server.stop()
    yield beside_temporal(steps // 4, rounds)
    yield from effect_rows(quick)


class Ours(Contender):
    """An open store, and a flow for each kind of step."""

    name = "Analemma"

    def __init__(self, url: str) -> None:
        self._app = analemma.open(url, migrate=True)
        self._number = 0
        self._flows: dict[tuple[str, int], Flow] = {}

    def steps(self, count: int) -> None:
        """So many steps that do nothing."""
        self._run("nothing", count, {"n": 0})

    def changes(self, state: dict[str, Any], count: int) -> None:
        """So many steps, each of which changes one field."""
        self._run("change", count, state)

    def close(self) -> None:
        self._app.close()

    def _run(self, kind: str, count: int, state: dict[str, Any]) -> None:
        self._number += 1
        done = self._app.flows.run(
            self._flow(kind, count), state, workflow_id=f"{kind}-{self._number}", owner_id="bench"
        )
        assert done.status == "COMPLETED", done.error

    def _flow(self, kind: str, count: int) -> Flow:
        known = self._flows.get((kind, count))
        if known is None:
            known = self._flows[kind, count] = make_flow(kind, count)
        return known


def make_flow(kind: str, count: int) -> Flow:
    """As many steps, each a segment."""
    flow = Flow(f"{kind}-{count}", checkpoints="node", limits={"max_iterations": count + 1})
    for number in range(count):
        flow.step(_step(kind, number), reads=["n"], writes=["n"])
    return flow


def _step(kind: str, number: int) -> Callable[[Any, Any], Any]:
    def nothing(state: Any, ctx: Any) -> None:
        return None

    def change(state: Any, ctx: Any) -> dict[str, int]:
        return {"n": number}

    made = nothing if kind == "nothing" else change
    made.__name__ = f"step_{number}"
    return made


def on_database(name: str, ours_at: str, theirs_at: str, steps: int, rounds: int) -> Iterator[Row]:
    """All comparisons on one database."""
    reason = missing(PACKAGES)
    with closing(Ours(ours_at)) as ours:
        peer = None if reason is not None else DbosFlows(theirs_at)
        try:
            yield _rates(f"flow, steps that do nothing, {name}", ours, peer, "steps", (steps,), steps, rounds)
            yield _rates(
                f"flow, steps that change a counter, {name}", ours, peer, "changes", ({"n": 0}, steps), steps, rounds
            )
            large: dict[str, Any] = {
                f"field-{number:03}": prose(number, LARGE_FIELD_BYTES) for number in range(LARGE_FIELDS)
            }
            yield _rates(
                f"flow, 100 changes of a state of 1 MB, {name}",
                ours,
                peer,
                "changes",
                ({**large, "n": 0}, LARGE_STEPS),
                LARGE_STEPS,
                max(2, rounds // 2),
            )
        finally:
            if peer is not None:
                peer.close()


def beside_temporal(steps: int, rounds: int) -> Row:
    """Temporal's server has a database of its own, as ours is."""
    name = "flow, steps that do nothing, SQLite, beside Temporal"
    reason = temporal_missing()
    if reason is not None:
        return Row.skip(name, reason)
    with (
        temporary_folder() as folder,
        closing(Ours(str(folder / "ours"))) as ours,
        closing(TemporalFlows(folder)) as peer,
    ):
        return _rates(name, ours, peer, "steps", (steps,), steps, rounds)


def _rates(
    name: str, ours: Ours, peer: Contender | None, verb: str, arguments: tuple[Any, ...], steps: int, rounds: int
) -> Row:
    """Steps per second; the ratio is the median over neighbours in time."""
    ours.timed(verb, *arguments)
    if peer is not None:
        peer.timed(verb, *arguments)
    took: list[tuple[float, float]] = []
    for _ in range(rounds):
        mine = ours.timed(verb, *arguments)[0]
        took.append((mine, mine if peer is None else peer.timed(verb, *arguments)[0]))
    rate = steps / statistics.median([mine for mine, _ in took])
    if peer is None:
        return Row(name, rate, "steps/s", skipped=None)
    ratio = statistics.median([other / mine for mine, other in took])
    theirs = steps / statistics.median([other for _, other in took])
    return Row.at_least(
        name, rate, "steps/s", ratio=ratio, against=f"{peer.name} ({theirs:,.3g} steps/s{peer.remark})", limit=GOAL
    )
