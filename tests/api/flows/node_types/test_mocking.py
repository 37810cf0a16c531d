"""Runs that ask nobody: stubs, answers that are given, and answers that were recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import App, load_workflow
from analemma.errors import Conflict, Invalid, NotFound
from tests.api.flows.runs import PLACE, place
from tests.model_server import Answering, ModelServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """Answers every request with how many came."""

    def count(to: Answering) -> None:
        number = len(started.asked)
        choice = {"message": {"content": f"answer {number}"}, "finish_reason": "stop"}
        to.whole(200, {"choices": [choice], "number": number})

    started = ModelServer(count)
    monkeypatch.setenv("OPENAI_BASE_URL", started.url)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-for-tests")
    monkeypatch.setenv("ANALEMMA_FLOW_API", started.url)
    yield started
    started.stop()


def document(**stubs: Any) -> dict[str, Any]:
    """A model is asked twice, in a loop; then a host, for JSON and for bytes."""
    ask = {"id": "ask", "type": "llm_chat", "model": "m", "messages": [{"role": "user", "content": "?"}]}
    call = {"id": "call", "type": "http_request", "url": "${ANALEMMA_FLOW_API}/x"}
    fetch = {"id": "fetch", "type": "http_request", "url": "${ANALEMMA_FLOW_API}/y", "response": "bytes"}
    nodes: list[dict[str, Any]] = [
        {"id": "twice", "type": "loop", "body": ["ask", "keep"], "times": 2},
        ask,
        KEEP,
        call,
        fetch,
    ]
    return {
        "workflow": "w",
        "nodes": [{**each, **({"stub": stubs[each["id"]]} if each["id"] in stubs else {})} for each in nodes],
    }


KEEP = {"id": "keep", "type": "python", "function": "keep", "reads": ["ask", "kept"], "writes": ["kept"]}


@pytest.fixture(autouse=True)
def keep(app: App) -> None:
    app.flows.handlers.add("keep", lambda state, ctx: {"kept": [*state.get("kept", []), state["ask"]]})


def test_stubs_stand_in_and_nobody_is_asked(app: App, server: ModelServer) -> None:
    stubs = {"ask": "stubbed", "call": {"n": 1}, "fetch": "AAE="}
    run = app.flows.run(document(**stubs), **PLACE, mock=True)
    assert run.error is None
    assert (run.state["kept"], run.state["call"], run.state["fetch"]) == (["stubbed"] * 2, {"n": 1}, b"\x00\x01")
    assert server.asked == []


def test_answers_that_are_given_go_before_stubs_and_the_closest_first(app: App, server: ModelServer) -> None:
    mock = {"ask": "any", "ask#2": "second", "call": None, "fetch": ""}
    run = app.flows.run(document(call=1), **PLACE, mock=mock)
    assert run.error is None
    assert (run.state["kept"], run.state["call"], run.state["fetch"]) == (["any", "second"], None, b"")
    assert server.asked == []


def test_a_node_without_an_answer_says_so_and_the_run_can_go_on(app: App, server: ModelServer) -> None:
    run = app.flows.run(document(ask="x"), **PLACE, mock=True)
    assert run.error is not None and run.error.kind == "not_found" and "call" in run.error.message
    assert server.asked == []


def test_what_was_recorded_is_played_again(app: App, server: ModelServer) -> None:
    first = app.flows.run(document(), **PLACE)
    assert (first.error, first.state["kept"]) == (None, ["answer 1", "answer 2"])
    recorded = app.flows.recorded(first.execution_id)
    assert set(recorded) == {"ask#1", "ask#2", "call", "fetch"}
    assert recorded["ask#2"] == "answer 2" and recorded["call"]["number"] == 3
    kept = json.loads(json.dumps(recorded))
    for number, mock in enumerate((kept, "recorded")):
        again = app.flows.run(document(), workflow_id=f"again-{number}", owner_id="me", mock=mock)
        assert again.state == first.state
    assert len(server.asked) == 4


def test_a_mock_is_not_what_was_recorded(app: App, server: ModelServer) -> None:
    stubs = {"ask": "stubbed", "call": {"n": 1}, "fetch": "AAE="}
    app.flows.run(document(**stubs), **PLACE, mock=True)
    with pytest.raises(NotFound, match="recorded"):
        app.flows.run(document(**stubs), **PLACE, mock="recorded")
    # Nor is what another owner's run recorded.
    app.flows.run(document(), workflow_id="t-2", owner_id="you")
    with pytest.raises(NotFound, match="recorded"):
        app.flows.run(document(**stubs), **PLACE, mock="recorded")


def test_another_mock_is_another_request(app: App) -> None:
    stubs = {"call": 1, "fetch": ""}
    app.flows.run(document(**stubs), **PLACE, mock={"ask": "a"}, idempotency_key="k")
    again = app.flows.run(document(**stubs), **PLACE, mock={"ask": "a"}, idempotency_key="k")
    assert again.state["kept"] == ["a", "a"]
    with pytest.raises(Conflict):
        app.flows.run(document(**stubs), **PLACE, mock={"ask": "b"}, idempotency_key="k")


def test_what_is_no_mock_is_refused(app: App) -> None:
    for mock in ("nonsense", 1, {1: 2}, ["a"]):
        with pytest.raises(Invalid, match="mock"):
            app.flows.run(document(), **place(), mock=mock)  # type: ignore[arg-type]
    for node in ("aks", "aks#1", "aks[3]", "aks#1[3]", ""):
        with pytest.raises(Invalid, match=f"answers for '{re.escape(node)}'.*there are ask, call"):
            app.flows.run(document(), mock={"ask": "hello", node: "hello"}, **place())
    assert app.flows.runs() == []


def test_answers_may_be_of_the_nodes_of_a_subflow(app: App, tmp_path: Path) -> None:
    inner = {"workflow": "inner", "nodes": [{"id": "call", "type": "http_request", "url": "http://x"}]}
    outer = {
        "workflow": "outer",
        "nodes": [{"id": "sub", "type": "subflow", "workflow": "inner", "outputs": {"got": "call"}}],
    }
    # Nobody knows the nodes of what is not there yet.
    unknown = app.flows.run(outer, mock={"cal": 1}, workflow_id="t-0", owner_id="me")
    assert unknown.error is not None and unknown.error.kind == "not_found"
    file = tmp_path / "inner.json"
    file.write_text(json.dumps(inner))
    app.flows.register(load_workflow(file))
    assert app.flows.run(outer, mock={"call": 1}, **PLACE).state == {"got": 1}
    with pytest.raises(Invalid, match="'cal'"):
        app.flows.run(outer, mock={"cal": 1}, workflow_id="t-2", owner_id="me")


def test_what_mocks_got_is_not_recorded(app: App) -> None:
    call = {"id": "call", "type": "http_request", "url": "http://x", "stub": 1}
    flow = {"workflow": "w", "nodes": [call]}
    with pytest.raises(NotFound, match=r"nothing is recorded \(run it once"):
        app.flows.run(flow, mock="recorded", **PLACE)
    app.flows.run(flow, mock=True, **PLACE)
    with pytest.raises(NotFound, match="mocks are left out"):
        app.flows.run(flow, mock="recorded", workflow_id="t-2", owner_id="me")
