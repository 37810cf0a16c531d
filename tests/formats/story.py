"""What a release did to a store before it was replaced, killed where it had not ended; and what must come of it.

`python tests/formats/story.py WHERE [OBJECTS]`, with the release that is to be kept, makes the store and prints what
has to be found; it uses nothing but public names that are older than the first store that is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import analemma
from analemma.langgraph import AnalemmaSaver

TRIP: dict[str, Any] = {"workflow_id": "trip", "owner_id": "ann"}
LATE: dict[str, Any] = {"workflow_id": "late", "owner_id": "ann"}
SHORT: dict[str, Any] = {"workflow_id": "short", "owner_id": "ann"}
LARGE: dict[str, Any] = {"workflow_id": "large", "owner_id": "ann"}
EVENT: dict[str, Any] = {"owner_id": "ann", "workflow_id": "event", "execution_id": "run-1"}
THREAD = {"configurable": {"thread_id": "ann"}}
ORDER: dict[str, Any] = {"workflow_id": "order", "owner_id": "ann"}
WAITING = 5
"""Deltas that were acknowledged before the process died; some of them are versions already."""
LARGE_BYTES = 40_000

CONTRACTS = """
kind: ENTITY_SCHEMA
id: entity.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
fields: [{name: title, type: string, required: true}]
---
kind: RULESET
id: ruleset.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
slices: [{type: CORE, buildRules: {type: PassThrough, fields: [title]}}]
indexes: [{type: title, selector: title}]
---
kind: VIEW_DEFINITION
id: view.book
version: 1.0.0
status: ACTIVE
entityType: BOOK
requiredSlices: [CORE]
"""

flow = analemma.Flow("order", checkpoints="node")


@flow.step(reads=["price"], writes=["total"])
def add_up(state: Any, ctx: Any) -> dict[str, Any]:
    return {"total": state["price"] * 2}


flow.human("approve", choices=["yes", "no"], prompt="Pay {{total}}?")


@flow.step(reads=["total", "approve"], writes=["receipt"])
def pay(state: Any, ctx: Any) -> dict[str, Any]:
    return {"receipt": ctx.once("charge", lambda key: f"paid {state['total']}")}


class State(TypedDict):
    said: Annotated[list[str], lambda old, new: old + new]


def _ask(state: State) -> State:
    return {"said": [f"{len(state['said'])}: {interrupt('who?')}"]}


def make_graph(saver: AnalemmaSaver) -> Any:
    """A graph that says something, and asks."""
    builder = StateGraph(State)
    builder.add_node("note", lambda state: {"said": [f"noted {state['said'][-1]}"]})
    builder.add_node("ask", _ask)
    builder.add_edge(START, "note")
    builder.add_edge("note", "ask")
    return builder.compile(checkpointer=saver)


def large(number: int) -> str:
    """A text that does not compress."""
    return "".join(f"{(number * 7919 + each * 104729) % 999983:06d}" for each in range(LARGE_BYTES // 6))


def fill(app: Any) -> dict[str, Any]:
    """What ended well."""
    kernel, found = app.kernel, {}
    plan = [{"day": day, "text": "walk " * 20} for day in range(100)]
    kernel.save_state_delta({"goal": "Seoul", "plan": plan}, **TRIP, message="begin")
    keyed = kernel.save_state_delta({"n": 1}, **TRIP, idempotency_key="once")
    for day in range(8):
        kernel.save_state_delta({f"/plan/{day * 10}/done": True, "n": day}, **TRIP)
    commit = kernel.save_state_delta({"goal": "Busan"}, **TRIP)
    kernel.tag(commit.manifest_id, "good", owner_id="ann")
    kernel.pin(keyed.manifest_id, owner_id="ann", reason="kept")
    kernel.decide(commit.manifest_id, "approved", owner_id="ann", actor="bob")
    kernel.fork(keyed.manifest_id, branch="draft", owner_id="ann")
    kernel.save_state_delta({"/plan/5/done": True}, **TRIP, branch="draft")
    kernel.merge(source="draft", into="main", owner_id="ann", workflow_id="trip", message="both")
    kernel.rollback_to_version(**TRIP, version=commit.version)
    found["keyed"], found["receipt"] = keyed.manifest_id, analemma.encode_receipt(commit.receipt).hex()

    kernel.save_state_delta({"list": []}, **LATE)
    done = kernel.checkpoint_async({"/list/-": "done"}, **LATE)
    kernel.wait_for(done)
    refused = kernel.checkpoint_async({"/nothing/here": 1}, **LATE)
    app.checkpoints.drain()
    found["done"], found["refused"] = str(done), str(refused)

    for number in range(6):
        kernel.save_state_delta({"text": large(number)[:3000], "n": number}, **SHORT)
    kernel.set_retention(owner_id="ann", workflow_id="short", keep_last=2)
    kernel.save_state_delta({"text": large(100)}, **LARGE)

    found["event"] = app.payloads.dehydrate({"n": 1, "plan": plan}, **EVENT)
    with AnalemmaSaver(app, owner="ann") as saver:
        make_graph(saver).invoke({"said": ["hello"]}, THREAD, durability="sync")
    app.flows.register(flow)
    found["run"] = app.flows.run(flow, {"price": 21}, **ORDER).execution_id

    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as contracts:
        contracts.write(CONTRACTS)
        contracts.flush()
        app.contracts.load(contracts.name)
    app.default.ingest("BOOK", "b-1", {"title": "Walks"})
    app.worker().drain()
    app.default.ingest("BOOK", "b-1", {"title": "Long walks"})
    app.default.ingest("BOOK", "b-2", {"title": "Talks"})
    return found


def accept(app: Any) -> None:
    """Dies with deltas that wait."""
    for number in range(WAITING):
        app.kernel.checkpoint_async({"/list/-": number}, **LATE)


def upload(app: Any) -> None:
    """Dies with an object that nothing names."""
    app.kernel.save_state_delta({"text": large(200)}, **LARGE)


def collect(app: Any) -> None:
    """Dies with versions expired, and blocks doomed."""
    app.gc.run(grace_s=0, expire=True)


STAGES: list[tuple[Callable[[Any], Any], str | None]] = [
    (fill, None),
    (accept, f"ledger.after_insert:{WAITING}"),
    (upload, "upload.after_object"),
    (collect, "gc.after_doom"),
]


def heads(app: Any) -> dict[str, Any]:
    """The newest versions, and what they hold."""
    found = {}
    for workflow in ("trip", "short", "large"):
        for branch in app.kernel.branches(owner_id="ann", workflow_id=workflow):
            state = json.dumps(app.kernel.load_state(branch.manifest_id), sort_keys=True).encode()
            found[f"{workflow}@{branch.name}"] = [branch.manifest_id, branch.version, hashlib.sha256(state).hexdigest()]
    return found


def main(arguments: list[str]) -> None:
    where, objects = arguments[0], (arguments[1] if len(arguments) > 1 else "") or None
    settings = analemma.Settings(pack_threshold_bytes=16_384)
    if len(arguments) > 2:
        stage = next(stage for stage, _ in STAGES if stage.__name__ == arguments[2])
        with analemma.open(where, objects=objects, settings=settings, migrate=True) as app:
            print(json.dumps(stage(app)))
        return
    found: dict[str, Any] = {}
    for stage, failpoint in STAGES:
        command = [sys.executable, __file__, where, objects or "", stage.__name__]
        environment = {**os.environ, **({"ANALEMMA_FAILPOINT": failpoint} if failpoint else {})}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == (-9 if failpoint else 0), (stage.__name__, done.returncode, done.stderr)
        if not failpoint:
            found = json.loads(done.stdout)
            with analemma.open(where, objects=objects, settings=settings) as app:
                found["heads"] = heads(app)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
