"""Pointers into S3 that other programs wrote: what they say of their object is held against it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from obstore.store import from_url

import analemma
from analemma.errors import Corrupt, Invalid
from tests.s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, CannotStart, run_directory, shared_s3
from tests.stores import Store

VALUE = {"nodes": list(range(50))}
BODY = json.dumps(VALUE).encode()
MD5 = hashlib.md5(BODY, usedforsecurity=False).hexdigest()
KEY = "workflows/w/config.json"


@pytest.fixture
def app(migrated_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[analemma.App]:
    try:
        with shared_s3(run_directory(tmp_path_factory.getbasetemp())) as server:
            options: Any = {
                "endpoint": server.endpoint,
                "access_key_id": ACCESS_KEY,
                "secret_access_key": SECRET_KEY,
                "region": "us-east-1",
                "client_options": {"allow_http": True},
            }
            from_url(f"s3://{BUCKET}", **options).put(KEY, BODY)
            with Store(str(migrated_directory)).open(payload_s3_buckets=server.url("x").replace("/x?", "?")) as app:
                yield app
    except CannotStart as exc:
        pytest.skip(str(exc))


def read(app: analemma.App, checksum: Any) -> Any:
    pointer = {"__s3_pointer__": True, "bucket": BUCKET, "key": KEY, "size_bytes": len(BODY), "checksum": checksum}
    return app.payloads.hydrate({"config": pointer})["config"]


def test_an_object_whose_checksum_is_another_is_corrupt(app: analemma.App) -> None:
    with pytest.raises(Corrupt, match="deadbeef"):
        read(app, "deadbeef")
    assert read(app, MD5[:8]) == read(app, MD5) == read(app, None) == VALUE


def test_a_checksum_that_is_none_is_invalid(app: analemma.App) -> None:
    for checksum in ("sums", MD5[:7], MD5 + "0", 12345678, ""):
        with pytest.raises(Invalid, match="MD5"):
            read(app, checksum)
