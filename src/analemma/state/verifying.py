"""Checking that a branch is what it claims to be: its journal, its head, its manifests, and every block below them.

Nothing here trusts a cache, a column or a name: bytes are read from the store and hashed, columns are compared with the
bytes they repeat, and the journal says which versions there must be. Whoever can rewrite the journal's end and the head
together can still make a branch forget its newest versions; only something kept elsewhere, a receipt, shows that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from analemma.blocks.store import BlockStore
from analemma.canon.identity import BlockId
from analemma.canon.nodes import block_links
from analemma.canon.trees import Trees
from analemma.canon.types import standard_registry
from analemma.catalog.port import (
    BranchKey,
    Head,
    JournalRow,
    KernelCatalog,
    ManifestRow,
    NamedVersion,
    TenantId,
    UploadId,
)
from analemma.errors import AnalemmaError, Corrupt
from analemma.state.branch_rows import absent_tags, compare_rows, compare_versions, misplaced_marks, read_rows
from analemma.state.records import Manifest, Receipt, decode_manifest, manifest_links, read_record
from analemma.state.telling import TagPlace, Told

PAGE = 1000
BATCH = 500
MOST_TRIES = 5


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


class Verifier:
    """Verifies one tenant's branches and versions; a block that several share is hashed once."""

    def __init__(self, catalog: KernelCatalog, tenant: TenantId, blocks: BlockStore) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._blocks = blocks
        self._seen: set[BlockId] = set()
        self._uploads: set[UploadId] = set()

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
            self._uploads.clear()
        return report

    def _branch(self, key: BranchKey, head: Head | None, expect: Receipt | None) -> Report:
        report = Report()
        if head is None:
            report.problems.append(f"the branch {key.owner}/{key.workflow}/{key.branch} has no head")
            return report
        told = self._journal(key, head, report)
        rows = read_rows(self._catalog, self._tenant, key)
        later = self._since(head, report)
        if expect is not None:
            _check_receipt(expect, head, told, report)
        if told.last is None or (told.last, told.moves[told.last]) != (head.manifest, head.version):
            report.problems.append("the head is not where the journal last moved it")
        report.problems += compare_versions(head, told, later, rows)
        if told.whole and later.whole:
            report.problems += compare_rows(key, told, later, rows)
            report.problems += misplaced_marks(self._catalog, self._tenant, key, rows)
            report.problems += self._absent_tags(key, absent_tags(told, later, rows))
        versions = [row for row in rows.versions.values() if row.id not in later.moves]
        self._trees(self._manifests(versions, key, report), report)
        self._named_versions(key, report)
        return report

    def version(self, manifest: BlockId, *, beside: Sequence[BlockId] | None = None) -> Report:
        """Check one version: its manifest and columns, and every block it keeps alive. With `beside`, the roots of
        another version, only its own roots and what the other does not share."""
        report = Report()
        row = self._catalog.manifest(self._tenant, manifest)
        if row is None:
            report.problems.append(f"there is no manifest {manifest.hex()}")
            return report
        links = self._manifests([row], row.key, report)
        if beside is None:
            self._trees(links, report)
        else:
            self._difference(links, beside, report)
        return report

    def _named_versions(self, key: BranchKey, report: Report) -> None:
        """Check what rows name as checkpoints: they keep versions that may have expired, and those of a thread that was
        copied, so that no journal of this branch tells of them."""
        after = ""
        while page := self._catalog.named_versions(self._tenant, key, after=after, limit=BATCH):
            for _ in range(MOST_TRIES):
                found = self._named_page(key, page)
                # Rows go, and what they kept with them, while it is read.
                again = self._catalog.named_versions(self._tenant, key, after=after, limit=BATCH)
                if not found.problems or not page or page == again:
                    break
                page = again
            report.problems += found.problems
            report.blocks += found.blocks
            if len(page) < BATCH:
                return
            after = page[-1].name

    def _named_page(self, key: BranchKey, page: Sequence[NamedVersion]) -> Report:
        report = Report()
        found, report.problems = self._blocks.audit([*{row.manifest for row in page}], self._uploads)
        links: list[BlockId] = []
        for row in page:
            if row.manifest not in found:
                continue
            try:
                manifest = decode_manifest(row.manifest, found[row.manifest])
                if not self._is_named(key, row, manifest):
                    report.problems.append(f"checkpoint {row.name} names the version of another, {row.manifest.hex()}")
                links += manifest_links(manifest)
            except AnalemmaError as exc:
                report.problems.append(f"checkpoint {row.name}: {exc}")
        self._trees(links, report)
        return report

    def _is_named(self, key: BranchKey, row: NamedVersion, manifest: Manifest) -> bool:
        """Whether a version can be the checkpoint that a row says it is. A thread that was copied names versions of
        another by the same names; what stands in a version beside its values is the same everywhere."""
        ours = manifest.key == key
        if row.twice or (manifest.key.owner, manifest.key.branch) != (key.owner, key.branch):
            return False
        if not ours and row.elsewhere:
            return False
        said = Trees(self._blocks.read_uncached, standard_registry()).get_many(
            manifest.root.id, [("namespace",), ("parent",)]
        )
        return said == {("namespace",): row.namespace, ("parent",): row.parent}

    def _journal(self, key: BranchKey, until: Head, report: Report, after: Head | None = None) -> Told:
        """What the records say from the beginning, or after a head, up to another head's tip."""
        told = Told()
        seq, tip = (0, None) if after is None else (after.journal_seq, after.journal_tip)
        while seq < until.journal_seq:
            page = self._catalog.journal(self._tenant, key, after_seq=seq, limit=min(PAGE, until.journal_seq - seq))
            if not page:
                break
            for row in page:
                report.records += 1
                try:
                    record = read_record(row)
                    _check_place(key, record, row, seq, tip)
                    told.add(record, row.manifest)
                except Corrupt as exc:
                    told.whole = False
                    report.problems.append(str(exc))
                    return told
                except (KeyError, TypeError, ValueError) as exc:
                    told.whole = False
                    report.problems.append(f"journal record {row.seq} does not say what it should: {exc!r}")
                    return told
                tip, seq = row.hash, row.seq
                told.hashes[seq] = row.hash
        if (seq, tip) != (until.journal_seq, until.journal_tip):
            told.whole = False
            report.problems.append(f"the journal ends at record {seq}, the head says {until.journal_seq}")
        return told

    def _since(self, head: Head, report: Report) -> Told:
        """What was written since this head was read: no part of what is being checked, but rows may show it already."""
        key = head.key
        now = self._catalog.head(self._tenant, key)
        if now is None:
            report.problems.append("the head is gone")
            return Told(whole=False)
        later = Told() if now == head else self._journal(key, now, Report(), after=head)
        beyond = self._catalog.journal(self._tenant, key, after_seq=now.journal_seq, limit=1)
        if beyond and self._catalog.head(self._tenant, key) == now:
            report.problems.append(f"journal record {beyond[0].seq} is behind the last one that the head knows")
        return later

    def _absent_tags(self, key: BranchKey, absent: dict[TagPlace, int]) -> Iterator[str]:
        """Those of the tags that did not move to another branch either. Journals of other branches are read only if
        there is a tag to look for."""
        if not absent:
            return
        for branch in self._catalog.branches(self._tenant, key.owner, key.workflow):
            other = self._catalog.head(self._tenant, key._replace(branch=branch.branch))
            if other is not None and other.key != key:
                balance = self._journal(other.key, other, Report()).tag_balance
                absent = {place: count + balance.get(place, 0) for place, count in absent.items()}
        for (name, manifest), count in absent.items():
            if count > 0:
                yield f"the tag {name} is not on manifest {manifest.hex()}, where the journal put it"

    def _manifests(self, rows: Sequence[ManifestRow], key: BranchKey, report: Report) -> list[BlockId]:
        """Check manifests against their rows; the blocks they keep alive."""
        report.manifests += len(rows)
        links: list[BlockId] = []
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            found, problems = self._blocks.audit([row.id for row in batch], self._uploads)
            report.problems += problems
            for row in batch:
                if row.id in found:
                    links += _check_manifest(row, key, found[row.id], report)
        return links

    def _trees(self, roots: Iterable[BlockId], report: Report) -> None:
        frontier = [block for block in dict.fromkeys(roots) if block not in self._seen]
        self._seen.update(frontier)
        while frontier:
            batch, frontier = frontier[:BATCH], frontier[BATCH:]
            found, problems = self._blocks.audit(batch, self._uploads)
            report.blocks += len(found)
            report.problems += problems
            for data in found.values():
                following = [block for block in dict.fromkeys(block_links(data)) if block not in self._seen]
                self._seen.update(following)
                frontier += following

    def _difference(self, roots: Sequence[BlockId], others: Sequence[BlockId], report: Report) -> None:
        """Check the roots, and below them what does not lie below the others too. Both are gone down together, level by
        level, so that what they share is left out unread; others that cannot be read share nothing."""
        known = set(others)
        self._below([block for block in roots if block in known], report, self._uploads)
        here = [block for block in roots if block not in known]
        there = [block for block in others if block not in roots]
        while here:
            self._seen.update(here)
            lower = self._below(here, report, self._uploads)
            beside = self._below(there, Report(), None)
            known.update(beside)
            here = [block for block in lower if block not in known and block not in self._seen]
            there = [block for block in beside if block not in lower]

    def _below(self, blocks: Sequence[BlockId], report: Report, uploads: set[UploadId] | None) -> dict[BlockId, None]:
        """What these blocks lead to, as far as they can be read."""
        links: dict[BlockId, None] = {}
        for start in range(0, len(blocks), BATCH):
            found, problems = self._blocks.audit(blocks[start : start + BATCH], uploads)
            report.blocks += len(found)
            report.problems += problems
            for data in found.values():
                links.update(dict.fromkeys(block_links(data)))
        return links


