"""For people who write object stores: the suite every store must pass, and a store that fails on demand.

class TestMyStore(ObjectStoreSuite):
    @pytest.fixture
    def store(self):
        store = MyStore(...)
        yield store
        store.close()
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import pytest

from analemma.blocks.port import ObjectInfo, ObjectStore, StoreWrapper
from analemma.clock import Clock, SystemClock
from analemma.errors import AnalemmaError, Conflict, Corrupt, Invalid, NotFound, OutcomeUnknown, Unavailable
from analemma.testing.refusals import refuses

T = TypeVar("T")

HOSTILE_KEYS = (
    "",
    "/",
    "/absolute",
    "a//b",
    "a/",
    "..",
    "../escape",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.tmp/b",
    "nul\x00byte",
    "new\nline",
    "back\\slash",
    "\x7f",
    "c1\x85control",
    "surrogate\ud800",
    "x" * 513,
    "é" * 300,
    "a/" + "x" * 256,
)
"""Keys that every store must refuse."""

AWKWARD_KEYS = (
    "a b/c d",
    "ü/한글",
    "100%25",
    "hash#and?query",
    "plus+tilde~",
    "quote'\"",
    "a&b=c;d",
    "[x]{y}",
    "x" * 255,
)
"""Keys that every store must take and give back unchanged."""

METADATA = {
    "usage": "temp",
    "workflow_id": "주문 100% / wörkflow",
    "execution_id": "run-1",
    "checksum": "sha256:" + "ab" * 32,
    "created_at": "2026-01-02T03:04:05.000006+00:00",
}


class ObjectStoreSuite:
    """What an `ObjectStore` promises. A subclass supplies the `store` fixture: empty, and closed afterwards."""

    keeps_metadata = True

    def test_an_object_reads_back_as_it_was_written(self, store: ObjectStore) -> None:
        for key, data in {"a": b"one", "deep/er/still": b"\x00\xff" * 1000, "empty": b""}.items():
            store.put(key, data)
            assert store.get(key) == data
            info = store.head(key)
            assert info is not None and (info.key, info.size) == (key, len(data))

    def test_a_missing_object_is_not_found_however_it_is_asked_for(self, store: ObjectStore) -> None:
        store.put("there/x", b"1")
        for key in ("nothing", "there", "there/x/y", "there/nothing"):
            assert store.head(key) is None
            with pytest.raises(NotFound):
                store.get(key)
            with pytest.raises(NotFound):
                store.get_range(key, 0, 1)
            with pytest.raises(NotFound):
                store.get_ranges(key, [(0, 1), (5, 1)])
            with pytest.raises(NotFound):
                list(store.open_read(key))

    def test_a_hostile_key_is_refused_by_every_operation(self, store: ObjectStore) -> None:
        operations: dict[str, Callable[[str], object]] = {
            "put": lambda key: store.put(key, b"x"),
            "put if absent": lambda key: store.put(key, b"x", if_absent=True),
            "put_stream": lambda key: store.put_stream(key, [b"x"]),
            "replace": lambda key: store.replace(key, b"x", expected=b""),
            "get": store.get,
            "get_range": lambda key: store.get_range(key, 0, 1),
            "get_ranges": lambda key: store.get_ranges(key, [(0, 1)]),
            "open_read": lambda key: list(store.open_read(key)),
            "head": store.head,
            "delete": store.delete,
            "delete_many": lambda key: store.delete_many([key]),
        }
        taken = [(key, name) for key in HOSTILE_KEYS for name, call in operations.items() if not refuses(call, key)]
        assert taken == []
        assert list(store.list()) == []

    def test_awkward_but_valid_keys_survive_unchanged(self, store: ObjectStore) -> None:
        for key in AWKWARD_KEYS:
            store.put(f"awkward/{key}", key.encode())
        for key in AWKWARD_KEYS:
            assert store.get(f"awkward/{key}") == key.encode()
        assert [info.key for info in store.list("awkward")] == sorted(f"awkward/{key}" for key in AWKWARD_KEYS)

    def test_put_overwrites_unless_told_otherwise(self, store: ObjectStore) -> None:
        store.put("k/x", b"old and longer")
        store.put("k/x", b"new")
        assert store.get("k/x") == b"new"

    def test_a_conditional_put_keeps_what_is_there(self, store: ObjectStore) -> None:
        store.put("k/x", b"first", if_absent=True)
        store.put("k/x", b"first", if_absent=True)
        for other in (b"secnd", b"longer than the first", b""):
            with pytest.raises(Conflict):
                store.put("k/x", other, if_absent=True)
        assert store.get("k/x") == b"first"

    def test_an_object_is_replaced_only_if_it_holds_what_was_expected(self, store: ObjectStore) -> None:
        with pytest.raises(Conflict):
            store.replace("k/x", b"new", expected=b"")
        assert store.head("k/x") is None
        store.put("k/x", b"first")
        store.replace("k/x", b"second", expected=b"first")
        store.replace("k/x", b"second", expected=b"first")
        with pytest.raises(Conflict):
            store.replace("k/x", b"third", expected=b"first")
        assert store.get("k/x") == b"second"

    def test_of_many_who_replace_the_same_exactly_one_wins(self, store: ObjectStore) -> None:
        store.put("k/x", b"old")
        barrier = threading.Barrier(6)

        def replace(number: int) -> bool:
            barrier.wait()
            try:
                store.replace("k/x", b"%d" % number, expected=b"old")
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(replace, range(6)))
        assert won.count(True) == 1
        assert store.get("k/x") == b"%d" % won.index(True)

    def test_of_many_concurrent_conditional_puts_exactly_one_wins(self, store: ObjectStore) -> None:
        barrier = threading.Barrier(6)

        def put(number: int) -> bool:
            barrier.wait()
            try:
                store.put("race/x", b"content %d" % (number % 3) * 1000, if_absent=True)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(6) as pool:
            won = list(pool.map(put, range(6)))
        stored = store.get("race/x")
        assert any(won)
        assert [stored == b"content %d" % (number % 3) * 1000 for number in range(6)] == won

    def test_ranges_are_exact(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 10
        store.put("k/x", data)
        assert store.get_range("k/x", 5, 7) == data[5:12]
        assert store.get_range("k/x", 0, len(data)) == data
        assert store.get_range("k/x", 3, 0) == b""
        ranges = [(2000, 10), (0, 1), (5, 0), (5, 20), (10, 5), (len(data) - 1, 1)]
        assert store.get_ranges("k/x", ranges) == [data[offset : offset + length] for offset, length in ranges]
        assert store.get_ranges("k/x", []) == []

    def test_a_range_beyond_the_end_is_corrupt_and_never_short(self, store: ObjectStore) -> None:
        store.put("k/x", b"0123456789")
        spans = [(0, 11), (9, 2), (10, 1), (500, 1), (0, 1 << 50), (1 << 50, 1)]
        assert [span for span in spans if not refuses(store.get_range, "k/x", *span, error=Corrupt)] == []
        assert [span for span in spans if not refuses(store.get_ranges, "k/x", [(0, 1), span], error=Corrupt)] == []

    def test_a_negative_range_is_invalid(self, store: ObjectStore) -> None:
        store.put("k/x", b"0123456789")
        for span in ((-1, 2), (2, -1)):
            with pytest.raises(Invalid):
                store.get_range("k/x", *span)

    def test_metadata_comes_back_with_head(self, store: ObjectStore) -> None:
        store.put("k/x", b"data", metadata=METADATA)
        store.put_stream("k/stream", [b"data"], metadata=METADATA)
        store.put("k/plain", b"data")
        for key, metadata in {"k/x": METADATA, "k/stream": METADATA, "k/plain": {}}.items():
            info = store.head(key)
            assert info is not None
            assert info.metadata == (metadata if self.keeps_metadata else {})

    def test_metadata_no_store_could_keep_is_invalid(self, store: ObjectStore) -> None:
        hostile: list[dict[str, str]] = [{"Bad-Name": "x"}, {"a": "line\nbreak"}, {"a": "x" * 3000}, {"": "x"}]
        assert [each for each in hostile if not refuses(store.put, "k/x", b"data", metadata=each)] == []
        assert store.head("k/x") is None

    def test_delete_is_idempotent_and_spares_the_rest(self, store: ObjectStore) -> None:
        for key in ("d/a", "d/b", "e/c/x", "f"):
            store.put(key, b"x")
        store.delete("d/a")
        store.delete("d/a")
        store.delete("never/was")
        assert store.head("d/a") is None
        store.delete_many(["e/c/x", "never/was", "f", "f"])
        store.delete_many([])
        assert [info.key for info in store.list()] == ["d/b"]
        store.put("d/a", b"again", if_absent=True)
        assert store.get("d/a") == b"again"

    def test_a_listing_is_sorted_by_whole_keys_and_stays_in_its_folder(self, store: ObjectStore) -> None:
        keys = ["a", "b/x", "b-c/x", "b.c", "b0", "b/x-y/z", "b/x0", "bb/x", "ü/z", "b/a/1", "b/a!/1", "b/a/2"]
        for key in keys:
            store.put(key, key.encode())
        listed = list(store.list())
        assert [info.key for info in listed] == sorted(keys, key=str.encode)
        assert all(info.size == len(info.key.encode()) and info.modified_us > 0 for info in listed)
        below = sorted((key for key in keys if key.startswith("b/")), key=str.encode)
        assert [info.key for info in store.list("b")] == below
        assert [info.key for info in store.list("b/")] == below
        assert list(store.list("b/nothing")) == []
        assert list(store.list("a")) == []

    def test_a_hostile_prefix_is_refused(self, store: ObjectStore) -> None:
        for prefix in ("..", "/", "a//", "a/../b", "nul\x00"):
            with pytest.raises(Invalid):
                list(store.list(prefix))

    def test_a_stream_is_stored_whole(self, store: ObjectStore) -> None:
        chunk = random.Random(7).randbytes(1 << 20)
        store.put_stream("s/large", (chunk for _ in range(18)))
        store.put_stream("s/empty", [])
        store.put_stream("s/crumbs", [b"", b"a", b"", b"bc"])
        digest = hashlib.sha256()
        length = 0
        for piece in store.open_read("s/large"):
            digest.update(piece)
            length += len(piece)
        assert length == 18 << 20 and digest.digest() == hashlib.sha256(chunk * 18).digest()
        assert b"".join(store.open_read("s/empty")) == store.get("s/empty") == b""
        assert b"".join(store.open_read("s/crumbs")) == b"abc"

    def test_a_stream_that_breaks_leaves_nothing_and_raises_its_own_error(self, store: ObjectStore) -> None:
        def breaking(pieces: int) -> Iterator[bytes]:
            for _ in range(pieces):
                yield bytes(1 << 20)
            raise FileNotFoundError("the source is gone")

        for pieces in (0, 3, 18):
            with pytest.raises(FileNotFoundError, match="the source is gone"):
                store.put_stream("s/broken", breaking(pieces))
            assert store.head("s/broken") is None
            assert list(store.list()) == []

    def test_tagging_is_harmless(self, store: ObjectStore) -> None:
        store.put("k/x", b"data", metadata=METADATA)
        before = store.head("k/x")
        store.tag("k/x", {"status": "orphan"})
        after = store.head("k/x")
        assert store.get("k/x") == b"data"
        assert before is not None and after is not None and before.metadata == after.metadata

    def test_a_working_store_is_healthy(self, store: ObjectStore) -> None:
        store.health()
        assert list(store.list()) == []

    def test_a_closed_store_says_so(self, store: ObjectStore) -> None:
        store.put("k/x", b"x")
        store.close()
        store.close()
        with pytest.raises(Unavailable):
            store.get("k/x")
        with pytest.raises(Unavailable):
            store.put("k/x", b"x")


FaultKind = Literal["before", "after", "torn", "slow"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to the next call of an operation.

    before: it fails and nothing was done. after: it was done and the answer is lost. torn: half of the data was
    written, or is read. slow: it works, after `wait_s`.
    """

    operation: str
    kind: FaultKind
    error: AnalemmaError = field(
        default_factory=lambda: OutcomeUnknown("the object store did not answer", transient=True)
    )
    wait_s: float = 0.0


