"""Pointers that other programs wrote into S3: data like any other, unless the settings list their bucket."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from obstore.store import from_url

from analemma import App
from analemma.errors import Corrupt, Denied, Invalid, Limit, NotFound
from tests.api.bag.payload_stores import NAMES, receive, send
from tests.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, CannotStart, run_directory, shared_s3
from tests.stores import Store

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


@pytest.fixture(scope="module")
def bucket_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bucket without a prefix, with the object in it."""
    options: Any = {
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "region": "us-east-1",
        "client_options": {"allow_http": True},
    }
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            bucket = from_url(f"s3://{BUCKET}", endpoint=server.endpoint, **options)
            bucket.put(pointer()["key"], BODY)
            bucket.put("workflows/broken.json", b"{")
            bucket.put("workflows/nan.json", b"NaN")
            yield server.url("x").replace(f"s3://{BUCKET}/x?", f"s3://{BUCKET}?")
    except CannotStart as exc:
        pytest.skip(str(exc))


@pytest.fixture
def enabled(shared_store: Store, bucket_url: str) -> Iterator[App]:
    with shared_store.open(payload_s3_buckets=f"other, {bucket_url}", object_retries=1) as app:
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


def test_a_bucket_that_is_not_listed_is_denied(enabled: App) -> None:
    for bucket in ("secrets", "", "analemma.example", "analemma/workflows"):
        with pytest.raises(Denied):
            receive(enabled, {"workflow_config": pointer(bucket=bucket)})


MALFORMED: list[dict[str, Any]] = [
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
]


def test_a_malformed_one_is_refused(enabled: App) -> None:
    for changes in MALFORMED:
        with pytest.raises(Invalid):
            assert receive(enabled, {"workflow_config": pointer(**changes)}) is None, changes


def test_what_is_not_there_or_not_as_it_says_is_an_error(enabled: App) -> None:
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
    with pytest.raises(Limit):
        receive(enabled, {"a": pointer(size_bytes=256 * 1024 * 1024 + 1)})


def test_what_users_store_in_that_form_survives_where_it_is_enabled(enabled: App) -> None:
    state = {"field": pointer(), "list": [pointer(bucket="secrets")]}
    assert receive(enabled, send(enabled, state)) == state
    assert receive(enabled, enabled.payloads.dehydrate(state, force_offload_fields=set(state), **NAMES)) == state


def test_a_list_that_names_no_buckets_is_refused(shared_store: Store) -> None:
    for text in ("gs://bucket", "s3://", "s3://bucket/prefix", "file:///x"):
        with pytest.raises(Invalid, match="payload_s3_buckets"):
            shared_store.open(payload_s3_buckets=text)


def test_an_empty_list_is_off(shared_store: Store) -> None:
    with shared_store.open(payload_s3_buckets=" , ") as app:
        assert receive(app, {"workflow_config": pointer()}) == {"workflow_config": pointer()}


class Endless(BaseHTTPRequestHandler):
    """An object that is larger than anyone would read."""

    def do_HEAD(self) -> None:
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        self.send_response(206 if last else 200)
        self.send_header("Content-Length", str(int(last) - int(first) + 1 if last else 1 << 30))
        if last:
            self.send_header("Content-Range", f"bytes {first}-{last}/{1 << 30}")
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", '"x"')
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        with suppress(OSError):
            for _ in range(1 << 10):
                self.wfile.write(b" " * (1 << 20))

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.deep("it reads 256 MB")
def test_an_object_that_is_larger_than_its_pointer_says_is_not_read_to_its_end(shared_store: Store) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            options = f"endpoint=http://127.0.0.1:{server.server_port}&allow_http=true&access_key_id=x"
            url = f"s3://endless?{options}&secret_access_key=x&region=us-east-1"
            with shared_store.open(payload_s3_buckets=url, object_retries=1) as app, pytest.raises(Limit):
                receive(app, {"a": pointer(bucket="endless", size_bytes=..., checksum=...)})["a"]
        finally:
            server.shutdown()
            thread.join()
