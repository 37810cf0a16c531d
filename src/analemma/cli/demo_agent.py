"""The part of `analemma demo` that is about flows: an agent plans a trip, is killed while it looks things up, goes on,
is taken back one segment, and is run differently on a fork.

What the agent does outside of its store is written to a file, line by line, so that all of it can be counted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from rich.console import Console

import analemma
from analemma.catalog.port import Version
from analemma.failpoints import VARIABLE
from analemma.flows.building import Flow
from analemma.flows.runs import Run
from analemma.state.arguments import MAIN
from analemma.store.store import App

NAME: Final[dict[str, Any]] = {"workflow_id": "korea", "owner_id": "ann"}
QUESTIONS: Final = ("visa", "season", "trains", "food", "islands", "words", "money", "power")
FARES: Final = {"train": 61, "plane": 48}
FORK: Final = "by-plane"
TRIP_PLANNED: Final = "TripPlanned"
CRASH_AT: Final = "effect.before_result:6"
"""The sixth time that something has happened outside, which is a search, and nobody has written down that it has."""
CHILD: Final = """
import sys, analemma
from pathlib import Path
from analemma.cli.demo_agent import begin
with analemma.open(sys.argv[1]) as app:
    begin(app, Path(sys.argv[2]))
"""


class Outside:
    """The rest of the world: a model, a search engine and a bank. They cost money, and know what they were asked."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def think(self, key: str, goal: str) -> list[str]:
        """Ask what there is to be known before one can reach a goal."""
        self._write(key, "think", goal)
        return list(QUESTIONS)

    def search(self, key: str, question: str) -> str:
        """Look something up."""
        self._write(key, "search", question)
        return f"what travellers should know about {question}"

    def pay(self, key: str, what: str, amount: int) -> str:
        """Pay for something; a receipt."""
        self._write(key, "pay", f"{amount} for the {what}")
        return f"receipt for {amount}"

    def asked(self, verb: str) -> list[str]:
        """The keys of everything that it was asked."""
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [line.split()[1] for line in lines if line.startswith(f"{verb} ")]

    def _write(self, key: str, verb: str, what: str) -> None:
        # One write of one line, as the agent's tasks run beside one another.
        with self._file.open("a") as file:
            file.write(f"{verb} {key} {what}\n")


def agent_flow(outside: Outside) -> Flow:
    """The agent. What it plans and writes is made up; how it is run is not."""
    flow = Flow("travel-agent")

    @flow.step(reads=["goal"], writes=["questions"], checkpoint=True)
    def plan(state: Any, ctx: Any) -> dict[str, Any]:
        goal = state["goal"]
        return {"questions": ctx.once("think", lambda key: outside.think(key, goal))}

    def look_up(state: Any, ctx: Any) -> dict[str, Any]:
        question = state["item"]
        return {"answer": ctx.once("search", lambda key: outside.search(key, question))}

    flow.step(look_up, reads=["item"], writes=["answer"])
    flow.for_each("research", over="questions", step=look_up, result="answer", into="notes", max_parallel=2)
    flow.human("decide", choices=list(FARES), prompt="{{goal}}: how do we travel?")

    @flow.step(reads=["decide"], writes=["receipt"], checkpoint=True)
    def book(state: Any, ctx: Any) -> dict[str, Any]:
        way = state["decide"]["choice"]
        return {"receipt": ctx.once("pay", lambda key: outside.pay(key, way, FARES[way]))}

    @flow.step(reads=["goal", "notes", "decide", "receipt"], writes=["letter"])
    def write(state: Any, ctx: Any) -> dict[str, Any]:
        draft = ctx.uuid().hex[:6]
        ctx.emit({"type": TRIP_PLANNED, "payload": {"draft": draft}})
        told = f"{state['goal']} by {state['decide']['choice']}, {len(state['notes'])} notes, {state['receipt']}"
        return {"letter": f"{told} (draft {draft})"}

    return flow


def begin(app: App, file: Path) -> Run:
    """Begin the agent's run; under its key there is only one, however often this is called."""
    flow = agent_flow(Outside(file))
    return app.flows.run(flow, {"goal": "two weeks in Korea"}, idempotency_key="korea", **NAME)


def tell_agent_story(console: Console, store: Path, directory: Path) -> None:
    """Tell it; every number is measured while it runs."""
    file = directory / "outside.txt"
    outside = Outside(file)
    segments = [segment.id for segment in agent_flow(outside).plan().segments]
    console.print(f"[bold]An agent[/] that plans a trip, as a flow: {', '.join(segments)}.")
    _kill(console, store, file)
    with analemma.open(store) as app:
        app.flows.register(agent_flow(outside))
        run = _go_on(console, app, outside)
        run = _decide(console, app, outside, run)
        _run_again(console, app, outside, run)
        _fork(console, app, outside, run)
        _deliver(console, app)
        _show_history(console, app)


