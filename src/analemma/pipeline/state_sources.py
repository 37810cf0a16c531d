"""State becomes entities: what STATE_SOURCE contracts take of the commits of workflows is ingested, in the order of the
commits, each once.

A commit that a source takes is told to the outbox in its own transaction (`state/events.py`). Whoever handles that
reads the fields of that very version and ingests them; in the same transaction stands how far the source has come."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, Final, Literal

from analemma.canon.canonical_json import canonical_json
from analemma.canon.nodes import BlockId
from analemma.canon.trees import Trees
from analemma.canon.types import standard_registry
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.contracts import FollowedBranch, SourceCount, SourcePosition, SourceProblem
from analemma.catalog.kernel.versions import branch_columns
from analemma.catalog.outbox.lanes import preceded
from analemma.catalog.port import BranchKey
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import StateSource, Taking
from analemma.errors import Conflict, Corrupt, Expired, Invalid, NotFound
from analemma.outbox.handlers import Settle
from analemma.pipeline.ingest import IngestWorkflow
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.state_documents import StateDocument, StateFacts, build_document, needed_paths
from analemma.state.events import POLL_S
from analemma.state.records import Manifest, decode_manifest
from analemma.tracing import span

log = logging.getLogger("analemma.pipeline")

PAGE: Final = 500
REMEMBERED: Final = 4096
"""Branches of which a matcher remembers whether a source takes them."""
MOST_TRIES: Final = 10
SETTLED_S: Final = 2 * POLL_S
"""So long after contracts were loaded, every process that commits goes by them."""
NO_MANIFEST: Final = BlockId(b"")

Outcome = Literal["ingested", "unchanged", "skipped", "refused"]


@dataclass(frozen=True, slots=True)
class TakenState:
    """What a source made of one version of a branch."""

    source: str
    key: BranchKey
    version: int
    """The version of the state."""
    outcome: Outcome
    """`unchanged`: the entity is as it was; `skipped`: somebody else has taken this version, or a newer one."""
    entity: EntityKey | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source, and how it goes."""

    source: str
    """The id of its contract."""
    entity_type: str | None
    """None: it does not apply any more."""
    followed: int
    """Branches of workflows that it has taken something of, or tried to."""
    problems: int
    """How many of these have a newest state that became no entity."""


@dataclass(slots=True)
class SourceBackfill:
    """What became of the states that were there already."""

    matched: int = 0
    """Branches that a source takes, counted once for each source."""
    outcomes: dict[Outcome, int] = field(default_factory=lambda: {"ingested": 0, "unchanged": 0, "refused": 0})
    problems: list[TakenState] = field(default_factory=list)
    """The first of those that were refused."""


class SourceMatcher:
    """Whether some source takes a branch; it remembers what it was asked."""

    def __init__(self, sources: Sequence[StateSource]) -> None:
        self._sources = tuple(sources)
        self._known: dict[tuple[str, BranchKey], bool] = {}

    def __call__(self, tenant: str, key: BranchKey) -> bool:
        asked = tenant, key
        found = self._known.get(asked)
        if found is None:
            found = any(source.takes(tenant, *key) for source in self._sources)
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            self._known[asked] = found
        return found


class _Behind(Conflict):
    """Somebody else has followed the branch at least as far."""


