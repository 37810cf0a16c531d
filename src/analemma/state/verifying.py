"""Checking that a branch is what it claims to be: its journal, its head, its manifest, and every block below."""

from __future__ import annotations

from dataclasses import dataclass, field

from analemma.canon.identity import BlockId
from analemma.canon.nodes import decode_node, node_links
from analemma.catalog.port import BranchKey, Head, KernelCatalog, TenantId
from analemma.errors import AnalemmaError, Corrupt
from analemma.state.block_store import BlockStore
from analemma.state.journal import read_record
from analemma.state.manifests import Manifest, decode_manifest

PAGE = 1000
BATCH = 500


@dataclass(slots=True)
class Report:
    """What was looked at, and everything that is wrong with it."""

    blocks: int = 0
    records: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


def verify_branch(catalog: KernelCatalog, tenant: TenantId, blocks: BlockStore, key: BranchKey) -> Report:
    """Re-hash the journal from its beginning, the head's manifest, and every block its state consists of."""
    report = Report()
    head = catalog.head(tenant, key)
    if head is None:
        report.problems.append(f"the branch {key.owner}/{key.workflow}/{key.branch} has no head")
        return report
    _verify_journal(catalog, tenant, head, report)
    try:
        manifest = read_manifest(catalog, tenant, blocks, head.manifest)
    except AnalemmaError as exc:
        report.problems.append(str(exc))
        return report
    if (manifest.key, manifest.version) != (key, head.version):
        report.problems.append(f"the head of {key.workflow} points to a manifest of another place or version")
    _verify_tree(blocks, manifest, report)
    return report


def verify_manifest(
    catalog: KernelCatalog, tenant: TenantId, blocks: BlockStore, manifest: BlockId, *, deep: bool = False
) -> Report:
    """Check one version: its manifest against its row, and its root; with `deep`, every block of its state."""
    report = Report()
    try:
        found = read_manifest(catalog, tenant, blocks, manifest)
        if deep:
            _verify_tree(blocks, found, report)
        else:
            decode_node(found.root.id, blocks.read_uncached([found.root.id])[found.root.id])
            report.blocks += 1
    except AnalemmaError as exc:
        report.problems.append(str(exc))
    return report


def read_manifest(catalog: KernelCatalog, tenant: TenantId, blocks: BlockStore, manifest: BlockId) -> Manifest:
    """A manifest from its own block, once its row is found to say the same."""
    found = decode_manifest(manifest, blocks.read_uncached([manifest])[manifest])
    if found.row(manifest) != catalog.manifest(tenant, manifest):
        raise Corrupt(f"the columns of manifest {manifest.hex()} differ from its block", block=manifest.hex())
    return found


def _verify_journal(catalog: KernelCatalog, tenant: TenantId, head: Head, report: Report) -> None:
    tip: bytes | None = None
    seq = 0
    while page := catalog.journal(tenant, head.key, after_seq=seq, limit=PAGE):
        for row in page:
            report.records += 1
            try:
                record = read_record(row)
            except Corrupt as exc:
                report.problems.append(str(exc))
                return
            before = None if record["before"] is None else record["before"][1:]
            place = (record["owner"], record["workflow"], record["branch"])
            if row.seq != seq + 1 or before != tip or place != (head.key.owner, head.key.workflow, head.key.branch):
                report.problems.append(f"journal record {row.seq} does not follow record {seq}")
                return
            tip, seq = row.hash, row.seq
    if (seq, tip) != (head.journal_seq, head.journal_tip):
        report.problems.append(f"the journal ends at record {seq}, the head says {head.journal_seq}")


def _verify_tree(blocks: BlockStore, manifest: Manifest, report: Report) -> None:
    seen: set[BlockId] = set()
    frontier = [manifest.root.id]
    while frontier:
        batch, frontier = frontier[:BATCH], frontier[BATCH:]
        try:
            found = blocks.read_uncached(batch)
        except AnalemmaError as exc:
            report.problems.append(str(exc))
            return
        for block, data in found.items():
            report.blocks += 1
            for link in node_links(decode_node(block, data)):
                if link.id not in seen:
                    seen.add(link.id)
                    frontier.append(link.id)
