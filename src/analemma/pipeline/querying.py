"""Answers views: by id and version, many at once, page by page, and by index. Bodies are held against their hashes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, Final

from analemma.catalog.entities.slices import ServedEntity, count_by_rules, entities_with_slices, key_bounds
from analemma.clock import moment
from analemma.context import Context
from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import ViewDefinition
from analemma.contracts.semver import parse_semver
from analemma.errors import Conflict, Corrupt, Invalid, NotFound
from analemma.pipeline.backfill_scope import stale_command
from analemma.pipeline.cursors import decode_cursor, encode_cursor, no_cursor
from analemma.pipeline.deploy_records import HeldBack
from analemma.pipeline.documents import check_slice, damaged_slice, format_hash
from analemma.pipeline.view_answers import (
    Count,
    Damage,
    MissingSlices,
    ServedSlice,
    Staleness,
    Unanswered,
    ViewBatch,
    ViewMeta,
    ViewPage,
    ViewResponse,
    choose_slices,
)
from analemma.slicing.changes import Document
from analemma.slicing.entity_key import EntityKey
from analemma.slicing.indexing import index_text
from analemma.slicing.tsid import Version, format_version, parse_version
from analemma.tracing import span

PAGE: Final = 100
LARGEST_PAGE: Final = 1000
LARGEST_VERSION: Final = (1 << 63) - 1
_LONGEST_PREFIX: Final = 512

Bodies = Mapping[str, Document]
"""What the slices of one entity hold, by their types. No two answers share one: whoever gets it may change it."""


class QueryViewWorkflow:
    """The views of one tenant. `view` gives a handle on one of them, which is the comfortable way to ask."""

    def __init__(
        self,
        context: Context,
        current: Callable[[], ContractSet],
        held_back: Callable[[Collection[int]], Mapping[int, HeldBack]],
    ) -> None:
        """`held_back` says which deploys entities wait for, by their numbers."""
        self._held_back = held_back
        self._context = context
        self._engine = context.engine
        self._tenant = context.tenant_name
        self._current = current

    @property
    def contracts(self) -> ContractSet:
        """The contracts that apply now."""
        return self._current()

    def view(self, view_id: str, version: str | None = None) -> EntityView:
        """One view, by the id of its contract: the version that applies when it is asked, or this one."""
        self._definition(view_id, version)
        return EntityView(self, view_id, version)

    def definition(self, view_id: str, version: str | None = None) -> ViewDefinition:
        """The contract of a view: the version that applies, or this one."""
        return self._definition(view_id, version)[1]

    def execute(
        self, view_id: str, entity_id: str, version: str | None = None, *, view_version: str | None = None
    ) -> ViewResponse:
        """The answer for one entity, at a version or at the one that is served; NotFound says why there is none."""
        with span("analemma.view.get", view=view_id, entity_id=entity_id):
            contracts, view = self._definition(view_id, view_version)
            wanted = None if version is None else parse_version(version)
            key = EntityKey(view.entity_type, self._tenant, entity_id)
            if wanted is not None and wanted > LARGEST_VERSION:
                raise _no_version(key, version)
            row = self._by_keys(view, [entity_id], wanted).get(entity_id)
            self._check(key, row, version, self._holding([row]))
            assert row is not None
            return self._answer(contracts, view, row, _sound(self._read_bodies(view, [row])[0]))

    def execute_many(self, view_id: str, entity_ids: Iterable[str], *, view_version: str | None = None) -> ViewBatch:
        """Answers for many entities, in their order, and those that have none; as many statements as for one."""
        ids = _listed(entity_ids)
        with span("analemma.view.many", view=view_id, count=len(ids)):
            contracts, view = self._definition(view_id, view_version)
            for entity_id in ids:
                EntityKey(view.entity_type, self._tenant, entity_id)
            rows = self._by_keys(view, list(dict.fromkeys(ids))) if ids else {}
            items, unanswered = self._answers(contracts, view, [(each, rows.get(each)) for each in ids])
            return ViewBatch(items, unanswered)

    def execute_range(
        self,
        view_id: str,
        *,
        prefix: str = "",
        limit: int = PAGE,
        cursor: str | None = None,
        view_version: str | None = None,
    ) -> ViewPage:
        """A page of all entities that are served and not deleted, in the order of their ids (by code points)."""
        with span("analemma.view.range", view=view_id):
            contracts, view = self._definition(view_id, view_version)
            _check_limit(limit)
            _check_prefix(prefix)
            question = ("range", self._tenant, view.entity_type, prefix)
            after = None if cursor is None else _text(decode_cursor(question, cursor))
            rows = self._rows("view_by_range", view, **key_bounds(prefix, after), limit=limit + 1)
            page = rows[:limit]
            items, unanswered = self._answers(contracts, view, [(row.key, row) for row in page])
            following = encode_cursor(question, page[-1].key) if len(rows) > limit else None
            return ViewPage(items, unanswered, following)

    def execute_search(
        self,
        view_id: str,
        *,
        index: str,
        value: Any,
        limit: int = PAGE,
        cursor: str | None = None,
        view_version: str | None = None,
        require_complete: bool = False,
    ) -> ViewPage:
        """A page of the entities that an index of the ruleset finds, in the order in which they came to be known.

        `unindexed` says how many entities the index does not know yet; with `require_complete` that is Conflict."""
        with span("analemma.view.search", view=view_id, index=index):
            contracts, view = self._definition(view_id, view_version)
            _check_limit(limit)
            text = _indexed(contracts, view, index, value)
            question = ("search", self._tenant, view.entity_type, index, text)
            after = 0 if cursor is None else _number(decode_cursor(question, cursor))
            unindexed = self._unindexed(contracts, view, index, require_complete)
            rows = self._rows("view_by_index", view, index_type=index, value=text, after=after, limit=limit + 1)
            page = rows[:limit]
            items, unanswered = self._answers(contracts, view, [(row.key, row) for row in page])
            following = encode_cursor(question, page[-1].number) if len(rows) > limit else None
            return ViewPage(items, unanswered, following, unindexed)

    def count(
        self,
        view_id: str,
        *,
        prefix: str = "",
        index: str | None = None,
        value: Any = None,
        view_version: str | None = None,
        require_complete: bool = False,
    ) -> Count:
        """How many entities `execute_range` or, with an index, `execute_search` would go through in all.

        `unindexed` and `require_complete` are as there."""
        with span("analemma.view.count", view=view_id):
            contracts, view = self._definition(view_id, view_version)
            if index is None:
                if value is not None:
                    raise Invalid("a value was given, and no index", hint="name the index that has the value")
                _check_prefix(prefix)
                return Count(self._engine.value("count_served", **self._of(view), **key_bounds(prefix)))
            if prefix:
                raise Invalid("a prefix and an index were given", hint="count by one of them")
            text = _indexed(contracts, view, index, value)
            unindexed = self._unindexed(contracts, view, index, require_complete)
            counted = self._engine.value("count_indexed", **self._of(view), index_type=index, value=text)
            return Count(counted, unindexed)

    def entity_ids(self, entity_type: str, *, prefix: str = "", page: int = LARGEST_PAGE) -> Iterator[str]:
        """The ids of all entities of a type that were ever ingested, compiled or not, in their order, page by page."""
        _check_prefix(prefix)
        after = None
        while True:
            asked = {
                "tenant": self._context.tenant,
                "entity_type": entity_type,
                "limit": page,
                **key_bounds(prefix, after),
            }
            found = [row[0] for row in self._engine.all("entity_keys", **asked)]
            yield from found
            if len(found) < page:
                return
            after = found[-1]

    def _unindexed(self, contracts: ContractSet, view: ViewDefinition, index: str, require_complete: bool) -> int:
        """How many entities an index does not know yet. To be asked before it is searched: what is compiled in between
        is found by rules that have it."""
        known = contracts.rules_with(view.entity_type, index)
        count = sum(count_by_rules(self._engine, self._context.tenant, view.entity_type, known).values())
        if count and require_complete:
            raise Conflict(
                f"{count} entities of type {view.entity_type} are not indexed by {index} yet",
                hint=f"`{stale_command(self._tenant, view.entity_type)}` indexes them",
                index=index,
                unindexed=count,
            )
        return count

    def _of(self, view: ViewDefinition) -> dict[str, Any]:
        return {"tenant": self._context.tenant, "entity_type": view.entity_type}

    def _rows(self, statement: str, view: ViewDefinition, **asked: Any) -> list[ServedEntity]:
        given = {**self._of(view), "slice_types": _slice_types(view), **asked}
        return entities_with_slices(self._engine, statement, **given)

    def _by_keys(
        self, view: ViewDefinition, keys: Sequence[str], version: int | None = None
    ) -> dict[str, ServedEntity]:
        """Entities by their ids, at a version or at the one that is served; those left out that do not exist."""
        return {row.key: row for row in self._rows("view_by_keys", view, keys=keys, version=version)}

    def _definition(self, view_id: str, version: str | None) -> tuple[ContractSet, ViewDefinition]:
        if version is not None and not isinstance(version, str):
            raise Invalid(
                f"the view's version is of type {type(version).__name__}", hint="give it as text, as in 1.4.0"
            )
        contracts = self._current()
        return contracts, contracts.view(view_id, None if version is None else parse_semver(version))

    def _answers(
        self, contracts: ContractSet, view: ViewDefinition, wanted: Sequence[tuple[str, ServedEntity | None]]
    ) -> tuple[tuple[ViewResponse, ...], tuple[Unanswered, ...]]:
        bodies = self._read_bodies(view, [row for _, row in wanted])
        holding = self._holding([row for _, row in wanted])
        items: list[ViewResponse] = []
        unanswered: list[Unanswered] = []
        for (entity_id, row), slices in zip(wanted, bodies, strict=True):
            try:
                self._check(EntityKey(view.entity_type, self._tenant, entity_id), row, None, holding)
                assert row is not None
                items.append(self._answer(contracts, view, row, _sound(slices)))
            except Corrupt as exc:
                unanswered.append(Unanswered(entity_id, exc.message, kind=exc.kind))
            except MissingSlices as exc:
                unanswered.append(Unanswered(entity_id, exc.message, tuple(exc.missing)))
            except NotFound as exc:
                unanswered.append(Unanswered(entity_id, exc.message, deleted_at=exc.facts.get("deleted_at")))
        return tuple(items), tuple(unanswered)

    def _holding(self, rows: Iterable[ServedEntity | None]) -> Mapping[int, HeldBack]:
        """The deploys that those of the entities wait for that there is nothing to answer of."""
        unserved = [
            row.number for row in rows if row is not None and row.newest_raw is not None and row.compiled is None
        ]
        return self._held_back(unserved) if unserved else {}

    def _check(
        self, key: EntityKey, row: ServedEntity | None, version: str | None, holding: Mapping[int, HeldBack]
    ) -> None:
        """Raise NotFound, saying why, if there is nothing to answer."""
        if row is None or row.newest_raw is None:
            raise NotFound(
                f"there is no {key.type} {key.id}", hint="check its type and id, or ingest it", entity_key=str(key)
            )
        if row.version is None and version is not None:
            raise _no_version(key, version)
        held = holding.get(row.number)
        if row.compiled is None and held is not None and version in (None, held.deploy.version):
            raise held.error(key)
        if row.compiled is None:
            what = f"{key.type} {key.id}" if version is None else f"version {version} of {key.type} {key.id}"
            raise NotFound(
                f"{what} was ingested and is not compiled yet",
                hint="run `analemma worker`, or compile it",
                entity_key=str(key),
            )
        if row.deleted:
            deleted_at = moment(row.created_at_us or 0)
            raise NotFound(
                f"{key.type} {key.id} was deleted at {deleted_at.isoformat(' ', 'seconds')}",
                hint="an older version can still be read by its number",
                entity_key=str(key),
                deleted_at=deleted_at,
            )

    def _read_bodies(self, view: ViewDefinition, rows: Sequence[ServedEntity | None]) -> list[Bodies | Corrupt]:
        """The bodies of each of these entities, all read together, or what is wrong with them. An entity that is asked
        for twice has two."""
        wanted = [
            [] if row is None or row.deleted else [(each, each.root) for each in row.slices if each.root is not None]
            for row in rows
        ]
        roots = [root for slices in wanted for _, root in slices]
        try:
            values: Iterator[Any] | None = iter(self._context.trees.read_many(roots))
        except Corrupt:
            values = None  # One by one, it shows whose.
        bodies: list[Bodies | Corrupt] = []
        for row, slices in zip(rows, wanted, strict=True):
            try:
                found = (
                    self._context.trees.read_many([root for _, root in slices])
                    if values is None
                    else islice(values, len(slices))
                )
                bodies.append(
                    {
                        each.type: check_slice(
                            value, each.hash, f"the slice {each.type} of version {_shown(each.version)}"
                        )
                        for (each, _), value in zip(slices, list(found), strict=True)
                    }
                )
            except Corrupt as exc:
                assert row is not None
                bodies.append(damaged_slice(EntityKey(view.entity_type, self._tenant, row.key), exc))
        return bodies

    def _answer(self, contracts: ContractSet, view: ViewDefinition, row: ServedEntity, present: Bodies) -> ViewResponse:
        assert row.version is not None and row.compiled is not None
        key = EntityKey(view.entity_type, self._tenant, row.key)
        absent = {each.type: (each.tombstone, each.detail) for each in row.slices if each.tombstone is not None}
        data, missing = choose_slices(view, present, absent, f"{key.type} {key.id}")
        policy = view.partial_policy
        return ViewResponse(
            row.key,
            data,
            ViewMeta(
                view=str(view.ref),
                entity_key=str(key),
                version=_shown(row.version),
                revision=row.compiled.revision,
                slices={
                    each.type: ServedSlice(_shown(each.version), each.revision, format_hash(each.hash))
                    for each in row.slices
                    if each.hash is not None
                },
                staleness=_staleness(contracts, view, row),
                missing_slices=missing if policy.include_missing_slices else None,
                used_contracts=_used(view, row) if policy.include_used_contracts else None,
            ),
        )


class EntityView:
    """One view of one tenant's entities.

    `get`, `many`, `range`, `search` and `count` are those of `QueryViewWorkflow`."""

    id: str

    def __init__(self, workflow: QueryViewWorkflow, view_id: str, version: str | None) -> None:
        self.id = view_id
        self._workflow = workflow
        self._version = version

    def get(self, entity_id: str, version: str | None = None) -> ViewResponse:
        """The answer for one entity, at a version or at the one that is served."""
        return self._workflow.execute(self.id, entity_id, version, view_version=self._version)

    def many(self, entity_ids: Iterable[str]) -> ViewBatch:
        """Answers for up to 1,000 entities, in their order; `unanswered` has the others, with the reason."""
        return self._workflow.execute_many(self.id, entity_ids, view_version=self._version)

    def range(self, prefix: str = "", *, limit: int = PAGE, cursor: str | None = None) -> ViewPage:
        """A page of all entities, in the order of their ids."""
        return self._workflow.execute_range(
            self.id, prefix=prefix, limit=limit, cursor=cursor, view_version=self._version
        )

    def search(
        self,
        index: str,
        value: Any,
        *,
        limit: int = PAGE,
        cursor: str | None = None,
        require_complete: bool = False,
    ) -> ViewPage:
        """A page of the entities whose index has this value, exactly."""
        return self._workflow.execute_search(
            self.id,
            index=index,
            value=value,
            limit=limit,
            cursor=cursor,
            view_version=self._version,
            require_complete=require_complete,
        )

    def every(self, prefix: str = "", *, page: int = PAGE) -> Iterator[ViewResponse]:
        """All answers, page by page; entities for which the view has none are left out. Where something is damaged,
        Corrupt names it after all others were given."""
        cursor = None
        damage = Damage(self.id)
        while True:
            found = self.range(prefix, limit=page, cursor=cursor)
            yield from found
            damage.add(found)
            cursor = found.next_cursor
            if cursor is None:
                damage.check()
                return

    def count(
        self, prefix: str = "", *, index: str | None = None, value: Any = None, require_complete: bool = False
    ) -> Count:
        """How many entities `range`, or with an index `search`, goes through in all."""
        return self._workflow.count(
            self.id,
            prefix=prefix,
            index=index,
            value=value,
            view_version=self._version,
            require_complete=require_complete,
        )


def _sound(bodies: Bodies | Corrupt) -> Bodies:
    if isinstance(bodies, Corrupt):
        raise bodies
    return bodies


def _listed(entity_ids: Iterable[str]) -> list[str]:
    if isinstance(entity_ids, str) or not isinstance(entity_ids, Iterable):
        what = "one text" if isinstance(entity_ids, str) else f"of type {type(entity_ids).__name__}"
        raise Invalid(f"the ids are {what}", hint="give a list of ids")
    ids = list(islice(entity_ids, LARGEST_PAGE + 1))
    if len(ids) > LARGEST_PAGE:
        count = len(entity_ids) if isinstance(entity_ids, Sized) else f"more than {LARGEST_PAGE}"
        raise Invalid(f"{count} entities were asked for at once", hint=f"the limit is {LARGEST_PAGE}")
    return ids


def _slice_types(view: ViewDefinition) -> tuple[str, ...]:
    return (*view.required_slices, *view.optional_slices)


def _staleness(contracts: ContractSet, view: ViewDefinition, row: ServedEntity) -> Staleness:
    assert row.newest_raw is not None and row.version is not None and row.compiled is not None
    ruleset = contracts.find_ruleset(view.entity_type)
    return Staleness(
        newest_version=_shown(row.newest_raw),
        compiled_version=_shown(row.newest_compiled or row.version),
        serving_version=_shown(row.serving_version or row.version),
        ruleset_is_current=ruleset is not None and ruleset.fingerprint == row.compiled.fingerprint,
    )


def _used(view: ViewDefinition, row: ServedEntity) -> tuple[str, ...]:
    assert row.compiled is not None
    refs = [str(view.ref), f"{row.compiled.ruleset_id}@{row.compiled.ruleset_version}"]
    if row.schema is not None:
        refs.append(f"{row.schema[0]}@{row.schema[1]}")
    return tuple(refs)


def _indexed(contracts: ContractSet, view: ViewDefinition, index: str, value: Any) -> str:
    ruleset = contracts.find_ruleset(view.entity_type)
    known = [] if ruleset is None else [each.type for each in ruleset.indexes]
    if index not in known:
        raise Invalid(
            f"{view.entity_type} has no index {index!r}", hint=f"there are {', '.join(known) or 'none'}", index=index
        )
    text = index_text(value)
    if text is None:
        raise Invalid("nothing is indexed under null, a list or an object", hint="search for text or a number")
    return text


def _check_limit(limit: int) -> None:
    if type(limit) is not int or not 1 <= limit <= LARGEST_PAGE:
        raise Invalid(f"not a limit: {limit!r}", hint=f"a page has 1 to {LARGEST_PAGE} entities")


def _check_prefix(prefix: str) -> None:
    if not isinstance(prefix, str):
        raise Invalid(f"the prefix is of type {type(prefix).__name__}", hint="give it as text")
    try:
        fits = len(prefix.encode()) <= _LONGEST_PREFIX
    except UnicodeEncodeError:
        fits = False
    if not fits or "\0" in prefix:
        raise Invalid("no id begins with this prefix", hint=f"ids are up to {_LONGEST_PREFIX} bytes of text")


def _text(place: str | int) -> str:
    if not isinstance(place, str):
        raise no_cursor()
    return place


def _number(place: str | int) -> int:
    if type(place) is not int or not 0 <= place <= LARGEST_VERSION:
        raise no_cursor()
    return place


def _no_version(key: EntityKey, version: str | None) -> NotFound:
    return NotFound(
        f"{key.type} {key.id} has no version {version}", hint="`analemma slices` shows the newest", entity_key=str(key)
    )


def _shown(version: int) -> str:
    return format_version(Version(version))
