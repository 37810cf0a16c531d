"""Checking that a branch is what it claims to be: its journal, its head, its manifests, and every block below them.

A `JournalSummary` is what a journal, replayed from the beginning, comes to: the rows that there must be.

Nothing here trusts a cache, a column, a link or a name: bytes are read from the store and hashed, columns are compared
with the bytes they repeat and links with the blocks that they lead to, and the journal says which rows there must be.
Whoever can rewrite the journal's end and the head together can still make a branch forget its newest versions; only
something kept elsewhere, a receipt, shows that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from analemma.blocks.store import BlockStore
from analemma.canon.nodes import BlockId, Promises, wire_links
from analemma.canon.trees import Trees
from analemma.canon.types import standard_registry
from analemma.catalog.kernel.versions import branch_columns
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


class NamedVersion(NamedTuple):
    """A version that a row beside the branch's own names, as a checkpoint of a thread: the row keeps it."""

    name: str
    namespace: str
    parent: str | None
    id: BlockId
    elsewhere: bool
    """Whether a row of another branch gives the same version another name."""
    twice: bool
    """Whether another row of this branch names it."""


Told = Version | NamedVersion
"""A row that tells of a version."""


def verify_branch(
    catalog: SqlCatalog, tenant: TenantId, blocks: BlockStore, key: BranchKey, expect: Receipt | None = None
) -> Report:
    """Check the journal from its beginning, the head, every row that repeats the journal, and every version that is
    still there, down to the last block."""
    report = Report()
    with catalog.snapshot() as seen:
        head = seen.head(tenant, key)
        if head is None:
            report.problems.append(f"the branch {key.owner}/{key.workflow}/{key.branch} has no head")
            return report
        rows = _told(seen, tenant, key)
        _compare_rows(seen, tenant, head, [row for row in rows if isinstance(row, Version)], expect, report)
    while True:
        below = _Blocks(blocks)
        below.check(key, rows)
        if not below.report.ok:
            # Blocks are read after the rows, and may go with a version that expires meanwhile.
            with catalog.snapshot() as seen:
                there = {(row[0], row.id) for row in _told(seen, tenant, key)}
            before, rows = len(rows), [row for row in rows if (row[0], row.id) in there]
            if len(rows) < before:
                continue
        found = below.report
        return Report(found.blocks, found.manifests, report.records, report.problems + found.problems)


def verify_version(
    catalog: SqlCatalog, tenant: TenantId, blocks: BlockStore, manifest: BlockId, *, beside: Sequence[BlockId] = ()
) -> Report:
    """Check one version: its manifest and columns, and every block it keeps alive; of what lies below the roots of
    another version too (`beside`), only its own roots."""
    below, row = _Blocks(blocks), catalog.manifest(tenant, manifest)
    if row is None:
        below.report.problems.append(f"there is no manifest {manifest.hex()}")
    else:
        # One of a deleted branch that others were forked from.
        key = row.key._replace(owner=row.owner_id)
        below.check(key, [row._replace(key=key)], beside=beside)
    return below.report


def _told(seen: SqlCatalog, tenant: TenantId, key: BranchKey) -> list[Told]:
    """The versions of a branch, and what rows name as checkpoints: those keep versions that may have expired, or are
    another thread's that was copied, so that no journal of this branch tells of them."""
    asked = {"tenant": tenant, "owner": key.owner, "thread": key.workflow, "branch": key.branch}
    pages = seen.engine.pages("named_versions", {"after": ""}, **asked, limit=PAGE)
    return [*seen.every_version(tenant, key), *[NamedVersion._make(row) for page in pages for row in page]]


