"""Deploys in a shop that ships: a sink that can be down, what readers get, and what became of a deploy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from analemma import App, Tenant
from analemma.errors import NotFound
from tests.api.pipeline.ship_shop import rule
from tests.api.pipeline.shop import VIEW
from tests.sink_servers import WebhookReceiver

SECRET = "the secret of the tests"


def hook(receiver: WebhookReceiver, sink: str = "sink.hook", **more: Any) -> dict[str, Any]:
    return rule(sink, {"type": "WEBHOOK", "url": receiver.url, "secret": SECRET}, **more)


def title(shop: Tenant, isbn: str = "1") -> str | None:
    """What readers get who name no version; None: nothing."""
    try:
        found: str = shop.view(VIEW).get(isbn).data["CORE"]["title"]
    except NotFound:
        return None
    return found


def states(shop: Tenant, id: str) -> list[str]:
    return [step.state.value for step in shop.deploys.explain(id).steps]


@contextmanager
def working(app: App) -> Iterator[None]:
    """A worker in the background."""
    worker = app.worker(2)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()