class StateSourceWorkflow:
    """Makes entities of one tenant's states."""

    def __init__(
        self,
        context: Context,
        *,
        contracts: Callable[[], ContractSet],
        loaded_at_us: Callable[[], int],
        ingest: IngestWorkflow,
    ) -> None:
        self._context = context
        self._contracts = contracts
        self._loaded_at_us = loaded_at_us
        self._ingest = ingest
        # A program's own types as they were stored: whoever handles an event makes the same of it, whatever it knows.
        self._trees = Trees(context.blocks.fetch, standard_registry(), "keep")

    def sources(self, key: BranchKey) -> tuple[StateSource, ...]:
        """The sources that take a branch."""
        return tuple(each for each in self._contracts().state_sources() if each.takes(self._context.tenant_name, *key))

    def on_commit(self, key: BranchKey, manifest: BlockId, *, within: Settle | None = None) -> tuple[TakenState, ...]:
        """Ingest what the sources take of a version; of the newest one, if that has expired."""
        with span("analemma.state_source"):
            return self._follow(key, manifest, self.sources(key), again=False, within=within)

    def on_removal(self, key: BranchKey, *, within: Settle | None = None) -> tuple[EntityKey, ...]:
        """A branch is gone: delete its entities, where sources say so."""
        if self._branch(key, NO_MANIFEST) is not None:
            return ()  # Another of its name has begun, and what that one is will be told.
        deleting = {each.id for each in self._contracts().state_sources() if each.deletes}
        positions = list(self._positions(key).values())
        deleted: list[EntityKey] = []
        for number, position in enumerate(positions, 1):
            settle = within if number == len(positions) else None

            def drop(tx: Transaction, at: SourcePosition = position) -> None:
                seen = {"source": at.source, "first": at.first, "version": at.version}
                if tx.execute("drop_source", **self._columns(key), **seen) != 1:
                    raise _Behind("the branch is followed again", branch=key)

            done = preceded(settle, drop)
            try:
                if position.source in deleting and position.entity_type and position.entity_id:
                    entity = EntityKey(position.entity_type, self._context.tenant_name, position.entity_id)
                    self._ingest.delete(entity.type, entity.id, within=done)
                    deleted.append(entity)
                else:
                    self._context.engine.write(done)
            except (_Behind, NotFound):
                pass
        return tuple(deleted)

    def take_head(self, key: BranchKey, source_id: str | None = None) -> tuple[TakenState, ...]:
        """Ingest what the sources, or one of them, take of the newest version of a branch, also if they have taken it
        already: for states that were there before their source."""
        chosen = [each for each in self.sources(key) if source_id in (None, each.id)]
        return self._follow(key, NO_MANIFEST, chosen, again=True, within=None)

    def matching(self, source_id: str | None = None, *, page: int = PAGE) -> Iterator[tuple[BranchKey, int]]:
        """The branches that sources, or one of them, take now, each with how many of them do. In an order that does not
        change, so that it can be gone on with."""
        begun = {"owner": "", "workflow": "", "branch": ""}
        for rows in self._context.engine.pages("heads_after", begun, limit=page, tenant=self._context.tenant):
            yield from self._chosen(list(starmap(BranchKey, rows)), source_id)

    def backfill(
        self,
        source_id: str | None = None,
        *,
        dry_run: bool = False,
        progress: Callable[[SourceBackfill], None] | None = None,
    ) -> SourceBackfill:
        """Ingest the newest states of all branches that sources, or one of them, take; with `dry_run`, count them.

        NotFound if there is no such source. Contracts that were loaded a moment ago are waited for: until every process
        goes by them, a commit may be made that is not told."""
        known = [each.id for each in self._contracts().state_sources()]
        if source_id is not None and source_id not in known:
            hint = f"there are {', '.join(known)}" if known else "load one with `analemma contracts load`"
            raise NotFound(f"there is no ACTIVE state source {source_id!r}", hint=hint, source=source_id)
        if not dry_run:
            self._wait_for_contracts()
        done = SourceBackfill()
        for key, count in self.matching(source_id):
            done.matched += count
            for taken in () if dry_run else self.take_head(key, source_id):
                done.outcomes[taken.outcome] = done.outcomes.get(taken.outcome, 0) + 1
                if taken.problem is not None and len(done.problems) < PAGE:
                    done.problems.append(taken)
            if progress is not None:
                progress(done)
        return done

    def statuses(self) -> list[SourceStatus]:
        """The sources that apply, or that have followed something, by their ids."""
        active = {each.id: each for each in self._contracts().state_sources()}
        rows = self._context.engine.rows(SourceCount, "source_counts", tenant=self._context.tenant)
        counts = {each.source: each for each in rows}
        found = []
        for source_id in sorted({*active, *counts}):
            source, count = active.get(source_id), counts.get(source_id, SourceCount(source_id, 0, 0))
            entity_type = None if source is None else source.entity_type
            found.append(SourceStatus(source_id, entity_type, count.branches, count.problems))
        return found

    def problems(self, source_id: str | None = None, *, limit: int = PAGE) -> list[SourceProblem]:
        """States that became no entity, the first of them in the order of their owners and workflows."""
        if limit < 1:
            raise Invalid(f"a list of {limit} problems", hint="ask for at least one")
        asked = {"tenant": self._context.tenant, "source": source_id, "limit": limit}
        rows = self._context.engine.all("source_problems", **asked)
        return [SourceProblem(BranchKey(*row[:3]), *row[3:]) for row in rows]

    def _columns(self, key: BranchKey) -> dict[str, Any]:
        return branch_columns(self._context.tenant, key)

    def _branch(self, key: BranchKey, manifest: BlockId) -> FollowedBranch | None:
        """Where a branch stands, and which of its versions a manifest is; None if there is no such branch."""
        return self._context.engine.row(FollowedBranch, "followed_branch", **self._columns(key), manifest=manifest)

    def _positions(self, key: BranchKey) -> dict[str, SourcePosition]:
        """How far each source has followed a branch."""
        rows = self._context.engine.rows(SourcePosition, "source_positions", **self._columns(key))
        return {each.source: each for each in rows}

    def _chosen(self, keys: Sequence[BranchKey], source_id: str | None) -> list[tuple[BranchKey, int]]:
        sources = [each for each in self._contracts().state_sources() if source_id in (None, each.id)]
        counted = [(key, sum(each.takes(self._context.tenant_name, *key) for each in sources)) for key in keys]
        return [(key, count) for key, count in counted if count]

    def _wait_for_contracts(self) -> None:
        age_s = (self._context.clock.now_us() - self._loaded_at_us()) / 1_000_000
        if age_s < SETTLED_S:
            self._context.clock.sleep(SETTLED_S - max(age_s, 0.0))

    def _follow(
        self, key: BranchKey, manifest: BlockId, sources: Sequence[StateSource], *, again: bool, within: Settle | None
    ) -> tuple[TakenState, ...]:
        if not sources:
            return ()
        for _ in range(MOST_TRIES):
            branch = self._branch(key, manifest)
            if branch is None:
                return ()  # Removed: that is told after this.
            chosen = branch.head if branch.asked is None else manifest
            version = branch.version if branch.asked is None else branch.asked
            positions = self._positions(key)
            waiting = [each for each in sources if not _is_taken(positions.get(each.id), branch, version, again)]
            try:
                state = self._manifest(key, chosen) if waiting else None
            except Expired:
                continue
            done = [TakenState(each.id, key, version, "skipped") for each in sources if each not in waiting]
            try:
                for number, source in enumerate(waiting, 1):
                    assert state is not None
                    step = _Step(source, key, branch, version, positions.get(source.id), again)
                    done.append(self._take(step, chosen, state, within if number == len(waiting) else None))
            except (Expired, _Behind):
                continue  # Those that are taken are skipped next time.
            return tuple(done)
        raise Conflict(f"versions of {key} expire faster than they are read", hint="keep more of them", branch=key)

    def _take(self, step: _Step, manifest: BlockId, state: Manifest, settle: Settle | None) -> TakenState:
        source, before = step.source, step.before
        try:
            document = self._read(source, manifest, state)
            entity = EntityKey(source.entity_type, self._context.tenant_name, document.entity_id)
        except (Invalid, NotFound) as exc:
            return self._refuse(step, exc, settle)
        taken = hashlib.sha256(canonical_json([source.checksum, document.entity_id, document.taken])).digest()
        if source.when is Taking.CHANGED and not step.again and step.has_taken(taken):
            return TakenState(source.id, step.key, step.version, "unchanged", entity)
        if source.deletes and before is not None and before.became_another(entity.type, entity.id):
            self._delete_former(step.key, before)
        position = SourcePosition(source.id, step.branch.first, step.version, entity.type, entity.id, taken)
        try:
            noted = preceded(settle, lambda tx: self._note(tx, step, position))
            result = self._ingest.execute(entity.type, entity.id, document.payload, within=noted)
        except _Behind:
            return TakenState(source.id, step.key, step.version, "skipped", entity)
        except (Invalid, NotFound) as exc:
            return self._refuse(step, exc, settle)
        return TakenState(source.id, step.key, step.version, "ingested" if result.created else "unchanged", entity)

    def _refuse(self, step: _Step, exc: Invalid | NotFound, settle: Settle | None) -> TakenState:
        """Note why a state became no entity, and go on with the next; or have somebody look."""
        if step.source.stops:
            raise exc if isinstance(exc, Invalid) else Invalid(exc.message, hint=exc.hint) from exc
        before = step.before
        position = SourcePosition(
            step.source.id,
            step.branch.first,
            step.version,
            None if before is None else before.entity_type,
            None if before is None else before.entity_id,
            None if before is None else before.taken,
            exc.message,
        )
        log.warning("%s took no version %d of %s: %s", step.source.id, step.version, "/".join(step.key), exc.message)
        try:
            self._context.engine.write(preceded(settle, lambda tx: self._note(tx, step, position)))
        except _Behind:
            return TakenState(step.source.id, step.key, step.version, "skipped")
        return TakenState(step.source.id, step.key, step.version, "refused", problem=exc.message)

    def _note(self, tx: Transaction, step: _Step, position: SourcePosition) -> None:
        to = {**self._columns(step.key), **position._asdict(), "again": int(step.again)}
        if tx.execute("move_source", **to, now=self._context.clock.now_us()) != 1:
            raise _Behind("somebody else has followed the branch further", branch=step.key)

    def _delete_former(self, key: BranchKey, before: SourcePosition) -> None:
        """The state has become another entity. Done before that is noted: stopped between the two, it is done again.
        Whoever has followed the branch further has seen to it, and it may be that entity again since."""
        assert before.entity_type is not None and before.entity_id is not None

        def hold(tx: Transaction) -> None:
            seen = before._asdict()
            del seen["taken"], seen["problem"]
            if tx.execute("hold_source", **self._columns(key), **seen) != 1:
                raise _Behind("somebody else has followed the branch further", branch=key)

        try:
            self._ingest.delete(before.entity_type, before.entity_id, within=hold)
        except NotFound:
            pass

    def _read(self, source: StateSource, manifest: BlockId, state: Manifest) -> StateDocument:
        schema = self._contracts().schema(source.entity_type)
        paths = needed_paths(source, schema)
        try:
            found = self._trees.get_many(state.root.id, paths)
        except Corrupt as exc:
            self._check_expired(state.key, manifest, exc)
            raise
        key = state.key
        facts = StateFacts(
            self._context.tenant_name,
            key.owner,
            key.workflow,
            key.branch,
            state.version,
            state.execution,
            state.created_at_us,
        )
        return build_document(source, schema, {path: found[path] for path in paths if path in found}, facts)

    def _manifest(self, key: BranchKey, manifest: BlockId) -> Manifest:
        try:
            return decode_manifest(manifest, self._context.blocks.fetch([manifest])[manifest])
        except Corrupt as exc:
            self._check_expired(key, manifest, exc)
            raise

    def _check_expired(self, key: BranchKey, manifest: BlockId, exc: Corrupt) -> None:
        """A block that is gone means damage, unless the version itself went meanwhile."""
        branch = self._branch(key, manifest)
        if exc.facts.get("missing") and (branch is None or branch.asked is None):
            raise Expired(f"manifest {manifest.hex()} has expired", manifest=manifest.hex()) from exc


@dataclass(frozen=True, slots=True)
class _Step:
    """One source on its way to one version of one branch."""

    source: StateSource
    key: BranchKey
    branch: FollowedBranch
    version: int
    before: SourcePosition | None
    again: bool

    def has_taken(self, taken: bytes) -> bool:
        """Whether the entity is what this would make of it."""
        before = self.before
        return (
            before is not None
            and before.first == self.branch.first
            and before.problem is None
            and before.taken == taken
        )


def _is_taken(position: SourcePosition | None, branch: FollowedBranch, version: int, again: bool) -> bool:
    if position is None or position.first != branch.first:
        return False
    return position.version > version or (position.version == version and not again)
