"""Trace context: what happens because of something belongs to its trace, in whichever process it happens."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from analemma import App, Event, Settle
from tests.api.pipeline.shop import book
from tests.core.contracts.bookshop import EXAMPLE
from tests.stores import local

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACE = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@contextmanager
def traced() -> Iterator[None]:
    """Inside, what happens belongs to the trace."""
    context = pytest.importorskip("opentelemetry.context")
    propagation = pytest.importorskip("opentelemetry.trace.propagation.tracecontext")
    attached = context.attach(propagation.TraceContextTextMapPropagator().extract({"traceparent": TRACE}))
    try:
        yield
    finally:
        context.detach(attached)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with local(tmp_path).open() as app:
        app.contracts.load(EXAMPLE)
        yield app


def delivered(app: App) -> list[tuple[str, str | None]]:
    """The type and the trace of each event, as a handler sees it."""
    seen: list[tuple[str, str | None]] = []

    def handle(event: Event, settle: Settle) -> None:
        seen.append((event.aggregate_id.rpartition("#")[2], None if event.trace is None else event.trace.split("-")[1]))

    app.worker(1, handlers={"RawDataIngested": handle}).drain()
    return sorted(seen)


def test_an_event_belongs_to_the_trace_in_which_it_was_made(app: App) -> None:
    with traced():
        app.default.ingest("BOOK", "1", book("1"))
    app.default.ingest("BOOK", "2", book("2"))
    assert delivered(app) == [("1", TRACE_ID), ("2", None)]


def test_a_trace_stays_in_its_thread(app: App) -> None:
    with traced():
        thread = threading.Thread(target=lambda: app.default.ingest("BOOK", "1", book("1")))
        thread.start()
        thread.join()
    assert delivered(app) == [("1", None)]


def test_what_a_handler_does_belongs_to_the_trace_of_its_event(app: App) -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    with traced():
        app.default.ingest("BOOK", "1", book("1"))
    inside: list[str] = []

    def handle(event: Event, settle: Settle) -> None:
        inside.append(f"{trace.get_current_span().get_span_context().trace_id:032x}")
        app.default.ingest("BOOK", "2", book("2"))

    app.worker(1, handlers={"RawDataIngested": handle}).drain()
    assert inside == [TRACE_ID, TRACE_ID]
    assert not trace.get_current_span().get_span_context().is_valid


def test_nothing_is_imported_before_it_is_used(tmp_path: Path) -> None:
    program = """
import sys, analemma
analemma.open
print(any(name.startswith("opentelemetry") for name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
