"""Checking that a branch is what it claims to be: its journal, its head, its manifests, and every block below them.

`Verifier` checks; a `JournalSummary` is what a journal, replayed from the beginning, comes to: the rows that there must
be.

Nothing here trusts a cache, a column, a link or a name: bytes are read from the store and hashed, columns are compared
with the bytes they repeat and links with the blocks that they lead to, and the journal says which rows there must be.
Whoever can rewrite the journal's end and the head together can still make a branch forget its newest versions; only
something kept elsewhere, a receipt, shows that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from analemma.blocks.store import BlockStore
from analemma.canon.identity import BlockId
from analemma.canon.nodes import block_links, wire_links
from analemma.canon.trees import Promises, Trees
from analemma.canon.types import standard_registry
from analemma.catalog.kernel.versions import BranchStart, NamedVersion
from analemma.catalog.port import BranchKey, Head, JournalRow, Pin, Tag, TenantId, UploadId, Verdict, Version
from analemma.errors import AnalemmaError, Corrupt
from analemma.state.records import (
    DECIDED,
    DELETED,
    EXPIRED,
    PINNED,
    RESTORED,
    TAGGED,
    UNPINNED,
    UNTAGGED,
    Manifest,
    Receipt,
    decode_manifest,
    manifest_links,
    read_record,
)

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

PAGE = 1000
BATCH = 500


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

    def add(self, other: Report) -> None:
        """Take in what was found below rows."""
        self.blocks += other.blocks
        self.manifests += other.manifests
        self.problems += other.problems


class Verifier:
    """Verifies one tenant's branches and versions; a block that several share is hashed once."""

    def __init__(self, catalog: SqlCatalog, tenant: TenantId, blocks: BlockStore) -> None:
        self._catalog = catalog
        self._tenant = tenant
        self._blocks = blocks
        self._seen: set[BlockId] = set()
        self._uploads: set[UploadId] = set()
        self._promises = Promises()

    def branch(self, key: BranchKey, expect: Receipt | None = None) -> Report:
        """Check the journal from its beginning, the head, every row that repeats the journal, and every version that is
        still there, down to the last block."""
        report = Report()
        with self._catalog.snapshot() as seen:
            head = seen.head(self._tenant, key)
            if head is None:
                report.problems.append(f"the branch {key.owner}/{key.workflow}/{key.branch} has no head")
                return report
            versions = list(seen.every_version(self._tenant, key))
            self._rows(seen, head, versions, expect, report)
            # What rows name as checkpoints: they keep versions that may have expired, and those of a thread that was
            # copied, so that no journal of this branch tells of them.
            named = list(seen.named_versions(self._tenant, key))
        report.add(self._versions(key, versions, named))
        return report

    def version(self, manifest: BlockId, *, beside: Sequence[BlockId] | None = None) -> Report:
        """Check one version: its manifest and columns, and every block it keeps alive. With `beside`, the roots of
        another version, only its own roots and what the other does not share."""
        report = Report()
        row = self._catalog.manifest(self._tenant, manifest)
        if row is None:
            report.problems.append(f"there is no manifest {manifest.hex()}")
            return report
        # One of a deleted branch that others were forked from.
        row = row._replace(key=row.key._replace(owner=row.owner_id))
        links = self._manifests([row], row.key, report)
        if beside is None:
            self._trees(links, report)
        else:
            self._difference(links, beside, report)
        return report

    def _rows(
        self, seen: SqlCatalog, head: Head, versions: list[Version], expect: Receipt | None, report: Report
    ) -> None:
        """Replay the journal, and compare what it comes to with the rows that there are."""
        key, problems = head.key, report.problems
        summary = self._replay(seen, head, report, wanted=0 if expect is None else expect.journal_seq)
        if expect is not None:
            _check_receipt(expect, head, summary, report)
        if summary.last is None or (summary.last, summary.moves[summary.last]) != (head.manifest, head.version):
            problems.append("the head is not where the journal last moved it")
        numbers = {row.id: row.version for row in versions}
        if numbers.get(head.manifest) != head.version:
            problems.append(f"the head names version {head.version}, and another manifest than that version has")
        if seen.workflow(self._tenant, key.owner, key.workflow) is None:
            problems.append("the workflow is not among the workflows")
        start = summary.start
        if start is None:
            problems.append("the journal does not begin with a version")
        elif start.parent is None:
            parents = [row.parent for row in versions if row.id == start.first]
            summary.start = replace(start, parent=parents[0] if parents else None)
        shown = shown_rows(seen, self._tenant, key, versions, summary)
        if any(place.kind == "tag" and place not in shown for place in summary.expected()):
            self._add_other_branches(seen, key, summary)
        # Of a journal that was read only in part, only its versions are known.
        found = differences(summary, shown)
        problems += [problem for place, problem in found if summary.whole or place.kind == "version"]
        if summary.whole:
            problems += misplaced_marks(seen, self._tenant, key)

    def _replay(self, seen: SqlCatalog, head: Head, report: Report, wanted: int = 0) -> JournalSummary:
        """What the records of a branch say, from the beginning up to its head's tip."""
        summary = JournalSummary()
        seq, tip = 0, None
        for row in self._records(seen, head.key):
            if seq == head.journal_seq:
                report.problems.append(f"journal record {row.seq} is behind the last one that the head knows")
                break
            report.records += 1
            try:
                record = read_record(row)
                _check_place(head.key, record, row, seq, tip)
                summary.add(head.key, record, row.manifest)
            except Corrupt as exc:
                summary.whole = False
                report.problems.append(str(exc))
                return summary
            except (KeyError, TypeError, ValueError) as exc:
                summary.whole = False
                report.problems.append(f"journal record {row.seq} does not say what it should: {exc!r}")
                return summary
            seq, tip = row.seq, row.hash
            if seq == wanted:
                summary.tip = tip
        if (seq, tip) != (head.journal_seq, head.journal_tip):
            summary.whole = False
            report.problems.append(f"the journal ends at record {seq}, the head says {head.journal_seq}")
        return summary

    def _records(self, seen: SqlCatalog, key: BranchKey) -> Iterator[JournalRow]:
        after = 0
        while page := seen.journal(self._tenant, key, after_seq=after, limit=PAGE):
            yield from page
            after = page[-1].seq

    def _add_other_branches(self, seen: SqlCatalog, key: BranchKey, summary: JournalSummary) -> None:
        """A tag that moved to another branch is told of in that branch's journal: those are read only if there is a tag
        to look for."""
        for name in seen.journals(self._tenant, key.owner, key.workflow):
            end = seen.last_record(self._tenant, key._replace(branch=name))
            if end is not None and name != key.branch:
                other = Head(key._replace(branch=name), BlockId(end.hash), 0, end.seq, end.hash)
                told = self._replay(seen, other, Report())
                summary.cut = summary.cut or told.cut
                for place, count in told.tag_balance.items():
                    summary.tag_balance[place] += count

    def _versions(self, key: BranchKey, versions: list[Version], named: list[NamedVersion]) -> Report:
        """Check versions and named versions down to the last block."""
        while True:
            report = Report()
            links = self._manifests(versions, key, report)
            self._trees(links, report)
            for begin in range(0, len(named), BATCH):
                self._trees(self._named_page(key, named[begin : begin + BATCH], report), report)
            if report.ok:
                return report
            # Blocks are read after the rows, and may go with a version that expires meanwhile.
            with self._catalog.snapshot() as seen:
                there = {row.id for row in seen.every_version(self._tenant, key)}
                still_named = {(row.name, row.manifest) for row in seen.named_versions(self._tenant, key)}
            left = [row for row in versions if row.id in there]
            left_named = [row for row in named if (row.name, row.manifest) in still_named]
            if (len(left), len(left_named)) == (len(versions), len(named)):
                return report
            versions, named = left, left_named
            self._seen.clear()
            self._uploads.clear()
            self._promises = Promises()

    def _named_page(self, key: BranchKey, page: Sequence[NamedVersion], report: Report) -> list[BlockId]:
        found, problems = self._blocks.audit([*{row.manifest for row in page}], self._uploads, self._promises)
        report.problems += problems
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
        return links

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

    def _manifests(self, rows: Sequence[Version], key: BranchKey, report: Report) -> list[BlockId]:
        """Check manifests against their rows; the blocks they keep alive."""
        report.manifests += len(rows)
        links: list[BlockId] = []
        for start in range(0, len(rows), BATCH):
            batch = rows[start : start + BATCH]
            found, problems = self._blocks.audit([row.id for row in batch], self._uploads, self._promises)
            report.problems += problems
            for row in batch:
                if row.id in found:
                    links += self._manifest(row, key, found[row.id], report)
        return links

    def _manifest(self, row: Version, key: BranchKey, data: bytes, report: Report) -> list[BlockId]:
        try:
            manifest = decode_manifest(row.id, data)
        except AnalemmaError as exc:
            report.problems.append(str(exc))
            return []
        if manifest.row(row.id) != row or manifest.key != key:  # guard: manifest.columns
            report.problems.append(f"the columns of manifest {row.id.hex()} differ from its block")
        for link in (manifest.root, *wire_links(manifest.metadata)):
            try:
                self._promises.expect(link)
            except Corrupt as exc:
                report.problems.append(f"manifest {row.id.hex()}: {exc}")
        return manifest_links(manifest)

    def _trees(self, roots: Iterable[BlockId], report: Report) -> None:
        frontier = [block for block in dict.fromkeys(roots) if block not in self._seen]
        self._seen.update(frontier)
        while frontier:
            batch, frontier = frontier[:BATCH], frontier[BATCH:]
            found, problems = self._blocks.audit(batch, self._uploads, self._promises)
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
            found, problems = self._blocks.audit(blocks[start : start + BATCH], uploads, self._promises)
            report.blocks += len(found)
            report.problems += problems
            for data in found.values():
                links.update(dict.fromkeys(block_links(data)))
        return links


