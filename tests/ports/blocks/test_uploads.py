"""The upload step: intent before bytes, a checked object after them, and nothing half-done believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analemma.errors import AnalemmaError, Conflict, Corrupt, Unavailable
from analemma.testing import failpoints
from analemma.testing.objects import FailingStore, Fault
from analemma.testing.refusals import refuses
from tests.core.entry_points.blocks import block_id, build_pack
from tests.ports.entry_points.catalog import BranchKey, SqlCatalog, open_catalog
from tests.ports.entry_points.objects import (
    BlockStore,
    Hardened,
    Lru,
    MemoryStore,
    ObjectStore,
    SystemClock,
    object_metadata,
)

BODY = b"body" * 100


KEY = "packs/00/000102030405060708090a0b0c0d0e0f"
"""A pack is named by its upload alone."""


class OneUpload:
    """Gives every upload the same id."""

    def random_bytes(self, count: int) -> bytes:
        return bytes(range(count))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    catalog = open_catalog(tmp_path)
    yield catalog
    catalog.close()


def blocks_in(store: ObjectStore, catalog: SqlCatalog) -> BlockStore:
    return BlockStore(
        catalog,
        catalog.tenant("default"),
        objects=store,
        cache=Lru(),
        pack_threshold_bytes=0,
        clock=SystemClock(),
        entropy=OneUpload(),
    )


@pytest.fixture
def pack() -> Any:
    return build_pack([(block_id(BODY), 0, BODY, len(BODY))])


def test_the_intent_is_recorded_before_the_first_byte(pack: Any, catalog: SqlCatalog) -> None:
    store = FailingStore(MemoryStore())
    blocks = blocks_in(store, catalog)
    seen: list[tuple[int, list[str]]] = []

    def look() -> None:
        seen.append((catalog.stats().uploads, list(store.calls)))

    with failpoints.call("upload.after_intent", look):
        blocks.store_pack(pack)
    assert seen == [(1, [])]
    assert store.calls == ["put", "head"]
    assert store.get(KEY) == pack.data


def test_without_an_intent_no_byte_is_written(pack: Any, catalog: SqlCatalog) -> None:
    store = FailingStore(MemoryStore())
    blocks = blocks_in(store, catalog)
    catalog.close()
    with pytest.raises(Unavailable):
        blocks.store_pack(pack)
    assert store.calls == []


def test_a_lost_answer_is_not_a_failure(pack: Any, catalog: SqlCatalog) -> None:
    inner = MemoryStore()
    store = Hardened(FailingStore(inner, [Fault("put", "after")]), first_wait_s=0)
    blocks_in(store, catalog).store_pack(pack)
    assert inner.get(KEY) == pack.data


def test_someone_elses_object_under_the_key_is_never_overwritten(pack: Any, catalog: SqlCatalog) -> None:
    store = MemoryStore()
    store.put(KEY, b"theirs")
    with pytest.raises(Conflict):
        blocks_in(store, catalog).store_pack(pack)
    assert store.get(KEY) == b"theirs"


def test_a_write_that_failed_is_an_error_and_not_an_upload(pack: Any, tmp_path: Path) -> None:
    for kind in ("before", "torn"):
        catalog = open_catalog(tmp_path / kind)
        store = FailingStore(MemoryStore(), [Fault("put", kind)])
        assert refuses(blocks_in(store, catalog).store_pack, pack, error=AnalemmaError), kind
        catalog.close()


def test_a_store_that_takes_half_and_says_nothing_is_caught(pack: Any, catalog: SqlCatalog) -> None:
    class Lossy(MemoryStore):
        def put(self, key: str, data: bytes, *, metadata: object = None, if_absent: bool = False) -> None:
            super().put(key, data[:-1])

    with pytest.raises(Corrupt):
        blocks_in(Lossy(), catalog).store_pack(pack)


def test_metadata_says_whose_the_object_is(pack: Any, catalog: SqlCatalog) -> None:
    metadata = object_metadata(pack, workflow_id="orders", execution_id="run-1", created_at_us=1_700_000_000_000_001)
    assert metadata == {
        "usage": "temp",
        "workflow_id": "orders",
        "execution_id": "run-1",
        "checksum": f"sha256:{pack.sha256.hex()}",
        "created_at": "2023-11-14T22:13:20.000001+00:00",
    }
    store = MemoryStore()
    blocks_in(store, catalog).store_pack(pack, BranchKey("ann", "orders"), "run-1")
    info = store.head(KEY)
    assert info is not None and {**info.metadata, "created_at": metadata["created_at"]} == metadata


def test_a_name_no_store_could_keep_does_not_stop_the_upload(pack: Any) -> None:
    for name in ("x" * 5000, "워크플로" * 200, "line\nbreak", "lone \ud800", "\x00"):
        metadata = object_metadata(pack, workflow_id=name, execution_id=name, created_at_us=0)
        assert metadata["workflow_id"].startswith("sha256:")
        MemoryStore().put(KEY, pack.data, metadata=metadata)


def test_names_that_are_not_known_are_left_out(pack: Any) -> None:
    metadata = object_metadata(pack, workflow_id=None, execution_id=None, created_at_us=0)
    assert set(metadata) == {"usage", "checksum", "created_at"}
