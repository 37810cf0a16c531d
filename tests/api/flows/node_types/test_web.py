"""Requests to an address that was judged: certificates are those of the name, and a second address is tried."""

from __future__ import annotations

import gzip
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

from analemma.clock import SystemClock
from analemma.errors import Limit, Timeout, Unavailable
from analemma.flows.context import Cancelled
from analemma.flows.node_types.places import Places
from analemma.flows.node_types.web import Bounds, Web, WebRequest
from tests.model_server import Answering, ModelServer, hangs

BOUNDS = Bounds(10_000, 5.0, None, lambda: None)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    started = ModelServer(lambda to: to.whole(200, {"ok": 1}))
    yield started
    started.stop()


def fetch(web: Web, url: str, *addresses: str, bounds: Bounds = BOUNDS) -> bytes:
    destination = Places("*.test,model.test", lambda host, port: list(addresses)).check(url, None)
    with web.send(WebRequest("GET", destination, {}), bounds) as answer:
        return answer.body()


def test_a_certificate_is_that_of_the_name_and_not_of_the_address(server: ModelServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=model.test"]
    made += ["-addext", "subjectAltName=DNS:model.test", "-keyout", "key.pem", "-out", "ca.pem", "-days", "2"]
    subprocess.run(["openssl", "req", *made], check=True, cwd=tmp_path, capture_output=True)
    server.speak_tls(tmp_path / "ca.pem", tmp_path / "key.pem")
    port = server.host.rpartition(":")[2]
    web = Web(SystemClock(), verify=ssl.create_default_context(cafile=str(tmp_path / "ca.pem")))
    assert fetch(web, f"https://model.test:{port}/", "127.0.0.1") == b'{"ok": 1}'
    assert server.asked[0].headers["host"] == f"model.test:{port}"
    with pytest.raises(Unavailable):
        fetch(web, f"https://other.test:{port}/", "127.0.0.1")
    with pytest.raises(Unavailable):
        fetch(Web(SystemClock()), f"https://model.test:{port}/", "127.0.0.1")
    assert len(server.asked) == 1


def test_an_address_that_takes_no_connection_is_not_the_last(server: ModelServer) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        port = server.host.rpartition(":")[2]
        assert fetch(Web(SystemClock()), f"http://model.test:{port}/", "127.0.0.2", "127.0.0.1") == b'{"ok": 1}'
    with pytest.raises(Unavailable, match=r"model\.test"):
        fetch(Web(SystemClock()), f"http://model.test:{port}/", "127.0.0.2", "127.0.0.3")


def test_proxies_of_the_environment_are_not_asked(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert fetch(Web(SystemClock()), f"http://model.test:{server.host.rpartition(':')[2]}/", "127.0.0.1")


def test_a_deadline_holds_also_before_the_first_byte() -> None:
    server = ModelServer(hangs(3))
    try:
        clock = SystemClock()
        bounds = Bounds(10, 60.0, clock.monotonic() + 0.2, lambda: None)
        with pytest.raises(Timeout):
            fetch(Web(clock), f"http://model.test:{server.host.rpartition(':')[2]}/", "127.0.0.1", bounds=bounds)
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("0", 0, 0), ("2.5", 2.5, 2.5), ("99999999", 3600, 3600), ("Thu, 01 Jan 1970 00:00:00 GMT", 0, 0)],
    ids=str,
)
def test_a_pause_is_read(text: str, low: float, high: float) -> None:
    asked = Web(SystemClock()).asked_to_wait_s({"retry-after": text})
    assert asked is not None and low <= asked <= high


def test_a_pause_until_a_time_is_read_and_nonsense_is_none() -> None:
    web, soon = Web(SystemClock()), SystemClock().now_us() / 1_000_000 + 30
    asked = web.asked_to_wait_s({"retry-after": formatdate(soon, usegmt=True)})
    assert asked is not None and 25 < asked <= 30
    assert [web.asked_to_wait_s({"retry-after": text}) for text in ("", "soon", "-1", "1.2.3")] == [None] * 4


def raw(begin: bytes, again: bytes, pause_s: float = 0.0) -> Callable[[Answering], None]:
    """Sends one thing, and then another without end."""

    def answer(to: Answering) -> None:
        to.close_connection = True
        to.wfile.write(begin)
        until = time.monotonic() + 8
        while time.monotonic() < until:
            to.wfile.write(again)
            to.wfile.flush()
            time.sleep(pause_s)

    return answer


def ask(answer: Callable[[Answering], None], bounds: Bounds) -> bytes:
    server = ModelServer(answer)
    try:
        url = f"http://model.test:{server.host.rpartition(':')[2]}/"
        return fetch(Web(SystemClock()), url, "127.0.0.1", bounds=bounds)
    finally:
        server.stop()


HEAD = b"HTTP/1.1 200 OK\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
NEVER_ENDING = pytest.mark.parametrize(
    ("begin", "again"),
    [(HEAD + b"x: ", b"a"), (HEAD, b"x: y\r\n"), (b"", CONTINUE), (HEAD + b"content-length: 900\r\n\r\n", b"a")],
    ids=["header", "headers", "notices", "body"],
)


@NEVER_ENDING
def test_a_deadline_holds_while_an_answer_drips(begin: bytes, again: bytes) -> None:
    began = time.monotonic()
    bounds = Bounds(1000, 60.0, SystemClock().monotonic() + 0.5, lambda: None)
    with pytest.raises(Timeout):
        ask(raw(begin, again, 0.05), bounds)
    assert time.monotonic() - began < 4


@NEVER_ENDING
def test_nobody_waits_for_an_answer_that_drips_when_nobody_wants_it(begin: bytes, again: bytes) -> None:
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.5:
            raise Cancelled("nobody wants it")

    with pytest.raises(Cancelled):
        ask(raw(begin, again, 0.05), Bounds(1000, 60.0, None, check))
    assert time.monotonic() - began < 4


def test_nobody_waits_for_silence_when_nobody_wants_it() -> None:
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.3:
            raise Cancelled("nobody wants it")

    with pytest.raises(Cancelled):
        ask(hangs(5), Bounds(1000, 60.0, None, check))
    assert time.monotonic() - began < 8


def test_headers_have_the_time_of_one_read_together() -> None:
    began = time.monotonic()
    with pytest.raises(Timeout):
        ask(raw(HEAD + b"x: ", b"a", 0.05), Bounds(1000, 0.5, None, lambda: None))
    assert time.monotonic() - began < 4


def test_notices_without_end_are_too_many() -> None:
    with pytest.raises(Limit, match="headers without end"):
        ask(raw(b"", CONTINUE * 100), Bounds(1000, 60.0, None, lambda: None))


def test_what_comes_behind_a_compressed_answer_is_not_read() -> None:
    head = HEAD + b"content-encoding: gzip\r\n\r\n"
    began = time.monotonic()
    with pytest.raises(Unavailable, match="damaged"):
        ask(raw(head + gzip.compress(b"hi") + b"more", b"x" * 65_536), Bounds(1000, 60.0, None, lambda: None))
    assert time.monotonic() - began < 12


def test_a_compressed_answer_is_over_when_it_says_so() -> None:
    def answer(to: Answering) -> None:
        to.close_connection = True
        to.wfile.write(HEAD + b"content-encoding: gzip\r\n\r\n" + gzip.compress(b"hi"))
        to.wfile.flush()
        time.sleep(3)

    assert ask(answer, Bounds(1000, 1.0, None, lambda: None)) == b"hi"
