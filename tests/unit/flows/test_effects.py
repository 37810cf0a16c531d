"""Effects: begun, done and found again; events, time and chance that are recorded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from analemma.app import App
from analemma.canon.standard_types import standard_registry
from analemma.canon.tree import Trees, no_blocks
from analemma.errors import Conflict, Invalid, NotFound
from analemma.flows.building import Flow
from analemma.flows.context import Cancelled
from tests.stores import Store

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open() as app:
        yield app


def effects(app: App) -> list[tuple[str, str, int]]:
    rows = app.catalog.engine.all("effects", run=1, incarnation=1, low="", high="\U0010ffff")
    return sorted((row[0], row[1], row[4]) for row in rows)


class Outside:
    """A receiver, which counts what it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, key: str) -> dict[str, Any]:
        self.calls.append(key)
        return {"number": len(self.calls), "big": "x" * 20_000}


class Crash(BaseException):
    """Stands for the end of the process: nothing that the run would do afterwards is done."""


def test_what_was_done_is_not_done_again_when_the_segment_is(app: App) -> None:
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
    assert [(key.split(":")[-3:], state) for key, state, _ in effects(app)] == [
        (["pay", "charge", str(number)], "done") for number in range(3)
    ]


def test_an_effect_that_fails_is_known_to_have_failed(app: App) -> None:
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
    assert effects(app)[0][1:] == ("done", 3)


def interrupted(app: App, outside: Outside, on_unknown: str) -> tuple[Flow, str]:
    """A run whose process ended between the effect and its record."""
    crash = [True]
    flow = Flow("pay")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> int:
            outside(key)
            if crash[0]:
                crash[0] = False
                raise Crash
            return len(outside.calls)

        return {"paid": ctx.once("charge", charge, on_unknown=on_unknown)}

    with pytest.raises(Crash):
        app.flows.run(flow, **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder) == ("RUNNING", None)
    assert effects(app)[0][1] == "intent"
    return flow, run.execution_id


def test_nobody_knows_and_it_is_tried_again_under_the_same_key(app: App) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "retry")
    assert app.flows.resume(execution).state == {"paid": 2}
    assert len(outside.calls) == 2 and len(set(outside.calls)) == 1


def test_nobody_knows_and_the_run_fails(app: App) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "fail")
    run = app.flows.resume(execution)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "outcome_unknown")
    assert len(outside.calls) == 1


@pytest.mark.parametrize("unknown", ["happened", "did not"])
def test_a_run_that_failed_because_nobody_knew_goes_on_when_somebody_has_found_out(app: App, unknown: Any) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "fail")
    failed = app.flows.resume(execution)
    assert failed.error is not None and failed.error.effect is not None and "unknown=" in (failed.error.hint or "")
    # Told nothing, it ends the same, as often as one likes.
    assert app.flows.resume(execution).error == failed.error and len(outside.calls) == 1
    big = {"id": "y" * 20_000}
    run = app.flows.resume(execution, unknown=unknown, result=big if unknown == "happened" else None)
    assert (run.status, run.error, run.incarnation) == ("COMPLETED", None, 1)
    assert run.state == {"paid": big if unknown == "happened" else 2}
    assert len(outside.calls) == (1 if unknown == "happened" else 2) and len(set(outside.calls)) == 1
    assert app.kernel.get_workflow(**PLACE).status == "COMPLETED"
    with pytest.raises(Conflict, match="nobody knows of"):
        app.flows.resume(execution, unknown="happened")


def test_only_what_nobody_knows_of_is_found_out(app: App) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "fail")
    with pytest.raises(Conflict, match="leave out unknown"):
        app.flows.resume(execution, unknown="happened")
    app.flows.resume(execution)
    with pytest.raises(Invalid, match="'did not'"):
        app.flows.resume(execution, unknown="perhaps")  # type: ignore[arg-type]
    left = app.flows.resume(execution, unknown="did not", wait=False)
    assert (left.status, left.holder, len(outside.calls)) == ("RUNNING", None, 1)
    assert app.flows.resume(execution).state == {"paid": 2}


def late(calls: list[str], **options: Any) -> Flow:
    """Pays, and does not hear whether that happened."""
    flow = Flow("late")

    @flow.step(writes=["paid"], **options)
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> str:
            calls.append(key)
            raise TimeoutError("no answer")

        return {"paid": ctx.once("charge", charge, on_unknown="fail")}

    return flow


@pytest.mark.parametrize("group", [False, True], ids=["step", "for_each"])
def test_the_first_failure_says_already_what_is_to_be_found_out(app: App, group: bool) -> None:
    calls: list[str] = []
    flow = late(calls)
    if group:
        flow.for_each("each", over="items", step="pay", result="paid", into="all")
    failed = app.flows.run(flow, {"items": [1]}, **PLACE)
    assert failed.error is not None and failed.error.message == "no answer"
    assert failed.error.effect is not None and "unknown=" in (failed.error.hint or "")
    run = app.flows.resume(failed.execution_id, unknown="happened", result="ok")
    assert (run.status, run.state.get("all", run.state.get("paid"))) == ("COMPLETED", ["ok"] if group else "ok")
    assert len(calls) == 1


