"""Requests to an address that was judged: certificates are those of the name, a second address is tried, and no host
keeps a node longer than it may."""

from __future__ import annotations

import gzip
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import analemma
from analemma import App, Run, Settings
from tests.api.flows.runs import place
from tests.model_server import Answering, ModelServer, hangs

HOST = "model.test"
ADDRESSES: dict[str, list[str]] = {}
"""What names lead to, while a test lasts."""


@pytest.fixture(autouse=True)
def resolving(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ADDRESSES:
            return real(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ADDRESSES[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ADDRESSES.update({HOST: ["127.0.0.1"], "other.test": ["127.0.0.1"]})
    yield ADDRESSES
    ADDRESSES.clear()


@pytest.fixture
def server() -> Iterator[ModelServer]:
    started = ModelServer(lambda to: to.whole(200, {"ok": 1}))
    yield started
    started.stop()


def open_app(**settings: Any) -> Any:
    return analemma.open("sqlite:///:memory:", settings=Settings(node_hosts="*.test", node_read_s=60, **settings))


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with open_app() as app:
        yield app


def fetch(app: App, url: str, **more: Any) -> Run:
    node = {"id": "call", "type": "http_request", "url": url, "response": "text", **more}
    return app.flows.run({"workflow": "w", "nodes": [node]}, **place())


def port(server: ModelServer) -> str:
    return server.host.rpartition(":")[2]


def kind(run: Run) -> str | None:
    return None if run.error is None else run.error.kind


def test_a_certificate_is_that_of_the_name_and_not_of_the_address(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={HOST}"]
    made += ["-addext", f"subjectAltName=DNS:{HOST}", "-keyout", "key.pem", "-out", "ca.pem", "-days", "2"]
    subprocess.run(["openssl", "req", *made], check=True, cwd=tmp_path, capture_output=True)
    server.speak_tls(tmp_path / "ca.pem", tmp_path / "key.pem")
    with open_app() as app:
        assert kind(fetch(app, f"https://{HOST}:{port(server)}/")) == "unavailable"
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with open_app() as app:
        assert fetch(app, f"https://{HOST}:{port(server)}/").state["call"] == '{"ok": 1}'
        assert server.asked[0].headers["host"] == f"{HOST}:{port(server)}"
        assert kind(fetch(app, f"https://other.test:{port(server)}/")) == "unavailable"
    assert len(server.asked) == 1


def test_an_address_that_takes_no_connection_is_not_the_last(
    app: App, server: ModelServer, resolving: dict[str, list[str]]
) -> None:
    resolving[HOST] = ["127.0.0.2", "127.0.0.1"]
    assert fetch(app, f"http://{HOST}:{port(server)}/").state["call"] == '{"ok": 1}'
    resolving[HOST] = ["127.0.0.2", "127.0.0.3"]
    failed = fetch(app, f"http://{HOST}:{port(server)}/")
    assert failed.error is not None and failed.error.kind == "unavailable" and HOST in failed.error.message


def test_proxies_of_the_environment_are_not_asked(
    app: App, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert fetch(app, f"http://{HOST}:{port(server)}/").error is None


def raw(begin: bytes, again: bytes, pause_s: float = 0.0) -> Callable[[Answering], None]:
    """Sends one thing, and then another without end."""

    def answer(to: Answering) -> None:
        to.close_connection = True
        to.wfile.write(begin)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            to.wfile.write(again)
            to.wfile.flush()
            time.sleep(pause_s)

    return answer


def ask(app: App, answer: Callable[[Answering], None], **more: Any) -> Run:
    server = ModelServer(answer)
    try:
        return fetch(app, f"http://{HOST}:{port(server)}/", **more)
    finally:
        server.stop()


HEAD = b"HTTP/1.1 200 OK\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NEVER_ENDING: dict[str, Callable[[Answering], None]] = {
    "silence": hangs(60),
    "header": raw(HEAD + b"x: ", b"a", 0.05),
    "headers": raw(HEAD, b"x: y\r\n", 0.05),
    "notices": raw(b"", CONTINUE, 0.05),
    "body": raw(HEAD + b"content-length: 9000\r\n\r\n", b"a", 0.05),
}


def test_a_deadline_holds_while_an_answer_drips(app: App) -> None:
    ended = {name: kind(ask(app, answer, timeout_s=0.4)) for name, answer in NEVER_ENDING.items()}
    assert ended == dict.fromkeys(NEVER_ENDING, "timeout")


@pytest.mark.parametrize("how", ["silence", "header", "body"])
def test_nobody_waits_for_an_answer_that_drips_when_nobody_wants_it(app: App, how: str) -> None:
    ended: list[str] = []
    asking = threading.Thread(target=lambda: ended.append(ask(app, NEVER_ENDING[how]).status), daemon=True)
    asking.start()
    end = time.monotonic() + 60
    while not (found := app.flows.runs(status="RUNNING")):
        assert time.monotonic() < end
        time.sleep(0.01)
    app.flows.cancel(found[0].execution_id)
    asking.join(50)
    assert ended == ["CANCELLED"]


def test_headers_have_the_time_of_one_read_together() -> None:
    with analemma.open("sqlite:///:memory:", settings=Settings(node_hosts="*.test", node_read_s=0.5)) as app:
        assert kind(ask(app, NEVER_ENDING["header"])) == "timeout"


def test_notices_without_end_are_too_many(app: App) -> None:
    run = ask(app, raw(b"", CONTINUE * 100))
    assert run.error is not None and run.error.kind == "limit" and "headers without end" in run.error.message


def test_what_comes_behind_a_compressed_answer_is_not_read(app: App) -> None:
    head = HEAD + b"content-encoding: gzip\r\n\r\n"
    run = ask(app, raw(head + gzip.compress(b"hi") + b"more", b"x" * 65_536))
    assert run.error is not None and run.error.kind == "unavailable" and "damaged" in run.error.message


def test_a_compressed_answer_is_over_when_it_says_so(app: App) -> None:
    over = threading.Event()

    def answer(to: Answering) -> None:
        to.close_connection = True
        to.wfile.write(HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"hi"))
        to.wfile.flush()
        over.wait(60)

    server = ModelServer(answer)
    try:
        assert fetch(app, f"http://{HOST}:{port(server)}/").state["call"] == "hi"
    finally:
        over.set()
        server.stop()
