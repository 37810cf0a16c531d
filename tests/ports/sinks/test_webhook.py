"""What webhooks are sent, and how their answers are read."""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest

from analemma import Sink, open_sink
from analemma.testing.sinks import Outcome, gone, make_document
from tests.sink_servers import Answer, WebhookReceiver


class Clock:
    """The time, which a test may change."""

    behind_us = 0
    ahead_s = 0.0

    def now_us(self) -> int:
        return time.time_ns() // 1000 - self.behind_us

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    receiver = WebhookReceiver("shared")
    yield receiver
    receiver.stop()


def _open(receiver: WebhookReceiver, clock: Any = None, **settings: Any) -> contextlib.closing[Sink]:
    target = {"type": "WEBHOOK", "url": f"{receiver.url}/in", "secret": "shared", "timeoutS": 5, **settings}
    return contextlib.closing(open_sink(target, environment={"TOKEN": "t0k"}, clock=clock))


def test_an_answer_that_comes_in_drops_is_not_waited_for() -> None:
    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
            for _ in range(100):
                connection.sendall(b" ")
                time.sleep(0.03)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        target = {"type": "WEBHOOK", "url": f"http://127.0.0.1:{server.getsockname()[1]}/", "secret": "x"}
        with contextlib.closing(open_sink({**target, "timeoutS": 0.15}, environment={})) as sink:
            answer = sink.ship(make_document())
            assert answer.outcome is Outcome.RETRY and answer.is_down and "in time" in (answer.reason or "")
        thread.join()


def test_how_long_the_request_took_does_not_count_against_the_answer() -> None:
    clock = Clock()

    def accept(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65_536)
            clock.ahead_s = 60.0  # As if all of this had come slowly.
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, args=(server,), daemon=True)
        thread.start()
        target = {"type": "WEBHOOK", "url": f"http://127.0.0.1:{server.getsockname()[1]}/", "secret": "x"}
        with contextlib.closing(open_sink({**target, "timeoutS": 5}, environment={}, clock=clock)) as sink:
            assert sink.ship(make_document()).outcome is Outcome.SHIPPED
        thread.join()


def test_a_signature_can_be_computed_by_anyone_who_has_the_secret(receiver: WebhookReceiver) -> None:
    """As by `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac shared`."""
    with _open(receiver) as sink:
        sink.ship(make_document())
    [(_, _, headers, body)] = receiver.requests
    signed = headers["x-analemma-timestamp"].encode() + b"." + body
    assert headers["x-analemma-signature"] == "v1=" + hmac.new(b"shared", signed, "sha256").hexdigest()


def test_a_request_has_the_document_and_its_headers(receiver: WebhookReceiver) -> None:
    with _open(receiver, headers={"Authorization": "Bearer ${TOKEN}"}) as sink:
        sink.ship(make_document("a", 7, title="x"))
        sink.ship(gone(make_document("b"), 8))
    [(method, path, headers, body), (_, _, _, other)] = receiver.requests
    assert (method, path, headers["authorization"]) == ("POST", "/in", "Bearer t0k")
    facts = {"tenantId": "shop", "entityKey": "BOOK#shop#978", "version": "1000"}
    assert json.loads(body) == {"docId": "a", "shipSeq": 7, "op": "upsert", **facts, "body": {"title": "x"}}
    assert json.loads(other) == {"docId": "b", "shipSeq": 8, "op": "delete", **facts, "body": None}
    assert headers["x-analemma-event"] == "document" and headers["content-type"] == "application/json"


def test_the_same_state_has_the_same_delivery_and_others_have_others(receiver: WebhookReceiver) -> None:
    with _open(receiver) as sink:
        for document in (make_document("a", 1), make_document("a", 1), make_document("a", 2), make_document("b", 1)):
            sink.ship(document)
    first, again, *others = receiver.deliveries
    assert first == again and len({first, *others}) == 3


def test_a_wrong_secret_or_an_old_timestamp_is_not_believed(receiver: WebhookReceiver) -> None:
    yesterday = Clock()
    yesterday.behind_us = 86_400_000_000
    for sink_with in (_open(receiver, secret="other"), _open(receiver, clock=yesterday)):
        with sink_with as sink:
            assert sink.ship(make_document()).outcome is Outcome.RETRY
            assert not sink.health().is_healthy
    assert receiver.documents == {}