def test_what_was_found_out_is_not_kept_where_the_program_cannot_go_on(store: Store) -> None:
    flow = late([])
    with store.open() as app:
        failed = app.flows.run(flow, **PLACE)
    with store.open() as app:
        with pytest.raises(NotFound, match="not registered"):
            app.flows.resume(failed.execution_id, unknown="happened", result="ok")
        assert app.flows.get(failed.execution_id).error == failed.error
        before = app.flows._row(failed.execution_id).fence
        left = app.flows.resume(failed.execution_id, unknown="happened", result="ok", wait=False)
        assert (left.status, left.holder) == ("RUNNING", None)
        # The run is moved once, and not again by what leaves it to workers.
        assert app.flows._row(failed.execution_id).fence == before + 1
        app.flows.register(flow)
        assert app.flows.resume(failed.execution_id).state == {"paid": "ok"}


def test_a_worker_may_be_faster_with_what_was_found_out(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = app.flows.run(late([]), **PLACE)
    real = app.flows._deciding.find_out

    def found_out(*arguments: Any) -> None:
        real(*arguments)
        app.run_worker().drain()

    monkeypatch.setattr(app.flows._deciding, "find_out", found_out)
    run = app.flows.resume(failed.execution_id, unknown="happened", result="ok")
    assert (run.status, run.state) == ("COMPLETED", {"paid": "ok"})


def test_a_worker_that_is_at_it_goes_on_with_what_was_found_out(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = app.flows.run(late([]), **PLACE)
    real = app.flows._deciding.find_out

    def found_out(*arguments: Any) -> None:
        real(*arguments)
        claimed = app.flows._parts.rows.claim(arguments[0].number, holder="another", lease_s=60)
        assert claimed is not None

    monkeypatch.setattr(app.flows._deciding, "find_out", found_out)
    run = app.flows.resume(failed.execution_id, unknown="happened", result="ok", take_over=True)
    assert (run.status, run.holder) == ("RUNNING", "another")


def test_a_result_is_of_what_happened(app: App) -> None:
    failed = app.flows.run(late([]), **PLACE)
    with pytest.raises(Invalid, match="a result"):
        app.flows.resume(failed.execution_id, result="ok")


@pytest.mark.parametrize("happened", [True, False], ids=["happened", "did not"])
def test_nobody_knows_and_somebody_is_asked(app: App, happened: bool) -> None:
    outside = Outside()
    _, execution = interrupted(app, outside, "ask")
    run = app.flows.resume(execution)
    assert run.status == "WAITING_HUMAN" and run.waiting is not None
    assert (run.waiting.kind, run.waiting.node, run.waiting.choices) == ("effect", "pay", ("happened", "did not"))
    big = {"id": "y" * 20_000}
    run = app.flows.approve(execution, "happened" if happened else "did not", "me", big if happened else None)
    assert run.status == "COMPLETED", run.error
    assert run.state == {"paid": big if happened else 2}
    assert len(outside.calls) == (1 if happened else 2)


def test_a_node_that_catches_everything_is_asked_about_all_the_same(app: App) -> None:
    _, execution = interrupted(app, Outside(), "ask")
    flow = Flow("pay")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        try:
            ctx.once("charge", lambda key: 1, on_unknown="ask")
        except BaseException:
            pass
        return {"paid": "swallowed"}

    app.flows.register(flow)
    assert app.flows.resume(execution).status == "WAITING_HUMAN"


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


@pytest.mark.parametrize("name", ["", "x" * 300, "a\nb", 5, None], ids=["empty", "long", "line", "number", "none"])
def test_names_that_are_none_are_refused(app: App, name: Any) -> None:
    flow = Flow("names")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        ctx.once(name, lambda key: None)

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "invalid"


def test_a_result_that_cannot_be_stored_is_an_error(app: App) -> None:
    flow = Flow("odd")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        ctx.once("odd", lambda key: object())

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "invalid"


@pytest.mark.parametrize("size", [10, 20_000], ids=["in the row", "in blocks"])
def test_a_damaged_result_is_an_error_and_not_a_second_effect(app: App, size: int) -> None:
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
    engine = app.catalog.engine
    (row,) = engine.all("effects", run=1, incarnation=1, low="", high="\U0010ffff")
    key, _, result, body, _ = row
    damaged = None if body is None else body[:40] + bytes([body[40] ^ 1]) + body[41:]
    # Written as no worker would: past the guard that what was done stays done.
    engine.execute("forget_effects", number=1)
    claimed = app.flows._claim(app.flows._row(run.execution_id), failed=True)
    assert claimed is not None
    engine.execute(
        "put_effect",
        run=1,
        incarnation=1,
        fence=claimed.fence,
        key=key,
        state="done",
        result=None if result is None else bytes(32),
        body=damaged,
    )
    app.flows._continue(claimed)
    failed = app.flows.get(run.execution_id)
    assert failed.error is not None and failed.error.kind == "corrupt"
    assert len(outside) == 1


def test_time_and_chance_are_the_same_when_the_segment_runs_again(app: App) -> None:
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
    assert len(effects(app)) == 2


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


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": ""},
        {"type": 5},
        {"type": "T", "other": 1},
        {"type": "T", "payload": []},
        {"type": "T", "priority": "1"},
        {"type": "T", "payload": {"x": float("nan")}},
        {"type": "T", "aggregate_id": 5},
        "T",
    ],
    ids=["nothing", "no type", "number", "unknown", "list", "priority", "nan", "aggregate", "text"],
)
def test_what_is_no_event_is_refused(app: App, event: Any) -> None:
    flow = Flow("events")

    @flow.step
    def tell(state: Any, ctx: Any) -> None:
        ctx.emit(event)

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "invalid", run.error
    assert app.outbox.status().pending == 0