def _check_place(key: BranchKey, record: dict[str, Any], row: JournalRow, seq: int, tip: bytes | None) -> None:
    before = None if record["before"] is None else record["before"][1:]
    if seq == 0 and record["kind"] == DELETED:
        # What was before it is removed with the branch that it tells of.
        seq, before = row.seq - 1, tip
    # guard: journal.sequence
    if row.seq != seq + 1 or before != tip:  # guard: journal.chain
        raise Corrupt(f"journal record {row.seq} does not follow record {seq}")
    # guard: journal.branch
    if (record["owner"], record["workflow"], record["branch"]) != (key.owner, key.workflow, key.branch):
        raise Corrupt(f"journal record {row.seq} belongs to another branch")


def _check_receipt(receipt: Receipt, head: Head, summary: JournalSummary, report: Report) -> None:
    if receipt.key != head.key:
        report.problems.append("the receipt is for another branch")
    elif summary.tombstone is not None and receipt.journal_seq < summary.tombstone:
        report.problems.append(f"version {receipt.version}, for which there is a receipt, was deleted with its branch")
    elif (summary.tip, summary.moves.get(receipt.manifest)) != (receipt.journal_tip, receipt.version):
        report.problems.append(f"the store does not show version {receipt.version}, for which there is a receipt")


