"""Groups: items and branches that run beside one another, are recorded one by one, and are put together in order."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from analemma import App, Flow, Run
from analemma.errors import Unavailable
from analemma.testing import failpoints
from tests.depth import some
from tests.group_program import PLACE, merged, squares
from tests.raw_rows import change, select
from tests.stores import Store


def root(app: App) -> str:
    return app.kernel.history(**PLACE)[0].root_hash


def tasks(store: Store) -> list[tuple[int, str]]:
    return [(item, status) for item, status in select(store, "SELECT item, status FROM run_task ORDER BY item")]


def numbers(count: int) -> dict[str, Any]:
    return {"numbers": [{"n": number} for number in range(count)], "factor": 2}


@pytest.mark.parametrize("count", some([0, 1, 10, 40, 250], test=[0, 1, 40]))
def test_results_of_items_are_a_list_in_the_order_of_the_items(count: int, app: App, store: Store) -> None:
    run = app.flows.run(squares, numbers(count), **PLACE)
    assert run.status == "COMPLETED", run.error
    assert run.state == {**numbers(count), "squares": [2 * number**2 for number in range(count)]}
    assert tasks(store) == [(number, "DONE") for number in range(count)]
    assert [(each.segment_id, each.status) for each in run.segments] == [("each", "COMPLETE")]
    assert app.kernel.verify(**PLACE).problems == []


def test_without_a_result_path_an_item_comes_to_what_it_wrote(app: App) -> None:
    flow = Flow("wrote")

    @flow.step(reads=["item"], writes=["double", "deep", "item"])
    def work(state: Any, ctx: Any) -> None:
        state["double"] = state["item"] * 2
        state["deep"]["seen"] = True
        state["item"] = 0

    flow.for_each("each", over="/deep/numbers", step=work, into="results")
    run = app.flows.run(flow, {"deep": {"numbers": [1, 2]}}, **PLACE)
    deep = {"numbers": [1, 2], "seen": True}
    assert run.state == {
        "deep": {"numbers": [1, 2]},
        "results": [{"double": 2, "deep": deep}, {"double": 4, "deep": deep}],
    }


def test_what_is_no_list_cannot_be_gone_over(memory: App) -> None:
    for given in ({}, {"numbers": {"0": 1}}, {"numbers": "123"}):
        run = memory.flows.run(squares, given, **PLACE)
        assert run.status == "FAILED" and run.error is not None
        assert (run.error.kind, "each goes over numbers" in run.error.message) == ("invalid", True), given


def test_more_items_than_allowed_are_refused(app: App) -> None:
    flow = Flow("few")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> None:
        raise AssertionError("nothing may run")

    flow.for_each("each", over="numbers", step=work, max_items=2)
    run = app.flows.run(flow, {"numbers": [1, 2, 3]}, **PLACE)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "limit")


def test_branches_begin_with_the_same_state_and_are_merged(app: App) -> None:
    run = app.flows.run(merged, {"text": "one two three four"}, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert {**run.state, "size": len(run.state["size"])} == {
        "text": "one two three four",
        "words": 4,
        "long": True,
        "letters": 18,
        "size": 300_000,
    }
    assert [each.segment_id for each in run.segments] == ["both", "both.merge"]
    # The group itself makes no version; its merge makes one, with what was emitted.
    assert len(app.kernel.history(**PLACE)) == 2
    assert app.outbox.status().pending == 1
    assert app.kernel.verify(**PLACE).problems == []


def clashing(**merge: Any) -> Flow:
    """Three branches that write the same; the first of them by name is the last to end."""
    flow = Flow("clashing", **merge)
    others = threading.Semaphore(0)

    def writer(name: str) -> Any:
        def write(state: Any, ctx: Any) -> dict[str, Any]:
            if name == "a":
                assert all(others.acquire(timeout=60) for _ in range(2))
            else:
                others.release()
            return {"log": [*state["log"], name], "who": name}

        write.__name__ = f"write_{name}"
        return flow.step(reads=["log"], writes=["log", "who"])(write)

    flow.parallel("all", {name: [writer(name)] for name in "cab"})
    return flow


def test_a_conflict_fails_the_run_and_names_the_path_and_the_branches(app: App) -> None:
    run = app.flows.run(clashing(merge={"strategies": {"log": "append"}}), {"log": ["x"]}, **PLACE)
    assert (run.status, run.segment_id) == ("FAILED", "all.merge")
    assert run.error is not None
    assert (run.error.kind, run.error.message) == ("conflict", "a and b changed /who differently")
    assert run.state == {"log": ["x"]}


@pytest.mark.parametrize(("strategy", "who"), [("last_write_wins", "c"), ("ours", "a"), ("collect", ["a", "b", "c"])])
def test_strategies_decide_in_the_order_of_the_names_and_not_of_the_ends(strategy: str, who: Any, app: App) -> None:
    flow = clashing(merge={"strategies": {"log": "append", "who": strategy}})
    run = app.flows.run(flow, {"log": ["x"]}, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert run.state == {"log": ["x", "a", "b", "c"], "who": who}


def test_an_aggregator_merges_by_its_own_strategies_and_then_calls_its_function(app: App) -> None:
    flow = clashing()

    def count(state: Any, ctx: Any) -> dict[str, Any]:
        return {"log": len(state["log"])}

    flow.aggregate(
        "sum",
        of="all",
        strategy="last_write_wins",
        strategies={"log": "append"},
        function=count,
        reads=["log"],
        writes=["log"],
    )
    run = app.flows.run(flow, {"log": []}, **PLACE)
    assert run.status == "COMPLETED", run.error
    assert run.state == {"log": 3, "who": "c"}


def test_branches_loops_and_groups_run_inside_of_tasks(app: App) -> None:
    flow = Flow("inside")

    @flow.step(reads=["item", "n"], writes=["n"])
    def add(state: Any, ctx: Any) -> None:
        state["n"] = state.get("n", 0) + state["item"]

    flow.loop("thrice", [add], times=3)

    @flow.step(reads=["n"], writes=["size"])
    def large(state: Any, ctx: Any) -> dict[str, Any]:
        return {"size": "large"}

    @flow.step(reads=["n"], writes=["left"])
    def left(state: Any, ctx: Any) -> dict[str, Any]:
        return {"left": ctx.once("look", lambda key: [state["n"], key.split(":", 2)[2]])}

    @flow.step(reads=["n", "letter", "position"], writes=["found"])
    def inner(state: Any, ctx: Any) -> dict[str, Any]:
        return {"found": f"{state['letter']}{state['position']}{state['n']}{ctx.item_index}"}

    flow.branch("how", [(Flow.where("n").at_least(6), [large])], default=[])
    flow.parallel(
        "beside",
        {
            "one": [left],
            "two": [
                flow.for_each(
                    "letters", over="letters", step=inner, item="letter", index="position", result="found", into="all"
                )
            ],
        },
    )
    flow.for_each("each", over="numbers", steps=["thrice", "how", "beside"], into="results")
    run = app.flows.run(flow, {"numbers": [1, 2], "letters": ["a", "b"]}, **PLACE)
    assert run.status == "COMPLETED", run.error
    looked = "each/body/beside@{0}/one/left:-:0:left:look:0"
    assert run.state["results"] == [
        {"n": 3, "left": [3, looked.format(0)], "all": ["a030", "b131"]},
        {"n": 6, "size": "large", "left": [6, looked.format(1)], "all": ["a060", "b161"]},
    ]


def test_a_task_may_not_run_more_segments_than_the_document_says(app: App) -> None:
    flow = Flow("endless", limits={"max_branch_iterations": 5})

    @flow.step(writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        return {"x": ctx.iteration}

    flow.loop("again", [work], times=50)
    flow.parallel("group", {"one": ["again"]})
    run = app.flows.run(flow, **PLACE)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "limit")


@pytest.mark.parametrize("where", ["node", "document"])
def test_no_more_tasks_run_at_a_time_than_allowed(where: str, app: App) -> None:
    running, most, lock = 0, 0, threading.Lock()
    # Two at a time, and no task goes on alone.
    pairs = threading.Barrier(2, timeout=60)
    flow = Flow("narrow", limits={"max_parallel": 2} if where == "document" else None)

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pairs.wait()
        with lock:
            running -= 1
        return {"x": 1}

    flow.for_each("each", over="n", step=work, max_parallel=2 if where == "node" else None)
    assert app.flows.run(flow, {"n": list(range(8))}, **PLACE, executor="threads:6").status == "COMPLETED"
    assert most == 2


def test_a_failed_task_fails_the_run_and_the_others_are_not_run_again(app: App, store: Store) -> None:
    calls: Counter[int | str] = Counter()
    broken = True
    flow = Flow("broken")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        item = state["item"]
        calls[item] += 1

        def pay(key: str) -> str:
            calls["paid"] += 1
            return key

        effect = ctx.once("pay", pay)
        if item == 3 and broken:
            raise OSError("no luck")
        ctx.emit({"type": "Worked", "payload": {"item": item}})
        return {"x": effect.rsplit(":", 4)[1]}

    flow.for_each("each", over="n", step=work, result="x", max_parallel=1)
    run = app.flows.run(flow, {"n": list(range(6))}, **PLACE)
    assert run.status == "FAILED" and run.error is not None
    assert (run.error.message, run.error.node, run.segment_id) == ("no luck", "work", "each")
    known = dict(tasks(store))
    assert known == {0: "DONE", 1: "DONE", 2: "DONE", 3: "FAILED"}
    assert app.outbox.status().pending == 0
    broken = False
    run = app.flows.resume(run.execution_id)
    assert (run.status, run.state["each"]) == ("COMPLETED", [str(item) for item in range(6)])
    assert calls == {0: 1, 1: 1, 2: 1, 3: 2, 4: 1, 5: 1, "paid": 6}
    assert app.outbox.status().pending == 6


def test_a_result_that_is_damaged_is_an_error_and_not_skipped(app: App, store: Store) -> None:
    flow = Flow("damaged")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        if state["item"] == 2 and not damaged:
            raise OSError("later")
        return {"x": state["item"]}

    damaged = False
    flow.for_each("each", over="n", step=work, max_parallel=1)
    run = app.flows.run(flow, {"n": list(range(4))}, **PLACE)
    assert run.status == "FAILED"
    # As nobody but a damaged disk, or a stranger, would.
    assert change(store, "UPDATE run_task SET root = ? WHERE item = 0", [bytes(32)]) == 1
    damaged = True
    run = app.flows.resume(run.execution_id)
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "corrupt")


def test_a_cancelled_run_records_no_task_any_more(app: App, store: Store) -> None:
    flow = Flow("cancelled")

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        if state["item"] == 1:
            app.flows.cancel(ctx.execution_id)
        return {"x": 1}

    flow.for_each("each", over="n", step=work, max_parallel=1)
    run = app.flows.run(flow, {"n": list(range(5))}, **PLACE)
    assert run.status == "CANCELLED"
    assert tasks(store) == [(0, "DONE")]
    assert len(app.kernel.history(**PLACE)) == 1


def test_what_others_save_between_group_and_merge_stays(app: App) -> None:
    flow = clashing(merge={"strategies": {"log": "append", "who": "ours"}})

    @flow.step(reads=["who"], writes=["end"])
    def end(state: Any, ctx: Any) -> dict[str, Any]:
        return {"end": state["who"]}

    def told(segment: str, status: str, error: Any) -> None:
        if segment == "all":
            app.kernel.save_state_delta({"beside": 1}, **PLACE)

    run = app.flows.run(flow, {"log": []}, **PLACE, told=told)
    assert run.status == "COMPLETED", run.error
    assert run.state == {"log": ["a", "b", "c"], "who": "a", "beside": 1, "end": "a"}


def test_a_rerun_from_the_merge_runs_the_branches_again(app: App) -> None:
    run = app.flows.run(merged, {"text": "a b"}, **PLACE)
    before = root(app)
    again = app.flows.rerun(run.execution_id, from_segment="both.merge")
    assert (again.status, again.incarnation, root(app)) == ("COMPLETED", 2, before)
    fork = app.flows.rerun(run.execution_id, from_segment="both.merge", fork=True)
    assert (fork.status, fork.state) == ("COMPLETED", run.state)


def test_an_unknown_effect_in_a_task_asks_somebody(app: App) -> None:
    flow = Flow("asking")
    died = False

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        nonlocal died

        def pay(key: str) -> str:
            nonlocal died
            died = True
            raise KeyboardInterrupt

        if state["item"] == 1 and not died:
            return {"x": ctx.once("pay", pay, on_unknown="ask")}
        return {"x": ctx.once("pay", lambda key: "paid", on_unknown="ask")}

    flow.for_each("each", over="n", step=work, result="x", max_parallel=1)
    with pytest.raises(KeyboardInterrupt):
        app.flows.run(flow, {"n": [0, 1, 2]}, **PLACE)
    (run,) = app.flows.runs()
    run = app.flows.resume(run.execution_id)
    assert run.waiting is not None and (run.status, run.waiting.node) == ("WAITING_HUMAN", "work")
    run = app.flows.approve(run.execution_id, "happened", "me", "paid before")
    assert (run.status, run.state["each"]) == ("COMPLETED", ["paid", "paid before", "paid"])


def test_effects_of_several_tasks_that_nobody_knows_of_are_found_out_about_one_by_one(app: App) -> None:
    asked: list[int] = []
    flow = Flow("unsure")

    def pay(state: Any, ctx: Any) -> dict[str, Any]:
        def charge(key: str) -> str:
            asked.append(state["item"])
            if len(asked) <= 2:
                raise TimeoutError("no answer")
            return "paid now"

        return {"paid": ctx.once("charge", charge, on_unknown="fail")}

    flow.step(pay, reads=["item"], writes=["paid"], retries={"times": 1, "delay_s": 0.001})
    flow.for_each("each", over="n", step=pay, result="paid", max_parallel=1)
    run = app.flows.run(flow, {"n": [0, 1]}, **PLACE)
    effects = []
    for unknown, result in (("happened", "paid before"), ("did not", None)):
        assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "outcome_unknown")
        effects.append(run.error.effect)
        run = app.flows.resume(run.execution_id, unknown=unknown, result=result)  # type: ignore[arg-type]
    assert effects == [f"each/body/pay:-:{item}:pay:charge:0" for item in (0, 1)]
    assert (run.status, run.state["each"], asked) == ("COMPLETED", ["paid before", "paid now"], [0, 1, 1])


@pytest.mark.parametrize("point", ["task.before_record", "task.after_record"])
def test_a_store_that_is_away_in_a_task_lets_the_run_go(app: App, store: Store, point: str) -> None:
    def away() -> None:
        raise Unavailable("the database is away")

    with failpoints.call(point, away, time=3), pytest.raises(Unavailable, match="the database is away"):
        app.flows.run(squares, numbers(8), **PLACE)
    (run,) = app.flows.runs()
    assert (run.status, run.holder, run.error) == ("RUNNING", None, None)
    recorded = tasks(store)
    assert {status for _, status in recorded} <= {"DONE"}
    done = app.flows.resume(run.execution_id)
    assert done.state["squares"] == [2 * number**2 for number in range(8)]


def test_what_runs_the_tasks_being_away_fails_the_group(app: App) -> None:
    class Gone(ThreadPoolExecutor):
        def submit(self, *call: Any, **options: Any) -> Any:
            raise Unavailable("the cluster is gone")

    run = app.flows.run(squares, numbers(3), **PLACE, executor=Gone(2))
    assert run.error is not None and (run.status, run.error.kind) == ("FAILED", "unavailable")
    assert (run.error.node, run.error.message) == ("each", "the cluster is gone")
    assert app.flows.resume(run.execution_id).status == "COMPLETED"


def test_a_worker_that_lost_its_run_records_no_task(app: App) -> None:
    flow = Flow("lost")
    taken: list[Run] = []

    @flow.step(reads=["item"], writes=["x"])
    def work(state: Any, ctx: Any) -> dict[str, Any]:
        if state["item"] == 1 and not taken:
            taken.append(app.flows.get(ctx.execution_id))
            # Somebody else takes it over, and runs all of it.
            taken.append(app.flows.resume(ctx.execution_id, take_over=True))
            return {"x": "late"}
        return {"x": state["item"]}

    flow.for_each("each", over="n", step=work, result="x", max_parallel=1)
    run = app.flows.run(flow, {"n": [0, 1, 2]}, **PLACE)
    assert (run.status, run.state["each"]) == ("COMPLETED", [0, 1, 2])
    assert taken[1].status == "COMPLETED"
    assert len(app.kernel.history(**PLACE)) == 2


def test_coroutines_run_in_tasks(app: App) -> None:
    flow = Flow("coroutines")

    @flow.step(reads=["item"], writes=["x"])
    async def work(state: Any, ctx: Any) -> dict[str, Any]:
        return {"x": state["item"] + 1}

    flow.for_each("each", over="n", step=work, result="x")
    assert app.flows.run(flow, {"n": list(range(30))}, **PLACE).state["each"] == list(range(1, 31))
