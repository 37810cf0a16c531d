"""Fixtures for tests of the pipeline: sinks that a test has for itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.pipeline.deploy_shop import SECRET
from tests.scripted_sink import Script, install
from tests.sink_servers import OpenSearchLike, WebhookReceiver


@pytest.fixture
def receiver() -> Iterator[WebhookReceiver]:
    server = WebhookReceiver(SECRET)
    yield server
    server.stop()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    return install(tmp_path, monkeypatch, "one")[0]


@pytest.fixture
def server() -> Iterator[OpenSearchLike]:
    server = OpenSearchLike()
    yield server
    server.stop()
