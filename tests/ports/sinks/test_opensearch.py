"""What is sent to OpenSearch, and how its answers are read."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analemma import Sink, open_sink
from analemma.errors import Invalid
from analemma.testing.sinks import Outcome, gone, make_document
from tests.sink_servers import Answer, LocalServer, OpenSearchLike


@pytest.fixture
def server() -> Iterator[OpenSearchLike]:
    server = OpenSearchLike()
    yield server
    server.stop()


@pytest.fixture
def sink(server: OpenSearchLike) -> Iterator[Sink]:
    with _open(server.url) as sink:
        yield sink


def _open(url: str, base: Path = Path("."), **settings: Any) -> contextlib.closing[Sink]:
    target = {"type": "OPENSEARCH", "url": url, "index": "books", "timeoutS": 5, **settings}
    return contextlib.closing(open_sink(target, environment={}, base=base))


def test_the_bytes_are_those_of_the_official_client(server: OpenSearchLike) -> None:
    from opensearchpy import OpenSearch
    from opensearchpy.helpers import expand_action

    documents = [
        make_document("a", 1, title='\u00fc \U0001f600 " \\ \n \x07 \x7f', numbers=[1, -2, 0.5, True, None]),
        gone(make_document("b/\u00e9 \"'"), 2**63 - 1),
        make_document("c", 3, nested={"a": {"b": []}}),
    ]
    actions: list[dict[str, Any]] = [
        {
            "_op_type": "delete" if document.is_delete else "index",
            "_index": "books",
            "_id": document.doc_id,
            "version": document.ship_seq,
            "version_type": "external_gte",
            **({} if document.is_delete else {"_source": document.body}),
        }
        for document in documents
    ]
    client = OpenSearch(hosts=[server.url])
    lines = [part for action in actions for part in expand_action(action) if part is not None]
    answer = client.bulk(body=lines)
    client.close()
    official = server.requests[-1]
    assert [next(iter(item.values()))["status"] for item in answer["items"]] == [201, 404, 201]
    server.documents.clear()
    with _open(server.url) as sink:
        assert {each.outcome for each in sink.ship_batch(documents)} == {Outcome.SHIPPED}
    ours = server.requests[-1]
    assert ours[:2] == official[:2] == ("POST", "/_bulk")
    assert _with_sorted_keys(ours[3]) == _with_sorted_keys(official[3])
    # What the client does not sort, it sends byte for byte as we do.
    assert ours[3].split(b"\n")[1] == official[3].split(b"\n")[1]
    assert ours[2]["content-type"] == "application/x-ndjson"


def _with_sorted_keys(body: bytes) -> list[Any]:
    assert body.endswith(b"\n")
    return [json.dumps(json.loads(line), sort_keys=True) for line in body[:-1].split(b"\n")]


def test_a_bulk_body_is_what_the_documentation_shows(sink: Sink, server: OpenSearchLike) -> None:
    sink.ship_batch([make_document("a", 5, title="x"), gone(make_document("b"), 6)])
    assert server.requests[-1][3] == (
        b'{"index":{"_index":"books","_id":"a","version":5,"version_type":"external_gte"}}\n'
        b'{"title":"x"}\n'
        b'{"delete":{"_index":"books","_id":"b","version":6,"version_type":"external_gte"}}\n'
    )


def test_each_item_is_answered_for_itself_and_only_failures_are_left(sink: Sink, server: OpenSearchLike) -> None:
    sink.ship(make_document("newer", 9))
    statuses = {"429": 429, "503": 503, "500": 500, "403": 403, "404": 404, "400": 400, "413": 413}
    server.failing = {name: [status] for name, status in statuses.items()}
    documents = [make_document(name) for name in ("fine", *statuses, "newer", "last")]
    answers = sink.ship_batch(documents)
    retry = [Outcome.RETRY] * 5
    expected = [Outcome.SHIPPED, *retry, Outcome.REFUSED, Outcome.REFUSED, Outcome.STALE, Outcome.SHIPPED]
    assert [each.outcome for each in answers] == expected
    assert all("injected_exception" in (each.reason or "") for each in answers[1:8])
    left = [each for each, answer in zip(documents, answers, strict=True) if answer.outcome is Outcome.RETRY]
    assert {each.outcome for each in sink.ship_batch(left)} == {Outcome.SHIPPED}
    assert server.requests[-1][3].count(b'"index"') == 5


def test_an_overloaded_server_says_how_long_to_wait(sink: Sink, server: OpenSearchLike) -> None:
    server.overloaded = True
    answer = sink.ship(make_document())
    assert (answer.outcome, answer.after_s) == (Outcome.RETRY, 7.0)


def test_a_request_that_is_too_large_is_sent_in_halves(server: OpenSearchLike) -> None:
    server.longest_request = 3000
    documents = [make_document(f"doc {number}", text="x" * 400) for number in range(20)]
    documents[7] = make_document("doc 7", text="x" * 4000)
    with _open(server.url) as sink:
        answers = sink.ship_batch(documents)
    assert [number for number, each in enumerate(answers) if each.outcome is not Outcome.SHIPPED] == [7]
    assert answers[7].outcome is Outcome.REFUSED and len(server.documents) == 19


def test_requests_keep_within_the_settings(server: OpenSearchLike) -> None:
    with _open(server.url, mostDocuments=7, mostBytes=4096) as sink:
        sink.ship_batch([make_document(f"doc {number}", text="x" * (number * 20)) for number in range(50)])
    sizes = [(body.count(b'"external_gte"'), len(body)) for _, _, _, body in server.requests]
    assert sum(count for count, _ in sizes) == 50
    assert all(count <= 7 and size <= 4096 for count, size in sizes)


def test_a_forgotten_delete_is_the_callers_to_remember(sink: Sink, server: OpenSearchLike) -> None:
    assert sink.guards and not sink.remembers_deletes
    sink.ship(make_document(ship_seq=1))
    sink.ship(gone(make_document(), 3))
    assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.STALE
    server.forget_deletes()
    assert sink.ship(make_document(ship_seq=2)).outcome is Outcome.SHIPPED


def test_wrong_credentials_are_not_the_documents_fault() -> None:
    server = OpenSearchLike(password="right", token="other")
    every: list[dict[str, Any]] = [{}, {"bearerToken": "wrong"}, {"username": "admin", "password": "wrong"}]
    for settings in every:
        with _open(server.url, **settings) as sink:
            answer, health = sink.ship(make_document()), sink.health()
        assert answer.outcome is Outcome.RETRY and "401" in (answer.reason or "")
        assert not health.is_healthy and "wrong" not in f"{answer} {health}"
    server.stop()


def test_an_index_has_a_name_that_opensearch_takes(server: OpenSearchLike) -> None:
    with _open(server.url, index="{tenantId}-{entityType}") as sink:
        assert sink.ship(make_document()).outcome is Outcome.SHIPPED
        # Lower case would make one of two tenants.
        assert sink.ship(replace(make_document(), tenant="Shop")).outcome is Outcome.REFUSED
        assert sink.ship(replace(make_document(), tenant="../x")).outcome is Outcome.REFUSED
    assert {index for index, _ in server.documents} == {"shop-book"}


def test_a_certificate_is_checked_by_the_file_that_is_named(server: OpenSearchLike, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    made = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"]
    made += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "ca.pem", "-days", "2"]
    subprocess.run(["openssl", "req", *made], check=True, cwd=tmp_path, capture_output=True)
    server.speak_tls(tmp_path / "ca.pem", tmp_path / "key.pem")
    with _open(server.url) as sink:
        answer = sink.ship(make_document())
        assert answer.outcome is Outcome.RETRY and "cannot be reached" in (answer.reason or "")
    for settings in ({"caFile": "ca.pem"}, {"verifyTls": False}):
        with _open(server.url, base=tmp_path, **settings) as sink:
            assert sink.ship(make_document()).outcome is Outcome.SHIPPED
    with pytest.raises(Invalid, match="has no certificates"):
        _open(server.url, base=tmp_path, caFile="key.pem")


class Odd(LocalServer):
    answer = Answer(200)

    def respond(self, *_: object) -> None:
        raise self.answer


NONSENSE = [
    Answer(200, b"<html>"),
    Answer(200, b""),
    Answer(200, []),
    Answer(200, {"items": []}),
    Answer(200, {"items": [{"index": {"_id": "other", "status": 201}}]}),
    Answer(200, {"items": [{"index": {"_id": "shop__978"}}]}),
    Answer(200, {"items": [None]}),
    Answer(302, None, location="http://127.0.0.1:1/"),
    Answer(500, b"x" * 100_000),
    Answer(401),
]


def test_an_answer_that_makes_no_sense_is_tried_again() -> None:
    server = Odd()
    for answer in NONSENSE:
        server.answer = answer
        with _open(server.url) as sink:
            found = sink.ship(make_document())
        assert found.outcome is Outcome.RETRY, answer.body
        assert found.reason and len(found.reason) <= 300
    server.stop()
