"""Slicing: a version of an entity is compiled to slices and index entries, in full or from what it was before.

What a compile is made of is read first, without locks, and evaluated; then one transaction checks that none of it has
changed and writes everything, or the compile begins anew."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from analemma.blocks.store import Carried
from analemma.catalog.engine.db import Transaction
from analemma.catalog.entities.backfills import StoredEntry
from analemma.catalog.entities.deploys import HeldEntity
from analemma.catalog.entities.entities import EntityPlace, add_placeholders, find_entity
from analemma.catalog.entities.slices import CompileStart, CompileWrite, compile_starts, write_compile
from analemma.catalog.outbox.lanes import LaneKey, preceded
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import ContractRef, EntitySchema, Ruleset
from analemma.contracts.semver import parse_semver
from analemma.errors import AnalemmaError, Conflict, NotFound, Unavailable
from analemma.outbox.handlers import Event, Settle
from analemma.pipeline.compile_inputs import CompileInputs, InputReader
from analemma.pipeline.compile_writing import CompileWriting
from analemma.pipeline.dependencies import format_dependencies
from analemma.pipeline.documents import DocumentReader, KnownDocuments
from analemma.pipeline.events import Events
from analemma.pipeline.recent_trees import RecentTrees
from analemma.pipeline.slice_bodies import SliceBodies
from analemma.pipeline.versions import parse_stored_version
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.evaluate import TombstoneReason
from analemma.slicing.incremental import Compiled, CompileMode, compile_entity
from analemma.slicing.tsid import Version, format_version
from analemma.tracing import span

ATTEMPTS: Final = 100
"""Each that fails means that somebody else's compile succeeded."""
LONGEST_WAIT_S: Final = 0.1


@dataclass(frozen=True)
class CompileResult:
    """What a compile did."""

    version: str
    revision: int
    """How often this version has been compiled to something else, from 1."""
    mode: CompileMode
    """FULL or INCREMENTAL: what was done."""
    written: tuple[str, ...]
    """Slices that became something else, tombstones among them."""
    unchanged: tuple[str, ...]
    tombstones: Mapping[str, str]
    """Slices that are not there, each with its reason."""
    impacted: Mapping[str, tuple[str, ...]]
    """Slices that were rebuilt, each with why."""
    no_change: bool
    """Whether every slice is what it was."""
    up_to_date: bool = False
    """Whether the version had been compiled to exactly this before, so that nothing at all was written."""
    ships: tuple[str, ...] = ()
    """The sink rules that were asked to ship what has changed."""
    ship_seq: int = 0
    """The entity's, by which sinks tell this state from older ones."""
    repaired: tuple[str, ...] = ()
    """Slices whose stored bodies were damaged and are whole again; only a full compile looks."""
    missing_joins: Mapping[str, str] = field(default_factory=dict)
    """Of the slices that are not there, those without a join that they require, each with which."""


Written = Callable[[Transaction, CompileResult], None]
"""Runs in the transaction that a compile writes in."""
Standing = Callable[[Transaction, CompileResult, HeldEntity], None]
"""The same, with where the entity stands then; the transaction holds it."""