TagPlace = tuple[str, BlockId]
"""A tag's name, and a manifest that it is or was on."""


class Place(NamedTuple):
    """What a row is about."""

    kind: Literal["version", "expired", "decision", "pin", "tag", "start"]
    manifest: BlockId
    name: str = ""


Rows = dict[Place, tuple[Any, ...]]
"""Rows that repeat the journal, each with what it says."""


@dataclass(slots=True)
class JournalSummary:
    """What a branch's journal comes to."""

    whole: bool = True
    """False: it was read only up to its first problem."""
    tip: bytes | None = None
    """The hash of the record that was asked for."""
    start: BranchStart | None = None
    moves: dict[BlockId, int] = field(default_factory=dict)
    """Every manifest the head has been moved to, with its version."""
    last: BlockId | None = None
    rows: Rows = field(default_factory=dict)
    """What its records say of tags and pins, also of those that are gone; and decisions and expired versions."""
    tag_balance: dict[TagPlace, int] = field(default_factory=lambda: defaultdict(int))
    """How often a tag was put on a manifest, less how often this journal tells of its leaving.

    A tag that moves to another branch is told of in that branch's journal alone. All journals of the workflow together,
    in whatever order, leave 1 where the tag is and 0 everywhere else; those of other branches can only take away."""

    tombstone: int | None = None
    """The record at which the branch was last deleted, unless it was had back."""
    aside: JournalSummary | None = None
    """What the branch was that is deleted: it may come back."""
    cut: bool = False
    """Whether a journal of the workflow begins with a tombstone: where tags were put since is not known."""

    def add(self, key: BranchKey, record: dict[str, Any], manifest: BlockId | None) -> None:
        """Take the next record in; KeyError, TypeError or ValueError if it does not say what its kind should."""
        kind, facts, at_us = record["kind"], record["facts"], record["at"]
        if kind == DELETED:
            self.cut = self.cut or (record["seq"] > 1 and self.start is None and self.aside is None)
            self._set_aside(record["seq"])
            return
        if kind == RESTORED:
            self._bring_back(record["seq"])
            return
        if self.start is None and manifest is not None:
            self.start = BranchStart(manifest, _id(facts.get("from")), at_us)
        if record["version"] is not None and manifest is not None:
            self.moves[manifest] = record["version"]
            self.last = manifest
        if kind == EXPIRED:
            for gone in [BlockId(bytes.fromhex(each)) for each in facts["manifests"]]:
                self.rows[Place("expired", gone)] = (key, self.moves.get(gone), at_us)
        elif kind in (TAGGED, UNTAGGED, PINNED, UNPINNED, DECIDED):
            if manifest is None:
                raise ValueError(f"a record of kind {kind} is on no version")
            self._mark(key, kind, facts, manifest, at_us)

    def _set_aside(self, seq: int) -> None:
        """From here on nothing of the branch is to be found by its name."""
        gone = JournalSummary(start=self.start, moves=self.moves, last=self.last, rows=self.rows)
        self.start, self.moves, self.last, self.rows = None, {}, None, {}
        self.tombstone, self.aside = seq, gone

    def _bring_back(self, seq: int) -> None:
        gone = self.aside
        if gone is None or gone.start is None or self.tombstone != seq - 1:
            raise ValueError("a branch is restored that was not deleted just before")
        self.start, self.moves, self.last, self.rows = gone.start, gone.moves, gone.last, gone.rows
        self.tombstone = self.aside = None

    def _mark(self, key: BranchKey, kind: str, facts: dict[str, Any], manifest: BlockId, at_us: int) -> None:
        if kind == TAGGED:
            name, left = facts["tag"], _id(facts["moved_from"])
            self.tag_balance[name, manifest] += 1
            self.rows[Place("tag", manifest, name)] = (key, facts["message"], at_us)
            if left is not None:
                self.tag_balance[name, left] -= 1
        elif kind == UNTAGGED:
            self.tag_balance[facts["tag"], manifest] -= 1
        elif kind == PINNED:
            self.rows[Place("pin", manifest)] = (key, facts["reason"], at_us)
        elif kind == UNPINNED:
            self.rows.pop(Place("pin", manifest), None)
        else:
            self.rows[Place("decision", manifest)] = (facts["decision"],)

    def expected(self) -> Rows:
        """The rows that there should be."""
        rows = {
            place: said
            for place, said in self.rows.items()
            if (place.kind not in ("tag", "pin") or place.manifest in self.moves)
            and (place.kind != "tag" or self.tag_balance[place.name, place.manifest] > 0)
            and not (place.kind == "decision" and self._is_gone(place.manifest))
        }
        live = {manifest: number for manifest, number in self.moves.items() if not self._is_gone(manifest)}
        rows |= {Place("version", manifest): (number,) for manifest, number in live.items()}
        if self.start is not None:
            rows[Place("start", self.start.first)] = (self.start,)
        return rows

    def _is_gone(self, manifest: BlockId) -> bool:
        return Place("expired", manifest) in self.rows


