"""What a store does is counted under the names the dashboards use."""

from __future__ import annotations

import pytest

from analemma.errors import NotFound
from tests.ports.entry_points.objects import Hardened, MemoryStore, ObjectMetrics


class TickingClock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now_us(self) -> int:
        return 0

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def test_counts_bytes_and_latencies_are_kept_per_operation() -> None:
    metrics = ObjectMetrics()
    store = Hardened(MemoryStore(), metrics, clock=TickingClock())
    store.put("k/a", b"12345")
    store.put_stream("k/b", [b"12", b"3"])
    store.get("k/a")
    b"".join(store.open_read("k/b"))
    store.get_range("k/a", 0, 2)
    store.get_ranges("k/a", [(0, 1), (1, 3)])
    list(store.list("k"))
    store.delete_many(["k/a", "k/b"])
    stats = metrics.snapshot()
    assert (stats["put_object"].count, stats["put_object"].bytes) == (2, 8)
    assert (stats["get_object"].count, stats["get_object"].bytes) == (2, 8)
    assert (stats["partial_read"].count, stats["partial_read"].bytes) == (2, 6)
    assert (stats["list_objects"].count, stats["delete_object"].count) == (1, 1)
    assert (stats["put_object"].latency_sum_s, stats["put_object"].latency_max_s) == (2.0, 1.0)
    assert all(each.errors == 0 for each in stats.values())


def test_failures_are_counted_and_still_raised() -> None:
    metrics = ObjectMetrics()
    store = Hardened(MemoryStore(), metrics)
    with pytest.raises(NotFound):
        store.get("k")
    assert (metrics.snapshot()["get_object"].count, metrics.snapshot()["get_object"].errors) == (1, 1)


def test_a_reader_that_stops_early_is_not_a_failure() -> None:
    metrics = ObjectMetrics()
    store = Hardened(MemoryStore(), metrics)
    for key in ("a", "b"):
        store.put(key, b"x")
    listing = store.list()
    next(listing)
    listing.close()  # type: ignore[attr-defined]
    assert metrics.snapshot()["list_objects"].errors == 0


def test_a_listener_hears_the_documented_names() -> None:
    heard: dict[str, float] = {}
    store = Hardened(MemoryStore(), ObjectMetrics(heard.__setitem__), clock=TickingClock())
    store.put("k", b"123")
    store.get("k")
    store.get_range("k", 0, 1)
    with pytest.raises(NotFound):
        store.get("missing")
    assert heard == {
        "put_object_latency": 1.0,
        "put_object_bytes": 3,
        "get_object_latency": 1.0,
        "get_object_bytes": 0,
        "get_object_errors": 1,
        "partial_read_latency": 1.0,
        "partial_read_bytes": 1,
    }