class SlicingWorkflow:
    """Compiles entities of one tenant."""

    def __init__(
        self,
        context: Context,
        *,
        contracts: Callable[[], ContractSet],
        fresh_contracts: Callable[[], ContractSet],
        known: KnownDocuments,
        events: Events,
    ) -> None:
        """`contracts` may be behind what others load, `fresh_contracts` are not."""
        self._context = context
        self._contracts = contracts
        self._fresh_contracts = fresh_contracts
        self._reader = InputReader(context, DocumentReader(context.trees, known))
        recent = RecentTrees(context.trees)
        self.bodies = SliceBodies(context, recent)
        self._writing = CompileWriting(context, recent=recent, events=events, reader=self._reader)

    def execute(
        self, entity_type: str, entity_id: str, version: str | None = None, *, within: Settle | None = None
    ) -> CompileResult:
        """Compile a version, or the newest one, evaluating every rule."""
        return self.compile(entity_type, entity_id, version, CompileMode.FULL, within=within)

    def execute_incremental(
        self, entity_type: str, entity_id: str, version: str | None = None, *, within: Settle | None = None
    ) -> CompileResult:
        """Compile a version from what the one before it was compiled to; Conflict if that cannot be done."""
        return self.compile(entity_type, entity_id, version, CompileMode.INCREMENTAL, within=within)

    def execute_auto(
        self, entity_type: str, entity_id: str, version: str | None = None, *, within: Settle | None = None
    ) -> CompileResult:
        """Compile a version from the one before it if possible, otherwise in full."""
        return self.compile(entity_type, entity_id, version, CompileMode.AUTO, within=within)

    def compile(
        self,
        entity_type: str,
        entity_id: str,
        version: str | None,
        mode: CompileMode,
        *,
        within: Settle | None = None,
        ship: Sequence[str] | None = None,
        serve: bool = True,
        written: Written | None = None,
        standing: Standing | None = None,
        using: Callable[[ContractSet], None] | None = None,
    ) -> CompileResult:
        """Compile a version in a mode. `within`, `written` and `standing` run in the transaction that writes, `within`
        last, the others with what is written; where nothing is to be written they do not run. `using` is told the
        contracts of each attempt; what is done is done by those that it was told last.

        Sink rules whose slices have changed are asked to ship, in the same transaction, if this is the newest compiled
        version: all of them, or of those in `ship`. A new newest version is what readers get from now on who name none,
        unless `serve` is False; compiling it again does not change what they get."""
        key = EntityKey(entity_type, self._context.tenant_name, entity_id)
        chosen = None if version is None else parse_stored_version(version)
        asked = _Asked(mode, within, _only(ship), serve, written, standing)
        with span("analemma.compile", entity_type=entity_type, mode=mode.value):
            carried, revision = Carried(), 1
            try:
                for attempt in range(ATTEMPTS):
                    # Contracts that were replaced may be why the one before wrote nothing.
                    contracts = self._fresh_contracts() if attempt else self._contracts()
                    if using is not None:
                        using(contracts)
                    try:
                        done = self._attempt(contracts, key, chosen, asked, carried, revision)
                    except _Orphans as exc:
                        # Rows of compiles were lost, and those of their slices not: this one goes on behind them.
                        revision = exc.facts["newest"] + 1
                        continue
                    if done is not None:
                        if done.up_to_date:
                            self._context.blocks.give_up(carried.uploads, Conflict("another compiled it meanwhile"))
                        if attempt:
                            # An attempt whose answer was lost may have written after all.
                            self._context.wake()
                        return done
                    self._context.clock.sleep(random.uniform(0, min(LONGEST_WAIT_S, 0.001 * 2 ** min(attempt, 10))))
                raise Unavailable(f"{key} or what it joins is being compiled all the time", hint="try again later")
            except AnalemmaError as exc:
                self._context.blocks.give_up(carried.uploads, exc)
                raise

    def has_ruleset(self, entity_type: str) -> bool:
        """Whether there is anything to compile entities of a type by."""
        return self._contracts().find_ruleset(entity_type) is not None

    def overtaking(self, key: EntityKey, version: str) -> str | None:
        """The newest version of an entity, if it is newer than this one and still to be compiled."""
        found = find_entity(self._context.engine, self._context.tenant, EntityPlace(key.type, key.id))
        if found is None or found.newest_raw is None or found.newest_raw <= parse_stored_version(version):
            return None
        if found.newest_compiled is not None and found.newest_compiled >= found.newest_raw:
            return None
        return format_version(Version(found.newest_raw))

    def give_up(self, event: Event, failure: str | None, *, newer: str, settle: Settle) -> None:
        """Settle the event of a version that cannot be compiled, and say with it why, and which one takes its place."""
        lane = LaneKey(self._context.tenant, event.aggregate_type, event.aggregate_id)
        attempts = event.attempts if failure is None else event.attempts + 1
        reason = f"version {newer} takes its place"

        def move(tx: Transaction) -> None:
            settle(tx)
            place = {**lane._asdict(), "seq": event.seq}
            tx.execute("overtake_event", **place, attempts=attempts, failure=failure, reason=reason)

        self._context.engine.write(move)

    def newest_compiled(self, entity_type: str, entity_id: str) -> str | None:
        """The newest version that was compiled."""
        found = find_entity(self._context.engine, self._context.tenant, EntityPlace(entity_type, entity_id))
        return (
            None if found is None or found.newest_compiled is None else format_version(Version(found.newest_compiled))
        )

    def _attempt(
        self,
        contracts: ContractSet,
        key: EntityKey,
        version: int | None,
        asked: _Asked,
        carried: Carried,
        revision: int,
    ) -> CompileResult | None:
        """One try; None if what it was made of has changed meanwhile. Its revision is at least this one."""
        mode = asked.mode
        place = EntityPlace(key.type, key.id)
        (start,) = compile_starts(self._context.engine, self._context.tenant, [(place, version)])
        if start is None or start.newest_raw is None:
            raise NotFound(f"there is no {key}", hint="ingest it first", entity=str(key))
        if start.version is None:
            raise NotFound(f"{key} has no such version", hint="versions are told by ingest", entity=str(key))
        ruleset = contracts.ruleset(key.type)
        if mode is CompileMode.INCREMENTAL:
            _require_base(key, start, ruleset)
        inputs = self._reader.read(ruleset, key, start, mode)
        missing = [each for each in inputs.joined if inputs.joined[each] is None]
        if missing:
            # There must be something to lock, or one who creates it now would not see us, nor we him.
            add_placeholders(self._context.engine, self._context.tenant, missing)
            inputs = self._reader.read(ruleset, key, start, mode)
        compiled = _compiled(contracts, ruleset, key, start, inputs, mode)
        repaired = self.bodies.repair({key: compiled}).get(key, ()) if mode is CompileMode.FULL else ()
        if self._is_up_to_date(start, ruleset, compiled):
            assert start.base is not None
            done = _result(start.version, start.base.revision, compiled, start.ship_seq, up_to_date=True)
            return replace(done, repaired=repaired)
        ships = self._writing.ships(contracts, key, start, inputs, compiled, asked.ship)
        write = self._writing.made(
            contracts, ruleset, key, start, inputs, compiled, ships, carried, serve=asked.serve, revision=revision
        )
        result = _result(start.version, write.row.revision, compiled, write.ship_seq, ships=ships)
        result = replace(result, repaired=repaired)
        try:
            now_us, within = self._context.clock.now_us(), asked.telling(result, _held(start, write))
            if not write_compile(self._context.engine, self._context.tenant, write, now_us=now_us, within=within):
                return None
        except Conflict as exc:
            which = {"entity": start.number, "version": start.version}
            newest = self._context.engine.value("newest_slice_revision", **which) or 0
            if newest < write.row.revision:
                raise
            raise _Orphans(f"{key} has slices of compiles that are not there", newest=newest) from exc
        if write.events:
            self._context.wake()
        return result

    def follow(
        self,
        contracts: ContractSet,
        key: EntityKey,
        start: CompileStart,
        inputs: CompileInputs,
        carried: Carried,
        *,
        mode: CompileMode = CompileMode.AUTO,
        ship: Sequence[str] | None = None,
        serve: bool = False,
        entries: Sequence[StoredEntry] | None = None,
        made: dict[EntityKey, Compiled] | None = None,
    ) -> CompileWrite | None:
        """What is to be written for a version that was compiled before to follow what it joins; None if it has. For
        those who write many at once: nothing is written here. `entries` are those of the entity, if they were read;
        `made` is told what was compiled, written or not."""
        ruleset = contracts.ruleset(key.type)
        compiled = _compiled(contracts, ruleset, key, start, inputs, mode)
        if made is not None:
            made[key] = compiled
        if self._is_up_to_date(start, ruleset, compiled, entries):
            return None
        ships = self._writing.ships(contracts, key, start, inputs, compiled, _only(ship))
        return self._writing.made(contracts, ruleset, key, start, inputs, compiled, ships, carried, serve=serve)

    def evaluate(
        self,
        contracts: ContractSet,
        key: EntityKey,
        start: CompileStart,
        inputs: CompileInputs,
        mode: CompileMode,
        ship: Sequence[str] | None = None,
    ) -> tuple[Compiled, bool, tuple[str, ...]]:
        """What a compile would make, whether that is there already, and which sink rules it would ask to ship."""
        ruleset = contracts.ruleset(key.type)
        compiled = _compiled(contracts, ruleset, key, start, inputs, mode)
        if self._is_up_to_date(start, ruleset, compiled):
            return compiled, True, ()
        return compiled, False, self._writing.ships(contracts, key, start, inputs, compiled, _only(ship))

    def _is_up_to_date(
        self,
        start: CompileStart,
        ruleset: Ruleset,
        compiled: Compiled,
        entries: Sequence[StoredEntry] | None = None,
    ) -> bool:
        base = start.base
        return (
            base is not None
            and base.version == start.version
            # The entity's row knows of it: what was compiled and is not told there is written once more.
            and start.newest_compiled is not None
            and start.newest_compiled >= base.version
            and base.fingerprint == ruleset.fingerprint
            and not compiled.written
            and base.dependencies == format_dependencies(compiled.slices)
            and (compiled.index_entries is None or self._writing.has_entries(start, compiled.index_entries, entries))
        )