class FailingStore(StoreWrapper):
    """Wraps a store and fails as scripted, or at random from a seed; everything else passes through."""

    def __init__(
        self,
        store: ObjectStore,
        faults: Iterable[Fault] = (),
        *,
        seed: int | None = None,
        rate: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """`faults` are used up in order, each by the next call of its operation. With `seed`, a share `rate` of all
        other calls fails before or after its effect."""
        super().__init__(store)
        self.calls: list[str] = []
        self._faults = list(faults)
        self._random = random.Random(seed)
        self._rate = rate if seed is not None else 0.0
        self._clock = clock or SystemClock()

    @property
    def unused(self) -> tuple[Fault, ...]:
        """The scripted faults that no call has met yet."""
        return tuple(self._faults)

    def _pass(self, operation: str, call: Callable[..., T], *given: Any, **options: Any) -> T:
        fault = self._next(operation)
        if fault is not None and fault.kind == "torn" and operation in ("put", "delete_many"):
            # Half of the data, or of the keys.
            call(*given[:-1], given[-1][: len(given[-1]) // 2], **{**options, "if_absent": False} if options else {})
            raise fault.error
        found: Any = call(*given, **options)
        if operation == "get_ranges":
            found = [_torn(fault, piece) for piece in found]
        elif operation in ("get", "get_range"):
            found = _torn(fault, found)
        _lose_answer(fault)
        return found  # type: ignore[no-any-return]

    def open_read(self, key: str) -> Iterator[bytes]:
        fault = self._next("open_read")
        for piece in self._store.open_read(key):
            _lose_answer(fault)
            yield _torn(fault, piece)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        fault = self._next("list")
        for index, info in enumerate(self._store.list(prefix)):
            if fault and fault.kind == "torn" and index == 1:
                raise fault.error
            yield info
        _lose_answer(fault)

    def _next(self, operation: str) -> Fault | None:
        self.calls.append(operation)
        fault = next((fault for fault in self._faults if fault.operation == operation), None)
        if fault is not None:
            self._faults.remove(fault)
        elif self._random.random() < self._rate:
            fault = Fault(operation, self._random.choice(("before", "after")))
        if fault is not None and fault.kind == "before":
            raise fault.error
        if fault is not None and fault.kind == "slow":
            self._clock.sleep(fault.wait_s)
        return fault


def _lose_answer(fault: Fault | None) -> None:
    if fault is not None and fault.kind == "after":
        raise fault.error


def _torn(fault: Fault | None, data: bytes) -> bytes:
    return data[: len(data) // 2] if fault is not None and fault.kind == "torn" else data
