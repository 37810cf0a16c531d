"""`http_request`: what is sent, what becomes of answers, and where it may go."""

from __future__ import annotations

import gzip
import ipaddress
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zstandard

from analemma import App, Run
from analemma.errors import Denied, Invalid
from analemma.flows.node_types.places import Places, is_public
from analemma.flows.node_types.variables import read_variables
from tests.model_server import Answer, ModelServer, fails, hangs
from tests.stores import Store, local

PLACE: dict[str, Any] = {"workflow_id": "t-1", "owner_id": "me"}
TOKEN = "tok-that-nobody-may-see"

Serve = Callable[..., ModelServer]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="analemma.flows")


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


@pytest.fixture
def app(tmp_path: Any) -> Iterator[App]:
    with local(tmp_path).open(node_read_s=5) as app:
        yield app


def send(app: App, state: dict[str, Any] | None = None, *, workflow_id: str = "t-1", **more: Any) -> Run:
    node = {"id": "call", "type": "http_request", "url": "${ANALEMMA_FLOW_API}/x", **more}
    return app.flows.run({"workflow": "w", "nodes": [node]}, state, workflow_id=workflow_id, owner_id="me")


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


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
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
    ],
    ids=["latin-1", "unknown charset", "odd charset", "bytes", "nothing", "full", "gzip"],
)
def test_answers_come_in_the_form_that_is_asked_for(
    app: App, serve: Serve, response: str, answer: Answer, expected: Any
) -> None:
    serve(answer)
    run = send(app, response=response)
    assert run.error is None
    found = run.state["call"]
    if response == "full":
        headers = found.pop("headers")
        assert "set-cookie" not in headers
        found["x-kind"] = headers["x-kind"]
    assert found == expected


@pytest.mark.parametrize(
    ("status", "kind", "times"),
    [(404, "invalid", 1), (401, "denied", 1), (302, "invalid", 1), (429, "unavailable", 3), (503, "unavailable", 3)],
    ids=str,
)
def test_a_status_that_is_not_accepted_fails_the_node(
    app: App, serve: Serve, status: int, kind: str, times: int
) -> None:
    server = serve(fails(status, f"no, {TOKEN}", location="http://169.254.169.254/"))
    run = send(app, retries={"times": 2, "delay_s": 0.001}, headers={"x-token": "${ANALEMMA_FLOW_TOKEN}"})
    assert run.error is not None and run.error.kind == kind
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
    for number in range(2):
        run = send(app, workflow_id=f"t-{number}", response="text", maximum_bytes=4999)
        assert run.error is not None and run.error.kind == "limit"


@pytest.mark.parametrize(
    "answer",
    [
        says(zstandard.compress(b"[1]"), content_encoding="zstd"),
        says(gzip.compress(b"[1]")[:-4], content_encoding="gzip"),
        says(b"[1]", content_encoding="gzip"),
    ],
    ids=["not asked for", "cut", "no gzip"],
)
def test_an_answer_that_cannot_be_unpacked_is_none(app: App, serve: Serve, answer: Answer) -> None:
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


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding", "Connection"], ids=str)
def test_headers_of_the_connection_are_not_the_documents(app: App, serve: Serve, name: str) -> None:
    server = serve(says({}))
    run = send(app, headers={name: "x"})
    assert run.error is not None and run.error.kind == "invalid" and server.asked == []


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


@pytest.mark.parametrize("url", PRIVATE, ids=str)
@pytest.mark.parametrize("through", ["document", "state"])
def test_private_addresses_are_not_reached(app: App, serve: Serve, url: str, through: str) -> None:
    server = serve(says({}))
    address = url.format(port=server.url.rpartition(":")[2])
    run = send(app, {"u": address}, url="{{u}}" if through == "state" else address)
    assert run.error is not None and run.error.kind in ("denied", "unavailable"), run.error
    assert server.asked == []


def test_a_host_that_is_listed_is_reached(tmp_path: Any, serve: Serve) -> None:
    server = serve(says({"ok": 1}))
    with local(tmp_path).open(node_hosts=f"localhost:{server.url.rpartition(':')[2]},10.0.0.0/8") as app:
        assert send(app, url=server.url.replace("127.0.0.1", "localhost")).state["call"] == {"ok": 1}
        run = send(app, url=server.url, workflow_id="t-2")
        assert run.error is not None and run.error.kind == "denied"
    assert server.asked[0].headers["host"].startswith("localhost:")


@pytest.mark.parametrize("rest", ["{{x}}", "{{x}}/y"], ids=str)
def test_the_state_cannot_change_the_host_of_a_variable(app: App, serve: Serve, rest: str) -> None:
    server = serve(says({}))
    port = server.url.rpartition(":")[2]
    for number, evil in enumerate((f"@localhost:{port}", f".localhost:{port}", "0", "/../../")):
        run = send(app, {"x": evil}, url="${ANALEMMA_FLOW_API}" + rest, workflow_id=f"t-{number}")
        assert run.error is not None or server.asked[-1].headers["host"] == server.host