class _Orphans(Conflict):
    """There are slices of a version up to the revision `newest`, and no compile that has them."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the caller wants of a compile."""

    mode: CompileMode
    within: Settle | None
    ship: frozenset[str] | None
    serve: bool
    written: Written | None = None
    standing: Standing | None = None

    def telling(self, result: CompileResult, held: HeldEntity) -> Settle | None:
        """What runs in the transaction that writes."""
        written, standing, within = self.written, self.standing, self.within
        if written is None and standing is None:
            return within

        def told(tx: Transaction) -> None:
            if written is not None:
                written(tx, result)
            if standing is not None:
                standing(tx, result, held)

        return preceded(within, told)


def _only(ship: Sequence[str] | None) -> frozenset[str] | None:
    return None if ship is None else frozenset(ship)


def _compiled(
    contracts: ContractSet,
    ruleset: Ruleset,
    key: EntityKey,
    start: CompileStart,
    inputs: CompileInputs,
    mode: CompileMode,
) -> Compiled:
    keeps = _keeps(contracts, key, start)
    return compile_entity(
        ruleset, key, inputs.raw, inputs.lookup, predecessor=inputs.predecessor, mode=mode, keeps=keeps
    )


def _keeps(contracts: ContractSet, key: EntityKey, start: CompileStart) -> bool:
    """Whether the schema that applies keeps what the ruleset does not account for, or the one that the document was
    ingested by does."""
    schema = contracts.find_schema(key.type)
    if schema is not None and schema.keeps_additional_fields:
        return True
    document = start.document
    if document is None or document.schema_id is None or document.schema_version is None:
        return False
    named = contracts.by_ref.get(ContractRef(document.schema_id, parse_semver(document.schema_version)))
    return isinstance(named, EntitySchema) and named.keeps_additional_fields


