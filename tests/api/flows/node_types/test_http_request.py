"""`http_request`: what is sent, what becomes of answers, and where it may go."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard

import analemma
from analemma import App, Run, Settings
from tests.api.flows.runs import PLACE, place
from tests.model_server import Answer, ModelServer, fails, hangs
from tests.stores import Store, local

TOKEN = "tok-that-nobody-may-see"

Serve = Callable[..., ModelServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    servers: list[ModelServer] = []
    monkeypatch.setenv("ANALEMMA_FLOW_TOKEN", TOKEN)

    def start(*script: Answer) -> ModelServer:
        servers.append(ModelServer(*script))
        monkeypatch.setenv("ANALEMMA_FLOW_API", servers[-1].url)
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with analemma.open("sqlite:///:memory:", settings=Settings(node_read_s=5)) as app:
        yield app


def send(app: App, state: dict[str, Any] | None = None, **more: Any) -> Run:
    node = {"id": "call", "type": "http_request", "url": "${ANALEMMA_FLOW_API}/x", **more}
    return app.flows.run({"workflow": "w", "nodes": [node]}, state, **place())


def says(body: Any, status: int = 200, **headers: str) -> Answer:
    return lambda to: to.whole(status, body, **headers)


def test_a_request_is_filled_in_and_its_answer_becomes_a_field(store: Store, serve: Serve) -> None:
    server = serve(says({"id": 7, "list": [1.5, None]}))
    state = {"who": "ann & bob/../x?", "order": {"n": 1, "lines": ["a"]}, "text": "plain"}
    with store.open() as app:
        run = send(
            app,
            state,
            url="${ANALEMMA_FLOW_API}/users/{{who}}?a=1",
            method="POST",
            query={"q": "{{text}} {{who}}"},
            headers={"Authorization": "Bearer ${ANALEMMA_FLOW_TOKEN}", "X-Who": "me"},
            body={"order": "{{order}}", "all": ["{{text}}!", 3]},
            into="made",
        )
        assert run.error is None
        assert run.state["made"] == {"id": 7, "list": [1.5, None]}
    (asked,) = server.asked
    assert asked.method == "POST"
    assert asked.path == "/users/ann%20%26%20bob%2F..%2Fx%3F?a=1&q=plain+ann+%26+bob%2F..%2Fx%3F"
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    assert asked.headers["x-who"] == "me"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["idempotency-key"].startswith(run.execution_id)
    assert asked.json == {"order": {"n": 1, "lines": ["a"]}, "all": ["plain!", 3]}


def test_a_get_has_no_key_and_no_body(app: App, serve: Serve) -> None:
    server = serve(says({}))
    assert send(app).state["call"] == {}
    assert "idempotency-key" not in server.asked[0].headers and server.asked[0].body == b""


def test_a_text_as_body_is_sent_as_it_is(app: App, serve: Serve) -> None:
    server = serve(says({}))
    send(app, {"name": "ann"}, method="PUT", body="hello {{name}}")
    assert server.asked[0].body == b"hello ann"
    assert server.asked[0].headers["content-type"].startswith("text/plain")


ANSWERS: list[tuple[str, Answer, Any]] = [
    ("text", says("grüße".encode("latin-1"), content_type="text/plain; charset=latin-1"), "grüße"),
    ("text", says(b"\xff\xfe", content_type="text/plain; charset=unheard-of"), "��"),
    ("text", says(b"\\ud800", content_type="text/plain; charset=unicode_escape"), "\\ud800"),
    ("bytes", says(b"\x00\x01"), b"\x00\x01"),
    ("json", says(b""), None),
    (
        "full",
        says({"a": 1}, 202, x_kind="y", set_cookie="secret=1"),
        {"status": 202, "body": {"a": 1}, "x-kind": "y"},
    ),
    ("json", says(gzip.compress(b"[1]"), content_encoding="gzip"), [1]),
]


def test_answers_come_in_the_form_that_is_asked_for(app: App, serve: Serve) -> None:
    for response, answer, expected in ANSWERS:
        serve(answer)
        run = send(app, response=response)
        assert run.error is None
        found = run.state["call"]
        if response == "full":
            headers = found.pop("headers")
            assert "set-cookie" not in headers
            found["x-kind"] = headers["x-kind"]
        assert found == expected


def test_a_status_that_is_not_accepted_fails_the_node(app: App, serve: Serve) -> None:
    for status, kind, times in (
        (404, "invalid", 1),
        (401, "denied", 1),
        (302, "invalid", 1),
        (429, "unavailable", 3),
        (503, "unavailable", 3),
    ):
        server = serve(fails(status, f"no, {TOKEN}", location="http://169.254.169.254/"))
        run = send(app, retries={"times": 2, "delay_s": 0.001}, headers={"x-token": "${ANALEMMA_FLOW_TOKEN}"})
        assert run.error is not None and run.error.kind == kind, status
        assert TOKEN not in run.error.message
        assert len(server.asked) == times


def test_a_status_may_be_accepted(app: App, serve: Serve) -> None:
    serve(fails(404, "gone"))
    assert send(app, accepts=[404]).state["call"] == {"error": {"message": "gone"}}


def test_a_retry_carries_the_same_key_and_a_recorded_answer_is_not_asked_for_again(app: App, serve: Serve) -> None:
    server = serve(fails(503), says({"ok": True}))
    node = {"id": "call", "type": "http_request", "url": "${ANALEMMA_FLOW_API}/x", "method": "POST", "retries": 1}
    document = {"workflow": "w", "nodes": [node, {"id": "then", "type": "python", "function": "then"}]}
    run = app.flows.run(document, **PLACE)
    assert run.status == "FAILED" and len(server.asked) == 2
    assert len({each.headers["idempotency-key"] for each in server.asked}) == 1
    app.flows.handlers.add("then", lambda state, ctx: None)
    assert app.flows.resume(run.execution_id).state["call"] == {"ok": True}
    assert len(server.asked) == 2


def test_an_answer_that_is_too_large_is_cut_off(app: App, serve: Serve) -> None:
    serve(says(b"x" * 5000), says(gzip.compress(b"x" * 10_000_000), content_encoding="gzip"))
    for _ in range(2):
        run = send(app, response="text", maximum_bytes=4999)
        assert run.error is not None and run.error.kind == "limit"


def test_an_answer_that_cannot_be_unpacked_is_none(app: App, serve: Serve) -> None:
    for answer in (
        # Not asked for, cut, and none at all.
        says(zstandard.compress(b"[1]"), content_encoding="zstd"),
        says(gzip.compress(b"[1]")[:-4], content_encoding="gzip"),
        says(b"[1]", content_encoding="gzip"),
    ):
        serve(answer)
        run = send(app)
        assert run.error is not None and run.error.kind == "unavailable"


def test_a_host_that_does_not_answer_is_given_up(app: App, serve: Serve) -> None:
    serve(hangs(3))
    run = send(app, timeout_s=0.3)
    assert run.error is not None and run.error.kind == "timeout"


def test_json_that_is_none_fails_the_node(app: App, serve: Serve) -> None:
    serve(says(b"<html>"))
    run = send(app)
    assert run.error is not None and run.error.kind == "unavailable"


def test_headers_of_the_connection_are_not_the_documents(app: App, serve: Serve) -> None:
    server = serve(says({}))
    for name in ("Host", "Content-Length", "Transfer-Encoding", "Connection"):
        run = send(app, headers={name: "x"})
        assert run.error is not None and run.error.kind == "invalid", name
    assert server.asked == []


def test_a_header_cannot_be_continued_by_the_state(app: App, serve: Serve) -> None:
    server = serve(says({}))
    run = send(app, {"x": "a\r\nx-evil: 1"}, headers={"x-good": "{{x}}"})
    assert run.error is not None and run.error.kind == "invalid" and server.asked == []


PRIVATE = [
    "http://127.0.0.1:{port}/",
    "http://localhost:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f.1:{port}/",
    "http://[::1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://0.0.0.0:{port}/",
    "http://169.254.169.254/latest/meta-data",
]


@pytest.mark.parametrize("through", ["document", "state"])
def test_private_addresses_are_not_reached(app: App, serve: Serve, through: str) -> None:
    server = serve(says({}))
    for url in PRIVATE:
        address = url.format(port=server.url.rpartition(":")[2])
        run = send(app, {"u": address}, url="{{u}}" if through == "state" else address)
        assert run.error is not None and run.error.kind in ("denied", "unavailable"), (url, run.error)
    assert server.asked == []


def test_a_host_that_is_listed_is_reached(tmp_path: Any, serve: Serve) -> None:
    server = serve(says({"ok": 1}))
    with local(tmp_path).open(node_hosts=f"localhost:{server.url.rpartition(':')[2]},10.0.0.0/8") as app:
        assert send(app, url=server.url.replace("127.0.0.1", "localhost")).state["call"] == {"ok": 1}
        run = send(app, url=server.url)
        assert run.error is not None and run.error.kind == "denied"
    assert server.asked[0].headers["host"].startswith("localhost:")


def test_the_state_cannot_change_the_host_of_a_variable(app: App, serve: Serve) -> None:
    server = serve(says({}))
    port = server.url.rpartition(":")[2]
    for rest in ("{{x}}", "{{x}}/y"):
        for evil in (f"@localhost:{port}", f".localhost:{port}", "0", "/../../"):
            run = send(app, {"x": evil}, url="${ANALEMMA_FLOW_API}" + rest)
            assert run.error is not None or server.asked[-1].headers["host"] == server.host, (rest, evil)


def test_a_value_that_would_leave_its_place_in_a_path_is_refused(app: App, serve: Serve) -> None:
    server = serve(says({}))
    for path, value in (
        ("/users/{{x}}", ".."),
        ("/users/{{x}}/posts", "."),
        ("/users/.{{x}}/posts", "."),
        ("/users/%2e{{x}}", "."),
        ("/users/%2E%2e/{{x}}", "a"),
        ("/users/{{x}}", ""),
        ("/users/{{x}}/posts?a=1", ""),
        ("/users/{{x}}{{x}}#a", ""),
    ):
        run = send(app, {"x": value}, url="${ANALEMMA_FLOW_API}" + path, method="DELETE")
        assert run.error is not None and run.error.kind == "invalid", (path, value)
    assert server.asked == []


def test_a_value_with_dots_stays_in_its_place(app: App, serve: Serve) -> None:
    server = serve(says({}))
    for path, value, expected in (
        ("/{{x}}", "...", "/..."),
        ("/{{x}}", "%2e%2e", "/%252e%252e"),
        ("/a.{{x}}", "..", "/a..."),
        ("/a?q={{x}}", "..", "/a?q=.."),
        ("/a?q={{x}}", "", "/a?q="),
        ("/a//b/{{x}}", "c", "/a//b/c"),
    ):
        run = send(app, {"x": value}, url="${ANALEMMA_FLOW_API}" + path)
        assert run.error is None and server.asked[-1].path == expected


def test_an_address_of_the_state_leads_nowhere_else_either(app: App, serve: Serve) -> None:
    server = serve(says({}))
    run = send(app, {"u": f"{server.url}/a/../b"}, url="{{u}}")
    assert run.error is not None and run.error.kind == "invalid"
    assert server.asked == []


def test_half_a_secret_is_not_told_either(app: App, serve: Serve) -> None:
    for status in (400, 503):
        for before in (280, 290, 298, 1990):
            serve(says(("x" * before + TOKEN).encode(), status))
            run = send(app, headers={"x-token": "${ANALEMMA_FLOW_TOKEN}"})
            assert run.error is not None and "xxx" in run.error.message
            assert TOKEN[:2] not in run.error.message


def test_what_a_host_says_is_told_on_one_line(app: App, serve: Serve) -> None:
    serve(says(b"a\r\nb\x1b[2J\x00c", 400))
    run = send(app)
    assert run.error is not None and run.error.message.endswith("status 400: a b [2J c")


def test_json_that_cannot_be_kept_as_it_is_is_refused(app: App, serve: Serve) -> None:
    for body in (b'{"a": 18446744073709551616}', b'{"a": 1, "a": 2}', b"[" * 200 + b"]" * 200):
        serve(says(body))
        run = send(app)
        assert run.error is not None and run.error.kind == "invalid", body
        assert "call" not in (run.state or {})


def test_integers_are_kept_to_their_last_digit(app: App, serve: Serve) -> None:
    serve(says(b"[18446744073709551615, -9223372036854775808]"))
    assert send(app).state["call"] == [2**64 - 1, -(2**63)]


def test_a_charset_that_takes_forever_is_not_used(app: App, serve: Serve) -> None:
    serve(says(b"b" * 60_000, content_type="text/plain; charset=punycode"))
    assert send(app, response="text").state["call"] == "b" * 60_000
