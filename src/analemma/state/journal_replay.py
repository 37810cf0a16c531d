"""What a branch's journal says of it, replayed from the beginning: the rows that there must be, and those that the
catalog shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from analemma.canon.identity import BlockId
from analemma.catalog.port import BranchKey, BranchStart, Pin, Tag, TenantId, Verdict, Version
from analemma.state.records import DECIDED, EXPIRED, PINNED, TAGGED, UNPINNED, UNTAGGED

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

PAGE = 1000
NEWEST = (1 << 62) - 1

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

    def add(self, key: BranchKey, record: dict[str, Any], manifest: BlockId | None) -> None:
        """Take the next record in; KeyError, TypeError or ValueError if it does not say what its kind should."""
        kind, facts, at_us = record["kind"], record["facts"], record["at"]
        if record["seq"] == 1 and manifest is not None:
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
        rows |= {Place("decision", row.id): (verdict,) for row in history(seen, tenant, key, verdict)}
    after = 0
    while page := seen.expired_versions(tenant, key, after_version=after, limit=PAGE):
        rows |= {Place("expired", row.manifest): (row.key, row.version, row.expired_at_us) for row in page}
        after = page[-1].version
    start = seen.branch_start(tenant, key)
    if start is not None:
        rows[Place("start", start.first)] = (start,)
    return rows


def differences(summary: JournalSummary, shown: Rows) -> Iterator[tuple[Place, str]]:
    """Each row that is not as the journal says, and what is wrong with it."""
    expected = summary.expected()
    for place in {**expected, **shown}:
        said, found = expected.get(place), shown.get(place)
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


def history(seen: SqlCatalog, tenant: TenantId, key: BranchKey, decision: Verdict | None = None) -> Iterator[Version]:
    """The versions of a branch, newest first, read by the page."""
    before = NEWEST
    while page := seen.history(tenant, key, before_version=before, decision=decision, limit=PAGE):
        yield from page
        before = page[-1].version


def _id(text: str | None) -> BlockId | None:
    return None if text is None else BlockId(bytes.fromhex(text))