def test_a_secret_is_not_sent_in_the_clear_to_a_host_that_nobody_named() -> None:
    variables = read_variables("KEY", lambda: {"KEY": "abcdefgh"})
    filling = variables.of({})
    filling.text("${KEY}")
    with pytest.raises(Denied, match="unencrypted"):
        filling.check_host("example.com", is_safe=False)
    filling.check_host("example.com", is_safe=True)


def test_a_bound_variable_goes_to_its_host_only() -> None:
    variables = read_variables("KEY@api.example.com, PLACE, OTHER@${PLACE}", lambda: ENVIRONMENT)
    for name, host in (("KEY", "api.example.com"), ("OTHER", "other.example.com:8443")):
        filling = variables.of({})
        filling.text(f"${{{name}}}")
        filling.check_host(host, is_safe=True)
        for wrong in ("evil.example.com", "api.example.com.evil.com", f"{host}:1"):
            with pytest.raises(Denied, match=name):
                filling.check_host(wrong, is_safe=True)


ENVIRONMENT = {"KEY": "abcdefgh", "PLACE": "https://other.example.com:8443/x", "OTHER": "ijklmnop"}


@pytest.mark.parametrize("text", ["lower", "A B", "A@", "A@${b}", "A@h/x"], ids=str)
def test_variables_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(Invalid, match="node_variables"):
        read_variables(text, dict)


def test_secrets_are_masked_wherever_they_come_back() -> None:
    filling = read_variables("KEY,PLACE", lambda: {**ENVIRONMENT, "KEY": "a/b+c d&e"}).of({})
    filling.text("${KEY} ${PLACE}")
    data = {"a/b+c d&e": ["x a/b+c d&e y", b"a/b+c d&e", 1], "url": "https://h/?k=a%2Fb%2Bc%20d%26e"}
    assert json.dumps(filling.masked({**data, "b": None}), default=str).count("***") == 4
    assert filling.mask(ENVIRONMENT["PLACE"]) == ENVIRONMENT["PLACE"]


def resolving(*addresses: str) -> Callable[[str, int], list[str]]:
    return lambda host, port: list(addresses)


def test_a_name_that_leads_to_private_and_public_addresses_is_spoken_to_at_the_public_ones() -> None:
    places = Places("public", resolving("10.0.0.1", "93.184.216.34", "::1"))
    assert places.check("https://example.com/x?y#z", None).addresses == ("93.184.216.34",)
    with pytest.raises(Denied):
        Places("public", resolving("10.0.0.1", "fe80::1%eth0")).check("https://example.com/", None)


NOT_PUBLIC = (
    "10.0.0.1 127.0.0.1 169.254.1.1 172.16.0.1 192.168.0.1 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 192.0.2.1 ::1 "
    ":: fe80::1 fc00::1 ff02::1 ::ffff:10.0.0.1 64:ff9b::10.0.0.1 2002:0a00:0001:: 2001:0:a00:1:: 2001:db8::1"
)


@pytest.mark.parametrize("address", NOT_PUBLIC.split(), ids=str)
def test_addresses_that_are_not_public(address: str) -> None:
    with pytest.raises(Denied):
        Places("public", resolving(address)).check("https://example.com/", None)


def test_addresses_that_are_public() -> None:
    for address in ("8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"):
        assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    ["ftp://h/", "//h/", "https://", "https://u:p@h/", "https://h:0/", "https://h\\@e/", "https://h /", "https://h:x/"],
    ids=str,
)
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(Invalid):
        Places("public", resolving("8.8.8.8")).check(url, None)


@pytest.mark.parametrize(
    ("allowed", "url", "fits"),
    [
        ("*.example.com", "https://a.b.example.com/", True),
        ("*.example.com", "https://example.com/", False),
        ("*.example.com", "https://evilexample.com/", False),
        ("example.com", "https://EXAMPLE.com./", True),
        ("example.com:8080", "http://example.com/", False),
        ("example.com:8080", "http://example.com:8080/", True),
        ("[::1]:80", "http://[::1]/", True),
        ("none", "https://example.com/", False),
    ],
    ids=str,
)
def test_places_are_listed_by_name(allowed: str, url: str, fits: bool) -> None:
    places = Places(allowed, resolving("10.0.0.1"))
    if fits:
        assert places.check(url, None).addresses == ("10.0.0.1",)
    else:
        with pytest.raises(Denied):
            places.check(url, None)


