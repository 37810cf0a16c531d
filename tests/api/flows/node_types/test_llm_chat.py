"""`llm_chat` against a server that speaks the protocol."""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from analemma import App, Run
from analemma.errors import Invalid, Unavailable
from analemma.testing import failpoints
from tests.api.flows.runs import PLACE, place
from tests.model_server import USAGE, Answer, ModelServer, breaks_off, events, fails, hangs, says, streams
from tests.raw_rows import select
from tests.stores import Store

KEY = "sk-a-key-that-nobody-may-see"
USED = {"calls": 1, **USAGE}

LARGEST_ANSWER = 32 << 20
Serve = Callable[..., ModelServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start a server, and make it the endpoint."""
    servers: list[ModelServer] = []

    def start(*script: Answer) -> ModelServer:
        servers.append(ModelServer(*script))
        monkeypatch.setenv("OPENAI_BASE_URL", servers[-1].url + "/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def app(store: Store) -> Iterator[App]:
    with store.open(node_read_s=5) as app:
        yield app


def chat(**more: Any) -> dict[str, Any]:
    node = {
        "id": "ask",
        "type": "llm_chat",
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello {{name}}"}],
        **more,
    }
    return {"workflow": "chat", "nodes": [node]}


def ask(app: App, state: dict[str, Any] | None = None, **more: Any) -> Run:
    return app.flows.run(chat(**more), {"name": "ann"} if state is None else state, **PLACE)


def test_a_streamed_answer_becomes_a_field_and_its_tokens_are_counted(app: App, serve: Serve) -> None:
    text = "grüß dich, 世界 🌍"
    server = serve(
        streams(events({"role": "assistant", "content": ""}, *({"content": each} for each in text)), piece=5)
    )
    run = ask(app, usage_into="used", temperature=0.5, maximum_tokens=9)
    assert run.error is None
    assert run.state == {"name": "ann", "ask": text, "used": USED}
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/chat/completions")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.headers["host"] == server.host
    assert asked.json == {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello ann"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "max_tokens": 9,
    }
    assert app.kernel.history(**PLACE)[0].message == "ask: m-1, 15 tokens"


def test_an_answer_that_comes_whole_does_as_well(app: App, serve: Serve) -> None:
    server = serve(says("hi"))
    assert ask(app, stream=False).state["ask"] == "hi"
    assert "stream" not in server.asked[0].json


def test_a_server_that_does_not_stream_when_asked_to_is_understood(app: App, serve: Serve) -> None:
    serve(says("hi"))
    assert ask(app).state["ask"] == "hi"


def test_streams_may_end_as_servers_end_them(app: App, serve: Serve) -> None:
    for end in (b"", b"data: [DONE]", b"data:[DONE]\r\n\r\n", b": ping\n\ndata: [DONE]\n\n"):
        serve(streams(events({"content": "hi"}).replace(b"\n", b"\r\n"), end=end, piece=1))
        assert ask(app).state["ask"] == "hi", end


PASSING: dict[str, Answer] = {
    "429": fails(429, retry_after="0"),
    "a time that is over": fails(429, retry_after="Thu, 01 Jan 1970 00:00:00 GMT"),
    "no time at all": fails(429, retry_after="soon"),
    "500": fails(500),
    "503": fails(503, retry_after="0.01"),
    "broken off": breaks_off(events({"content": "h"}, finish=None, usage=False)),
    "ends too soon": streams(events({"content": "h"}, finish=None, usage=False), end=b""),
    "error inside": streams(b'data: {"error": {"message": "overloaded"}}\n\n', end=b""),
    "no JSON": streams(b"data: {nonsense\n\n"),
    "no answer": lambda to: to.break_off(),
    "no JSON at all": lambda to: to.whole(200, b"<html>"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_may_pass_is_asked_again(app: App, serve: Serve, name: str) -> None:
    server = serve(PASSING[name], says("hi"))
    run = ask(app)
    assert (run.status, run.state.get("ask")) == ("COMPLETED", "hi")
    assert len(server.asked) == 2
    assert len({each.headers["idempotency-key"] for each in server.asked}) == 1


def test_a_pause_that_the_endpoint_asks_for_is_kept(app: App, serve: Serve) -> None:
    serve(fails(429, retry_after="1"), says("hi"))
    began = time.monotonic()
    assert ask(app).state["ask"] == "hi"
    assert time.monotonic() - began >= 1


def test_a_pause_that_is_too_long_is_left_to_whoever_resumes(app: App, serve: Serve) -> None:
    server = serve(fails(429, retry_after="3000"), says("hi"))
    run = ask(app)
    assert run.status == "FAILED" and run.error is not None and run.error.kind == "unavailable"
    assert len(server.asked) == 1
    assert app.flows.resume(run.execution_id).state["ask"] == "hi"


def test_the_endpoint_is_not_asked_for_ever(store: Store, serve: Serve) -> None:
    server = serve(fails(500, retry_after="0"))
    with store.open(llm_retries=2) as app:
        assert ask(app).status == "FAILED"
    assert len(server.asked) == 3


def test_what_will_not_pass_is_not_asked_again(app: App, serve: Serve) -> None:
    for status, kind in ((400, "invalid"), (401, "denied"), (403, "denied"), (404, "invalid"), (422, "invalid")):
        server = serve(fails(status, f"bad key {KEY}"))
        run = app.flows.run(chat(retries={"times": 3, "delay_s": 0.001}), {"name": "ann"}, **place())
        assert run.error is not None and run.error.kind == kind, status
        assert len(server.asked) == 1
        assert "bad key ***" in run.error.message


def test_an_answer_that_was_recorded_is_never_paid_twice(app: App, serve: Serve) -> None:
    server = serve(says("hi"))

    def away() -> None:
        raise Unavailable("the database is away")

    # Behind the answer, and before anything of the segment is committed.
    with failpoints.call("run.after_segment", away), pytest.raises(Unavailable):
        ask(app)
    (run,) = app.flows.runs()
    assert (run.status, run.state) == ("RUNNING", {"name": "ann"})
    assert app.flows.resume(run.execution_id).state["ask"] == "hi"
    assert len(server.asked) == 1


def test_the_key_is_neither_stored_nor_logged(
    store: Store, serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, logger="analemma.flows")
    serve(
        fails(500, f"you sent {KEY}", retry_after="0"),
        streams(events(*({"content": each} for each in f"your key is {KEY}"))),
    )
    with store.open() as app:
        run = ask(app)
        assert run.state["ask"] == "your key is ***"
        stored = json.dumps([app.flows.recorded(run.execution_id), run.state])
    assert KEY not in stored
    assert KEY not in caplog.text
    serve(fails(403, f"not with {KEY}"))
    with store.open() as app:
        failed = app.flows.run(chat(), {"name": "x"}, workflow_id="t-2", owner_id="me")
    assert failed.error is not None and KEY not in str(failed.error)
    assert KEY not in caplog.text


def test_a_key_goes_to_its_own_host_only(app: App, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server, other = serve(says("hi")), serve(says("hi"))
    monkeypatch.setenv("ANALEMMA_FLOW_ELSEWHERE", server.url)
    run = ask(app, base_url="${ANALEMMA_FLOW_ELSEWHERE}/v1")
    assert run.error is not None and run.error.kind == "denied" and "OPENAI_API_KEY" in run.error.message
    assert server.asked == other.asked == []
    assert (
        app.flows.run(
            chat(base_url="${ANALEMMA_FLOW_ELSEWHERE}/v1", api_key=None),
            {"name": "x"},
            workflow_id="t-2",
            owner_id="me",
        ).state["ask"]
        == "hi"
    )
    assert "authorization" not in server.asked[0].headers


def test_variables_that_nobody_listed_are_not_used(app: App, serve: Serve) -> None:
    server = serve(says("hi"))
    for name in ("HOME", "PATH", "AWS_SECRET_ACCESS_KEY", "ANALEMMA_URL"):
        run = ask(app, messages=[{"role": "user", "content": f"${{{name}}}"}])
        assert run.error is not None and run.error.kind == "denied" and name in run.error.message
    assert server.asked == []


def test_what_the_state_says_is_not_looked_up_in_the_environment(app: App, serve: Serve) -> None:
    server = serve(says("hi"))
    assert ask(app, {"name": "${OPENAI_API_KEY} {{name}}"}).status == "COMPLETED"
    assert server.asked[0].json["messages"][1]["content"] == "hello ${OPENAI_API_KEY} {{name}}"


def test_the_history_goes_before_the_last_message(app: App, serve: Serve) -> None:
    server = serve(says("three"))
    history = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    run = ask(app, {"name": "ann", "chat": history}, history="chat", response="message")
    assert [each["content"] for each in server.asked[0].json["messages"]] == ["be brief", "one", "two", "hello ann"]
    assert run.state["ask"] == {"role": "assistant", "content": "three"}
    wrong = app.flows.run(chat(history="chat"), {"name": "x", "chat": "no"}, workflow_id="t-2", owner_id="me")
    assert wrong.error is not None and wrong.error.kind == "invalid"


def test_json_is_asked_for_and_read(app: App, serve: Serve) -> None:
    server = serve(says('{"label": "bug", "score": 1.5}'))
    assert ask(app, response="json").state["ask"] == {"label": "bug", "score": 1.5}
    assert server.asked[0].json["response_format"] == {"type": "json_object"}


def test_json_that_is_none_is_asked_for_again_by_the_retries_of_the_node(app: App, serve: Serve) -> None:
    server = serve(says("sure! {"), says('{"ok": true}'))
    run = ask(app, response="json", retries={"times": 1, "delay_s": 0.001})
    assert run.state["ask"] == {"ok": True}
    assert len(server.asked) == 2


def test_parameters_are_sent_as_they_are(app: App, serve: Serve) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
    server = serve(says(None, tool_calls=[call]))
    run = ask(
        app, response="message", parameters={"tools": tools, "seed": 7, "stream_options": None, "text": "{{name}}"}
    )
    assert run.state["ask"] == {"role": "assistant", "content": None, "tool_calls": [call]}
    sent = server.asked[0].json
    assert (sent["tools"], sent["seed"], sent["text"], "stream_options" in sent) == (tools, 7, "{{name}}", False)


def test_tools_are_called_and_their_answers_told(app: App, serve: Serve) -> None:
    pieces: list[dict[str, Any]] = [
        {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "c1", "function": {"name": "shop_pri", "arguments": ""}}],
        },
        {"tool_calls": [{"index": 0, "function": {"name": "ce", "arguments": '{"book":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ' "978"}'}}, {"index": 1, "id": "c2", "function": {}}]},
        {"tool_calls": [{"index": 1, "function": {"name": "shop_price", "arguments": '{"book": 1, "x": 2}'}}]},
    ]
    server = serve(streams(events(*pieces, finish="tool_calls")), streams(events({"content": "12 euros"})))
    called: list[str] = []

    def price(book: str, ctx: Any, currency: str = "EUR") -> dict[str, Any]:
        """What a book costs."""
        called.append(f"{book} {ctx.node_id}")
        return {"price": 12, "currency": currency}

    app.flows.handlers.add("shop.price", price)
    run = ask(app, tools=["shop.price"], usage_into="used")
    assert run.error is None
    assert (run.state["ask"], run.state["used"]) == ("12 euros", {"calls": 2, **{k: 2 * v for k, v in USAGE.items()}})
    assert called == ["978 ask"]
    (definition,) = server.asked[0].json["tools"]
    assert definition["function"]["name"] == "shop_price"
    assert definition["function"]["description"] == "What a book costs."
    assert definition["function"]["parameters"]["required"] == ["book"]
    told = server.asked[1].json["messages"][-3:]
    assert [each["role"] for each in told] == ["assistant", "tool", "tool"]
    assert [each.get("tool_call_id") for each in told] == [None, "c1", "c2"]
    assert json.loads(told[1]["content"]) == {"price": 12, "currency": "EUR"}
    assert told[2]["content"].startswith("error: shop_price was called wrongly")


def test_what_tools_did_is_not_done_again(app: App, serve: Serve) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    server = serve(says(None, tool_calls=[call]), fails(400), says("done"))
    paid: list[int] = []

    def pay() -> str:
        paid.append(1)
        return "paid"

    app.flows.handlers.add("pay", pay)
    run = ask(app, tools=["pay"])
    assert run.status == "FAILED"
    assert app.flows.resume(run.execution_id).state["ask"] == "done"
    assert (paid, len(server.asked)) == ([1], 3)


def test_a_model_that_asks_for_tools_for_ever_is_stopped(app: App, serve: Serve) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    serve(says(None, tool_calls=[call]))
    app.flows.handlers.add("look", lambda: "nothing")
    run = ask(app, tools=["look"])
    assert run.error is not None and run.error.kind == "limit"


def test_slow_answers_end_with_the_time_of_the_node(app: App, serve: Serve) -> None:
    server = serve(streams(events({"content": "hi"}), piece=1, pause_s=0.05))
    run = ask(app, timeout_s=0.5)
    assert run.error is not None and run.error.kind == "timeout"
    assert len(server.asked) == 1


def test_an_endpoint_that_says_nothing_is_not_waited_for_longer_than_set(store: Store, serve: Serve) -> None:
    serve(hangs(3), says("hi"))
    with store.open(node_read_s=0.3) as app:
        assert ask(app).state["ask"] == "hi"


def test_a_refusal_is_no_answer(app: App, serve: Serve) -> None:
    serve(says(None, refusal="I would rather not"))
    run = ask(app)
    assert run.error is not None and "I would rather not" in run.error.message


def test_answers_without_end_are_cut(app: App, serve: Serve) -> None:
    much = gzip.compress(b" " * LARGEST_ANSWER + b"{}", 1)
    server = serve(lambda to: to.whole(200, much, content_encoding="gzip"))
    run = ask(app, stream=False)
    assert run.error is not None and run.error.kind == "limit"
    assert len(server.asked) == 1


def test_a_key_in_the_name_of_the_model_is_neither_stored_nor_told(
    app: App, store: Store, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="analemma.flows")
    name = f"{KEY}\nforged line {'m' * 3_000}"
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": f"stop\n{KEY}"}
    serve(lambda to: to.whole(200, {"model": name, "choices": [choice], "usage": USAGE}))

    def look(place: str) -> str:
        """Look there."""
        return place

    app.flows.handlers.add("look", look)
    # With tools, each round of the conversation is recorded by itself.
    run = ask(app, tools=["look"])
    assert run.error is None
    message = app.kernel.history(**PLACE)[0].message
    assert message is not None and message.startswith("ask: *** forged line mmm") and len(message) < 300
    rows = select(store, "SELECT body FROM effect")
    assert len(rows) == 2 and not any(KEY.encode() in body for (body,) in rows)
    assert KEY not in caplog.text and "\nforged" not in caplog.text


def test_a_model_that_fails_with_half_a_key_is_not_told_on(app: App, serve: Serve) -> None:
    for number, before in enumerate((280, 290, 490)):
        body = {"error": {"code": 400, "message": "x" * before + KEY + "\nline"}}
        serve(lambda to, body=body: to.whole(200, body))
        run = app.flows.run(chat(), {"name": "x"}, workflow_id=f"t-{number}", owner_id="me")
        assert run.error is not None and "xxx" in run.error.message
        assert KEY[:3] not in run.error.message and "\n" not in run.error.message


def test_json_of_a_model_keeps_its_digits(app: App, serve: Serve) -> None:
    serve(says("[18446744073709551615]"))
    assert ask(app, response="json").state["ask"] == [2**64 - 1]
    serve(says("[18446744073709551616]"))
    run = app.flows.run(chat(response="json"), {"name": "x"}, workflow_id="t-2", owner_id="me")
    assert run.error is not None and run.error.kind == "invalid"


def test_the_answer_and_its_usage_are_two_fields(app: App) -> None:
    with pytest.raises(Invalid, match="both be used"):
        ask(app, into="used", usage_into="used")
