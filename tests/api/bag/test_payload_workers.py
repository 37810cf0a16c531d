"""Fields load in as many threads as the memory of the container allows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from analemma import App
from tests.api.bag.payload_stores import LARGE, receive, send
from tests.stores import local


class Guest:
    """A value that tells when, and in which thread, it is read."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guest)

    __hash__ = None  # type: ignore[assignment]


def expect(app: App, workers: int) -> set[int]:
    """Have guests wait until so many threads have come: with fewer the barrier breaks. The threads that came."""
    together = threading.Barrier(workers)
    seen: set[int] = set()

    def arrive(_: Any) -> Guest:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            together.wait(timeout=60)
        return Guest()

    app.types.add(Guest, name="guest", encode=lambda guest: None, decode=arrive)
    return seen


@pytest.mark.parametrize(("memory_mb", "workers"), [("128", 2), ("512", 4)])
def test_fields_load_in_a_thread_per_128_mb_and_at_least_two(
    memory_mb: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", memory_mb)
    with local(tmp_path).open(cache_bytes=0) as app:
        seen = expect(app, workers)
        fields: dict[str, Any] = {f"field {number}": [Guest(), number, *LARGE] for number in range(12)}
        event = send(app, fields)
        state = receive(app, event, load_fields=set(fields))
        assert state.not_loaded() == {} and len(seen) == workers
        assert state == fields


def test_one_field_needs_no_threads(tmp_path: Path) -> None:
    with local(tmp_path).open(cache_bytes=0) as app:
        seen = expect(app, 1)
        event = send(app, {"plan": [Guest(), *LARGE]})
        assert receive(app, event, load_fields={"plan"}) == {"plan": [Guest(), *LARGE]}
        assert seen == {threading.get_ident()}
