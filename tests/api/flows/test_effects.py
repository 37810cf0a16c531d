"""Effects: begun, done and found again; events, time and chance that are recorded."""

from __future__ import annotations

from typing import Any

import pytest

from analemma import App, Flow
from tests.api.flows.runs import PLACE, effects, place
from tests.raw_rows import change, select
from tests.stores import Store


class Outside:
    """A receiver, which counts what it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, key: str) -> dict[str, Any]:
        self.calls.append(key)
        return {"number": len(self.calls), "big": "x" * 20_000}


class Crash(BaseException):
    """Stands for the end of the process: nothing that the run would do afterwards is done."""


def test_what_was_done_is_not_done_again_when_the_segment_is(app: App, store: Store) -> None:
    outside = Outside()
    broken = [True]
    flow = Flow("pay")

    @flow.step(writes=["answers"], retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        answers = [ctx.once("charge", outside)["number"] for _ in range(3)]
        if broken[0]:
            raise OSError("behind the charges")
        return {"answers": answers}

    run = app.flows.run(flow, **PLACE)
    assert run.status == "FAILED"
    assert len(outside.calls) == 3 and len(set(outside.calls)) == 3
    broken[0] = False
    done = app.flows.resume(run.execution_id)
    assert done.state == {"answers": [1, 2, 3]}
    assert len(outside.calls) == 3
    assert [(key.split(":")[-3:], state) for key, state, _ in effects(store)] == [
        (["pay", "charge", str(number)], "done") for number in range(3)
    ]


def test_an_effect_that_fails_is_known_to_have_failed(app: App, store: Store) -> None:
    calls: list[str] = []
    flow = Flow("pay")

    @flow.step(writes=["paid"], retries={"times": 2, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> str:
            calls.append(key)
            if len(calls) < 3:
                raise OSError("refused")
            return "ok"

        return {"paid": ctx.once("charge", charge, on_unknown="fail")}

    run = app.flows.run(flow, **PLACE)
    assert run.state == {"paid": "ok"}
    assert len(calls) == 3 and len(set(calls)) == 1
    assert effects(store)[0][1:] == ("done", 3)


def test_keys_tell_iterations_and_uses_apart_and_stay_the_same(app: App) -> None:
    keys: list[str] = []
    flow = Flow("keys")

    @flow.step(reads=["n"])
    def body(state: Any, ctx: Any) -> None:
        for name in ("one", "one", "sp ace/\u00e9", "x" * 200):
            ctx.once(name, keys.append)

    flow.loop("outer", ["inner"], times=2)
    flow.loop("inner", [body], times=2)
    run = app.flows.run(flow, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert len(keys) == 16 and len(set(keys)) == 16
    assert all(key.isascii() and key.isprintable() and len(key) <= 255 for key in keys)
    assert keys[0] == f"{run.execution_id}:1:body:1.1:-:body:one:0"


def test_names_that_are_none_are_refused(memory: App) -> None:
    for name in ("", "x" * 300, "a\nb", 5, None):
        flow = Flow("names")

        @flow.step
        def step(state: Any, ctx: Any, name: Any = name) -> None:
            ctx.once(name, lambda key: None)

        run = memory.flows.run(flow, **place())
        assert run.error is not None and run.error.kind == "invalid", name


def test_a_result_that_cannot_be_stored_is_an_error(app: App) -> None:
    flow = Flow("odd")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        ctx.once("odd", lambda key: object())

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "invalid"


@pytest.mark.parametrize("size", [10, 20_000], ids=["in the row", "in blocks"])
def test_a_damaged_result_is_an_error_and_not_a_second_effect(app: App, store: Store, size: int) -> None:
    outside: list[str] = []
    broken = [True]
    flow = Flow("pay")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> str:
            outside.append(key)
            return "x" * size

        found = ctx.once("charge", charge)
        if broken[0]:
            raise OSError
        return {"paid": found}

    run = app.flows.run(flow, **PLACE)
    broken[0] = False
    ((result, body),) = select(store, "SELECT result, body FROM effect")
    assert (result is None) == (size == 10)
    if result is None:
        change(store, "UPDATE effect SET body = ?", [body[:40] + bytes([body[40] ^ 1]) + body[41:]])
    else:
        change(store, "UPDATE effect SET result = ?", [bytes(32)])
    failed = app.flows.resume(run.execution_id)
    assert failed.error is not None and failed.error.kind == "corrupt"
    assert len(outside) == 1


def test_time_and_chance_are_the_same_when_the_segment_runs_again(app: App, store: Store) -> None:
    seen: list[Any] = []
    flow = Flow("chance", checkpoints="node")

    @flow.step(writes=["a"])
    def first(state: Any, ctx: Any) -> dict[str, Any]:
        got = [ctx.random(), ctx.uuid(), ctx.now(), ctx.now(), ctx.random(), ctx.generator.randint(0, 1 << 40)]
        seen.append(got)
        if len(seen) == 1:
            raise OSError
        return {"a": str(got)}

    @flow.step
    def second(state: Any, ctx: Any) -> None:
        seen.append([ctx.random(), ctx.uuid(), ctx.now()])

    run = app.flows.run(flow, **PLACE)
    assert app.flows.resume(run.execution_id).status == "COMPLETED"
    assert seen[0] == seen[1]
    assert seen[0][2] < seen[0][3]
    assert seen[2][0] != seen[1][0] and seen[2][1] != seen[1][1]
    assert len(effects(store)) == 2


def test_events_are_in_the_outbox_with_the_segment_and_once(app: App) -> None:
    flow = Flow("events")
    broken = [True]

    @flow.step
    def tell(state: Any, ctx: Any) -> None:
        ctx.emit({"type": "Told", "payload": {"n": 1}})
        ctx.emit({"type": "Told", "aggregate_type": "ORDER", "aggregate_id": "o-1", "priority": 3})
        if broken[0]:
            raise OSError

    run = app.flows.run(flow, **PLACE)
    assert app.outbox.status().pending == 0
    broken[0] = False
    run = app.flows.resume(run.execution_id)
    assert run.status == "COMPLETED", run.error
    assert app.outbox.status().pending == 2
    got: list[Any] = []
    worker = app.worker(handlers={"Told": lambda event, settle: got.append(event)})
    worker.drain()
    told = {event.aggregate_type: event for event in got}
    assert told["RUN"].payload == {"n": 1, "payloadVersion": "1.0"}
    assert told["RUN"].aggregate_id == f"default:{run.execution_id}"
    assert (told["ORDER"].aggregate_id, told["ORDER"].priority) == ("o-1", 3)
    assert told["RUN"].id != told["ORDER"].id


def test_what_is_no_event_is_refused(memory: App) -> None:
    for event in (
        {},
        {"type": ""},
        {"type": 5},
        {"type": "T", "other": 1},
        {"type": "T", "payload": []},
        {"type": "T", "priority": "1"},
        {"type": "T", "payload": {"x": float("nan")}},
        {"type": "T", "aggregate_id": 5},
        "T",
    ):
        flow = Flow("events")

        @flow.step
        def tell(state: Any, ctx: Any, event: Any = event) -> None:
            ctx.emit(event)

        run = memory.flows.run(flow, **place())
        assert run.error is not None and run.error.kind == "invalid", event
    assert memory.outbox.status().pending == 0


def test_results_of_effects_survive_collection_until_their_run_is_forgotten(app: App, store: Store) -> None:
    broken = [True]
    flow = Flow("keep")

    @flow.step(writes=["got"])
    def step(state: Any, ctx: Any) -> dict[str, Any]:
        got = ctx.once("fetch", lambda key: {"text": "x" * 50_000})
        if broken[0]:
            raise OSError
        return {"got": len(got["text"])}

    run = app.flows.run(flow, **PLACE)
    for _ in range(3):
        assert app.gc.run(grace_s=0).deleted == 0
    broken[0] = False
    assert app.flows.resume(run.execution_id).state == {"got": 50_000}
    assert app.flows.forget(3600) == 0
    assert app.flows.forget(-1) == 1
    assert app.flows.runs() == []
    assert effects(store) == []
    assert sum(app.gc.run(grace_s=0).deleted for _ in range(3)) > 0
    assert app.kernel.load_latest_state(**PLACE) == {"got": 50_000}


def test_versions_of_a_run_do_not_expire_before_it_is_over(app: App) -> None:
    flow = Flow("keep", checkpoints="node")
    for name in ("one", "two", "three"):
        flow.step(_setting(name))
    flow.human("ask", choices=["yes"])
    app.kernel.set_retention(**PLACE, keep_last=1)
    run = app.flows.run(flow, **PLACE)
    assert app.kernel.expire(**PLACE).expired == ()
    assert app.flows.approve(run.execution_id, "yes", "me").status == "COMPLETED"
    assert len(app.kernel.expire(**PLACE).expired) == 4
    assert app.flows.get(run.execution_id).state["three"] == 1


def _setting(name: str) -> Any:
    def step(state: Any, ctx: Any) -> dict[str, int]:
        return {name: 1}

    step.__name__ = name
    return step