def _compare_rows(
    seen: SqlCatalog, tenant: TenantId, head: Head, versions: list[Version], expect: Receipt | None, report: Report
) -> None:
    """Replay the journal, and compare what it comes to with the rows that there are."""
    key, problems = head.key, report.problems
    summary = _replay(seen, tenant, head, report, wanted=0 if expect is None else expect.journal_seq)
    if expect is not None:
        _check_receipt(expect, head, summary, report)
    if next(reversed(summary.moves.items()), None) != (head.manifest, head.version):
        problems.append("the head is not where the journal last moved it")
    numbers = {row.id: row.version for row in versions}
    if numbers.get(head.manifest) != head.version:
        problems.append(f"the head names version {head.version}, and another manifest than that version has")
    if seen.engine.one("workflow", tenant=tenant, owner=key.owner, workflow=key.workflow) is None:
        problems.append("the workflow is not among the workflows")
    if START not in summary.rows:
        problems.append("the journal does not begin with a version")
    else:
        first, parent, at_us = summary.rows[START]
        parents = [parent] if parent is not None else [row.parent for row in versions if row.id == first]
        summary.rows[START] = (first, parents[0] if parents else None, at_us)
    shown = _shown_rows(seen, tenant, key, versions, summary)
    if any(place.kind == "tag" and place not in shown for place in summary.expected()):
        # A tag that moved to another branch is told of in that branch's journal: those are read only if there is a tag
        # to look for.
        for (name,) in seen.engine.all("journals", tenant=tenant, owner=key.owner, workflow=key.workflow):
            other = key._replace(branch=name)
            end = seen.last_record(tenant, other)
            if end is not None and other != key:
                told = _replay(seen, tenant, Head(other, BlockId(end.hash), 0, end.seq, end.hash), Report())
                summary.cut = summary.cut or told.cut
                for tagged, balance in told.tag_balance.items():
                    summary.tag_balance[tagged] += balance
    # Of a journal that was read only in part, only its versions are known.
    found = _differences(summary, shown)
    problems += [problem for place, problem in found if summary.whole or place.kind == "version"]


def _replay(seen: SqlCatalog, tenant: TenantId, head: Head, report: Report, wanted: int = 0) -> JournalSummary:
    """What the records of a branch say, from the beginning up to its head's tip."""
    summary = JournalSummary()
    seq, tip = 0, None
    pages = seen.engine.pages("journal", {"after_seq": 0}, **branch_columns(tenant, head.key), limit=PAGE)
    for row in (JournalRow(*row) for page in pages for row in page):
        if seq == head.journal_seq:
            report.problems.append(f"journal record {row.seq} is behind the last one that the head knows")
            break
        report.records += 1
        try:
            record = read_record(row)
            _check_place(head.key, record, row, seq, tip)
            summary.add(head.key, record, row.manifest)
        except (Corrupt, KeyError, TypeError, ValueError) as exc:
            summary.whole = False
            nonsense = f"journal record {row.seq} does not say what it should: {exc!r}"
            report.problems.append(str(exc) if isinstance(exc, Corrupt) else nonsense)
            return summary
        seq, tip = row.seq, row.hash
        if seq == wanted:
            summary.tip = tip
    if (seq, tip) != (head.journal_seq, head.journal_tip):
        summary.whole = False
        report.problems.append(f"the journal ends at record {seq}, the head says {head.journal_seq}")
    return summary


