"""Checking that a branch is what it claims to be: its journal, its head, its manifests, and every block below them.

Nothing here trusts a cache, a column or a name: bytes are read from the store and hashed, columns are compared with the
bytes they repeat, and the journal says which versions there must be. Whoever can rewrite the journal's end and the head
together can still make a branch forget its newest versions; only something kept elsewhere, a receipt, shows that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.identity import BlockId
from analemma.canon.nodes import block_links
from analemma.catalog.port import BranchKey, Head, KernelCatalog, ManifestRow, TenantId
from analemma.errors import AnalemmaError, Corrupt
from analemma.state.block_store import BlockStore
from analemma.state.journal import EXPIRED, read_record
from analemma.state.manifests import Manifest, decode_manifest, manifest_links
from analemma.state.receipts import Receipt

PAGE = 1000
BATCH = 500
MOST_TRIES = 5
NEWEST = (1 << 62) - 1


@dataclass(slots=True)
class Report:
    """What was looked at, and everything that is wrong with it."""

    blocks: int = 0
    manifests: int = 0
    records: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class _Told:
    """What a branch's journal says of it."""

    moves: dict[BlockId, int] = field(default_factory=dict)
    """Every manifest the head has been moved to, with its version."""
    last: BlockId | None = None
    expired: set[BlockId] = field(default_factory=set)
    hashes: dict[int, bytes] = field(default_factory=dict)


class Verifier:
    """Verifies one tenant's branches and versions; a block that several share is hashed once."""

    def __init__(self, catalog: KernelCatalog, tenant: TenantId, blocks: BlockStore) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._blocks = blocks
        self._seen: set[BlockId] = set()

    def branch(self, key: BranchKey, expect: Receipt | None = None) -> Report:
        """Check the journal from its beginning, the head, and every version that is still there, down to the last
        block."""
        for _ in range(MOST_TRIES):
            before = self._catalog.head(self._tenant, key)
            report = self._branch(key, before, expect)
            # Reading takes many queries. Versions that came meanwhile are left out, but expiry takes away what was to
            # be read: what looks wrong is looked at again once the branch has moved on.
            if report.ok or self._catalog.head(self._tenant, key) == before:
                break
            self._seen.clear()
        return report

    def _branch(self, key: BranchKey, head: Head | None, expect: Receipt | None) -> Report:
        report = Report()
        if head is None:
            report.problems.append(f"the branch {key.owner}/{key.workflow}/{key.branch} has no head")
            return report
        told = self._journal(head, report)
        if expect is not None:
            _check_receipt(expect, head, told, report)
        if told.last is not None and (told.last, told.moves[told.last]) != (head.manifest, head.version):
            report.problems.append("the head is not where the journal last moved it")
        rows = self._rows(head)
        for manifest, version in told.moves.items():
            if manifest not in rows and manifest not in told.expired:
                report.problems.append(f"version {version} is gone, and the journal does not say why")
        roots: list[BlockId] = []
        for row in rows.values():
            if told.moves.get(row.id) != row.version:
                report.problems.append(f"the journal knows nothing of version {row.version}")
            roots += self._manifest(row, key, report)
        self._trees(roots, report)
        return report

    def version(self, manifest: BlockId, *, deep: bool = True) -> Report:
        """Check one version: its manifest and columns, and its root or, `deep`, every block it keeps alive."""
        report = Report()
        row = self._catalog.manifest(self._tenant, manifest)
        if row is None:
            report.problems.append(f"there is no manifest {manifest.hex()}")
            return report
        links = self._manifest(row, row.key, report)
        if deep:
            self._trees(links, report)
        else:
            found, problems = self._blocks.audit(links)
            report.blocks += len(found)
            report.problems += problems
        return report

    def _journal(self, head: Head, report: Report) -> _Told:
        told = _Told()
        key = head.key
        tip: bytes | None = None
        seq = 0
        while page := self._catalog.journal(self._tenant, key, after_seq=seq, limit=PAGE):
            for row in page:
                if seq == head.journal_seq and self._moved_on(head):
                    # Written after the head was read: not part of what is being checked.
                    return self._ended(told, head, seq, tip, report)
                report.records += 1
                try:
                    record = read_record(row)
                except Corrupt as exc:
                    report.problems.append(str(exc))
                    return told
                before = None if record["before"] is None else record["before"][1:]
                if row.seq != seq + 1 or before != tip:
                    report.problems.append(f"journal record {row.seq} does not follow record {seq}")
                    return told
                if (record["owner"], record["workflow"], record["branch"]) != (key.owner, key.workflow, key.branch):
                    report.problems.append(f"journal record {row.seq} belongs to another branch")
                tip, seq = row.hash, row.seq
                _remember(told, record, row.manifest)
                told.hashes[seq] = row.hash
        return self._ended(told, head, seq, tip, report)

    def _ended(self, told: _Told, head: Head, seq: int, tip: bytes | None, report: Report) -> _Told:
        if (seq, tip) != (head.journal_seq, head.journal_tip):
            report.problems.append(f"the journal ends at record {seq}, the head says {head.journal_seq}")
        return told

    def _rows(self, head: Head) -> dict[BlockId, ManifestRow]:
        rows: dict[BlockId, ManifestRow] = {}
        # Versions above the head's were either made after it was read, or do not belong to it: the journal will tell.
        before = NEWEST
        while page := self._catalog.history(self._tenant, head.key, before_version=before, limit=PAGE):
            rows.update({row.id: row for row in page if row.version <= head.version or not self._moved_on(head)})
            before = page[-1].version
        return rows

    def _moved_on(self, head: Head) -> bool:
        return self._catalog.head(self._tenant, head.key) != head

    def _manifest(self, row: ManifestRow, key: BranchKey, report: Report) -> list[BlockId]:
        """Check a manifest against its row; the blocks it keeps alive."""
        report.manifests += 1
        try:
            found, problems = self._blocks.audit([row.id])
            report.problems += problems
            if row.id not in found:
                return []
            manifest: Manifest = decode_manifest(row.id, found[row.id])
        except AnalemmaError as exc:
            report.problems.append(str(exc))
            return []
        if manifest.row(row.id) != row or manifest.key != key:
            report.problems.append(f"the columns of manifest {row.id.hex()} differ from its block")
        return manifest_links(manifest)

    def _trees(self, roots: Iterable[BlockId], report: Report) -> None:
        frontier = [block for block in dict.fromkeys(roots) if block not in self._seen]
        self._seen.update(frontier)
        while frontier:
            batch, frontier = frontier[:BATCH], frontier[BATCH:]
            found, problems = self._blocks.audit(batch)
            report.blocks += len(found)
            report.problems += problems
            for data in found.values():
                following = [block for block in dict.fromkeys(block_links(data)) if block not in self._seen]
                self._seen.update(following)
                frontier += following


def _remember(told: _Told, record: dict[str, Any], manifest: BlockId | None) -> None:
    if record["version"] is not None and manifest is not None:
        told.moves[manifest] = record["version"]
        told.last = manifest
    if record["kind"] == EXPIRED:
        told.expired.update(BlockId(bytes.fromhex(gone)) for gone in record["facts"]["manifests"])


def _check_receipt(receipt: Receipt, head: Head, told: _Told, report: Report) -> None:
    if receipt.key != head.key:
        report.problems.append("the receipt is for another branch")
    elif (
        told.hashes.get(receipt.journal_seq) != receipt.journal_tip
        or told.moves.get(receipt.manifest) != receipt.version
    ):
        report.problems.append(f"the store does not show version {receipt.version}, for which there is a receipt")
