"""Decisions on versions, and the way back to the newest one that was approved."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args, overload

from analemma.canon.identity import parse_block_id
from analemma.catalog.names import check_part
from analemma.catalog.port import JournalRow
from analemma.errors import Invalid, NotFound
from analemma.state.arguments import branch_key
from analemma.state.journal import read_record
from analemma.state.kernel_base import MAIN, place
from analemma.state.recording import Note, Recording, check_text
from analemma.state.time_machine import Rollback, TimeMachine
from analemma.state.versions import Commit, Version, moment, version_of

DECIDED = "decided"
PAGE = 100

Verdict = Literal["approved", "rejected", "escalated", "pending"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What someone decided on a version. The newest decision on a version is the one that counts."""

    manifest_id: str
    decision: Verdict
    score: float | None
    reason: str | None
    actor: str
    decided_at: dt.datetime
    seq: int
    """Its place in the journal of the version's branch."""


class Governance(TimeMachine, Recording):
    """Records decisions; goes back to what was approved."""

    def decide(
        self,
        manifest_id: str,
        decision: Verdict,
        *,
        actor: str,
        score: float | None = None,
        reason: str | None = None,
        owner_id: str | None = None,
    ) -> Decision:
        """Record a decision on a version, in the journal of its branch. Earlier decisions stay on record."""
        if decision not in get_args(Verdict):
            raise Invalid(f"not a decision: {decision!r}", hint=f"use {', '.join(get_args(Verdict))}")
        if score is not None and not math.isfinite(score):
            raise Invalid(f"the score {score} is not a number", hint="leave it out if there is none")
        check_part(actor, "actor")
        check_text(reason, "reason")
        row = self._row(manifest_id, owner_id)
        facts = {
            "decision": decision,
            "score": None if score is None else float(score),
            "reason": reason,
            "actor": actor,
        }
        record = self._record(row.key, lambda _: Note(DECIDED, row.id, facts))
        assert record is not None
        return _decision(record)

    def decisions(self, manifest_id: str, *, owner_id: str | None = None) -> list[Decision]:
        """Every decision on a version, oldest first; also on one that has expired."""
        manifest = parse_block_id(manifest_id)
        gone = self._catalog.expired(self._tenant, manifest)
        if gone is None or owner_id not in (None, gone.key.owner):
            self._row(manifest_id, owner_id)
        return [_decision(row) for row in self._catalog.decisions(self._tenant, manifest)]

    def last_safe_manifest(self, *, workflow_id: str, owner_id: str, branch: str = MAIN) -> Version:
        """The newest version whose newest decision is `approved`; NotFound if there is none. Reads decisions and the
        versions they are on, nothing else."""
        key = branch_key(owner_id, workflow_id, branch)
        self._head(key)
        before: int | None = None
        while page := self._catalog.decided_versions(self._tenant, key, before_version=before, limit=PAGE):
            for row, record in page:
                # The newest decision on a version comes first; older ones on the same version say nothing any more.
                if row.version != before and _decision(record).decision == "approved":
                    return version_of(row)
                before = row.version
        raise NotFound(f"{place(key)} has no approved version", hint="record a decision with decide()")

    @overload
    def rollback_to_last_safe(
        self, *, workflow_id: str, owner_id: str, branch: str = MAIN, preview: Literal[False] = False
    ) -> Commit: ...

    @overload
    def rollback_to_last_safe(
        self, *, workflow_id: str, owner_id: str, branch: str = MAIN, preview: Literal[True]
    ) -> Rollback: ...

    def rollback_to_last_safe(
        self, *, workflow_id: str, owner_id: str, branch: str = MAIN, preview: bool = False
    ) -> Commit | Rollback:
        """Make the newest approved state the newest again, as a new version; with `preview`, only say what that would
        change."""
        safe = self.last_safe_manifest(workflow_id=workflow_id, owner_id=owner_id, branch=branch)
        to_safe = partial(
            self.rollback_to_version,
            workflow_id=workflow_id,
            owner_id=owner_id,
            version=safe.version,
            branch=branch,
        )
        return to_safe(preview=True) if preview else to_safe()


def _decision(row: JournalRow) -> Decision:
    facts: dict[str, Any] = read_record(row)["facts"]
    assert row.manifest is not None
    return Decision(
        manifest_id=row.manifest.hex(),
        decision=facts["decision"],
        score=facts["score"],
        reason=facts["reason"],
        actor=facts["actor"],
        decided_at=moment(row.created_at_us),
        seq=row.seq,
    )
