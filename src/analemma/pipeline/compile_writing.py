"""What a compile writes: rows of slices and of index entries, blocks, and events that ask others to ship or to
follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from analemma.blocks.store import Carried
from analemma.catalog.entities.backfills import StoredEntry, stored_entries
from analemma.catalog.entities.entities import EntityPlace, add_placeholders
from analemma.catalog.entities.slices import (
    NEWEST_ONLY,
    SERVED_ONLY,
    CompileRow,
    CompileStart,
    CompileWrite,
    EntryRow,
    SliceRow,
)
from analemma.catalog.port import BranchKey, OutboxEvent
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import Ruleset
from analemma.errors import NotFound
from analemma.pipeline.compile_inputs import CompileInputs, InputReader
from analemma.pipeline.dependencies import format_dependencies
from analemma.pipeline.documents import parse_hash
from analemma.pipeline.events import Events
from analemma.pipeline.recent_trees import RecentTrees
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.evaluate import BuiltSlice, TombstoneReason
from analemma.slicing.incremental import Compiled
from analemma.slicing.indexing import IndexEntry


class CompileWriting:
    """Makes what compiles of one tenant write in one transaction. Before it there are uploads only, and placeholders of
    what entries point at."""

    def __init__(
        self,
        context: Context,
        *,
        recent: RecentTrees,
        events: Events,
        reader: InputReader,
    ) -> None:
        self._context = context
        self._recent = recent
        self._events = events
        self._reader = reader

    def made(
        self,
        contracts: ContractSet,
        ruleset: Ruleset,
        key: EntityKey,
        start: CompileStart,
        inputs: CompileInputs,
        compiled: Compiled,
        ships: Sequence[str],
        carried: Carried,
        *,
        serve: bool,
        revision: int = 1,
    ) -> CompileWrite:
        """Everything that a compile writes, with the blocks of its slices prepared; a new newest version is served if
        `serve` says so. Its revision is at least `revision`."""
        version, base = start.version, start.base
        assert version is not None
        newest = _is_newest(start)
        serves = serve and (start.newest_compiled is None or version > start.newest_compiled)
        ship_seq = start.ship_seq + (newest and bool(compiled.written))
        events = [self._events.ship_requested(key, version, ship_seq, each) for each in ships]
        # Joins read what is served.
        if serves or version == start.serving_version:
            events += self._fanout(contracts, key, start, inputs, compiled)
        again = base is not None and base.version == version
        if base is not None and again:
            revision = max(revision, base.revision + 1)
        trees = {each.type: self._recent.build(each.hash, each.data) for each in compiled.written if each.hash}
        blocks = {block.id: block for tree in trees.values() for block in tree.blocks}
        where = BranchKey(key.type, key.id, "slice")
        prepared = self._context.blocks.prepare(list(blocks.values()), where, None, carried)
        rows = [
            _row(each, version, revision, trees[each.type].root.id if each.data is not None else None)
            for each in compiled.written
        ]
        if not newest:
            rows += self._kept_for_successor(start, inputs, compiled.written)
        # Other rules give also a version that is served, and not the newest, other entries.
        served = not newest and version == start.serving_version
        entries = None
        if (newest or served) and compiled.index_entries is not None:
            entries = self._numbered(compiled.index_entries, inputs)
        return CompileWrite(
            place=EntityPlace(key.type, key.id),
            number=start.number,
            expected=start.compile_seq,
            joined=tuple({each for each in inputs.joined.values() if each}),
            row=CompileRow(
                version,
                revision,
                ruleset.id,
                str(ruleset.version),
                ruleset.fingerprint,
                format_dependencies(compiled.slices),
            ),
            mode=compiled.mode.value,
            newest=newest,
            serves=serves,
            parted=(newest and _are_two(start, serves)) or (served and entries is not None),
            expected_ship_seq=start.ship_seq,
            ship_seq=ship_seq,
            slices=tuple(rows),
            entries=entries,
            blocks=prepared.rows,
            uploads=prepared.uploads,
            events=tuple(events),
            is_delete=inputs.raw is None,
            contracts_us=contracts.loaded_at_us,
        )

    def has_entries(
        self, start: CompileStart, entries: Sequence[IndexEntry], stored: Iterable[StoredEntry] | None = None
    ) -> bool:
        """Whether an entity is found by exactly these, if its version is one that it is found by; `stored` is what it
        is found by, if that was read."""
        unlike = set()
        if start.version != start.newest_compiled:
            unlike.add(NEWEST_ONLY)
        if start.version != start.serving_version:
            unlike.add(SERVED_ONLY)
        if len(unlike) == 2:
            return True
        made = {
            (each.type, each.value, *((None, None) if each.target is None else (each.target.type, each.target.id)))
            for each in entries
        }
        if stored is None:
            stored = stored_entries(self._context.engine, [start.number])[start.number]
        return made == {each[:4] for each in stored if each.waiting not in unlike}

    def _kept_for_successor(
        self, start: CompileStart, inputs: CompileInputs, written: Sequence[BuiltSlice]
    ) -> list[SliceRow]:
        """What the version that follows goes on having, now that rows come between it and where it had that from."""
        assert start.version is not None
        rows = self._context.engine.all("next_compile", entity=start.number, version=start.version)
        if not rows:
            return []
        (version, revision, _), own = rows[0], {row[2] for row in rows}
        kept = []
        for each in written:
            if each.type in own:
                continue
            before = inputs.rows.get(each.type)
            if before is None:
                before = SliceRow(
                    each.type, 0, 0, None, None, TombstoneReason.NOT_IN_RULESET, "the version has no such slice"
                )
            kept.append(before._replace(version=version, revision=revision))
        return kept

    def _numbered(self, entries: Sequence[IndexEntry], inputs: CompileInputs) -> tuple[EntryRow, ...]:
        numbers = {place: found.number for place, found in inputs.joined.items() if found is not None}
        targets = {EntityPlace(each.target.type, each.target.id) for each in entries if each.target is not None}
        unknown = targets - numbers.keys()
        if unknown:
            found = self._reader.numbers(unknown)
            missing = [place for place in unknown if place not in found]
            if missing:
                add_placeholders(self._context.engine, self._context.tenant, missing)
                found |= self._reader.numbers(missing)
            numbers |= found
        return tuple(
            EntryRow(
                each.type,
                each.value,
                None if each.target is None else numbers[EntityPlace(each.target.type, each.target.id)],
            )
            for each in entries
        )

    def ships(
        self,
        contracts: ContractSet,
        key: EntityKey,
        start: CompileStart,
        inputs: CompileInputs,
        compiled: Compiled,
        only: frozenset[str] | None,
    ) -> tuple[str, ...]:
        """The sink rules that have something to ship: all of them, or of those in `only`."""
        rules = contracts.sink_rules(key.type)
        unknown = sorted((only or frozenset()) - {each.id for each in rules})
        if unknown:
            raise NotFound(
                f"no sink rule {unknown[0]} ships entities of type {key.type}",
                hint=f"there are {', '.join(each.id for each in rules)}" if rules else "load a SINKRULE",
                sink=unknown[0],
            )
        changed = set(_changed(inputs, compiled)) if rules and _is_newest(start) else set()
        return tuple(
            each.id
            for each in rules
            if (only is None or each.id in only)
            and (changed if each.slice_types is None else changed.intersection(each.slice_types))
        )

    def _fanout(
        self, contracts: ContractSet, key: EntityKey, start: CompileStart, inputs: CompileInputs, compiled: Compiled
    ) -> list[OutboxEvent]:
        assert start.version is not None
        changed: Iterable[str] = _changed(inputs, compiled)
        if start.base is not None and start.base.version not in (start.version, start.serving_version):
            # The version that this is compared with was never served: those who join saw another one.
            changed = compiled.slices
        told = [each for each in changed if contracts.dependants(key.type, each)]
        return [self._events.fanout_requested(key, start.version, told)] if told else []


def _is_newest(start: CompileStart) -> bool:
    """Whether the version is the newest one that is compiled, or becomes it."""
    assert start.version is not None
    return start.newest_compiled is None or start.version >= start.newest_compiled


def _are_two(start: CompileStart, serves: bool) -> bool:
    """Whether the newest compiled version and the served one are two, before the compile or after it."""
    return start.newest_compiled != start.serving_version or not (serves or start.version == start.serving_version)


def _changed(inputs: CompileInputs, compiled: Compiled) -> list[str]:
    """The slices that hold something else than before, or nothing any more."""
    before = {} if inputs.predecessor is None else inputs.predecessor.slices
    return [
        each.type for each in compiled.written if each.hash != (before[each.type].hash if each.type in before else None)
    ]


def _row(built: BuiltSlice, version: int, revision: int, root: object) -> SliceRow:
    gone = built.tombstone
    return SliceRow(
        built.type,
        version,
        revision,
        None if built.hash is None else parse_hash(built.hash),
        root,  # type: ignore[arg-type]
        None if gone is None else gone.reason.value,
        None if gone is None else gone.detail,
    )
