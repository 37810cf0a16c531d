"""Decisions on versions, and the way back to the newest one that was approved."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, overload

from analemma.canon.identity import parse_block_id
from analemma.catalog.names import check_part
from analemma.catalog.port import JournalRow, Verdict
from analemma.clock import moment
from analemma.errors import Corrupt, Invalid, NotFound
from analemma.state.arguments import branch_key, check_verdict
from analemma.state.kernel_base import MAIN, place
from analemma.state.recording import Note, Recording, check_text
from analemma.state.records import DECIDED, read_record
from analemma.state.time_machine import Rollback, TimeMachine
from analemma.state.versions import Commit, Version, version_of


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
        check_verdict(decision)
        if score is not None:
            _check_score(score)
        check_part(actor, "actor")
        check_text(reason, "reason")
        row = self._row(manifest_id, owner_id)
        facts = {
            "decision": decision,
            "score": None if score is None else float(score),
            "reason": reason,
            "actor": actor,
        }
        note = Note(DECIDED, row.id, facts, "put_decision", {"version": row.version, "decision": decision})
        record = self._record(row.key, lambda _: note)
        assert record is not None
        return _decision(record)

    def decisions(self, manifest_id: str, *, owner_id: str | None = None) -> list[Decision]:
        """Every decision on a version, oldest first; also on one that has expired."""
        manifest = parse_block_id(manifest_id)
        gone = self._catalog.expired(self._tenant, manifest)
        if gone is None or owner_id not in (None, gone.key.owner):
            key = self._row(manifest_id, owner_id).key
        else:
            key = gone.key
        return [_decision(row) for row in self._catalog.decisions(self._tenant, key, manifest)]

    def last_safe_manifest(self, *, workflow_id: str, owner_id: str, branch: str = MAIN) -> Version:
        """The newest version whose newest decision is `approved`; NotFound if there is none. Costs the same however
        many versions and decisions there are."""
        key = branch_key(owner_id, workflow_id, branch)
        with self._catalog.snapshot() as seen:
            rows = seen.history(self._tenant, key, decision="approved", limit=1)
            # The row only finds the version. What counts is the journal's record, whose hash is checked.
            records = seen.decisions(self._tenant, key, rows[0].id) if rows else []
        if not rows:
            self._head(key)
            raise NotFound(f"{place(key)} has no approved version", hint="record a decision with decide()")
        if not records or _decision(records[-1]).decision != "approved":
            raise Corrupt(
                f"version {rows[0].version} of {place(key)} is listed as approved, and its journal says otherwise",
                hint="run verify",
                manifest=rows[0].id.hex(),
            )
        return version_of(rows[0])

    @overload
    def rollback_to_last_safe(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        preview: Literal[False] = False,
        previous_manifest_id: str | None = None,
        deep: bool = False,
    ) -> Commit: ...

    @overload
    def rollback_to_last_safe(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        preview: Literal[True],
        previous_manifest_id: str | None = None,
        deep: bool = False,
    ) -> Rollback: ...

    def rollback_to_last_safe(
        self,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str = MAIN,
        preview: bool = False,
        previous_manifest_id: str | None = None,
        deep: bool = False,
    ) -> Commit | Rollback:
        """Make the newest approved state the newest again, as a new version; with `preview`, only say what that would
        change. `previous_manifest_id` and `deep` as in `rollback_to_version`."""
        safe = self.last_safe_manifest(workflow_id=workflow_id, owner_id=owner_id, branch=branch)
        to_safe = partial(
            self.rollback_to_version,
            workflow_id=workflow_id,
            owner_id=owner_id,
            version=safe.version,
            branch=branch,
            previous_manifest_id=previous_manifest_id,
            deep=deep,
        )
        return to_safe(preview=True) if preview else to_safe()


def _check_score(score: Any) -> None:
    try:
        known = isinstance(score, int | float) and type(score) is not bool and math.isfinite(score)
    except OverflowError:
        known = False
    if not known:
        shown = f" {score}" if type(score) is float else ""
        raise Invalid(f"the score{shown} is not a number that can be kept", hint="leave it out if there is none")


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