class _Blocks:
    """Checks versions down to the last block; one that several share is hashed once."""

    def __init__(self, blocks: BlockStore) -> None:
        self.report = Report()
        self._blocks = blocks
        self._seen: set[BlockId] = set()
        self._uploads: set[UploadId] = set()
        self._promises = Promises()

    def check(self, key: BranchKey, rows: Sequence[Told], *, beside: Sequence[BlockId] = ()) -> None:
        """Check versions against the rows of a branch that tell of them, and what they keep alive."""
        self.report.manifests += sum(isinstance(row, Version) for row in rows)
        told: dict[BlockId, list[Told]] = {}
        for row in rows:
            told.setdefault(row.id, []).append(row)
        ids = list(told)
        for start in range(0, len(ids), BATCH):
            found = self._manifests(ids[start : start + BATCH])
            for block, manifest in found.items():
                wrong = [self._wrong(key, row, manifest) for row in told[block]]
                self.report.problems += [problem for problem in wrong if problem is not None]
            self._trees(found.values(), beside)

    def _wrong(self, key: BranchKey, row: Told, manifest: Manifest) -> str | None:
        """What is wrong with what a row says of a version."""
        if isinstance(row, Version):
            if manifest.row(row.id) != row or manifest.key != key:  # guard: manifest.columns
                return f"the columns of manifest {row.id.hex()} differ from its block"
            return None
        try:
            if self._is_named(key, row, manifest):
                return None
        except AnalemmaError as exc:
            return f"checkpoint {row.name} cannot be read: {exc}"
        return f"checkpoint {row.name} names the version of another, {row.id.hex()}"

    def _is_named(self, key: BranchKey, row: NamedVersion, manifest: Manifest) -> bool:
        """Whether a version can be the checkpoint that a row says it is. A thread that was copied names versions of
        another by the same names; what stands in a version beside its values is the same everywhere."""
        if row.twice or manifest.key != (key if row.elsewhere else key._replace(workflow=manifest.key.workflow)):
            return False
        trees = Trees(self._blocks.read_uncached, standard_registry())
        said = trees.get_many(manifest.root.id, [("namespace",), ("parent",)])
        return said == {("namespace",): row.namespace, ("parent",): row.parent}

    def _manifests(self, ids: Sequence[BlockId]) -> dict[BlockId, Manifest]:
        """Those of these manifests that can be read."""
        manifests: dict[BlockId, Manifest] = {}
        bodies, problems = self._blocks.audit(ids, self._uploads, self._promises)
        self.report.problems += problems
        for block, body in bodies.items():
            try:
                found = manifests[block] = decode_manifest(block, body.data)
                for link in (found.root, *wire_links(found.metadata)):
                    self._promises.expect(link)
            except AnalemmaError as exc:
                self.report.problems.append(f"manifest {block.hex()}: {exc}")
        return manifests

    def _trees(self, manifests: Iterable[Manifest], beside: Sequence[BlockId] = ()) -> None:
        """Check the blocks that manifests keep alive, but for what lies below others too. Both are gone down together,
        level by level, so that what they share is left out unread; others that cannot be read share nothing."""
        roots = dict.fromkeys(block for manifest in manifests for block in manifest_links(manifest))
        known = set(beside)
        self._below([block for block in roots if block in known])
        here = [block for block in roots if block not in known and block not in self._seen]
        there = [block for block in beside if block not in roots]
        while here:
            self._seen.update(here)
            lower = self._below(here)
            others = self._below(there, told=False)
            known.update(others)
            here = [block for block in lower if block not in known and block not in self._seen]
            there = [block for block in others if block not in lower]

    def _below(self, blocks: Sequence[BlockId], *, told: bool = True) -> dict[BlockId, None]:
        """What these blocks lead to, as far as they can be read."""
        links: dict[BlockId, None] = {}
        for start in range(0, len(blocks), BATCH):
            uploads = self._uploads if told else None
            found, problems = self._blocks.audit(blocks[start : start + BATCH], uploads, self._promises)
            if told:
                self.report.blocks += len(found)
                self.report.problems += problems
            for block in found.values():
                links.update(dict.fromkeys(block.links))
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
    manifest: BlockId = BlockId(b"")
    name: str = ""


START = Place("start")
Rows = dict[Place, tuple[Any, ...]]
"""Rows that repeat the journal, each with what it says."""