@pytest.mark.parametrize("entry", ["http://x", "a b", "*", "a/b", "-?"], ids=str)
def test_a_list_of_places_with_something_else_is_refused(entry: str) -> None:
    with pytest.raises(Invalid, match="node_hosts"):
        Places(entry)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("/users/{{x}}", ".."),
        ("/users/{{x}}/posts", "."),
        ("/users/.{{x}}/posts", "."),
        ("/users/%2e{{x}}", "."),
        ("/users/%2E%2e/{{x}}", "a"),
        ("/users/{{x}}", ""),
        ("/users/{{x}}/posts?a=1", ""),
        ("/users/{{x}}{{x}}#a", ""),
    ],
    ids=str,
)
def test_a_value_that_would_leave_its_place_in_a_path_is_refused(app: App, serve: Serve, path: str, value: str) -> None:
    server = serve(says({}))
    run = send(app, {"x": value}, url="${ANALEMMA_FLOW_API}" + path, method="DELETE")
    assert run.error is not None and run.error.kind == "invalid"
    assert server.asked == []


def test_a_value_with_dots_stays_in_its_place(app: App, serve: Serve) -> None:
    server = serve(says({}))
    for number, (path, value, expected) in enumerate(
        [
            ("/{{x}}", "...", "/..."),
            ("/{{x}}", "%2e%2e", "/%252e%252e"),
            ("/a.{{x}}", "..", "/a..."),
            ("/a?q={{x}}", "..", "/a?q=.."),
            ("/a?q={{x}}", "", "/a?q="),
            ("/a//b/{{x}}", "c", "/a//b/c"),
        ]
    ):
        run = send(app, {"x": value}, url="${ANALEMMA_FLOW_API}" + path, workflow_id=f"t-{number}")
        assert run.error is None and server.asked[-1].path == expected


def test_an_address_of_the_state_leads_nowhere_else_either(app: App, serve: Serve) -> None:
    server = serve(says({}))
    run = send(app, {"u": f"{server.url}/a/../b"}, url="{{u}}")
    assert run.error is not None and run.error.kind == "invalid"
    assert server.asked == []


@pytest.mark.parametrize("status", [400, 503], ids=str)
def test_half_a_secret_is_not_told_either(app: App, serve: Serve, status: int) -> None:
    for number, before in enumerate((280, 290, 298, 1990)):
        serve(says(("x" * before + TOKEN).encode(), status))
        run = send(app, headers={"x-token": "${ANALEMMA_FLOW_TOKEN}"}, workflow_id=f"t-{number}")
        assert run.error is not None and "xxx" in run.error.message
        assert TOKEN[:2] not in run.error.message


def test_what_a_host_says_is_told_on_one_line(app: App, serve: Serve) -> None:
    serve(says(b"a\r\nb\x1b[2J\x00c", 400))
    run = send(app)
    assert run.error is not None and run.error.message.endswith("status 400: a b [2J c")


def test_secrets_are_masked_as_forms_and_json_write_them() -> None:
    filling = read_variables("KEY", lambda: {"KEY": 'Basic a/"b"é'}).of({})
    filling.text("${KEY}")
    for text in ("Basic+a%2F%22b%22%C3%A9", r"Basic a/\"b\"\u00e9", r"Basic a/\"b\"é", "Basic%20a/%22b%22%C3%A9"):
        assert filling.masked({"a": [text]}) == {"a": ["***"]}
        assert filling.told(f"x {text}".encode()) == "x ***"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"a": 18446744073709551616}', "invalid"),
        (b'{"a": 1, "a": 2}', "invalid"),
        (b"[" * 200 + b"]" * 200, "invalid"),
    ],
    ids=["large", "twice", "deep"],
)
def test_json_that_cannot_be_kept_as_it_is_is_refused(app: App, serve: Serve, body: bytes, kind: str) -> None:
    serve(says(body))
    run = send(app)
    assert run.error is not None and run.error.kind == kind
    assert "call" not in (run.state or {})


def test_integers_are_kept_to_their_last_digit(app: App, serve: Serve) -> None:
    serve(says(b"[18446744073709551615, -9223372036854775808]"))
    assert send(app).state["call"] == [2**64 - 1, -(2**63)]


def test_a_charset_that_takes_forever_is_not_used(app: App, serve: Serve) -> None:
    serve(says(b"b" * 60_000, content_type="text/plain; charset=punycode"))
    assert send(app, response="text").state["call"] == "b" * 60_000


@pytest.mark.parametrize(
    "address",
    ["192.0.0.9", "192.88.99.1", "168.63.129.16", "fec0::1", "3fff::1", "::ffff:168.63.129.16", "64:ff9b::a83f:8110"],
    ids=str,
)
def test_addresses_that_lead_inside_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("host", ["bücher.example", "\uff11\uff12\uff17.0.0.1", "a%2eb", "a_b!"], ids=ascii)
def test_hosts_that_are_no_names_are_refused(host: str) -> None:
    with pytest.raises(Invalid, match="host"):
        Places("public", resolving("93.184.216.34")).check(f"https://{host}/", None)
