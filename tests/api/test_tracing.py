"""Trace context without OpenTelemetry, and with it where it is installed."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from analemma.tracing import add_span_event, continued, current_trace, span

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_there_is_no_trace_outside_of_one() -> None:
    assert current_trace() is None
    with span("something", number=1):
        pass


def test_a_trace_is_carried_as_long_as_its_block_lasts() -> None:
    with continued(TRACE):
        inside = current_trace()
        assert inside is not None and inside.split("-")[1] == TRACE.split("-")[1]
        with continued(None):
            assert current_trace() is None
        assert current_trace() is not None
    assert current_trace() is None


def test_a_trace_stays_in_its_thread() -> None:
    seen: list[str | None] = []
    with continued(TRACE):
        thread = threading.Thread(target=lambda: seen.append(current_trace()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_nothing_is_imported_before_it_is_used() -> None:
    program = "import sys, analemma.tracing; print(any(name.startswith('opentelemetry') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_spans_are_opentelemetrys_where_it_is_installed() -> None:
    with continued(TRACE), span("analemma.test", kind="x"):
        inside = current_trace()
    assert inside is not None and inside.split("-")[1] == TRACE.split("-")[1]


def test_what_happens_is_told_to_the_current_span() -> None:
    trace = pytest.importorskip("opentelemetry.trace")
    told: list[tuple[str, Any]] = []

    class Remembering(trace.NonRecordingSpan):  # type: ignore[misc,name-defined]
        def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
            told.append((name, attributes))

    with trace.use_span(Remembering(trace.INVALID_SPAN_CONTEXT)):
        add_span_event("analemma.test", number=1)
    add_span_event("analemma.test", number=2)
    assert told == [("analemma.test", {"number": 1})]