@dataclass(slots=True)
class JournalSummary:
    """What a branch's journal comes to."""

    whole: bool = True
    """False: it was read only up to its first problem."""
    tip: bytes | None = None
    """The hash of the record that was asked for."""
    moves: dict[BlockId, int] = field(default_factory=dict)
    """Every manifest the head has been moved to, in that order, with its version."""
    rows: Rows = field(default_factory=dict)
    """The rows that there should be, and those of tags that are gone."""
    tag_balance: dict[TagPlace, int] = field(default_factory=lambda: defaultdict(int))
    """How often a tag was put on a manifest, less how often this journal tells of its leaving.

    A tag that moves to another branch is told of in that branch's journal alone. All journals of the workflow together,
    in whatever order, leave 1 where the tag is and 0 everywhere else; those of other branches can only take away."""

    tombstone: int | None = None
    """The record at which the branch was last deleted, unless it was had back."""
    aside: tuple[dict[BlockId, int], Rows] | None = None
    """What the branch was that is deleted, which may come back: `moves` and `rows`."""
    cut: bool = False
    """Whether a journal of the workflow begins with a tombstone: where tags were put since is not known."""

    def add(self, key: BranchKey, record: dict[str, Any], manifest: BlockId | None) -> None:
        """Take the next record in; KeyError, TypeError or ValueError if it does not say what its kind should."""
        kind, facts, at_us = record["kind"], record["facts"], record["at"]
        if kind == DELETED:
            self.cut = self.cut or (record["seq"] > 1 and START not in self.rows and self.aside is None)
            # From here on nothing of the branch is to be found by its name.
            self.tombstone, self.aside = record["seq"], (self.moves, self.rows)
            self.moves, self.rows = {}, {}
            return
        if kind == RESTORED:
            if self.aside is None or START not in self.aside[1] or self.tombstone != record["seq"] - 1:
                raise ValueError("a branch is restored that was not deleted just before")
            self.moves, self.rows = self.aside
            self.tombstone = self.aside = None
            return
        if START not in self.rows and manifest is not None:
            self.rows[START] = (manifest, _id(facts.get("from")), at_us)
        if record["version"] is not None and manifest is not None:
            self.moves[manifest] = record["version"]
            self.rows[Place("version", manifest)] = (record["version"],)
        if kind == EXPIRED:
            for gone in [BlockId(bytes.fromhex(each)) for each in facts["manifests"]]:
                self.rows.pop(Place("version", gone), None)
                self.rows.pop(Place("decision", gone), None)
                self.rows[Place("expired", gone)] = (key, self.moves.get(gone), at_us)
        elif kind in (TAGGED, UNTAGGED, PINNED, UNPINNED, DECIDED):
            if manifest is None:
                raise ValueError(f"a record of kind {kind} is on no version")
            self._mark(key, kind, facts, manifest, at_us)

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
        return {
            place: said
            for place, said in self.rows.items()
            if (place.kind not in ("tag", "pin") or place.manifest in self.moves)
            and (place.kind != "tag" or self.tag_balance[place.name, place.manifest] > 0)
        }


def _shown_rows(
    seen: SqlCatalog, tenant: TenantId, key: BranchKey, versions: list[Version], summary: JournalSummary
) -> Rows:
    """The rows that say something of a branch."""
    rows: Rows = {Place("version", row.id): (row.version,) for row in versions}
    for ref in seen.refs(tenant, key.owner, key.workflow):
        if ref.manifest not in summary.moves and ref.key != key:
            there = seen.manifest(tenant, ref.manifest)
            if there is not None and there.key == ref.key:
                continue
            # It is on no version of the branch that it claims.
        # A pin is named by its version, so of one that is, the name says nothing.
        name = "" if isinstance(ref, Pin) and ref.name == ref.manifest_id else ref.name
        place = Place("tag" if isinstance(ref, Tag) else "pin", ref.manifest, name)
        rows[place] = (ref.key, ref.text, ref.created_at_us)
    for verdict in get_args(Verdict):
        rows |= {Place("decision", row.id): (verdict,) for row in seen.every_version(tenant, key, verdict)}
    pages = seen.engine.pages("expired_versions", {"after_version": 0}, **branch_columns(tenant, key), limit=PAGE)
    for version, manifest, at_us in (row for page in pages for row in page):
        rows[Place("expired", BlockId(manifest))] = (key, version, at_us)
    start = seen.branch_start(tenant, key)
    if start is not None:
        rows[START] = (start.first, start.parent, start.created_at_us)
    return rows


def _differences(summary: JournalSummary, shown: Rows) -> Iterator[tuple[Place, str]]:
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


def _id(text: str | None) -> BlockId | None:
    return None if text is None else BlockId(bytes.fromhex(text))
