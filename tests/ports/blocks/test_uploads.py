"""The upload step: intent before bytes, a checked object after them, and nothing half-done believed."""

from __future__ import annotations

import pytest

from analemma.blocks.memory import MemoryStore
from analemma.blocks.packs import Pack, StoredBlock, build_pack, pack_key
from analemma.blocks.retry import RetryStore
from analemma.blocks.uploads import object_metadata, upload_pack
from analemma.canon.identity import block_id
from analemma.errors import AnalemmaError, Conflict, Corrupt, Unavailable
from analemma.testing import failpoints
from analemma.testing.objects import FailingStore, Fault

UPLOAD = bytes(range(16))
BODY = b"body" * 100


@pytest.fixture
def pack() -> Pack:
    return build_pack([StoredBlock(block_id(BODY), 0, BODY, len(BODY))])


def test_the_intent_is_recorded_before_the_first_byte(pack: Pack) -> None:
    store = FailingStore(MemoryStore())
    calls_at_intent: list[list[str]] = []
    key = upload_pack(store, UPLOAD, pack, open_intent=lambda: calls_at_intent.append(list(store.calls)), metadata={})
    assert key == pack_key(UPLOAD)
    assert calls_at_intent == [[]]
    assert store.calls == ["put", "head"]
    assert store.get(key) == pack.data


def test_without_an_intent_no_byte_is_written(pack: Pack) -> None:
    store = FailingStore(MemoryStore())

    def refuse() -> None:
        raise Unavailable("the catalog is down")

    with pytest.raises(Unavailable):
        upload_pack(store, UPLOAD, pack, open_intent=refuse, metadata={})
    assert store.calls == []


def test_a_lost_answer_is_not_a_failure(pack: Pack) -> None:
    inner = MemoryStore()
    store = RetryStore(FailingStore(inner, [Fault("put", "after")]), first_wait_s=0)
    upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata={})
    assert inner.get(pack_key(UPLOAD)) == pack.data


def test_someone_elses_object_under_the_key_is_never_overwritten(pack: Pack) -> None:
    store = MemoryStore()
    store.put(pack_key(UPLOAD), b"theirs")
    with pytest.raises(Conflict):
        upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata={})
    assert store.get(pack_key(UPLOAD)) == b"theirs"


@pytest.mark.parametrize("kind", ["before", "torn"])
def test_a_write_that_failed_is_an_error_and_not_an_upload(pack: Pack, kind: str) -> None:
    store = FailingStore(MemoryStore(), [Fault("put", kind)])  # type: ignore[arg-type]
    with pytest.raises(AnalemmaError):
        upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata={})


def test_a_store_that_takes_half_and_says_nothing_is_caught(pack: Pack) -> None:
    class Lossy(MemoryStore):
        def put(self, key: str, data: bytes, *, metadata: object = None, if_absent: bool = False) -> None:
            super().put(key, data[:-1])

    with pytest.raises(Corrupt):
        upload_pack(Lossy(), UPLOAD, pack, open_intent=lambda: None, metadata={})


def test_metadata_says_whose_the_object_is(pack: Pack) -> None:
    metadata = object_metadata(pack, workflow_id="orders", execution_id="run-1", created_at_us=1_700_000_000_000_001)
    assert metadata == {
        "usage": "temp",
        "workflow_id": "orders",
        "execution_id": "run-1",
        "checksum": f"sha256:{pack.sha256.hex()}",
        "created_at": "2023-11-14T22:13:20.000001+00:00",
    }
    store = MemoryStore()
    info = store.head(upload_pack(store, UPLOAD, pack, open_intent=lambda: None, metadata=metadata))
    assert info is not None and info.metadata == metadata


@pytest.mark.parametrize("name", ["x" * 5000, "워크플로" * 200, "line\nbreak", "lone \ud800", "\x00"])
def test_a_name_no_store_could_keep_does_not_stop_the_upload(pack: Pack, name: str) -> None:
    metadata = object_metadata(pack, workflow_id=name, execution_id=name, created_at_us=0)
    assert metadata["workflow_id"].startswith("sha256:")
    upload_pack(MemoryStore(), UPLOAD, pack, open_intent=lambda: None, metadata=metadata)


def test_names_that_are_not_known_are_left_out(pack: Pack) -> None:
    metadata = object_metadata(pack, workflow_id=None, execution_id=None, created_at_us=0)
    assert set(metadata) == {"usage", "checksum", "created_at"}


def test_each_step_has_a_failpoint() -> None:
    assert {"upload.before_intent", "upload.after_intent", "upload.after_object"} <= set(failpoints.names())
