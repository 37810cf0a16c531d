"""Verifying what was compiled. `fast` holds the rows of an entity against each other, and bodies against their hashes;
`strict` compiles everything anew from raw documents and compares. Nothing is changed, and no cache is believed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from analemma.catalog.entities.backfills import ShardRow, StoredEntry, scope_page, stored_entries
from analemma.catalog.entities.entities import EntityPlace, EntityRow, find_entity
from analemma.catalog.entities.slices import CompileStart, SliceRow, WantedSlice, compile_starts
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import Ruleset
from analemma.errors import AnalemmaError, Corrupt, Internal
from analemma.executors.port import Call, CallExecutor, Next
from analemma.pipeline.backfill_compiling import PASSING
from analemma.pipeline.backfill_parts import TenantParts
from analemma.pipeline.backfill_reports import Problem, VerifyMode, VerifyReport
from analemma.pipeline.backfill_scope import BackfillKind, BackfillScope, choice_of
from analemma.pipeline.compile_inputs import InputReader
from analemma.pipeline.dependencies import format_dependencies, parse_dependencies
from analemma.pipeline.documents import DocumentReader, KnownDocuments, check_slice
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.incremental import CompileMode, compile_entity
from analemma.slicing.indexing import index_entries
from analemma.slicing.joining import Dependency
from analemma.slicing.tsid import Version, format_version

LOOKS: Final = 5
"""How often an entity is looked at that is compiled while one looks."""
TOLD_PROBLEMS: Final = 1000
SHARED_BYTES: Final = 4 << 20
NEWEST_ENTRIES, SERVED_ENTRIES = (0, 1), (0, 2)


@dataclass(frozen=True, slots=True)
class VerifyCall:
    """A page to verify. Plain data: it may go to another machine."""

    scope: BackfillScope
    mode: VerifyMode
    type: str
    first: int
    last: int
    page: int


@dataclass(frozen=True, slots=True)
class VerifyAnswer:
    """What was found there."""

    entities: int
    versions: int
    slices: int
    problems: tuple[Problem, ...]
    next: int | None
    """Where the next page begins; None: there is none."""


VerifyPage = Callable[[VerifyCall], VerifyAnswer]


def verify_scope(
    mode: VerifyMode,
    scope: BackfillScope,
    shards: tuple[ShardRow, ...],
    page: int,
    executor: CallExecutor,
    verify: VerifyPage,
    tell: Callable[[int, int], None],
) -> VerifyReport:
    """Everything that shards have; `tell` gets how many entities were looked at, and how many problems found."""
    calls = [VerifyCall(scope, mode, shard.type, shard.first, shard.last, page) for shard in shards if shard.total]
    report = VerifyReport(mode, 0, 0, 0, 0, 0, 0, 0)
    for answer in _answers(calls, executor, verify):
        kinds = [each.kind for each in answer.problems]
        report = replace(
            report,
            entities=report.entities + answer.entities,
            versions=report.versions + answer.versions,
            slices=report.slices + answer.slices,
            wrong=report.wrong + kinds.count("wrong"),
            corrupt=report.corrupt + kinds.count("corrupt"),
            stale=report.stale + kinds.count("stale"),
            uncompiled=report.uncompiled + kinds.count("uncompiled"),
            problems=(report.problems + answer.problems)[:TOLD_PROBLEMS],
        )
        tell(answer.entities, len(kinds))
    return replace(report, problems=tuple(sorted(report.problems, key=lambda each: (each.entity, each.what))))


def _answers(calls: list[VerifyCall], executor: CallExecutor, verify: VerifyPage) -> Iterator[VerifyAnswer]:
    waiting = deque(calls)

    def source() -> Call | Next:
        if not waiting:
            return Next.OVER
        call = waiting.popleft()
        return Call(verify, (call,), call)

    for outcome in executor.run(source):
        answer: VerifyAnswer = outcome.get()
        if answer.next is not None:
            waiting.append(replace(outcome.call.tag, first=answer.next))
        yield answer


def verify_page(parts: TenantParts, call: VerifyCall) -> VerifyAnswer:
    """Verify one page of a range of entities."""
    return _Page(parts).look(call)


class _Page:
    """One page. A document that entities of it share is read once."""

    def __init__(self, parts: TenantParts) -> None:
        self._parts = parts
        self._documents = DocumentReader(parts.plain_trees, KnownDocuments(SHARED_BYTES))
        self._reader = InputReader(parts, self._documents)

    def look(self, call: VerifyCall) -> VerifyAnswer:
        """What there is to say of it."""
        parts, contracts = self._parts, self._parts.contracts()
        choice = choice_of(call.scope, BackfillKind.RAW_TO_SLICE, call.type, contracts)
        entities = scope_page(parts.engine, parts.tenant, choice, first=call.first, last=call.last, limit=call.page)
        problems: list[Problem] = []
        versions = slices = 0
        for entity in entities:
            looked = self._entity(EntityKey(call.type, parts.tenant_name, entity.key), contracts, call.mode)
            versions += looked.versions
            slices += looked.slices
            problems += looked.problems
        following = entities[-1].number + 1 if len(entities) == call.page else None
        return VerifyAnswer(len(entities), versions, slices, tuple(problems), following)

    def _entity(self, key: EntityKey, contracts: ContractSet, mode: VerifyMode) -> _Look:
        """Look until nobody compiles it meanwhile: what is found is then of one moment."""
        place = EntityPlace(key.type, key.id)
        for _ in range(LOOKS):
            before = find_entity(self._parts.engine, self._parts.tenant, place)
            if before is None or before.newest_raw is None:
                return _Look(key)
            look = _Look(key)
            try:
                self._look(look, before, contracts, mode)
            except PASSING:
                raise
            except Exception as exc:
                error = exc if isinstance(exc, AnalemmaError) else Internal(f"{type(exc).__name__}: {exc}")
                look.say(None, "corrupt", error.message)
            if not look.problems or find_entity(self._parts.engine, self._parts.tenant, place) == before:
                return look
        return look

    def _look(self, look: _Look, entity: EntityRow, contracts: ContractSet, mode: VerifyMode) -> None:
        ruleset = contracts.ruleset(look.key.type)
        if entity.newest_compiled != entity.newest_raw:
            look.say(entity.newest_raw, "uncompiled", "the newest version is not compiled")
        for version in sorted({each for each in (entity.newest_compiled, entity.serving_version) if each is not None}):
            look.versions += 1
            place = EntityPlace(look.key.type, look.key.id)
            (start,) = compile_starts(self._parts.engine, self._parts.tenant, [(place, version)])
            if start is None or start.document is None:
                look.say(version, "wrong", "there is no raw document of it")
                continue
            if version == entity.newest_raw and start.document.hash != entity.newest_hash:
                look.say(version, "wrong", "the entity's row has another hash than its newest version")
            base = start.base
            if base is None or base.version != version:
                look.say(version, "wrong", "nothing says what it was compiled to")
                continue
            recorded = self._dependencies(look, start)
            if recorded is None:
                continue
            rows = self._rows(look, version, recorded)
            stale = base.fingerprint != ruleset.fingerprint
            if stale:
                look.say(version, "stale", f"compiled by {base.ruleset_id}@{base.ruleset_version}, which was replaced")
            if mode == "strict":
                raw = self._raw(look, start)
                if not stale and raw is not _UNREADABLE:
                    self._recompute(look, ruleset, start, rows, recorded)
                    self._entries(look, ruleset, entity, version, raw)

    def _dependencies(self, look: _Look, start: CompileStart) -> Mapping[str, tuple[Dependency, ...]] | None:
        assert start.base is not None
        try:
            return parse_dependencies(start.base.dependencies, self._parts.tenant_name)
        except (ValueError, TypeError, AttributeError):
            look.say(start.base.version, "corrupt", "what it was compiled from cannot be read")
            return None

    def _rows(
        self, look: _Look, version: int, recorded: Mapping[str, tuple[Dependency, ...]]
    ) -> Mapping[str, SliceRow]:
        """The slices of a version as they lie there, each held against its body."""
        place = EntityPlace(look.key.type, look.key.id)
        wanted = [WantedSlice(place, each, version) for each in recorded]
        rows: dict[str, SliceRow] = {}
        for slice_type, found in zip(recorded, self._reader.find(wanted), strict=True):
            look.slices += 1
            if found.row is None:
                look.say(version, "wrong", f"{slice_type} has no row")
                continue
            rows[slice_type] = found.row
        bodies = [(each, each.root) for each in rows.values() if each.root is not None]
        try:
            values = self._parts.plain_trees.read_many([root for _, root in bodies])
        except PASSING:
            raise
        except AnalemmaError:
            values = None  # One by one, it shows which.
        for at, (row, root) in enumerate(bodies):
            try:
                body = self._parts.plain_trees.read(root) if values is None else values[at]
                check_slice(body, row.hash, f"{look.key}.{row.type}")
            except PASSING:
                raise
            except AnalemmaError as exc:
                look.say(version, "corrupt", f"{row.type}: {exc.message}")
        return rows

    def _raw(self, look: _Look, start: CompileStart) -> Document | object | None:
        try:
            return self._documents.raw(start.document)
        except PASSING:
            raise
        except AnalemmaError as exc:
            look.say(start.version, "corrupt", f"its raw document: {exc.message}")
            return _UNREADABLE

    def _recompute(
        self,
        look: _Look,
        ruleset: Ruleset,
        start: CompileStart,
        rows: Mapping[str, SliceRow],
        recorded: Mapping[str, tuple[Dependency, ...]],
    ) -> None:
        """What the rules make now, beside what is there."""
        assert start.base is not None
        try:
            inputs = self._reader.read(ruleset, look.key, start, CompileMode.FULL)
            made = compile_entity(
                ruleset, look.key, inputs.raw, inputs.lookup, predecessor=inputs.predecessor, mode=CompileMode.FULL
            )
        except PASSING:
            raise
        except Corrupt as exc:
            look.say(start.version, "corrupt", f"what it joins: {exc.message}")
            return
        except AnalemmaError as exc:
            look.say(start.version, "wrong", f"the rules refuse it: {exc.message}")
            return
        for each in made.written:
            if each.type not in rows and each.type in recorded:
                continue  # Was told already.
            followed = each.type in recorded and recorded[each.type] == made.slices[each.type].dependencies
            kind = "wrong" if followed or each.type not in recorded else "stale"
            why = "is not what the rules make" if kind == "wrong" else "was made of what has changed since"
            look.say(start.version, kind, f"{each.type} {why}")
        if not made.written and start.base.dependencies != format_dependencies(made.slices):
            changed = [name for name in made.slices if recorded.get(name) != made.slices[name].dependencies]
            kind = "stale" if changed else "wrong"
            look.say(start.version, kind, f"{', '.join(changed) or 'it'} was made of what has changed since")

    def _entries(
        self, look: _Look, ruleset: Ruleset, entity: EntityRow, version: int, raw: Document | object | None
    ) -> None:
        """The index entries of a version beside those that its document has."""
        document = raw if isinstance(raw, dict) else None
        made = {
            (each.type, each.value, *((None, None) if each.target is None else (each.target.type, each.target.id)))
            for each in index_entries(ruleset, look.key, document)
        }
        stored = stored_entries(self._parts.engine, [entity.number])[entity.number]
        for what, applies, states in (
            ("readers", version == entity.serving_version, SERVED_ENTRIES),
            ("dependants", version == entity.newest_compiled, NEWEST_ENTRIES),
        ):
            if not applies:
                continue
            found = {each[:4] for each in stored if each.waiting in states}
            for entry in sorted(made - found, key=str):
                look.say(version, "wrong", f"index {entry[0]} lacks {entry[1]!r} for {what}")
            for entry in sorted(found - made, key=str):
                look.say(version, "wrong", f"index {entry[0]} has {entry[1]!r} for {what}, which it has not")
        for each in stored:
            if not self._is_ours(each, look.key):
                look.say(version, "wrong", f"index {each.type} has {each.value!r} under another tenant or type")

    def _is_ours(self, entry: StoredEntry, key: EntityKey) -> bool:
        return entry.tenant == self._parts.tenant and entry.entity_type == key.type


_UNREADABLE: Final = object()


class _Look:
    """What is found of one entity."""

    def __init__(self, key: EntityKey) -> None:
        self.key = key
        self.versions = 0
        self.slices = 0
        self.problems: list[Problem] = []

    def say(self, version: int | None, kind: str, what: str) -> None:
        told = None if version is None else format_version(Version(version))
        problem = Problem(str(self.key), told, kind, what)
        if problem not in self.problems:
            self.problems.append(problem)
