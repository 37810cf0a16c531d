"""What a view answers: data by slice type, and what there is to say about it; and what it does without a slice."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from analemma.contracts.models import MissingPolicy, ViewDefinition
from analemma.errors import Corrupt, NotFound
from analemma.slicing.changes import Document

NOT_BUILT: Final = "NOT_BUILT"
"""Why a slice is missing of which there is not even a tombstone: the ruleset that built the entity has none."""


TOLD_DAMAGED: Final = 10
"""An error names so many damaged entities."""


class MissingSlices(NotFound):
    """The view has no answer without slices that the entity lacks. `missing` has each with its reason."""


@dataclass(frozen=True, slots=True)
class MissingSlice:
    """A slice of the view that the entity does not have."""

    type: str
    required: bool
    reason: str
    """NOT_BUILT, or that of the tombstone in its place."""
    detail: str | None
    defaulted: bool
    """Whether the view's default stands in the data instead."""


@dataclass(frozen=True, slots=True)
class ServedSlice:
    """Which state of a slice was answered."""

    version: str
    """The version that last changed it, which may be older than the answer's."""
    revision: int
    hash: str


@dataclass(frozen=True, slots=True)
class Staleness:
    """What there is beyond the version that was answered."""

    newest_version: str
    """The newest that was ingested."""
    compiled_version: str
    """The newest that was compiled."""
    serving_version: str
    """The one that is answered when none is asked for."""
    ruleset_is_current: bool
    """Whether the ruleset that built it still is the one that applies."""

    @property
    def is_stale(self) -> bool:
        """Whether a newer version was ingested than the one that is served."""
        return self.newest_version > self.serving_version


@dataclass(frozen=True, slots=True)
class ViewMeta:
    """What there is to say about an answer. Versions are text, of 13 characters."""

    view: str
    """The view's id and version."""
    entity_key: str
    version: str
    revision: int
    """How often this version was compiled to something else, from 1: what it joins may change after it."""
    slices: Mapping[str, ServedSlice]
    staleness: Staleness
    missing_slices: tuple[MissingSlice, ...] | None
    """None if the view's responseMeta leaves it out."""
    used_contracts: tuple[str, ...] | None
    """View, schema and ruleset, each with its version; None if the view's responseMeta leaves it out."""


@dataclass(frozen=True, slots=True)
class ViewResponse:
    """The answer of a view for one entity."""

    entity_id: str
    data: Mapping[str, Document]
    """By slice type: required ones first, each list in the view's order."""
    meta: ViewMeta


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An entity for which a view has no answer, and why."""

    entity_id: str
    reason: str
    missing: tuple[MissingSlice, ...] = ()
    """The slices that the view would need; empty if the entity itself is not there."""
    deleted_at: dt.datetime | None = None
    kind: str = NotFound.kind
    """The kind of the error that `get` raises for it: `not_found`, or `corrupt` if what was compiled is damaged."""


@dataclass(frozen=True, slots=True)
class ViewBatch:
    """Answers for many entities, in the order in which they were asked for. Iterating gives the answers."""

    items: tuple[ViewResponse, ...]
    unanswered: tuple[Unanswered, ...]

    def __iter__(self) -> Iterator[ViewResponse]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


@dataclass(frozen=True, slots=True)
class ViewPage(ViewBatch):
    """One page. Its size says nothing about how many there are in all: `count` does."""

    next_cursor: str | None
    """For the next page; None if this was the last."""
    unindexed: int = 0
    """Of a search: how many entities were compiled by rules without this index, and may be missing. A backfill of what
    is stale ends that; 0: the answer is complete."""


class Count(int):
    """How many entities there are; a number."""

    unindexed: int
    """As that of a page."""

    def __new__(cls, value: int, unindexed: int = 0) -> Count:
        made = super().__new__(cls, value)
        made.unindexed = unindexed
        return made


class Damage:
    """The damaged entities that pages of a view had."""

    def __init__(self, view: str) -> None:
        self._view = view
        self._first: list[str] = []
        self._count = 0

    def add(self, page: ViewBatch) -> None:
        """Those of one more page."""
        found = [each.entity_id for each in page.unanswered if each.kind == Corrupt.kind]
        self._count += len(found)
        self._first += found[: TOLD_DAMAGED - len(self._first)]

    def check(self) -> None:
        """Raise Corrupt, naming them, if there are any."""
        if self._count:
            more = f" and {self._count - len(self._first)} more" if self._count > len(self._first) else ""
            raise Corrupt(
                f"what {self._view} answers of {', '.join(self._first)}{more} is damaged; all others were given",
                hint="`analemma backfill run` makes it again from the raw documents",
                entities=tuple(self._first),
                count=self._count,
            )


def choose_slices(
    view: ViewDefinition, found: Mapping[str, Document], absent: Mapping[str, tuple[str, str | None]], entity: str
) -> tuple[dict[str, Document], tuple[MissingSlice, ...]]:
    """The data of an answer, and what is missing in it; MissingSlices if the view's policy refuses such an answer.

    `absent` has reason and detail of those that have a tombstone. What has a default counts as there."""
    data: dict[str, Document] = {}
    missing: list[MissingSlice] = []
    defaults = view.defaults or {}
    for required, types in ((True, view.required_slices), (False, view.optional_slices)):
        for slice_type in types:
            if slice_type in found:
                data[slice_type] = found[slice_type]
                continue
            reason, detail = absent.get(slice_type, (NOT_BUILT, None))
            missing.append(MissingSlice(slice_type, required, reason, detail, slice_type in defaults))
            if slice_type in defaults:
                # The contract stays as it is, whatever callers do with their answers.
                data[slice_type] = copy.deepcopy(defaults[slice_type])
    refused = [each for each in missing if not each.defaulted and not may_be_missing(view, required=each.required)]
    if refused:
        raise MissingSlices(
            f"{view.id} has no answer for {entity}: it lacks {_shown(refused)}",
            hint="ingest what is missing, or let the view's policy allow it",
            missing=refused,
        )
    return data, tuple(missing)


def may_be_missing(view: ViewDefinition, *, required: bool) -> bool:
    """Whether a view answers without a slice for which it has no default."""
    policy = view.partial_policy
    if not required:
        return policy.allowed
    return policy.allowed and not policy.optional_only and view.missing_policy is MissingPolicy.PARTIAL_ALLOWED


def _shown(missing: Sequence[MissingSlice]) -> str:
    return ", ".join(f"{each.type} ({each.detail or each.reason})" for each in missing)
