"""NATS streams: guards, duplicates, streams that are missing, messages that are too large."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import nats
import pytest

from analemma import Sink, open_sink
from analemma.testing.sinks import Outcome, gone, make_document
from tests.sink_servers import NatsServer


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    try:
        server = NatsServer()
    except (OSError, RuntimeError) as exc:
        pytest.skip(f"nats-server does not start here: {exc}")
    yield server
    server.stop()


@pytest.fixture
def stream() -> str:
    return f"s{uuid4().hex}"


def _open(server: NatsServer, stream: str, **settings: Any) -> contextlib.closing[Sink]:
    target = {
        "type": "NATS",
        "url": f"nats://127.0.0.1:{server.port}",
        "token": NatsServer.TOKEN,
        "stream": stream,
        "subject": stream + ".{tenantId}.{docId}",
        "timeoutS": 3,
        **settings,
    }
    return contextlib.closing(open_sink(target, environment={}))


def _ask(server: NatsServer, question: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}", token=NatsServer.TOKEN)
        try:
            return await question(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def _messages(server: NatsServer, stream: str) -> list[Any]:
    async def question(jetstream: Any) -> list[Any]:
        last = (await jetstream.stream_info(stream)).state.last_seq
        found = []
        for number in range(1, last + 1):
            with contextlib.suppress(nats.js.errors.NotFoundError):
                found.append(await jetstream.get_msg(stream, number))
        return found

    messages: list[Any] = _ask(server, question)
    return messages


def test_a_message_says_what_it_is(server: NatsServer, stream: str) -> None:
    with _open(server, stream, create=True) as sink:
        sink.ship(make_document("a b/\u00e9", 7, title="x"))
        sink.ship(gone(make_document("c"), 8))
    upsert, delete = _messages(server, stream)
    assert (upsert.subject, upsert.data) == (f"{stream}.shop.a%20b%2F%C3%A9", b'{"title":"x"}')
    digest = hashlib.sha256(f'{stream}.shop.a%20b%2F%C3%A9\n+{{"title":"x"}}'.encode()).hexdigest()[:32]
    assert upsert.headers["Nats-Msg-Id"] == f"a%20b%2F%C3%A9:7:{digest}"
    assert (upsert.headers["Analemma-Ship-Seq"], upsert.headers["Analemma-Op"]) == ("7", "upsert")
    assert (delete.data or b"", delete.headers["Analemma-Op"]) == (b"", "delete")


def test_the_stream_keeps_one_message_per_document(server: NatsServer, stream: str) -> None:
    with _open(server, stream, create=True) as sink:
        for ship_seq in (1, 2, 3):
            sink.ship_batch([make_document("a", ship_seq), make_document("b", ship_seq)])
    assert [message.headers["Analemma-Ship-Seq"] for message in _messages(server, stream)] == ["3", "3"]


def test_the_same_state_again_is_one_message_for_a_while(server: NatsServer, stream: str) -> None:
    async def make(jetstream: Any) -> None:
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"])
        await jetstream.add_stream(name=f"{stream}-short", subjects=[f"{stream}-short.>"], duplicate_window=0.1)

    _ask(server, make)
    with _open(server, stream) as sink:
        assert [sink.ship(make_document()).outcome for _ in range(3)] == ["shipped"] * 3
    assert len(_messages(server, stream)) == 1
    with _open(server, f"{stream}-short") as sink:
        for _ in range(2):
            assert sink.ship(make_document()).outcome is Outcome.SHIPPED
            # A hundred milliseconds in which it would be taken for the same.
            time.sleep(0.3)
    assert len(_messages(server, f"{stream}-short")) == 2


def test_documents_of_one_id_and_place_in_time_are_messages_of_their_own(server: NatsServer, stream: str) -> None:
    # A stream takes messages with the same id for the same one, whatever their subjects are.
    async def make(jetstream: Any) -> None:
        await jetstream.add_stream(name=stream, subjects=[f"{stream}.>"])

    _ask(server, make)
    ours = make_document("978", 1)
    theirs = replace(ours, tenant="other", entity_key="BOOK#other#978", body={"title": "theirs"})
    with _open(server, stream) as sink:
        assert [each.outcome for each in sink.ship_batch([ours, theirs])] == ["shipped", "shipped"]
    with _open(server, stream, subject=stream + ".second.rule.{docId}") as sink:
        assert sink.ship(ours).outcome is Outcome.SHIPPED
    with _open(server, stream, subject=stream + ".log") as sink:
        assert [sink.ship(each).outcome for each in (ours, theirs, gone(ours, 1))] == ["shipped"] * 3
    found = sorted((each.subject, each.data or b"") for each in _messages(server, stream))
    told, other = b'{"title":"state 1"}', b'{"title":"theirs"}'
    assert [subject.removeprefix(stream) for subject, _ in found] == [
        *[".log"] * 3,
        ".other.978",
        ".second.rule.978",
        ".shop.978",
    ]
    assert [data for _, data in found] == [b"", told, other, other, told, told]


def test_what_was_purged_is_published_again(server: NatsServer, stream: str) -> None:
    async def purge(jetstream: Any) -> None:
        await jetstream.purge_stream(stream)

    with _open(server, stream, create=True) as sink:
        assert sink.ship(make_document()).outcome is Outcome.SHIPPED
        _ask(server, purge)
        assert sink.ship(make_document()).outcome is Outcome.SHIPPED
    assert [message.data for message in _messages(server, stream)] == [b'{"title":"state 1"}']


def test_without_the_id_in_the_subject_nothing_is_guarded(server: NatsServer, stream: str) -> None:
    with _open(server, stream, create=True, subject=stream + ".{entityType}") as sink:
        assert not sink.guards and not sink.remembers_deletes
        assert [sink.ship(make_document(ship_seq=seq)).outcome for seq in (2, 1)] == ["shipped", "shipped"]
    assert [message.headers["Analemma-Ship-Seq"] for message in _messages(server, stream)] == ["2", "1"]


def test_a_stream_that_is_missing_is_told(server: NatsServer, stream: str) -> None:
    with _open(server, stream) as sink:
        answer = sink.ship(make_document())
        assert answer.outcome is Outcome.RETRY and "stream" in (answer.reason or "")
        assert not sink.health().is_healthy
    with _open(server, stream, subject=stream + ".{tenantId}") as sink:
        assert sink.ship(make_document()).outcome is Outcome.RETRY


def test_a_message_that_is_too_large_is_refused_alone(server: NatsServer, stream: str) -> None:
    with _open(server, stream, create=True) as sink:
        batch = [make_document("a"), make_document("b", text="x" * (5 << 20)), make_document("c")]
        assert [each.outcome for each in sink.ship_batch(batch)] == ["shipped", "refused", "shipped"]


def test_what_cannot_be_connected_to_is_tried_again(server: NatsServer, stream: str) -> None:
    urls = ("nats://127.0.0.1:1", "no url", "://", ",")
    for settings in (*({"url": url} for url in urls), {"credentials": "/nonexistent"}):
        with _open(server, stream, **{"timeoutS": 0.2, **settings}) as sink:
            assert sink.ship(make_document()).outcome is Outcome.RETRY, settings
            assert not sink.health().is_healthy, settings


def test_a_server_that_says_nothing_is_not_waited_for_by_each_document(server: NatsServer, stream: str) -> None:
    with _open(server, stream, create=True, timeoutS=0.5) as sink:
        sink.ship(make_document())
        documents = [make_document(f"doc {number}", 2) for number in range(500)]
        with server.frozen():
            began = time.monotonic()
            assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.RETRY}
            # Half a second for each would be four minutes.
            assert time.monotonic() - began < 60
        assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.SHIPPED}


def test_a_wrong_token_is_not_the_documents_fault(server: NatsServer, stream: str) -> None:
    with _open(server, stream, token="hunter2") as sink:
        answer, health = sink.ship(make_document()), sink.health()
    assert answer.outcome is Outcome.RETRY and not health.is_healthy and "hunter2" not in f"{answer} {health}"
