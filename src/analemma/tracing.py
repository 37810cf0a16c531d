"""Spans and trace context: OpenTelemetry's where `opentelemetry-api` is installed, and at no cost where it is not.

A trace crosses from a producer to whoever delivers its events as a W3C `traceparent`, a column of the outbox. That also
works without OpenTelemetry: a context that came in with an event goes out with the events that its handler makes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

_carried: ContextVar[str | None] = ContextVar("analemma_traceparent", default=None)
"""What `continued` was given, for as long as it lasts."""

_NOTHING: AbstractContextManager[None] = nullcontext()


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[object]:
    """A span around a block, below the current one; an error that leaves the block is recorded.

    >>> with span("analemma.ingest", entity="BOOK"):
    ...     pass
    """
    api = _opentelemetry()
    if api is None:
        return _NOTHING
    found: AbstractContextManager[object] = api.trace.get_tracer("analemma").start_as_current_span(
        name, attributes=attributes
    )
    return found


def add_span_event(name: str, **attributes: str | int | float | bool) -> None:
    """Something that happened within the current span."""
    api = _opentelemetry()
    if api is not None:
        api.trace.get_current_span().add_event(name, attributes=attributes)


def current_trace() -> str | None:
    """The W3C traceparent of the current span, or of the event that is being handled; None outside of both."""
    api = _opentelemetry()
    if api is not None:
        carrier: dict[str, str] = {}
        api.propagator.inject(carrier)
        if "traceparent" in carrier:
            return carrier["traceparent"]
    return _carried.get()


def continued(traceparent: str | None) -> AbstractContextManager[object]:
    """Inside the block, spans and events belong to the trace that this names; None, or text that is no traceparent:
    to none."""
    if traceparent is None and _opentelemetry() is None and _carried.get() is None:
        return _NOTHING
    return _continued(traceparent)


@contextmanager
def _continued(traceparent: str | None) -> Iterator[None]:
    api = _opentelemetry()
    carried = _carried.set(traceparent)
    try:
        if api is None:
            yield
            return
        empty = api.context.Context()
        attached = api.context.attach(
            empty if traceparent is None else api.propagator.extract({"traceparent": traceparent}, context=empty)
        )
        try:
            yield
        finally:
            api.context.detach(attached)
    finally:
        _carried.reset(carried)


class _Api(NamedTuple):
    """What is used of OpenTelemetry."""

    trace: Any
    context: Any
    propagator: Any


@cache
def _opentelemetry() -> _Api | None:
    try:
        propagation = import_module("opentelemetry.trace.propagation.tracecontext")
    except ImportError:
        return None
    return _Api(
        import_module("opentelemetry.trace"),
        import_module("opentelemetry.context"),
        propagation.TraceContextTextMapPropagator(),
    )
