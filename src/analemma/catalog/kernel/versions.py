"""The rows of versions and of what is said of them: heads, history, journals, tags and pins, what expired. The
table of versions is `manifest`; its rows are written by `commits`. `SqlCatalog` names these functions as its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from analemma.canon.nodes import ID_BYTES, BlockId
from analemma.catalog.engine.db import Statements
from analemma.catalog.port import BranchKey, Head, JournalRow, Pin, Ref, RefKind, Tag, TenantId, Verdict, Version
from analemma.errors import Corrupt

if TYPE_CHECKING:
    from analemma.catalog.sql_catalog import SqlCatalog

NEWEST = (1 << 63) - 1
PAGE = 1000
"""Rows that are read at once by who goes through all of them."""

_new_tuple = tuple.__new__


@dataclass(frozen=True, slots=True)
class BranchStart:
    """How a branch began."""

    first: BlockId
    parent: BlockId | None
    """The version it was forked from, whether or not that is still there."""
    created_at_us: int


class ExpiredRow(NamedTuple):
    """A version that was removed by retention."""

    manifest: BlockId
    key: BranchKey
    version: int
    expired_at_us: int


def head(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> Head | None:
    """Where the branch stands."""
    return read_head(catalog.engine, tenant, key)


def read_head(source: Statements, tenant: TenantId, key: BranchKey) -> Head | None:
    """The same, as a transaction sees it."""
    row = source.one("head", tenant=tenant, owner=key.owner, workflow=key.workflow, branch=key.branch)
    return None if row is None else Head(key, stored_id(row[0], key), *row[1:])


def head_and_pending(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> tuple[Head | None, bool]:
    """The same, and whether deltas are pending there (see `catalog.kernel.pending`); one round trip for both."""
    ((manifest, version, journal_seq, journal_tip, pending),) = catalog.engine.all(
        "head_and_pending", tenant=tenant, owner=key.owner, workflow=key.workflow, branch=key.branch
    )
    head = None if manifest is None else Head(key, stored_id(manifest, key), version, journal_seq, journal_tip)
    return head, bool(pending)


def manifest(catalog: SqlCatalog, tenant: TenantId, manifest: BlockId) -> Version | None:
    """The row of one manifest."""
    return catalog.engine.row(version_of, "manifest", tenant=tenant, id=manifest)


def history(
    catalog: SqlCatalog,
    tenant: TenantId,
    key: BranchKey,
    *,
    before_version: int | None = None,
    execution: str | None = None,
    segment: int | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    decision: Verdict | None = None,
    limit: int = 100,
) -> list[Version]:
    """Newest first, below `before_version`; of one execution or segment, from a time on and before another, with
    this as the newest decision, where these are named."""
    asked: dict[str, Any] = {
        **branch_columns(tenant, key),
        "before_version": NEWEST if before_version is None else before_version,
        "limit": limit,
    }
    statement = "history"
    if any(chosen is not None for chosen in (segment, since_us, until_us, decision)):
        statement = "history_filtered" if decision is None else "history_decided"
        since, until = since_us or 0, NEWEST if until_us is None else until_us
        asked |= {"execution": execution, "segment": segment, "since": since, "until": until}
        asked |= {} if decision is None else {"decision": decision}
    elif execution is not None:
        statement = "history_of_execution"
        asked["execution"] = execution
    rows = catalog.engine.all(statement, **asked)
    # All of one branch: a long log need not make its key again for each row.
    return [_new_tuple(Version, (row[0], key, *row[4:], False)) for row in rows]


def every_version(
    catalog: SqlCatalog, tenant: TenantId, key: BranchKey, decision: Verdict | None = None
) -> Iterator[Version]:
    """The versions of a branch, newest first; of those whose newest decision this is, if one is named."""
    before = None
    while page := history(catalog, tenant, key, before_version=before, decision=decision, limit=PAGE):
        yield from page
        before = page[-1].version


def journal(
    catalog: SqlCatalog, tenant: TenantId, key: BranchKey, *, after_seq: int = 0, limit: int = 1000
) -> list[JournalRow]:
    """Oldest first, above `after_seq`."""
    behind = {"after_seq": after_seq, "limit": limit}
    return catalog.engine.rows(JournalRow, "journal", **branch_columns(tenant, key), **behind)


def last_record(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> JournalRow | None:
    """The end of a branch's journal: of one that was deleted, the tombstone."""
    return catalog.engine.row(JournalRow, "last_record", **branch_columns(tenant, key))


def branch_start(catalog: SqlCatalog, tenant: TenantId, key: BranchKey) -> BranchStart | None:
    """How one branch began."""
    return catalog.engine.row(BranchStart, "branch", **branch_columns(tenant, key))


def refs(
    catalog: SqlCatalog,
    tenant: TenantId,
    owner: str,
    workflow: str,
    *,
    kind: RefKind | None = None,
    name: str | None = None,
) -> list[Ref]:
    """A workflow's tags and pins, oldest first; of one kind or of one name, where these are named."""
    return catalog.engine.rows(_ref, "refs", tenant=tenant, owner=owner, workflow=workflow, kind=kind, name=name)


def _ref(kind: RefKind, name: str, owner: str, workflow: str, branch: str, manifest: bytes, *rest: Any) -> Ref:
    return (Tag if kind == "tag" else Pin)(name, BranchKey(owner, workflow, branch), BlockId(manifest), *rest)


def expired(catalog: SqlCatalog, tenant: TenantId, manifest: BlockId) -> ExpiredRow | None:
    """What is known of a version that expired."""
    return catalog.engine.row(expired_row, "expired", tenant=tenant, manifest=manifest)


def expired_version(catalog: SqlCatalog, tenant: TenantId, key: BranchKey, version: int) -> ExpiredRow | None:
    """The same, by its number."""
    return catalog.engine.row(expired_row, "expired_version", **branch_columns(tenant, key), version=version)


def expired_row(manifest: bytes, owner: str, workflow: str, branch: str, version: int, at_us: int) -> ExpiredRow:
    """What a row of such a version says."""
    return ExpiredRow(BlockId(manifest), BranchKey(owner, workflow, branch), version, at_us)


def version_of(manifest: bytes, owner: str, workflow: str, branch: str, *rest: Any) -> Version:
    """What a row of a version says."""
    key = BranchKey(owner, workflow, branch)
    return Version(stored_id(manifest, key), key, *rest)


def branch_columns(tenant: TenantId, key: BranchKey) -> dict[str, Any]:
    """What names a branch in every statement."""
    return {"tenant": tenant, "owner": key.owner, "workflow": key.workflow, "branch": key.branch}


def stored_id(data: bytes, branch: tuple[str, str, str]) -> BlockId:
    """The id of a version in a row of this branch; Corrupt if it is none, so that nobody goes on with it."""
    if len(data) != ID_BYTES:
        raise Corrupt(
            "a row of {}/{}@{} has an id of {} bytes instead of {}".format(*branch, len(data), ID_BYTES),
            hint="run verify, and restore the catalog from a backup",
        )
    return BlockId(data)
