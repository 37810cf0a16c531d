"""The rows that repeat what a branch's journal says, and whether they do so faithfully.

Rows change in the transaction that writes their record. So a row that no record of the meantime speaks of must agree
with the journal as it stood before; what changed while the rows were read is left out, as newer versions are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

from analemma.canon.identity import BlockId
from analemma.catalog.port import (
    BranchKey,
    BranchStart,
    ExpiredRow,
    Head,
    KernelCatalog,
    ManifestRow,
    PinRow,
    TagRow,
    TenantId,
    Verdict,
)
from analemma.state.telling import Mark, TagPlace, Told

PAGE = 1000
NEWEST = (1 << 62) - 1


@dataclass(frozen=True, slots=True)
class BranchRows:
    """What the catalog shows of a branch."""

    versions: dict[BlockId, ManifestRow]
    start: BranchStart | None
    listed: bool
    """Whether its workflow is."""
    tags: list[TagRow]
    """Those of the whole workflow: a tag's name is unique there."""
    pins: list[PinRow]
    decisions: dict[BlockId, Verdict]
    expired: dict[BlockId, ExpiredRow]


def read_rows(catalog: KernelCatalog, tenant: TenantId, key: BranchKey) -> BranchRows:
    """Every row that says something of this branch."""
    return BranchRows(
        versions={row.id: row for row in _history(catalog, tenant, key, None)},
        start=catalog.branch_start(tenant, key),
        listed=catalog.workflow(tenant, key.owner, key.workflow) is not None,
        tags=catalog.tags(tenant, key.owner, key.workflow),
        pins=catalog.pins(tenant, key.owner, key.workflow),
        decisions={row.id: verdict for verdict in get_args(Verdict) for row in _history(catalog, tenant, key, verdict)},
        expired={row.manifest: row for row in _expired(catalog, tenant, key)},
    )


def compare_versions(head: Head, told: Told, later: Told, rows: BranchRows) -> Iterator[str]:
    """Each way in which the versions that are there are not those that the journal tells of."""
    for manifest, version in told.moves.items():
        if manifest not in rows.versions and manifest not in told.expired and manifest not in later.expired:
            yield f"version {version} is gone, and the journal does not say why"
        if manifest in rows.versions and manifest in told.expired:
            yield f"version {version} expired, and yet is there"
    for row in rows.versions.values():
        if row.id not in later.moves and told.moves.get(row.id) != row.version:
            yield f"the journal knows nothing of version {row.version}"
    newest = rows.versions.get(head.manifest)
    if head.manifest not in later.expired and (newest is None or newest.version != head.version):
        yield f"the head names version {head.version}, and another manifest than that version has"


def compare_rows(key: BranchKey, told: Told, later: Told, rows: BranchRows) -> Iterator[str]:
    """Each way in which rows beside the versions differ from what the journal tells."""
    yield from _compare_start(told, rows)
    yield from _compare_expired(key, told, later, rows)
    yield from _compare_decisions(told, later, rows)
    yield from _compare_pins(key, told, later, rows)
    yield from _compare_tags(key, told, later, rows)


def misplaced_marks(catalog: KernelCatalog, tenant: TenantId, key: BranchKey, rows: BranchRows) -> Iterator[str]:
    """Tags and pins of the workflow that claim another branch than that of the version they are on."""
    marks: list[TagRow | PinRow] = [*rows.tags, *rows.pins]
    for row in marks:
        if row.key == key:
            continue
        there = catalog.manifest(tenant, row.manifest) or catalog.expired(tenant, row.manifest)
        if there is None or there.key != row.key:
            yield f"{_named(row)} is on no version of branch {row.key.branch}"


def absent_tags(told: Told, later: Told, rows: BranchRows) -> dict[TagPlace, int]:
    """Tags that should be on a version of this branch, unless they moved to another branch so many times."""
    there = {(row.name, row.manifest) for row in rows.tags}
    touched = later.touched_tags()
    return {
        place: balance
        for place, balance in told.tag_balance.items()
        if balance > 0 and place[1] in told.moves and place not in there and place[0] not in touched
    }


def _compare_start(told: Told, rows: BranchRows) -> Iterator[str]:
    if not rows.listed:
        yield "the workflow is not among the workflows"
    began = told.beginning
    if began is None or began.manifest is None:
        yield "the journal does not begin with a version"
        return
    first = rows.versions.get(began.manifest)
    parent = began.forked_from if first is None else first.parent
    if rows.start != BranchStart(began.manifest, parent, began.at_us):
        yield "the row of the branch is not what the journal says of its beginning"


def _compare_expired(key: BranchKey, told: Told, later: Told, rows: BranchRows) -> Iterator[str]:
    for manifest, at_us in told.expired.items():
        version = told.moves.get(manifest)
        if version is None:
            yield f"manifest {manifest.hex()} expired without having been a version"
        elif rows.expired.get(manifest) != ExpiredRow(manifest, key, version, at_us):
            yield f"version {version} expired, and its row does not say so"
    for manifest, row in rows.expired.items():
        if manifest not in told.expired and manifest not in later.expired:
            yield f"the journal does not say that version {row.version} expired"


def _compare_decisions(told: Told, later: Told, rows: BranchRows) -> Iterator[str]:
    for manifest in told.decisions.keys() | rows.decisions.keys():
        row = rows.versions.get(manifest)
        if row is None or manifest in later.decisions or manifest in later.expired or manifest in later.moves:
            continue
        said, shown = told.decisions.get(manifest), rows.decisions.get(manifest)
        if said != shown:
            yield f"version {row.version} is shown as {shown or 'not decided on'}, the journal says {said or 'nothing'}"


def _compare_pins(key: BranchKey, told: Told, later: Told, rows: BranchRows) -> Iterator[str]:
    there = {row.manifest: row for row in rows.pins}
    for manifest in there.keys() | told.pins.keys():
        row, mark = there.get(manifest), told.pins.get(manifest)
        ours = manifest in told.moves or (row is not None and row.key == key)
        if not ours or manifest in later.pins or manifest in later.moves:
            continue
        found = None if row is None or row.key != key else Mark(row.reason, row.created_at_us)
        if found != mark:
            shown = f"manifest {manifest.hex()}" if manifest not in told.moves else f"version {told.moves[manifest]}"
            yield f"the pin of {shown} is not as the journal says"


def _compare_tags(key: BranchKey, told: Told, later: Told, rows: BranchRows) -> Iterator[str]:
    touched = later.touched_tags()
    for row in rows.tags:
        ours = row.manifest in told.moves or row.key == key
        if not ours or row.name in touched or row.manifest in later.moves:
            continue
        place = (row.name, row.manifest)
        found = Mark(row.message, row.created_at_us)
        if row.key != key or told.tag_balance.get(place, 0) < 1 or told.tags.get(place) != found:
            yield f"{_named(row)} is not as the journal says"


def _named(row: TagRow | PinRow) -> str:
    return f"the tag {row.name}" if isinstance(row, TagRow) else f"the pin of manifest {row.manifest.hex()}"


def _history(
    catalog: KernelCatalog, tenant: TenantId, key: BranchKey, decision: Verdict | None
) -> Iterator[ManifestRow]:
    before = NEWEST
    while page := catalog.history(tenant, key, before_version=before, decision=decision, limit=PAGE):
        yield from page
        before = page[-1].version


def _expired(catalog: KernelCatalog, tenant: TenantId, key: BranchKey) -> Iterator[ExpiredRow]:
    after = 0
    while page := catalog.expired_versions(tenant, key, after_version=after, limit=PAGE):
        yield from page
        after = page[-1].version
