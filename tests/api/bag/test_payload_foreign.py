"""Pointers that other programs wrote into S3: data like any other, unless the settings list their bucket."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from analemma.bag import payload_foreign
from analemma.bag.payload_foreign import parse_buckets
from analemma.blocks.urls import open_objects
from analemma.errors import Corrupt, Denied, Invalid, Limit, NotFound
from tests.api.bag.payload_stores import NAMES, receive, send
from tests.s3_server import BUCKET, CannotStart, S3Server, run_directory, shared_s3
from tests.stores import local

CONFIG = {"nodes": [{"id": number} for number in range(50)], "": {"x": [1.0, -0.0]}}
BODY = json.dumps(CONFIG).encode()


def pointer(**changes: Any) -> dict[str, Any]:
    made = {
        "__s3_pointer__": True,
        "bucket": BUCKET,
        "key": "workflows/wf/executions/exec/workflow_config_1.json",
        "size_bytes": len(BODY),
        "checksum": hashlib.md5(BODY).hexdigest()[:8],
        "field_name": "workflow_config",
    }
    return {key: value for key, value in {**made, **changes}.items() if value is not ...}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            yield server
    except CannotStart as exc:
        pytest.skip(str(exc))


@pytest.fixture
def bucket_url(s3_server: S3Server) -> str:
    """The bucket without a prefix, with the object in it."""
    url = s3_server.url("x").replace(f"s3://{BUCKET}/x?", f"s3://{BUCKET}?")
    store = open_objects(url)
    store.put(pointer()["key"], BODY)
    store.put("workflows/broken.json", b"{")
    store.put("workflows/nan.json", b"NaN")
    store.close()
    return url


@pytest.fixture
def enabled(tmp_path: Path, bucket_url: str) -> Iterator[App]:
    with local(tmp_path).open(payload_s3_buckets=f"other, {bucket_url}", object_retries=1) as app:
        yield app


def test_by_default_such_a_dict_is_data(app: App) -> None:
    assert receive(app, {"workflow_config": pointer()}) == {"workflow_config": pointer()}
    assert receive(app, send(app, {"workflow_config": pointer()})) == {"workflow_config": pointer()}


def test_a_listed_bucket_is_read_on_first_access(enabled: App) -> None:
    state = receive(enabled, {"workflow_config": pointer(), "n": 1})
    assert set(state.not_loaded()) == {"workflow_config"} and state["n"] == 1
    assert state["workflow_config"] == CONFIG
    assert receive(enabled, {"a": pointer(size_bytes=...)}, load_fields={"a"}).not_loaded() == {}


def test_one_in_the_place_of_a_wrapper_is_a_field(enabled: App) -> None:
    assert receive(enabled, {"state_data": pointer(), "n": 1}) == {"state_data": CONFIG, "n": 1}


def test_what_was_read_is_passed_on_as_our_own(enabled: App) -> None:
    state = receive(enabled, {"workflow_config": pointer(), "n": 1})
    payload = send(enabled, state, return_delta=False, force_offload_fields={"workflow_config"})
    assert payload["workflow_config"]["__pointer__"] == 1
    assert receive(enabled, payload) == {"workflow_config": CONFIG, "n": 1}


def test_a_delta_leaves_it_where_it_is(enabled: App) -> None:
    event = {"workflow_config": pointer(), "n": 1, "ownerId": "ann", "workflowId": "report"}
    state = receive(enabled, event)
    state["n"] = 2
    delta = send(enabled, state)
    assert set(delta) == {"__payload__", "n"}
    assert receive(enabled, delta, base=event)["workflow_config"] == CONFIG


@pytest.mark.parametrize("bucket", ["secrets", "", "analemma.example", "analemma/workflows"])
def test_a_bucket_that_is_not_listed_is_denied(bucket: str, enabled: App) -> None:
    with pytest.raises(Denied):
        receive(enabled, {"workflow_config": pointer(bucket=bucket)})


@pytest.mark.parametrize(
    "changes",
    [
        {"bucket": ...},
        {"key": ...},
        {"key": 7},
        {"bucket": None},
        {"size_bytes": -1},
        {"size_bytes": "1"},
        {"extra": 1},
        {"checksum": "sums"},
        {"checksum": "a1b2c3d"},
        {"checksum": "a" * 33},
        {"checksum": 12345678},
        {"__s3_pointer__": "s3://bucket/key"},
        {"__s3_pointer__": 1},
        {"key": "../other"},
        {"key": ""},
        {"key": "a//b"},
    ],
    ids=str,
)
def test_a_malformed_one_is_refused(changes: dict[str, Any], enabled: App) -> None:
    with pytest.raises(Invalid):
        receive(enabled, {"workflow_config": pointer(**changes)})


def test_what_is_not_there_or_not_as_it_says_is_an_error(enabled: App, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound):
        receive(enabled, {"a": pointer(key="workflows/none.json")})["a"]
    with pytest.raises(Corrupt, match="deadbeef"):
        receive(enabled, {"a": pointer(checksum="deadbeef")})["a"]
    for checksum in (..., None, hashlib.md5(BODY).hexdigest(), hashlib.md5(BODY).hexdigest().upper()):
        assert receive(enabled, {"a": pointer(checksum=checksum)})["a"] == CONFIG
    with pytest.raises(Corrupt, match="bytes"):
        receive(enabled, {"a": pointer(size_bytes=7)})["a"]
    for key in ("workflows/broken.json", "workflows/nan.json"):
        with pytest.raises(Corrupt, match="JSON"):
            receive(enabled, {"a": pointer(key=key, size_bytes=..., checksum=...)})["a"]
    monkeypatch.setattr(payload_foreign, "LARGEST_OBJECT_BYTES", 10)
    with pytest.raises(Limit):
        receive(enabled, {"a": pointer()})
    with pytest.raises(Limit):
        receive(enabled, {"a": pointer(size_bytes=...)})["a"]


def test_what_users_store_in_that_form_survives_where_it_is_enabled(enabled: App) -> None:
    state = {"field": pointer(), "list": [pointer(bucket="secrets")]}
    assert receive(enabled, send(enabled, state)) == state
    assert receive(enabled, enabled.payloads.dehydrate(state, force_offload_fields=set(state), **NAMES)) == state


@pytest.mark.parametrize("text", ["gs://bucket", "s3://", "s3://bucket/prefix", "file:///x"])
def test_a_list_that_names_no_buckets_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="payload_s3_buckets"):
        parse_buckets(text)


def test_an_empty_list_is_off() -> None:
    assert parse_buckets(None) == parse_buckets("") == parse_buckets(" , ") == {}
