"""A shop whose sinks answer as a test tells them to, and what they were sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from analemma import SHIPPED, App, Parcel, Shipped
from tests.api.pipeline.ship_shop import drain, rule
from tests.api.pipeline.shop import put_book
from tests.scripted_sink import Script
from tests.sink_servers import OpenSearchLike


def scripted(script: str = "one", sink: str = "sink.scripted", *, guards: bool = False, **more: Any) -> dict[str, Any]:
    return rule(sink, {"type": "SCRIPTED", "script": script, "guards": guards}, **more)


def opensearch(server: OpenSearchLike, **more: Any) -> dict[str, Any]:
    return rule("sink.search", {"type": "OPENSEARCH", "url": server.url, "index": "books"}, **more)


def put_books(app: App, count: int, **more: Any) -> None:
    shop = app.tenant("shop")
    for number in range(count):
        put_book(shop, f"{number:04}", **more)


def drain_until(app: App, is_done: Callable[[], bool], *, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not is_done():
        assert time.monotonic() < end, f"not done in time: {app.sinks.list()}"
        drain(app)
        time.sleep(0.02)


def answer_for(script: Script, answers: dict[str, list[Shipped]]) -> None:
    """Answer like this for the next states of these books, and SHIPPED for all else."""

    def answering(parcels: Sequence[Parcel]) -> list[Shipped]:
        waiting = [answers.get(parcel.document.doc_id.removeprefix("shop__")) for parcel in parcels]
        return [each.pop(0) if each else SHIPPED for each in waiting]

    script.answering = answering


def times_sent(script: Script) -> dict[str, int]:
    ids = [doc_id for doc_id, _ in script.states]
    return {doc_id.removeprefix("shop__"): ids.count(doc_id) for doc_id in ids}