def shown_rows(
    seen: SqlCatalog, tenant: TenantId, key: BranchKey, versions: list[Version], summary: JournalSummary
) -> Rows:
    """The rows that say something of a branch."""
    rows: Rows = {Place("version", row.id): (row.version,) for row in versions}
    for ref in seen.refs(tenant, key.owner, key.workflow):
        if ref.manifest in summary.moves or ref.key == key:
            # A pin is named by its version, so of one that is, the name says nothing.
            name = "" if isinstance(ref, Pin) and ref.name == ref.manifest_id else ref.name
            rows[Place("tag" if isinstance(ref, Tag) else "pin", ref.manifest, name)] = (
                ref.key,
                ref.text,
                ref.created_at_us,
            )
    for verdict in get_args(Verdict):
        rows |= {Place("decision", row.id): (verdict,) for row in seen.every_version(tenant, key, verdict)}
    for row in seen.expired_versions(tenant, key):
        rows[Place("expired", row.manifest)] = (row.key, row.version, row.expired_at_us)
    start = seen.branch_start(tenant, key)
    if start is not None:
        rows[Place("start", start.first)] = (start,)
    return rows


def differences(summary: JournalSummary, shown: Rows) -> Iterator[tuple[Place, str]]:
    """Each row that is not as the journal says, and what is wrong with it."""
    expected = summary.expected()
    for place in {**expected, **shown}:
        said, found = expected.get(place), shown.get(place)
        if place.kind == "tag" and found is None and summary.cut:
            continue
        # What was decided on a version is found with the version: that it is missing is said once.
        if said != found and (place.kind != "decision" or place._replace(kind="version") in shown):
            yield place, _difference(place, said, found, summary)


