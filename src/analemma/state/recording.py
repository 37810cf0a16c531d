"""Adding to a branch's journal without making a version: what tags, pins, decisions and expiry have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from analemma.canon.identity import BlockId
from analemma.catalog.names import check_texts
from analemma.catalog.port import BranchKey, JournalRow, Noting, RecordRequest
from analemma.clock import attempts
from analemma.errors import Conflict, HeadMoved, Invalid
from analemma.state.kernel_base import KernelBase, place
from analemma.state.records import next_record

TEXT_LIMIT = 10_000
"""Longest message or reason: the journal is kept for ever and read from the beginning."""


@dataclass(frozen=True, slots=True)
class Note:
    """A record that someone would like to be the journal's next, and the change to rows that it tells of."""

    kind: str
    manifest: BlockId | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    procedure: Noting = "append_record"
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the procedure takes, by name."""


class Recording(KernelBase):
    """Writes journal records."""

    def _record(
        self, key: BranchKey, propose: Callable[[int], Note | None], *, again_on_conflict: bool = True
    ) -> JournalRow | None:
        """Append what `propose(now_us)` says, asking again until nobody was faster; None: there is nothing to do.

        A commit on the branch moves the tip under us all the time, and changes nothing that a record says."""
        for _ in attempts(self._clock, f"{place(key)} changes too fast to record anything"):
            # Before what the proposal reads: then the compare-and-set covers that too.
            head = self._head(key)
            now_us = self._clock.now_us()
            note = propose(now_us)
            if note is None:
                return None
            record = next_record(key, head, kind=note.kind, manifest=note.manifest, at_us=now_us, facts=note.facts)
            try:
                self._catalog.append(RecordRequest(self._tenant, head, record, note.procedure, note.details))
                return record
            except HeadMoved:
                pass
            except Conflict:
                if not again_on_conflict:
                    raise
        raise AssertionError("unreachable")


def check_text(text: str | None, what: str) -> None:
    """Raise Invalid unless every catalog and the journal can hold it."""
    if text is None:
        return
    check_texts((text,))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as exc:
        raise Invalid(f"the {what} is not valid Unicode", hint="remove the lone surrogate") from exc
    if size > TEXT_LIMIT:
        raise Invalid(f"the {what} is {size} bytes long", hint=f"the limit is {TEXT_LIMIT} bytes of UTF-8")
