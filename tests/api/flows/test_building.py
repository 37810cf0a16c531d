"""Decorated functions and calls make the same document as a file."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest

from analemma import Flow, WorkflowProblems, load_workflow
from analemma.errors import Invalid
from tests.core.flows.workflows import TRIAGE
from tests.docs.pages import ROOT

FOLDER = ROOT / "tests" / "formats" / "workflows"


def triage() -> Flow:
    """The example, as a program would write it."""
    flow = Flow(
        "triage",
        description="Answers support tickets, with somebody's approval where it matters.",
        state={"ticket": {"type": "object", "required": True}, "questions": "list<string>"},
        limits={"timeout_s": 172800},
    )

    @flow.step(
        reads=["ticket"], writes=["label", "questions"], retries=3, timeout_s=30, ring=3, capabilities=["tool_use"]
    )
    def classify(state: Any, ctx: Any) -> dict[str, Any]:
        return {"label": "refund", "questions": []}

    customer = flow.view("find_customer", view="view.customer.v1", entity_id="{{/ticket/customer}}", into="customer")
    history = flow.http(
        "find_history",
        "https://desk.example.com/history/{{/ticket/customer}}",
        headers={"Authorization": "Bearer ${DESK_TOKEN}"},
        into="history",
        retries={"times": 5, "delay_s": 1, "maximum_delay_s": 30},
    )
    flow.parallel("gather", {"customer": customer, "history": [history]})
    flow.llm(
        "answer_one",
        model="small-model",
        system="You answer for {{/customer/name}}.",
        prompt="{{item}}",
        into="answer",
    )
    flow.for_each("answer", over="questions", step="answer_one", result="answer", into="answers", max_parallel=8)
    flow.human("approve", prompt="Refund {{/ticket/id}}?", choices=["yes", "no"], timeout_s=86400, default="no")

    @flow.step(reads=["ticket", "approve"], writes=["refunded"])
    async def refund(state: Any, ctx: Any) -> dict[str, Any]:
        return {"refunded": True}

    flow.human("approve_urgent", choices=("send", "hold"), timeout_s=3600, default="hold")
    flow.branch(
        "route",
        [
            (flow.where("label").equals("refund"), ["approve", refund]),
            (flow.where("/ticket/priority").at_least(3), "approve_urgent"),
        ],
        default=[],
    )
    flow.llm("rewrite", model="large-model", prompt="Make one friendly reply of these: {{answers}}", into="reply")

    @flow.step(reads=["reply"], writes=["score"])
    def score(state: Any, ctx: Any) -> None:
        state["score"] = 1.0

    flow.loop(
        "polish", ["rewrite", score], until=flow.where("score").at_least(0.8), max_iterations=5, on_limit="continue"
    )

    @flow.step(reads=["ticket", "reply"], writes=["sent_at"])
    def send(state: Any, ctx: Any) -> None:
        state["sent_at"] = ctx.now()

    flow.ingest("keep", entity_type="TICKET", entity_id="{{/ticket/id}}", payload="ticket")
    return flow


def test_the_example_is_the_same_as_a_file_and_as_a_program() -> None:
    flow = triage()
    assert flow.document() == load_workflow(TRIAGE).to_document()
    assert flow.workflow().hash == load_workflow(TRIAGE).hash
    assert [each.id for each in flow.plan().segments][:3] == ["classify", "gather", "gather.merge"]
    assert sorted(flow.functions) == ["triage.classify", "triage.refund", "triage.score", "triage.send"]


def golden(name: str) -> Flow:
    """The workflows of tests/formats, as programs: every kind of call."""
    flow = Flow(name)

    def after(state: Any, ctx: Any) -> None: ...
    def before(state: Any, ctx: Any) -> None: ...

    match name:
        case "store":
            flow.ingest("put", entity_type="BOOK", entity_id="{{isbn}}", payload="book", into="version")
            flow.ingest("remove", entity_type="BOOK", entity_id="{{old}}", delete=True)
            flow.view("ask", view="view.book.detail.v1", entity_id="{{isbn}}", missing="null")
            flow.archive("keep", workspace="ws-{{isbn}}")
            flow.archive("back", workspace="ws-{{isbn}}", operation="restore")
        case "subflow":
            flow.step(before, writes=["order"])
            flow.subflow(
                "ship", Flow("shipping"), inputs={"address": "/order/address"}, outputs={"parcel": "/result/parcel"}
            )
            flow.step(reads=["parcel"])(after)
        case "code_interpreter":
            flow.llm("write", model="m", prompt="Write code.", into="code")
            flow.code("run", code_path="code", into="result", options={"memory_mb": 128})
            flow.code("count", "result = 1 + 1\n", options={"cpu_s": 2})
        case "trigger":
            flow.trigger("nightly", cron="0 3 * * 1-5", zone="Europe/Paris", into="set_off_by")
            flow.trigger("ordered", event="OrderPlaced", into="set_off_by")

            @flow.step(reads=["set_off_by"])
            def work(state: Any, ctx: Any) -> None: ...
            @flow.step
            def bill(state: Any, ctx: Any) -> None: ...
            @flow.step()
            def done(state: Any, ctx: Any) -> None: ...

            flow.edge("nightly", work)
            flow.edge("ordered", work, bill)
            flow.edge(bill, done)
            flow.edge("work", "done")
        case "aggregator":
            names = ("begin", "one", "two", "left", "right", "meet", "end")
            steps = {each: _named(each) for each in names}
            flow.step(steps["begin"])
            flow.parallel("group", {"a": steps["one"], "b": [steps["two"]]})
            flow.aggregate("sum", of="group", strategy="refuse", strategies={"total": "last_write_wins"})
            flow.step(steps["left"])
            flow.step(steps["right"])
            flow.aggregate("meet", function=steps["meet"])
            flow.aggregate("pass")
            flow.step(steps["end"])
            flow.edge("begin", "group")
            flow.edge("group", "sum")
            flow.edge("sum", "left", "right")
            for side in ("left", "right"):
                flow.edge(side, "meet")
            flow.edge("meet", "pass")
            flow.edge("pass", "end")
    return flow


def _named(name: str) -> Any:
    def step(state: Any, ctx: Any) -> None: ...

    step.__name__ = name
    return step


def test_calls_make_what_files_say(tmp_path: Path) -> None:
    for name in ("store", "subflow", "code_interpreter", "trigger", "aggregator"):
        file = tmp_path / f"{name}.yaml"
        text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
        file.write_text(text.replace("golden.", f"{name}."), encoding="utf-8")
        assert golden(name).document() == load_workflow(file).to_document(), name


def test_a_decorated_function_stays_what_it_was() -> None:
    flow = Flow("plain")

    @flow.step(writes=["n"])
    def add(state: dict[str, int], ctx: object) -> dict[str, int]:
        """Adds."""
        return {"n": state["n"] + 1}

    @flow.step
    async def wait(state: object, ctx: object) -> None:
        await asyncio.sleep(0)

    assert add({"n": 1}, None) == {"n": 2} and add.__doc__ == "Adds."
    assert inspect.iscoroutinefunction(wait)
    assert flow.functions == {"plain.add": add, "plain.wait": wait}


def test_a_function_may_be_a_step_twice_under_two_ids() -> None:
    flow = Flow("twice")

    def work(state: object, ctx: object) -> None: ...

    flow.step(work)
    flow.step(work, id="again")
    assert [(node["id"], node["function"]) for node in flow.document()["nodes"]] == [
        ("work", "twice.work"),
        ("again", "twice.work"),
    ]


def test_conditions_may_be_functions() -> None:
    flow = Flow("asking")

    def is_done(state: object, ctx: object) -> bool:
        return True

    def work(state: object, ctx: object) -> None: ...

    flow.loop("l", [work], while_=is_done)
    assert flow.document()["nodes"][0]["while"] == {"function": "asking.is_done"}
    assert flow.functions["asking.is_done"] is is_done


def test_two_functions_of_one_name_are_refused() -> None:
    flow = Flow("clash")
    flow.step(_named("same"))
    with pytest.raises(Invalid, match="two functions of clash are called same"):
        flow.step(_named("same"), id="other")


def test_a_function_without_a_name_is_refused() -> None:
    with pytest.raises(Invalid, match="has no name to be found by"):
        Flow("nameless").step(lambda state, ctx: None)


def test_problems_have_the_lines_of_the_program() -> None:
    flow = Flow("wrong")
    line = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    flow.human("approve", choices=["yes"], timeout_s=1, default="no")
    with pytest.raises(WorkflowProblems) as caught:
        flow.document()
    found = caught.value.problems[0]
    assert (found.file, found.line, found.node) == (__file__, line + 1, "approve")


def test_what_is_declared_later_is_in_the_document() -> None:
    flow = Flow("growing")
    flow.human("a", choices=["ok"])
    before = flow.workflow()
    assert flow.workflow() is before
    flow.human("b", choices=["ok"])
    assert [node.id for node in flow.workflow().nodes] == ["a", "b"]


def test_an_empty_flow_is_no_workflow() -> None:
    with pytest.raises(WorkflowProblems, match="nodes is empty"):
        Flow("empty").document()
