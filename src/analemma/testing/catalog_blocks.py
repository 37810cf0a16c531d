"""The part of the catalogs' conformance suite about blocks: stored once, read back, saved from the collector."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod

import pytest

from analemma.canon.nodes import BlockId
from analemma.catalog.port import (
    KernelCatalog,
    TenantId,
)
from analemma.errors import HeadMoved
from analemma.testing.commits import make_block, make_request


class CatalogBlocksSuite(ABC):
    """What every catalog must do with blocks; a part of `KernelCatalogSuite`."""

    @abstractmethod
    def doom(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> None:
        """Mark a block as the collector's pass 1 would."""

    @abstractmethod
    def is_doomed(self, catalog: KernelCatalog, tenant: TenantId, block: BlockId) -> bool:
        """Whether the mark is there."""

    def test_blocks_come_back_as_they_were_stored(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        blocks = [
            make_block(b""),
            make_block(bytes(range(256))),
            make_block(links=b""),
            make_block(links=os.urandom(64)),
        ]
        catalog.commit(make_request(tenant, None, blocks))
        ids = [block.id for block in blocks]
        assert catalog.read_blocks(tenant, ids) == {block.id: block for block in blocks}
        assert catalog.read_blocks(tenant, [*ids, BlockId(bytes(32)), ids[0]]).keys() == set(ids)
        assert catalog.read_blocks(tenant, []) == {}

    def test_only_new_blocks_count_as_stored(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        old, new = [make_block() for _ in range(3)], [make_block() for _ in range(3)]
        first = make_request(tenant, None, old)
        catalog.commit(first)
        mixed = [new[0], old[1], new[1], old[0], new[2], old[2], new[0]]
        second = make_request(tenant, first.head, mixed)
        assert catalog.commit(second).stored == {*(block.id for block in new), second.manifest.id}
        again = make_request(tenant, second.head, mixed)
        assert catalog.commit(again).stored == {again.manifest.id}

    def test_a_stored_block_is_never_overwritten(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        block = make_block(b"original")
        first = make_request(tenant, None, [block])
        catalog.commit(first)
        catalog.commit(make_request(tenant, first.head, [block._replace(codec=7, body=b"other encoding")]))
        assert catalog.read_blocks(tenant, [block.id]) == {block.id: block}

    def test_emitting_a_doomed_block_saves_it(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        emitted, left = make_block(), make_block()
        first = make_request(tenant, None, [emitted, left])
        catalog.commit(first)
        self.doom(catalog, tenant, emitted.id)
        self.doom(catalog, tenant, left.id)
        second = make_request(tenant, first.head, [emitted, make_block()])
        assert emitted.id not in catalog.commit(second).stored
        assert not self.is_doomed(catalog, tenant, emitted.id)
        assert self.is_doomed(catalog, tenant, left.id)

    def test_a_failed_commit_saves_no_doomed_block(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        block = make_block()
        first = make_request(tenant, None, [block])
        catalog.commit(first)
        self.doom(catalog, tenant, block.id)
        with pytest.raises(HeadMoved):
            catalog.commit(make_request(tenant, None, [block]))
        assert self.is_doomed(catalog, tenant, block.id)

    def test_five_thousand_blocks_in_one_commit(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        blocks = [make_block(number.to_bytes(4, "big") * 100) for number in range(5000)]
        request = make_request(tenant, None, blocks)
        assert len(catalog.commit(request).stored) == 5001
        found = catalog.read_blocks(tenant, [block.id for block in blocks])
        assert all(found[block.id] == block for block in blocks)

    def test_forty_thousand_ids_in_one_read(self, catalog: KernelCatalog, tenant: TenantId) -> None:
        block = make_block()
        catalog.commit(make_request(tenant, None, [block]))
        ids = [BlockId(hashlib.sha256(number.to_bytes(4, "big")).digest()) for number in range(40_000)]
        assert catalog.read_blocks(tenant, [*ids, block.id]) == {block.id: block}