def _kill(console: Console, store: Path, file: Path) -> None:
    """In a process of its own, at the worst moment."""
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(store), str(file)],
        env={**os.environ, VARIABLE: CRASH_AT},
        capture_output=True,
        text=True,
    )
    if ended.returncode != -9:
        raise RuntimeError(f"the agent was to be killed, and ended with {ended.returncode}: {ended.stderr}")
    console.print(f"  Its process is killed with kill -9 (exit {ended.returncode}) in the middle of its research.")


def _go_on(console: Console, app: App, outside: Outside) -> Run:
    """Resume, and say what was not done a second time."""
    found = app.flows.runs(workflow_id=NAME["workflow_id"])[0]
    before = outside.asked("search")
    console.print(
        f"  What is left: {found.executed} segment done, {found.segment_id} begun, {len(before)} searches paid for."
    )
    run = app.flows.resume(found.execution_id)
    keys = outside.asked("search")
    now, repeated = len(keys) - len(before), len(keys) - len(set(keys))
    console.print(
        f"  Resumed here: plan is not run again (the model was asked {len(outside.asked('think'))} time), "
        f"{len(QUESTIONS) - now} of {len(QUESTIONS)} answers are found again, {now} looked up."
    )
    sent, known = f"{repeated} searches were", "they had arrived. They had the same keys"
    if repeated == 1:
        sent, known = "1 search was", "it had arrived. It had the same key"
    console.print(
        f"  {sent} sent twice: nobody could know whether {known}, so a receiver that looks at keys does it once.\n"
    )
    return run


def _decide(console: Console, app: App, outside: Outside, run: Run) -> Run:
    asked = None if run.waiting is None else f"{run.waiting.prompt} ({', '.join(run.waiting.choices)})"
    console.print(f"It waits for somebody, and no process is needed for that: {asked}")
    run = app.flows.approve(run.execution_id, "train", actor="ann")
    console.print(f"  ann says train: {run.status}, {len(outside.asked('pay'))} payment.")
    console.print(f"  {run.state['letter']}\n")
    return run


def _run_again(console: Console, app: App, outside: Outside, run: Run) -> None:
    """Roll back one segment, and go on from there."""
    again = app.flows.rerun(run.execution_id, from_segment="write")
    console.print(f"Back one segment, and on from there: {again.status}, {len(outside.asked('pay'))} payment.")
    console.print(f"  {again.state['letter']}\n")


def _fork(console: Console, app: App, outside: Outside, run: Run) -> None:
    """Decide otherwise, and leave what was decided as it is."""
    fork = app.flows.rerun(run.execution_id, from_segment="decide", fork=FORK)
    fork = app.flows.approve(fork.execution_id, "plane", actor="eve")
    searches = len(set(outside.asked("search")))
    console.print(
        f"Forked before the decision, and decided otherwise: {fork.status}, {len(outside.asked('pay'))} payments, "
        f"still {searches} searches."
    )
    console.print(f"  {fork.state['letter']}\n")


def _deliver(console: Console, app: App) -> None:
    """Hear of the letters that were written; each event was committed with its letter."""
    drafts: list[str] = []
    app.worker(handlers={TRIP_PLANNED: lambda event, _: drafts.append(event.payload["draft"])}).drain()
    console.print(f"A worker delivers what was emitted with each letter, once: {len(drafts)} drafts.\n")


def _show_history(console: Console, app: App) -> None:
    """The versions of both branches, side by side."""
    segments = [segment.id for segment in agent_flow(Outside(Path())).plan().segments]

    def said(version: Version) -> str:
        done = "begun" if version.segment_id is None else segments[version.segment_id]
        return version.message or ("forked" if version.branch == FORK and done == "begun" else done)

    told = {
        branch: {each.version: said(each) for each in app.kernel.history(branch=branch, forks=False, **NAME)}
        for branch in (MAIN, FORK)
    }
    console.print(f"  version  {MAIN:<26}{FORK}", highlight=False)
    for number in sorted(told[MAIN].keys() | told[FORK].keys()):
        line = f"  {number:>7}  {told[MAIN].get(number, ''):<26}{told[FORK].get(number, '')}"
        console.print(line.rstrip(), highlight=False)
    heads = [app.kernel.history(branch=each, limit=1, **NAME)[0].manifest_id for each in (MAIN, FORK)]
    fields = sorted({change["path"].split("/")[1] for change in app.kernel.diff(*heads)})
    console.print(f"  The two differ in {', '.join(fields)}; both are there to go on from.")
