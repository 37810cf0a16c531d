"""A flow of more than twenty segments with everything that can be interrupted, and the outside that it has effects on:
for tests that kill and stop whoever runs it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from analemma import App, Flow, Result, Run
from tests.depth import count
from tests.stores import Store

TENANT = "shop"
OWNER = "me"
LOOPS = 3
ITEMS = count(40, deep=200)
ASKED_EVERY = 5
"""So manieth item asks the outside."""
REFUSALS = 2
"""So often the outside refuses what is flaky, before it does it."""
INPUT: dict[str, Any] = {"ticket": "it is broken " * 400, "items": list(range(ITEMS)), "log": []}
SETTINGS: dict[str, Any] = {"pack_threshold_bytes": 20_000, "run_poll_s": 0.02}
"""What is larger goes to the object store, so that uploads are interrupted too."""

EVENTS = Counter(Received=1, Paged=1, Added=LOOPS, Answered=ITEMS // 40, Left=1, Charged=1, Closed=1)
"""What one run emits."""
INGESTS = LOOPS
EFFECTS = Counter(
    model=1, fetch=1, add=LOOPS, answer=ITEMS // ASKED_EVERY, left=1, right=1, check=1, charge=1, large=1, send=1
)
"""What one run does outside."""
MOST_AT_ONCE = 2
"""Of effects: branches of a group run beside one another, items one after the other."""
SEGMENTS = 23


class Outside:
    """A receiver in a directory. Every call is written down; what is done under a key is done once, and a second call
    under it gets the answer of the first."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "done").mkdir(parents=True, exist_ok=True)
        (directory / "refused").mkdir(exist_ok=True)

    def __call__(self, name: str, key: str, *, flaky: bool = False, size: int = 40) -> Any:
        if flaky and not self._has_refused_enough(key):
            raise OSError(f"{name} is busy")
        self._append(f"{name} {key}\n")
        self._claim("done", key)
        # Always the same, and nothing that compresses.
        return {"said": Random(name).randbytes(size // 2).hex()}

    def calls(self) -> Counter[tuple[str, str]]:
        """How often something was done, by its name and key."""
        path = self._directory / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return Counter((name, key) for name, _, key in (line.partition(" ") for line in lines))

    def done(self) -> int:
        """How often something was done, by a receiver that honours keys."""
        return len(list((self._directory / "done").iterdir()))

    def _has_refused_enough(self, key: str) -> bool:
        return not any(self._claim("refused", f"{key} {number}") for number in range(REFUSALS))

    def _claim(self, kind: str, key: str) -> bool:
        """Whether this is the first time."""
        try:
            os.close(os.open(self._directory / kind / sha256(key.encode()).hexdigest(), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _append(self, line: str) -> None:
        file = os.open(self._directory / "calls", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            # One write: whoever is killed has written the whole line, or none of it.
            os.write(file, line.encode())
        finally:
            os.close(file)


def make_flow(outside: Callable[..., Any]) -> Flow:
    """Every step a segment of its own."""
    flow = Flow("matrix", checkpoints="node")

    @flow.step(reads=["log"], writes=["log", "received"])
    def receive(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("received")
        ctx.emit({"type": "Received"})
        return {"received": True}

    @flow.step(reads=["ticket", "log"], writes=["label", "log"], retries={"times": 9, "delay_s": 0.001})
    def classify(state: Any, ctx: Any) -> dict[str, Any]:
        """The model answers, and what is behind its answer fails twice."""
        state["log"].append("classified")
        ctx.once("model", lambda key: outside("model", key))
        if ctx.attempt < 3:
            raise OSError("behind the model's answer")
        return {"label": "bug"}

    @flow.step(reads=["label"], writes=["fetched"], retries={"times": 9, "delay_s": 0.001})
    def fetch(state: Any, ctx: Any) -> dict[str, Any]:
        """Refused twice before it is done."""
        return {"fetched": ctx.once("fetch", lambda key: outside("fetch", key, flaky=True))}

    @flow.step(reads=["log"], writes=["log", "page"])
    def page_somebody(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("paged")
        ctx.emit({"type": "Paged", "payload": {"who": "ann"}})
        return {"page": True}

    @flow.step(writes=["ignored"])
    def ignore(state: Any, ctx: Any) -> dict[str, Any]:
        return {"ignored": True}

    flow.branch("urgent", [(Flow.where("label").equals("bug"), [page_somebody])], default=[ignore])

    @flow.step(reads=["items"])
    def only_look(state: Any, ctx: Any) -> None:
        assert len(state["items"]) == ITEMS
        ctx.random()

    @flow.step(reads=["total", "log"], writes=["total", "log", "book"])
    def add(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.once("add", lambda key: outside("add", key))
        state["log"].append(f"added {ctx.iteration}")
        ctx.emit({"type": "Added", "payload": {"iteration": ctx.iteration}})
        total = state.get("total", 0) + 1
        return {"total": total, "book": {"isbn": "1", "title": "Book 1", "price": 1000 + total}}

    flow.ingest("put", entity_type="BOOK", entity_id="1", payload="book")

    @flow.step(reads=["put"], writes=["put", "version"])
    def tidy(state: Any, ctx: Any) -> Result:
        """Versions of entities are of their time: they do not stay in the state."""
        return Result({"version": len(state["put"])}, deleted=("put",))

    flow.loop("thrice", [add, "put", tidy], times=LOOPS)

    @flow.step(reads=["item", "log"], writes=["answer"])
    def answer(state: Any, ctx: Any) -> dict[str, Any]:
        if ctx.item_index % 40 == 0:
            ctx.emit({"type": "Answered", "payload": {"item": ctx.item_index}})
        if ctx.item_index % ASKED_EVERY:
            return {"answer": state["item"] * 2}
        return {"answer": [state["item"], len(state["log"]), ctx.once("answer", lambda key: outside("answer", key))]}

    flow.for_each("answers", over="items", step=answer, result="answer", max_parallel=1)

    @flow.step(reads=["log"], writes=["log", "left"])
    def go_left(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("left")
        ctx.emit({"type": "Left"})
        return {"left": ctx.once("left", lambda key: outside("left", key))}

    @flow.step(reads=["log"], writes=["log", "right"])
    def go_right(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append("right")
        return {"right": ctx.once("right", lambda key: outside("right", key, size=9000))}

    flow.parallel("both", {"left": [go_left], "right": [go_right]})
    flow.aggregate("meet", of="both", strategies={"log": "append"})
    flow.human("approve", choices=["yes", "no"])

    def is_large(state: Any, ctx: Any) -> bool:
        return len(ctx.once("check", lambda key: outside("check", key))["said"]) == 40

    @flow.step(writes=["large"])
    def make_large(state: Any, ctx: Any) -> dict[str, Any]:
        """More than a catalog's row takes, as what comes of an effect and in the state."""
        return {"large": ctx.once("large", lambda key: outside("large", key, size=70_000))}

    flow.branch("size", [(is_large, [make_large])], default=[])

    @flow.step(reads=["items", "total"], writes=["items", "charged"])
    async def charge(state: Any, ctx: Any) -> dict[str, Any]:
        async def pay(key: str) -> Any:
            return outside("charge", key)

        state["items"].append(await ctx.once_async("charge", pay))
        ctx.emit({"type": "Charged"})
        return {"charged": state["total"]}

    @flow.step(reads=["log", "approve"], writes=["log", "sent"], retries={"times": 9, "delay_s": 0.001})
    def send(state: Any, ctx: Any) -> dict[str, Any]:
        state["log"].append(state["approve"]["choice"])
        return {"sent": ctx.once("send", lambda key: outside("send", key, flaky=True))}

    @flow.step(reads=["log"], writes=["steps"])
    def close(state: Any, ctx: Any) -> dict[str, Any]:
        ctx.emit({"type": "Closed"})
        return {"steps": len(state["log"])}

    flow.human("end", choices=["fine", "not"])
    return flow


def place(number: int) -> dict[str, Any]:
    return {"workflow_id": f"m-{number}", "owner_id": OWNER}


def open_store(store: Store, **settings: Any) -> App:
    return store.open(**{**SETTINGS, **settings})


def drive(app: App, outside: Outside, number: int = 0) -> Run:
    """Begin the run of this number, or go on with it, until it is over."""
    flow, flows = make_flow(outside), app.tenant(TENANT).flows
    run = flows.run(flow, INPUT, **place(number), idempotency_key=f"run-{number}")
    while run.status not in ("COMPLETED", "CANCELLED"):
        if run.status == "WAITING_HUMAN":
            assert run.waiting is not None
            run = flows.approve(run.execution_id, run.waiting.choices[0], OWNER, wait=False)
        if run.holder is None:
            # Given to whoever looks next, and taken from there.
            run = flows.resume(run.execution_id, wait=False)
        if run.status == "RUNNING":
            run = flows.resume(run.execution_id)
        assert run.status != "FAILED", run.error
    return run
