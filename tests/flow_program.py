"""A program with a flow of everything that can be interrupted, for tests that interrupt it: branches, a loop, groups,
humans, retries, effects inside the database and outside of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from analemma import App, Flow, Run

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}
KEY = "the-run"
LOOPS = 3
ITEMS = 5
INPUT: dict[str, Any] = {"ticket": "it is broken " * 400, "items": list(range(ITEMS)), "log": []}
EVENTS = 3 + LOOPS
"""How many events one run emits."""
EFFECTS = 2 + LOOPS + ITEMS
"""How often one run does something outside."""


def make_flow(outside: Callable[[str, str], Any]) -> Flow:
    """`outside` is called with the name of an effect and its key."""
    flow = Flow("everything", checkpoints="node")

    flow.human("start", choices=["go", "stop"])

    @flow.step(reads=["ticket", "log"], writes=["label", "log"], retries={"times": 3, "delay_s": 0.001})
    def classify(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("classify")
        answer = ctx.once("model", lambda key: outside("model", key))
        if ctx.attempt < 3:
            raise OSError("behind the model's answer")
        return {"label": answer["label"]}

    @flow.step(reads=["log"], writes=["log", "page"])
    def page_somebody(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("page")
        ctx.emit({"type": "Paged", "payload": {"who": "ann"}})
        return {"page": True}

    @flow.step(writes=["page"])
    def ignore(state: Any, ctx: Any) -> dict[str, Any]:
        return {"page": False}

    flow.branch("urgent", [(Flow.where("label").equals("bug"), [page_somebody])], default=[ignore])

    @flow.step(reads=["items"])
    def only_look(state: Any, ctx: Any) -> None:
        assert len(state["items"]) == 5
        ctx.random()

    @flow.step(reads=["total", "log"], writes=["total", "log"])
    def body(state: Any, ctx: Any) -> None:
        state["total"] = state.get("total", 0) + ctx.once("add", lambda key: outside("add", key))["amount"]
        state["log"].append(f"body {ctx.iteration}")
        ctx.emit({"type": "Added", "payload": {"iteration": ctx.iteration}})

    flow.loop("thrice", [body], times=LOOPS)

    @flow.step(reads=["item", "log"], writes=["answer"])
    def answer(state: Any, ctx: Any) -> dict[str, Any]:
        return {"answer": [state["item"], len(state["log"]), ctx.once("answer", lambda key: outside("answer", key))]}

    # One at a time: then a kill takes one effect at most.
    flow.for_each("answers", over="items", step=answer, result="answer", max_parallel=1)

    @flow.step(reads=["log"], writes=["log", "left"])
    def go_left(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("left")
        ctx.emit({"type": "Left"})
        return {"left": ctx.item_index}

    @flow.step(reads=["log"], writes=["log", "right"])
    def go_right(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("right")
        return {"right": "x" * 9000}

    flow.parallel("both", {"left": [go_left], "right": [go_right]})
    flow.aggregate("meet", of="both", strategies={"log": "append"})

    @flow.step(reads=["items", "total"], writes=["items", "charged"])
    async def charge(state: Any, ctx: Any) -> dict[str, Any]:
        async def pay(key: str) -> Any:
            return outside("charge", key)

        state["items"].append(await ctx.once_async("charge", pay))
        ctx.emit({"type": "Charged"})
        return {"charged": state["total"]}

    flow.human("end", choices=["fine", "not"])
    return flow


def to_file(path: Path) -> Callable[[str, str], Any]:
    """An outside that writes down every call, one line each, before it answers."""

    def outside(name: str, key: str) -> Any:
        with path.open("a") as file:
            file.write(f"{name} {key}\n")
            file.flush()
        return {"model": {"label": "bug"}, "add": {"amount": 2}}.get(name, "x" * 9000)

    return outside


def drive(app: App, flow: Flow) -> Run:
    """Begin the run, or go on with it, until it is over."""
    run = app.flows.run(flow, INPUT, **PLACE, idempotency_key=KEY)
    while run.status not in ("COMPLETED", "CANCELLED"):
        if run.status == "WAITING_HUMAN":
            assert run.waiting is not None
            run = app.flows.approve(run.execution_id, run.waiting.choices[0], "me")
        else:
            run = app.flows.resume(run.execution_id)
        assert run.status != "FAILED", run.error
    return run
