"""What Personalize is sent: limits, users, interactions; and how its errors are read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import botocore.session
import pytest

from analemma import Sink, open_sink
from analemma.testing.sinks import Outcome, gone, make_document
from tests.sink_servers import ACCESS_KEY, DATASET_ARN, REGION, SECRET_KEY, Answer, PersonalizeLike

MOST_PER_REQUEST, LONGEST_ID = 10, 256
LONGEST_PROPERTIES = {"items": 32_000, "users": 24_000, "interactions": 1024}


@pytest.fixture
def server() -> Iterator[PersonalizeLike]:
    server = PersonalizeLike()
    yield server
    server.stop()


def _open(server: PersonalizeLike, **settings: Any) -> contextlib.closing[Sink]:
    target = {
        "type": "PERSONALIZE",
        "dataset": "items",
        "datasetArn": DATASET_ARN,
        "region": REGION,
        "accessKeyId": ACCESS_KEY,
        "secretAccessKey": SECRET_KEY,
        "endpointUrl": server.url,
        "timeoutS": 5,
        **settings,
    }
    return contextlib.closing(open_sink(target, environment={}))


def test_the_limits_are_those_of_the_service() -> None:
    shapes = botocore.session.get_session().get_service_model("personalize-events")
    for name in ("ItemList", "UserList", "EventList"):
        assert shapes.shape_for(name).metadata["max"] == MOST_PER_REQUEST
    for name, dataset in (("Item", "items"), ("User", "users"), ("Event", "interactions")):
        shape = f"{name}Properties" + ("JSON" if name == "Event" else "")
        assert shapes.shape_for(shape).metadata["max"] == LONGEST_PROPERTIES[dataset]
    assert shapes.shape_for("StringType").metadata["max"] == shapes.shape_for("ItemId").metadata["max"] == LONGEST_ID


def test_ten_go_together(server: PersonalizeLike) -> None:
    with _open(server) as sink:
        assert {each.outcome for each in sink.ship_batch([make_document(f"d{n}") for n in range(25)])} == {"shipped"}
    sizes = [len(json.loads(body)["items"]) for _, _, _, body in server.requests]
    assert sizes == [MOST_PER_REQUEST, MOST_PER_REQUEST, 25 - 2 * MOST_PER_REQUEST]


def test_an_id_is_as_long_as_personalize_allows(server: PersonalizeLike) -> None:
    with _open(server) as sink:
        assert sink.ship(make_document("x" * LONGEST_ID)).outcome is Outcome.SHIPPED
        assert sink.ship(make_document("x" * (LONGEST_ID + 1))).outcome is Outcome.REFUSED


def test_users_are_users(server: PersonalizeLike) -> None:
    with _open(server, dataset="users") as sink:
        sink.ship(make_document("ann", age=41))
        assert sink.ship(make_document("bob", text="x" * 24_000)).outcome is Outcome.REFUSED
    assert server.requests[0][1] == "/users" and server.entries == {"ann": {"age": 41}}


def test_interactions_go_by_user_and_session(server: PersonalizeLike) -> None:
    def event(number: int, user: str, **more: Any) -> Any:
        facts = {"userId": user, "sessionId": "s", "eventType": "click", "sentAt": 1_700_000_000, **more}
        return make_document(f"e{number}", 1, **facts)

    batch = [event(0, "ann", itemId="978", eventValue=2, properties={"page": 1}), event(1, "bob", itemId="978")]
    batch += [event(number, "ann") for number in range(2, 13)]
    with _open(server, dataset="interactions", datasetArn=None, trackingId="track") as sink:
        assert {each.outcome for each in sink.ship_batch(batch)} == {"shipped"}
        first = dict(server.events[0])
        sink.ship(batch[0])
        assert server.events[-1]["eventId"] == first["eventId"]
        wrong = [
            make_document("x", 1, userId="ann"),
            event(20, "ann", sentAt=[]),
            # In nanoseconds, before all time, and what only looks like a number: botocore fails on these by itself.
            *(event(30 + at, "ann", sentAt=sent) for at, sent in enumerate((1.7e18, -1e18, "1e999", "inf", 1.7e12))),
            event(21, "ann", eventValue="many"),
            event(22, "a" * 300),
            event(23, "ann", properties={"x": "y" * 1100}),
            gone(event(24, "ann"), 2),
        ]
        assert [each.outcome for each in sink.ship_batch(wrong)] == ["refused"] * len(wrong)
    sizes = [(json.loads(body)["userId"], len(json.loads(body)["eventList"])) for _, _, _, body in server.requests]
    assert sizes == [("ann", 10), ("ann", 2), ("bob", 1), ("ann", 1)]
    assert (first["itemId"], first["eventValue"], json.loads(first["properties"])) == ("978", 2.0, {"page": 1})


def test_deletes_are_refused_unless_a_property_marks_them(server: PersonalizeLike) -> None:
    with _open(server) as sink:
        answer = sink.ship(gone(make_document(), 2))
        assert answer.outcome is Outcome.REFUSED and "deletedProperty" in (answer.reason or "")
    with _open(server, deletedProperty="IS_DELETED") as sink:
        assert sink.ship(gone(make_document(), 2)).outcome is Outcome.SHIPPED
    assert server.entries == {"shop__978": {"IS_DELETED": True}}


def test_a_body_is_as_long_as_personalize_allows(server: PersonalizeLike) -> None:
    with _open(server) as sink:
        overhead = len(json.dumps({"text": ""}, separators=(",", ":")))
        assert sink.ship(make_document(text="x" * (32_000 - overhead))).outcome is Outcome.SHIPPED
        assert sink.ship(make_document(text="x" * (32_001 - overhead))).outcome is Outcome.REFUSED


ERRORS = [
    (400, "InvalidInputException", "refused"),
    (404, "ResourceNotFoundException", "retry"),
    (409, "ResourceInUseException", "retry"),
    (400, "ThrottlingException", "retry"),
    (403, "AccessDeniedException", "retry"),
    (500, "InternalFailure", "retry"),
    (503, "ServiceUnavailable", "retry"),
]


def test_errors_are_read_by_their_code(server: PersonalizeLike) -> None:
    with _open(server) as sink:
        for number, (status, code, outcome) in enumerate(ERRORS, 1):
            server.statuses = [Answer(status, {"message": "no"}, x_amzn_errortype=code)]
            assert sink.ship(make_document()).outcome == outcome, code
            assert len(server.requests) == number, "nothing is tried twice"


def test_a_wrong_key_is_not_the_documents_fault(server: PersonalizeLike) -> None:
    with _open(server, secretAccessKey="hunter2") as sink:
        answer = sink.ship(make_document())
    assert answer.outcome is Outcome.RETRY and "hunter2" not in (answer.reason or "") and server.entries == {}


def test_without_credentials_it_says_so(server: PersonalizeLike, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    with _open(server, accessKeyId=None, secretAccessKey=None) as sink:
        assert not sink.health().is_healthy
        assert sink.ship(make_document()).outcome is Outcome.RETRY