def _check_manifest(row: ManifestRow, key: BranchKey, data: bytes, report: Report) -> list[BlockId]:
    try:
        manifest = decode_manifest(row.id, data)
    except AnalemmaError as exc:
        report.problems.append(str(exc))
        return []
    if manifest.row(row.id) != row or manifest.key != key:  # guard: manifest.columns
        report.problems.append(f"the columns of manifest {row.id.hex()} differ from its block")
    return manifest_links(manifest)


def _check_place(key: BranchKey, record: dict[str, Any], row: JournalRow, seq: int, tip: bytes | None) -> None:
    before = None if record["before"] is None else record["before"][1:]
    # guard: journal.sequence
    if row.seq != seq + 1 or before != tip:  # guard: journal.chain
        raise Corrupt(f"journal record {row.seq} does not follow record {seq}")
    # guard: journal.branch
    if (record["owner"], record["workflow"], record["branch"]) != (key.owner, key.workflow, key.branch):
        raise Corrupt(f"journal record {row.seq} belongs to another branch")


def _check_receipt(receipt: Receipt, head: Head, told: Told, report: Report) -> None:
    if receipt.key != head.key:
        report.problems.append("the receipt is for another branch")
    elif (
        told.hashes.get(receipt.journal_seq) != receipt.journal_tip
        or told.moves.get(receipt.manifest) != receipt.version
    ):
        report.problems.append(f"the store does not show version {receipt.version}, for which there is a receipt")