def _difference(
    place: Place, said: tuple[Any, ...] | None, found: tuple[Any, ...] | None, summary: JournalSummary
) -> str:
    number = summary.moves.get(place.manifest)
    version = f"manifest {place.manifest.hex()}" if number is None else f"version {number}"
    match place.kind:
        case "version" if found is None:
            return f"{version} is gone, and the journal does not say why"
        case "version" if Place("expired", place.manifest) in summary.rows:
            return f"{version} expired, and yet is there"
        case "version":
            return f"the journal knows nothing of version {found and found[0]}"
        case "expired" if said is None:
            return f"the journal does not say that version {found and found[1]} expired"
        case "expired" if number is None:
            return f"{version} expired without having been a version"
        case "expired":
            return f"{version} expired, and its row does not say so"
        case "decision":
            shown, decided = [each[0] if each else None for each in (found, said)]
            return f"{version} is shown as {shown or 'not decided on'}, the journal says {decided or 'nothing'}"
        case "pin":
            return f"the pin of {version} is not as the journal says"
        case "tag" if found is None:
            return f"the tag {place.name} is not on manifest {place.manifest.hex()}, where the journal put it"
        case "tag":
            return f"the tag {place.name} is not as the journal says"
        case _:
            return "the row of the branch is not what the journal says of its beginning"


def misplaced_marks(seen: SqlCatalog, tenant: TenantId, key: BranchKey) -> Iterator[str]:
    """Tags and pins of the workflow that claim another branch than that of the version they are on."""
    for ref in seen.refs(tenant, key.owner, key.workflow):
        if ref.key != key:
            there = seen.manifest(tenant, ref.manifest) or seen.expired(tenant, ref.manifest)
            if there is None or there.key != ref.key:
                name = f"the tag {ref.name}" if isinstance(ref, Tag) else f"the pin of manifest {ref.manifest_id}"
                yield f"{name} is on no version of branch {ref.branch}"


def _id(text: str | None) -> BlockId | None:
    return None if text is None else BlockId(bytes.fromhex(text))
