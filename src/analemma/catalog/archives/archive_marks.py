"""What the collector of archives asks of a catalog: a tenant's lease with its fence, one snapshot of what is protected,
marks on what is nobody's, and claims. Units are named as they lie in the object store, `workspace/op_id/`, and streams
of them come in that order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from analemma.catalog.archives.workspaces import AppearedMeanwhile, SqlWorkspaces
from analemma.catalog.engine.db import Statements, Transaction
from analemma.catalog.leases import Lease, database_clock
from analemma.catalog.port import TenantId
from analemma.failpoints import declare, hit

AFTER_LEASE = declare("archive_gc.after_lease", "a pass over archives has its number, and nothing is listed")
AFTER_MARK = declare("archive_gc.after_mark", "a batch of archives is marked as nobody's")
BEFORE_CLAIM = declare("archive_gc.before_claim", "a batch of archives is claimed inside a transaction")
AFTER_CLAIM = declare("archive_gc.after_claim", "a batch of archives is claimed, and its objects are there")

PAGE = 2000
CLAIM_TRIES = 3
MOST_UNLISTED = 10_000
"""So many of them in a pass: it is one transaction."""


class Protected(NamedTuple):
    """A unit that a workspace needs."""

    unit: str
    kept: bool
    """It is what the workspace has, not only what it is about to have."""
    updated_at_us: int
    """When its workspace was last changed."""


class Mark(NamedTuple):
    """A unit that a pass found to be nobody's, and when the first one did."""

    unit: str
    first_orphan_detected_us: int
    number: int
    """Of that pass."""


class ArchiveSnapshot:
    """A tenant's workspaces and marks at one moment. What it hands out is read while that is used."""

    def __init__(self, tx: Statements, tenant: TenantId) -> None:
        self.now_us = database_clock(tx)
        self.lease = ArchivePass.look(tx, tenant=tenant)
        self._tx = tx
        self._tenant = tenant

    def protected(self) -> Iterator[Protected]:
        """Every unit that a workspace which is not deleted has or is about to have, in order."""
        return protected_units(self._tx, self._tenant)

    def protected_workspaces(self) -> int:
        """How many workspaces these are of."""
        return int(self._tx.value("protected_count", tenant=self._tenant))

    def marks(self) -> Iterator[Mark]:
        """Every mark, in order."""
        for page in self._tx.pages("archive_marks", {"after": ""}, limit=PAGE, tenant=self._tenant):
            yield from itertools.starmap(Mark, page)

    def known(self, units: Sequence[str]) -> set[str]:
        """Those of these units that this catalog has ever heard of."""
        return self._those("known_units", units)

    def kept(self, units: Sequence[str]) -> set[str]:
        """Those of these units that are there according to their rows, and that nobody needs."""
        return self._those("kept_for_nobody", units)

    def _those(self, statement: str, units: Sequence[str]) -> set[str]:
        rows = self._tx.all(statement, tenant=self._tenant, units=[unit.split("/")[:2] for unit in units])
        return {f"{workspace}/{op_id}/" for workspace, op_id in rows}


class ArchivePass(Lease):
    """One pass over a tenant's archives, which alone writes marks and claims: in transactions under its lease."""

    kind = "archive_gc"
    doing = "collecting archives"
    after_take = AFTER_LEASE

    def mark(self, units: Sequence[str]) -> int:
        """Write down that these are nobody's, where nothing says so yet; how many."""
        return self._mark("add_archive_marks", units=units)

    def mark_unlisted(self) -> int:
        """Mark units that are there according to their rows, that nobody needs, and that have no mark; how many. After
        all that was listed was marked, these are not in the object store."""
        return self._mark("add_unlisted_marks", limit=MOST_UNLISTED)

    def _mark(self, statement: str, **which: Any) -> int:
        count = self.act(
            lambda tx: tx.execute(statement, **self._key, now=self._clock(tx), number=self.number, **which)
        )
        hit(AFTER_MARK)
        return count

    def clear(self, units: Sequence[str]) -> int:
        """Take the marks from these; how many had one."""
        return self.execute("drop_archive_marks", **self._key, units=units)

    def claim(
        self, workspaces: SqlWorkspaces, units: Sequence[str], delay_us: int, *, unknown: bool = False
    ) -> list[str]:
        """Make those of the units the collector's, durably, that are nobody's under their workspaces' row locks, and
        whose mark is old enough: the exact check before anything is deleted. Unless `unknown`, only of those that
        the catalog knows."""

        def move(tx: Transaction) -> list[str]:
            tenant, since = self._key["tenant"], self._clock(tx) - delay_us
            claimed = []
            for (unit,) in tx.all("due_archive_marks", tenant=tenant, units=units, since=since, number=self.number):
                workspace, op_id, _ = unit.split("/")
                known = unknown or workspaces.unit(workspace, op_id, within=tx) is not None
                if known and workspaces.claim_unit(tx, workspace, op_id, deleted_before_us=since):
                    claimed.append(unit)
            hit(BEFORE_CLAIM)
            return claimed

        for attempt in range(CLAIM_TRIES):
            try:
                claimed = self.act(move, durable=True)
                break
            except AppearedMeanwhile:
                if attempt == CLAIM_TRIES - 1:
                    raise
        hit(AFTER_CLAIM)
        return claimed

    def finish(self, needed: int | None) -> None:
        """Give the lease back if it is still ours; with how many units were needed, if the pass went through."""
        self._engine.write(lambda tx: tx.execute("archive_gc_finish", **self._key, needed=needed, number=self.number))


def protected_units(source: Statements, tenant: TenantId, *, since_us: int = 0) -> Iterator[Protected]:
    """What workspaces need now that were changed since then."""
    for page in source.pages("protected_units", {"after": ""}, limit=PAGE, tenant=tenant, since=since_us):
        for folder, op_id, archive_op, updated_at in page:
            units = [Protected(f"{folder}{op}/", op == archive_op, updated_at) for op in {op_id, archive_op} - {None}]
            yield from sorted(units, key=lambda each: each.unit)