def test_results_of_effects_survive_collection_until_their_run_is_forgotten(app: App) -> None:
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
    assert effects(app) == []
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


def test_what_still_runs_after_its_time_can_do_nothing_more(app: App) -> None:
    late: list[Any] = []
    over = threading.Event()
    flow = Flow("late")

    @flow.step(timeout_s=0.05)
    def slow(state: Any, ctx: Any) -> None:
        over.wait(10)
        for verb in (lambda: ctx.once("x", late.append), lambda: ctx.emit({"type": "T"}), ctx.now, ctx.uuid):
            try:
                verb()
            except Cancelled as exc:
                late.append(type(exc))
        late.append("end")

    assert app.flows.run(flow, **PLACE).status == "FAILED"
    over.set()
    for _ in range(200):
        if late[-1:] == ["end"]:
            break
        time.sleep(0.02)
    assert late == [Cancelled] * 4 + ["end"]
    assert effects(app) == []


def test_an_unknown_answer_about_effects_is_refused(app: App) -> None:
    flow = Flow("names")

    @flow.step
    def step(state: Any, ctx: Any) -> None:
        ctx.once("x", lambda key: None, on_unknown="hope")

    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and run.error.kind == "invalid"


def until(holds: Any) -> None:
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    assert holds()


def test_an_attempt_that_is_late_and_succeeds_says_what_happened_for_the_next_as_well(app: App) -> None:
    calls: list[str] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=1.5, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> int:
            calls.append(key)
            if len(calls) == 1:
                began.wait(10)
                return 1
            began.set()
            until(lambda: effects(app)[0][1] == "done")
            return 2

        return {"paid": ctx.once("charge", charge)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": 1}
    assert len(calls) == 2 and len(set(calls)) == 1
    assert effects(app)[0][1:] == ("done", 2)


def test_an_attempt_that_is_late_and_fails_says_nothing_of_the_next(app: App) -> None:
    calls: list[str] = []
    late: list[Any] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["paid"], timeout_s=1.5, retries={"times": 1, "delay_s": 0.001})
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> Any:
            calls.append(key)
            if len(calls) == 1:
                began.wait(10)
                raise ValueError("late")
            began.set()
            until(lambda: late)
            return effects(app)[0][1]

        try:
            return {"paid": ctx.once("charge", charge)}
        except ValueError as exc:
            late.append(exc)
            raise

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": "intent"}
    assert effects(app)[0][1:] == ("done", 2)


def test_what_two_attempts_read_is_what_was_recorded_first(app: App) -> None:
    calls: list[int] = []
    began = threading.Event()
    flow = Flow("late")

    @flow.step(writes=["seen"], timeout_s=1.5, retries={"times": 1, "delay_s": 0.001})
    def look(state: Any, ctx: Any) -> dict[str, Any]:
        def read() -> int:
            calls.append(0)
            if len(calls) == 1:
                began.wait(10)
                return 1
            began.set()
            until(lambda: effects(app))
            return 2

        return {"seen": ctx.reading("look", read)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"seen": 1}


def test_what_was_done_when_it_is_begun_again_is_not_done_again(app: App) -> None:
    calls: list[str] = []
    flow = Flow("late")

    @flow.step(writes=["paid"])
    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        # As an attempt would that is late: behind the back of this one, which knows of no effect.
        made = Trees(no_blocks, standard_registry()).build("before")
        body = made.root.id + made.blocks[0].data
        fence = app.flows._row(ctx.execution_id).fence
        known = {"key": "pay:-:-:pay:charge:0", "state": "done", "result": None, "body": body}
        app.catalog.engine.execute("put_effect", run=1, incarnation=1, fence=fence, **known)
        return {"paid": ctx.once("charge", calls.append)}

    run = app.flows.run(flow, **PLACE)
    assert run.error is None and run.state == {"paid": "before"}
    assert calls == []