STATUSES = {
    "shipped": (200, 202, 204),
    "stale": (409,),
    "retry": (301, 302, 307, 308, 401, 403, 404, 405, 408, 425, 429, 500, 502, 503, 504),
    "refused": (400, 410, 413, 415, 422),
}


@pytest.mark.parametrize("mode", ["single", "batch"])
def test_the_status_says_what_became_of_a_document(receiver: WebhookReceiver, mode: str) -> None:
    expected = {status: outcome for outcome, statuses in STATUSES.items() for status in statuses}
    found = {}
    with _open(receiver, mode=mode) as sink:
        for number, status in enumerate(expected, 1):
            receiver.statuses = [Answer(status, location=f"{receiver.url}/elsewhere")]
            found[status] = sink.ship(make_document()).outcome.value
            assert len(receiver.requests) == number, "redirects are not followed, and nothing is tried twice"
    assert found == expected


def test_a_receiver_says_how_long_to_wait(receiver: WebhookReceiver) -> None:
    expected = {"120": 120, "999999": 3600, "soon": None, "-5": None, "": None}
    found = {}
    with _open(receiver) as sink:
        for header in expected:
            receiver.statuses = [Answer(503, retry_after=header)]
            found[header] = sink.ship(make_document()).after_s
    assert found == expected


def test_a_receiver_says_until_when_to_wait(receiver: WebhookReceiver) -> None:
    receiver.statuses = [
        Answer(429, retry_after=formatdate(time.time() + 100, usegmt=True)),
        Answer(429, retry_after=formatdate(time.time() - 100, usegmt=True)),
    ]
    with _open(receiver) as sink:
        after_s = sink.ship(make_document()).after_s
        assert after_s is not None and 0 < after_s <= 100
        assert sink.ship(make_document()).after_s == 0


def test_a_receiver_that_takes_too_long_is_tried_again(receiver: WebhookReceiver) -> None:
    receiver.pause_s = 1.5
    with _open(receiver, timeoutS=0.2) as sink:
        answers = sink.ship_batch([make_document("a"), make_document("b"), make_document("c")])
        assert {each.outcome for each in answers} == {Outcome.RETRY} and "in time" in (answers[0].reason or "")
    # It is not waited for three times.
    assert len(receiver.requests) <= 1


def test_a_receiver_that_asks_to_wait_is_left_alone(receiver: WebhookReceiver) -> None:
    receiver.statuses = [Answer(200), Answer(429, retry_after="9")]
    with _open(receiver) as sink:
        answers = sink.ship_batch([make_document(name) for name in "abcde"])
    assert [each.outcome for each in answers] == [Outcome.SHIPPED] + [Outcome.RETRY] * 4
    assert len(receiver.requests) == 2


def test_a_batch_may_be_answered_document_by_document(receiver: WebhookReceiver) -> None:
    receiver.answers = [
        {"outcome": "shipped"},
        {"outcome": "stale"},
        {"outcome": "retry", "afterS": 5, "reason": "busy\nnow"},
        {"outcome": "refused", "reason": "too odd"},
        {"outcome": "eaten"},
    ]
    with _open(receiver, mode="batch") as sink:
        answers = sink.ship_batch([make_document(name) for name in "abcde"])
        assert [each.outcome for each in answers] == ["shipped", "stale", "retry", "refused", "retry"]
        assert (answers[2].after_s, answers[2].reason, answers[3].reason) == (5.0, "busy now", "too odd")
        # Too few answers: nobody knows which.
        answers = sink.ship_batch([make_document("a"), make_document("b")])
        assert {each.outcome for each in answers} == {Outcome.RETRY}


def test_batches_keep_within_the_settings(receiver: WebhookReceiver) -> None:
    with _open(receiver, mode="batch", mostDocuments=10, mostBytes=3000) as sink:
        sink.ship_batch([make_document(f"doc {number}", text="x" * (number * 10)) for number in range(40)])
    counts = [len(json.loads(body)["documents"]) for _, _, _, body in receiver.requests]
    assert sum(counts) == 40 and max(counts) <= 10
    assert all(len(body) <= 3000 for _, _, _, body in receiver.requests)
