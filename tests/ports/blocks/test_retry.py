"""Trying again: only when it can help, not too often, and never mistaking our own write for someone else's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analemma.errors import AnalemmaError, Conflict, Denied, OutcomeUnknown, Unavailable
from analemma.testing.objects import FailingStore, Fault
from tests.ports.entry_points.objects import Hardened, MemoryStore, ObjectStore


class SteppingClock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_us(self) -> int:
        return int(sum(self.waits) * 1_000_000)

    def monotonic(self) -> float:
        return sum(self.waits)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def retrying(store: ObjectStore, clock: SteppingClock | None = None, jitter: float = 1.0) -> Hardened:
    return Hardened(store, clock=clock or SteppingClock(), jitter=lambda: jitter)


CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.get("k"),
    lambda store: store.get_range("k", 0, 1),
    lambda store: store.get_ranges("k", [(0, 1)]),
    lambda store: store.head("k"),
    lambda store: store.delete("k"),
    lambda store: store.delete_many(iter(["k"])),
    lambda store: store.tag("k", {}),
    lambda store: store.put("k", b"data"),
    lambda store: store.put("k", b"data", if_absent=True),
]
OPERATIONS = ["get", "get_range", "get_ranges", "head", "delete", "delete_many", "tag", "put", "put"]


def test_two_transient_failures_are_survived() -> None:
    for kind in ("before", "after"):
        for operation, call in zip(OPERATIONS, CALLS, strict=True):
            inner = MemoryStore()
            inner.put("k", b"data")
            expected = call(inner)
            inner.put("k", b"data")
            failing = FailingStore(inner, [Fault(operation, kind), Fault(operation, kind)])
            result = call(retrying(failing))
            assert failing.unused == () and failing.calls.count(operation) == 3, (operation, kind)
            assert not operation.startswith("get") or result == expected, (operation, kind)


def test_the_third_failure_is_the_callers() -> None:
    failing = FailingStore(MemoryStore(), [Fault("get", "before")] * 3)
    with pytest.raises(OutcomeUnknown):
        retrying(failing).get("k")
    assert failing.calls == ["get"] * 3


def test_what_will_not_pass_is_not_tried_again() -> None:
    errors: list[AnalemmaError] = [Denied("no"), Unavailable("disk full"), Conflict("exists")]
    for error in errors:
        clock = SteppingClock()
        failing = FailingStore(MemoryStore(), [Fault("put", "before", error)])
        with pytest.raises(type(error)):
            retrying(failing, clock).put("k", b"x", if_absent=True)
        assert failing.calls == ["put"] and clock.waits == []


def test_waits_double_from_half_a_second_and_are_shortened_at_random() -> None:
    clock = SteppingClock()
    shares = iter([0.5, 1.0, 0.1])
    failing = FailingStore(MemoryStore(), [Fault("head", "before")] * 3)
    Hardened(failing, tries=4, clock=clock, jitter=lambda: next(shares)).head("k")
    assert clock.waits == [0.25, 1.0, 0.2]


def test_a_conditional_put_whose_answer_was_lost_is_a_success() -> None:
    store = MemoryStore()
    retrying(FailingStore(store, [Fault("put", "after")])).put("k", b"mine", if_absent=True)
    assert store.get("k") == b"mine"


def test_a_lost_answer_does_not_hide_a_real_conflict() -> None:
    for theirs in (b"same", b"longer than ours", b""):
        store = MemoryStore()
        store.put("k", theirs)
        with pytest.raises(Conflict):
            retrying(FailingStore(store, [Fault("put", "before")])).put("k", b"ours", if_absent=True)
        assert store.get("k") == theirs


def test_a_torn_write_under_the_key_is_a_conflict_not_a_success() -> None:
    with pytest.raises(Conflict):
        retrying(FailingStore(MemoryStore(), [Fault("put", "torn")])).put("k", b"whole data", if_absent=True)


def test_under_random_failures_a_conditional_put_ends_in_success_or_an_honest_error() -> None:
    for seed in range(20):
        store = MemoryStore()
        wrapped = retrying(FailingStore(store, seed=seed, rate=0.4))
        for number in range(30):
            key, data = f"k{number}", b"data %d" % number
            try:
                wrapped.put(key, data, if_absent=True)
            except Unavailable:
                assert store.head(key) is None or store.get(key) == data, seed
            else:
                assert store.get(key) == data, seed


def test_a_replacement_whose_answer_was_lost_is_a_success_unless_another_was_faster() -> None:
    inner = MemoryStore()
    inner.put("k/x", b"old")
    lost = Fault("replace", "after")
    retrying(FailingStore(inner, [lost, Fault("replace", "after")])).replace("k/x", b"new", expected=b"old")
    assert inner.get("k/x") == b"new"
    with pytest.raises(Conflict):
        retrying(FailingStore(inner, [Fault("replace", "before")])).replace("k/x", b"newer", expected=b"old")
    assert inner.get("k/x") == b"new"