def _held(start: CompileStart, write: CompileWrite) -> HeldEntity:
    """Where the entity stands once that is written: what was read of it is still so, or nothing is."""
    return HeldEntity(
        write.row.version if write.newest else start.newest_compiled,
        write.row.version if write.serves else start.serving_version,
        write.ship_seq,
    )


def _require_base(key: EntityKey, start: CompileStart, ruleset: Ruleset) -> None:
    base = start.base
    if base is not None and base.fingerprint == ruleset.fingerprint:
        return
    reason = "no version before it was compiled" if base is None else "the one before it was compiled by other rules"
    raise Conflict(
        f"{key} cannot be compiled incrementally: {reason}", hint="compile in full, or in mode auto", entity=str(key)
    )


def _result(
    version: int,
    revision: int,
    compiled: Compiled,
    ship_seq: int,
    *,
    ships: tuple[str, ...] = (),
    up_to_date: bool = False,
) -> CompileResult:
    written = tuple(each.type for each in compiled.written)
    gone = {kind: state.tombstone for kind, state in compiled.slices.items()}
    return CompileResult(
        version=format_version(Version(version)),
        revision=revision,
        mode=compiled.mode,
        written=written,
        unchanged=tuple(each for each in compiled.slices if each not in written),
        tombstones={kind: each.reason.value for kind, each in gone.items() if each is not None},
        impacted=compiled.impacted,
        no_change=not written,
        up_to_date=up_to_date,
        ships=ships,
        ship_seq=ship_seq,
        missing_joins={
            kind: each.detail
            for kind, each in gone.items()
            if each is not None and each.reason is TombstoneReason.REQUIRED_JOIN_MISSING
        },
    )
