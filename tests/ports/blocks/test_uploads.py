"""The upload step: intent before bytes, a checked object after them, and nothing half-done believed."""

from __future__ import annotations

from typing import Any

import pytest

from analemma.errors import AnalemmaError, Conflict, Corrupt, Unavailable
from analemma.testing.objects import FailingStore, Fault
from analemma.testing.refusals import refuses
from tests.core.entry_points.blocks import block_id, build_pack
from tests.ports.entry_points.objects import Hardened, MemoryStore, object_metadata, upload_pack

UPLOAD = bytes(range(16))
BODY = b"body" * 100


KEY = "packs/00/000102030405060708090a0b0c0d0e0f"
"""A pack is named by its upload alone."""


@pytest.fixture
def pack() -> Any:
    return build_pack([(block_id(BODY), 0, BODY, len(BODY))])


def test_the_intent_is_recorded_before_the_first_byte(pack: Any) -> None:
    store = FailingStore(MemoryStore())
    calls_at_intent: list[list[str]] = []
    upload_pack(store, UPLOAD, pack, open_intent=lambda: calls_at_intent.append(list(store.calls)), metadata={})
    assert calls_at_intent == [[]]
    assert store.calls == ["put", "head"]
    assert store.get(KEY) == pack.data


def test_without_an_intent_no_byte_is_written(pack: Any) -> None:
    store = FailingStore(MemoryStore())

    def refuse() -> None:
        raise Unavailable("the catalog is down")

    with pytest.raises(Unavailable):
        upload_pack(store, UPLOAD, pack, open_intent=refuse, metadata={})
    assert store.calls == []


def test_a_lost_answer_is_not_a_failure(pack: Any) -> None:
    inner = MemoryStore()
    store = Hardened(FailingStore(inner, [Fault("put", "after")]), first_wait_s=0)
    upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata={})
    assert inner.get(KEY) == pack.data


def test_someone_elses_object_under_the_key_is_never_overwritten(pack: Any) -> None:
    store = MemoryStore()
    store.put(KEY, b"theirs")
    with pytest.raises(Conflict):
        upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata={})
    assert store.get(KEY) == b"theirs"


def test_a_write_that_failed_is_an_error_and_not_an_upload(pack: Any) -> None:
    for kind in ("before", "torn"):
        store = FailingStore(MemoryStore(), [Fault("put", kind)])
        assert refuses(upload_pack, store, UPLOAD, pack, open_intent=lambda: None, metadata={}, error=AnalemmaError), (
            kind
        )


def test_a_store_that_takes_half_and_says_nothing_is_caught(pack: Any) -> None:
    class Lossy(MemoryStore):
        def put(self, key: str, data: bytes, *, metadata: object = None, if_absent: bool = False) -> None:
            super().put(key, data[:-1])

    with pytest.raises(Corrupt):
        upload_pack(Lossy(), UPLOAD, pack, open_intent=lambda: None, metadata={})


def test_metadata_says_whose_the_object_is(pack: Any) -> None:
    metadata = object_metadata(pack, workflow_id="orders", execution_id="run-1", created_at_us=1_700_000_000_000_001)
    assert metadata == {
        "usage": "temp",
        "workflow_id": "orders",
        "execution_id": "run-1",
        "checksum": f"sha256:{pack.sha256.hex()}",
        "created_at": "2023-11-14T22:13:20.000001+00:00",
    }
    store = MemoryStore()
    upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata=metadata)
    info = store.head(KEY)
    assert info is not None and info.metadata == metadata


def test_a_name_no_store_could_keep_does_not_stop_the_upload(pack: Any) -> None:
    for name in ("x" * 5000, "워크플로" * 200, "line\nbreak", "lone \ud800", "\x00"):
        metadata = object_metadata(pack, workflow_id=name, execution_id=name, created_at_us=0)
        assert metadata["workflow_id"].startswith("sha256:")
        upload_pack(MemoryStore(), UPLOAD, pack, open_intent=lambda: None, metadata=metadata)


def test_names_that_are_not_known_are_left_out(pack: Any) -> None:
    metadata = object_metadata(pack, workflow_id=None, execution_id=None, created_at_us=0)
    assert set(metadata) == {"usage", "checksum", "created_at"}
