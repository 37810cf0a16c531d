"""What can be wrong between contracts: what they name must exist, fit, and be in a state to be named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from analemma.contracts.contract_set import ContractSet, joined_types
from analemma.contracts.documents import DOCUMENTS
from analemma.contracts.models import (
    Contract,
    ContractRef,
    EntitySchema,
    Join,
    Ruleset,
    SinkRule,
    StateSource,
    Status,
    ViewDefinition,
)
from analemma.contracts.paths import Pattern
from analemma.contracts.reads import target_fields, written_fields
from analemma.contracts.reporting import Place, Reporter


@dataclass(frozen=True, slots=True)
class Entry:
    """A contract, and where its problems go."""

    contract: Contract
    reporter: Reporter
    """For what is wrong with it whatever applies."""
    links: Reporter
    """For what is wrong between it and others, which only matters while it applies."""
    stays: bool = False
    """It was there before, and is not being loaded."""


@dataclass(frozen=True, slots=True)
class Unread:
    """Documents that could not be read: what is not found may be one of them."""

    are_known: bool
    """Whether it is known of all of them what they were to be."""
    ids: frozenset[str] = frozenset()
    types: frozenset[tuple[str, str]] = frozenset()
    """Kinds and entity types."""

    def with_document(self, plain: Any) -> Unread:
        """These and one more."""
        told = plain if type(plain) is dict else {}
        name, kind, entity_type = told.get("id"), told.get("kind"), told.get("entityType", "")
        if type(name) is not str or type(kind) is not str or type(entity_type) is not str or kind not in DOCUMENTS:
            return replace(self, are_known=False)
        return Unread(self.are_known, self.ids | {name}, self.types | {(kind, entity_type)})

    def may_have(self, kind: type[Contract], entity_type: str) -> bool:
        """Whether a contract of a kind and type may be among them."""
        return not self.are_known or (kind.kind, entity_type) in self.types


def applying(contracts: ContractSet) -> frozenset[ContractRef]:
    """The contracts that something is checked, built, answered or shipped by when no version is named.

    Schemas apply by entity type, rulesets by what their schema or a view names, and the others by their id."""
    sliced = {each.entity_type for each in contracts.of_kind(Ruleset)}
    others = {(each.id, type(each)) for each in contracts.contracts if not isinstance(each, EntitySchema | Ruleset)}
    found: list[Contract | None] = [
        *map(contracts.find_schema, contracts.entity_types),
        *map(contracts.find_ruleset, sliced),
        *(contracts.newest(contract_id, kind) for contract_id, kind in others),
    ]
    named = [each.ruleset_ref for each in found if isinstance(each, ViewDefinition) and each.ruleset_ref is not None]
    # A schema that names a ruleset that is not there means one of those that are: what is wrong with them counts.
    lost = {
        each.entity_type
        for each in found
        if isinstance(each, EntitySchema) and each.ruleset_ref is not None and each.ruleset_ref not in contracts.by_ref
    }
    meant = [each.ref for each in contracts.of_kind(Ruleset) if each.entity_type in lost]
    return frozenset([*(each.ref for each in found if each is not None), *named, *meant])


class Linker:
    """Checks contracts against each other, and against those that are in use already."""

    def __init__(self, entries: Sequence[Entry], previous: ContractSet | None, unread: Unread) -> None:
        self._entries = entries
        self._set = ContractSet(tuple(entry.contract for entry in entries))
        self.applying = applying(self._set)
        self._loaded = {entry.contract.ref for entry in entries if not entry.stays}
        self._previous = previous
        self._unread = unread

    def check(self) -> None:
        """Report everything."""
        self._check_ids()
        self._check_one_schema_per_type()
        for entry in self._entries:
            contract, reporter = entry.contract, entry.links
            self._check_return(contract, reporter)
            if contract.status is Status.ARCHIVED:
                continue
            match contract:
                case EntitySchema():
                    self._check_schema(contract, reporter)
                case Ruleset():
                    self._check_ruleset(contract, reporter)
                case ViewDefinition():
                    self._check_view(contract, reporter)
                case SinkRule():
                    self._check_sink_rule(contract, reporter)
                case StateSource():
                    self._check_state_source(contract, reporter)

    def _check_ids(self) -> None:
        seen: dict[ContractRef, Contract] = {}
        kinds: dict[str, Contract] = {}
        for entry in self._entries:
            contract = entry.contract
            first = seen.setdefault(contract.ref, contract)
            if first is not contract:
                entry.reporter.at(("id",), f"{contract.ref} exists twice", f"the first is at {first.origin}")
            namesake = kinds.setdefault(contract.id, contract)
            if namesake.kind != contract.kind:
                entry.reporter.at(
                    ("id",), f"{contract.id} is of kind {namesake.kind} elsewhere", f"the other is at {namesake.origin}"
                )
            self._check_succession(contract, entry.reporter)

    def _check_succession(self, contract: Contract, reporter: Reporter) -> None:
        """A version that was in use keeps its content, and its status only moves on."""
        before = None if self._previous is None else self._previous.by_ref.get(contract.ref)
        if before is None:
            return
        stages = list(Status)
        if stages.index(contract.status) < stages.index(before.status):
            reporter.at(("status",), f"{contract.ref} was {before.status} and cannot become {contract.status} again")
        if before.status is not Status.DRAFT and before.checksum != contract.checksum:
            reporter.at(
                ("version",), f"{contract.ref} is in use with other content", "raise its version: published ones stay"
            )

    def _check_one_schema_per_type(self) -> None:
        first: dict[str, EntitySchema] = {}
        for entry in self._entries:
            contract = entry.contract
            if isinstance(contract, EntitySchema) and contract.status is Status.ACTIVE:
                other = first.setdefault(contract.entity_type, contract)
                if other.id != contract.id:
                    entry.reporter.at(
                        ("entityType",),
                        f"{contract.entity_type} has two ACTIVE schemas, {other.id} and {contract.id}",
                        f"the first is at {other.origin}",
                    )

    def _check_return(self, contract: Contract, reporter: Reporter) -> None:
        """Retiring the newest version brings an older one back that was left ACTIVE."""
        if contract.status not in (Status.DEPRECATED, Status.ARCHIVED):
            return
        if isinstance(contract, Ruleset):
            schema = self._set.find_schema(contract.entity_type)
            if schema is not None and schema.ruleset_ref is not None:
                return
        others = [each for each in self._set.of_kind(type(contract)) if each.id == contract.id]
        if any(each.version > contract.version and each.status is not Status.DRAFT for each in others):
            return
        for each in others:
            if each.status is Status.ACTIVE and each.ref in self.applying:
                reporter.warn(
                    ("status",),
                    f"{contract.ref} is {contract.status}, so {each.ref}, which is ACTIVE, applies in its place",
                    "retire the older version too",
                )

    def _check_schema(self, schema: EntitySchema, reporter: Reporter) -> None:
        self._check_fields(schema, self._set.find_ruleset(schema.entity_type), reporter, told_by=schema)
        if schema.ruleset_ref is not None:
            self._check_ref(schema, schema.ruleset_ref, schema.entity_type, reporter)
            return
        ruleset = self._set.find_ruleset(schema.entity_type)
        if ruleset is not None:
            self._check_draft(schema, ruleset, reporter)
        elif schema.status is Status.ACTIVE and self._had_ruleset(schema.entity_type):
            reporter.at(
                ("entityType",),
                f"{schema.entity_type} has no ruleset, only archived ones",
                "load another ruleset, or retire the schema too",
            )

    def _check_fields(
        self, schema: EntitySchema | None, ruleset: Ruleset | None, reporter: Reporter, *, told_by: Contract
    ) -> None:
        """A field that is listed, and that the ruleset has nothing to do with. Told of the schema, which has its line,
        or of the ruleset, if only that is being loaded."""
        if schema is None or ruleset is None or self._set.find_schema(schema.entity_type) is not schema:
            return
        if ruleset is not self._set.find_ruleset(schema.entity_type):
            return
        if told_by is not (schema if schema.ref in self._loaded else ruleset) or schema.lacks or ruleset.lacks:
            return
        for number, field in enumerate(schema.fields):
            path = (field.name,)
            if ruleset.accounts_for(path) or any(each.touches(path) for each in ruleset.ignore):
                continue
            kept = schema.keeps_additional_fields
            reporter.warn(
                ("fields", number, "name") if told_by is schema else ("slices",),
                f"{ruleset.ref} neither reads nor ignores the field {field.name} of {schema.ref}: "
                + ("it is stored, and no slice has it" if kept else "documents that have it are refused"),
                "add it to a slice, to impactMap or to ignore",
            )

    def _check_draft(self, user: Contract, ruleset: Ruleset, reporter: Reporter) -> None:
        """What names no ruleset takes the one there is, which may be unfinished. A draft that is being loaded tells of
        that itself."""
        if user.status is not Status.DRAFT and ruleset.status is Status.DRAFT and ruleset.ref not in self._loaded:
            reporter.warn(
                ("entityType",), f"{user.ref} is {user.status}, and works by {ruleset.ref}, a DRAFT", "activate it"
            )

    def _had_ruleset(self, entity_type: str) -> bool:
        return any(each.entity_type == entity_type for each in self._set.of_kind(Ruleset))

    def _check_ref(
        self, binder: Contract, ref: ContractRef | None, entity_type: str, reporter: Reporter
    ) -> Ruleset | None:
        """A reference to a ruleset: there is one, it is of this type, and may be bound."""
        if ref is None:
            return None
        at: Place = ("ruleSetRef",)
        found = self._set.by_ref.get(ref)
        if found is None:
            versions = sorted(str(each.version) for each in self._set.contracts if each.id == ref.id)
            if self._unread.are_known and ref.id not in self._unread.ids:
                hint = f"there is {ref.id} in {', '.join(versions)}" if versions else None
                reporter.at((*at, "version" if versions else "id"), f"there is no ruleset {ref}", hint)
            return None
        if not isinstance(found, Ruleset):
            reporter.at((*at, "id"), f"{ref} is of kind {found.kind}, not RULESET")
            return None
        if found.entity_type != entity_type:
            reporter.at((*at, "id"), f"the ruleset {ref} is for {found.entity_type}, not for {entity_type}")
            return None
        self._check_binding(binder, found, at, reporter)
        return found

    def _check_binding(self, binder: Contract, bound: Contract, at: Place, reporter: Reporter) -> None:
        if bound.status is Status.DRAFT and binder.status is not Status.DRAFT:
            reporter.at(at, f"{binder.ref} is {binder.status} and binds {bound.ref}, a DRAFT", "activate it first")
        elif bound.status is Status.ARCHIVED:
            reporter.at(at, f"{binder.ref} binds {bound.ref}, which is ARCHIVED", "bind another version")
        elif bound.status is Status.DEPRECATED and binder.status in (Status.DRAFT, Status.ACTIVE):
            was_there = self._previous is not None and self._previous.by_ref.get(binder.ref) is not None
            if self._previous is not None and not was_there:
                reporter.at(
                    at, f"{binder.ref} is new and binds {bound.ref}, which is DEPRECATED", "bind another version"
                )
            else:
                reporter.warn(at, f"{binder.ref} binds {bound.ref}, which is DEPRECATED")

    def _check_type(self, binder: Contract, entity_type: str, at: Place, reporter: Reporter) -> EntitySchema | None:
        schema = self._set.find_schema(entity_type)
        if schema is None:
            archived = any(each.entity_type == entity_type for each in self._set.of_kind(EntitySchema))
            if archived or not self._unread.may_have(EntitySchema, entity_type):
                reporter.at(
                    at, f"there is no ENTITY_SCHEMA for {entity_type}" + (", only archived ones" if archived else "")
                )
            return None
        if schema.status is Status.DRAFT:
            self._check_binding(binder, schema, at, reporter)
        return schema

    def _check_ruleset(self, ruleset: Ruleset, reporter: Reporter) -> None:
        schema = self._check_type(ruleset, ruleset.entity_type, ("entityType",), reporter)
        self._check_fields(schema, ruleset, reporter, told_by=ruleset)
        if ruleset.status is Status.DRAFT and self._set.find_ruleset(ruleset.entity_type) is ruleset:
            self._check_users(ruleset, reporter)
        for number, definition in enumerate(ruleset.slices):
            at: Place = ("slices", number)
            for position, join in enumerate(definition.joins):
                self._check_join(ruleset, join, (*at, "joins", position), reporter)
                if schema is not None and join.name in schema.fields_by_name:
                    reporter.at(
                        (*at, "joins", position, "name"),
                        f"the join {join.name} would hide the field of that name",
                        "call the join otherwise",
                    )
            if schema is not None:
                self._check_reads(schema, definition.reads, f"the slice {definition.type}", (*at, "type"), reporter)
        for number, index in enumerate(ruleset.indexes):
            where: Place = ("indexes", number)
            if index.references is not None:
                self._check_type(ruleset, index.references, (*where, "references"), reporter)
            if schema is not None:
                self._check_reads(schema, [index.selector], f"the index {index.type}", (*where, "selector"), reporter)
        for cycle, at in self._cycles(ruleset):
            reporter.at(
                at, f"the joins go in a circle: {' -> '.join(cycle)}", "a join may not lead back to its entity type"
            )

    def _check_users(self, draft: Ruleset, reporter: Reporter) -> None:
        unnamed = (
            each
            for each in self._set.contracts
            if isinstance(each, EntitySchema | ViewDefinition)
            and (each.entity_type, each.ruleset_ref) == (draft.entity_type, None)
        )
        users = [str(each.ref) for each in unnamed if each.status in (Status.ACTIVE, Status.DEPRECATED)]
        if users:
            reporter.warn(("status",), f"{draft.ref} is a DRAFT, and {', '.join(users)} work by it", "activate it")

    def _check_join(self, ruleset: Ruleset, join: Join, at: Place, reporter: Reporter) -> None:
        schema = self._check_type(ruleset, join.target_entity_type, (*at, "targetEntityType"), reporter)
        if schema is None:
            return
        target = self._set.find_ruleset(join.target_entity_type)
        if target is None:
            if self._should_have_ruleset(schema):
                reporter.at((*at, "targetEntityType"), f"{join.target_entity_type} has no ruleset, so it has no slices")
        elif join.target_slice_type not in target.slices_by_type:
            if _is_unread(target, "slices", "type", join.target_slice_type):
                return
            reporter.at(
                (*at, "targetSliceType"),
                f"{target.ref} has no slice {join.target_slice_type}",
                f"there are {', '.join(target.slices_by_type)}",
            )
        else:
            self._check_binding(ruleset, target, (*at, "targetEntityType"), reporter)

    def _should_have_ruleset(self, schema: EntitySchema) -> bool:
        """Whether its absence was not told already, where the schema names it."""
        return schema.ruleset_ref is None and not self._unread.may_have(Ruleset, schema.entity_type)

    def _check_reads(
        self, schema: EntitySchema, reads: Sequence[Pattern], reader: str, at: Place, reporter: Reporter
    ) -> None:
        for read in reads:
            name = read.segments[0] if read.segments else None
            if not isinstance(name, str) or _is_unread(schema, "fields", "name", name):
                continue
            if name not in schema.fields_by_name:
                reason = f"{reader} reads {read}, which {schema.ref} does not have"
                if schema.rejects_additional_fields:
                    reporter.at(at, reason, "the schema rejects additional fields, so it can never be there")
                else:
                    reporter.warn(at, reason)

    def _cycles(self, ruleset: Ruleset) -> Iterator[tuple[list[str], Place]]:
        """Ways from a join of this ruleset back to its own entity type."""
        for number, definition in enumerate(ruleset.slices):
            for position, join in enumerate(definition.joins):
                way = self._way(join.target_entity_type, ruleset.entity_type)
                if way:
                    yield [ruleset.entity_type, *way], ("slices", number, "joins", position, "targetEntityType")

    def _way(self, start: str, goal: str) -> list[str]:
        """The shortest way along joins, start and goal included; empty if there is none."""
        came_from: dict[str, str | None] = {start: None}
        waiting = [start]
        for here in waiting:
            if here == goal:
                way = [here]
                while (before := came_from[way[-1]]) is not None:
                    way.append(before)
                return way[::-1]
            ruleset = self._set.find_ruleset(here)
            for target in [] if ruleset is None else sorted(joined_types(ruleset)):
                if target not in came_from:
                    came_from[target] = here
                    waiting.append(target)
        return []

    def _check_view(self, view: ViewDefinition, reporter: Reporter) -> None:
        schema = self._check_type(view, view.entity_type, ("entityType",), reporter)
        if view.ruleset_ref is not None:
            ruleset = self._check_ref(view, view.ruleset_ref, view.entity_type, reporter)
        else:
            ruleset = self._set.find_ruleset(view.entity_type)
            if ruleset is not None:
                self._check_draft(view, ruleset, reporter)
            elif schema is not None and schema.ruleset_ref is None:
                archived = self._had_ruleset(view.entity_type)
                if archived or not self._unread.may_have(Ruleset, view.entity_type):
                    lacks = f"{view.entity_type} has no ruleset" + (", only archived ones" if archived else "")
                    reporter.at(("entityType",), lacks, "without one, there is nothing to answer")
        if ruleset is None:
            return
        for key, names in (("requiredSlices", view.required_slices), ("optionalSlices", view.optional_slices)):
            for number, name in enumerate(names):
                if name not in ruleset.slices_by_type and not _is_unread(ruleset, "slices", "type", name):
                    known = ", ".join(ruleset.slices_by_type)
                    reporter.at((key, number), f"{ruleset.ref} has no slice {name}", f"there are {known}")

    def _check_sink_rule(self, rule: SinkRule, reporter: Reporter) -> None:
        for position, entity_type in enumerate(rule.entity_types):
            at: Place = ("input", "entityTypes", position)
            schema = self._check_type(rule, entity_type, at, reporter)
            if schema is None:
                continue
            ruleset = self._set.find_ruleset(entity_type)
            if ruleset is None:
                if self._should_have_ruleset(schema):
                    reporter.at(at, f"{entity_type} has no ruleset, so there is nothing to ship")
                continue
            for number, name in enumerate(rule.slice_types or ()):
                if name not in ruleset.slices_by_type and not _is_unread(ruleset, "slices", "type", name):
                    known = ", ".join(ruleset.slices_by_type)
                    where: Place = ("input", "sliceTypes", number)
                    reporter.at(where, f"{ruleset.ref} has no slice {name}", f"there are {known}")
            chosen = [each for each in ruleset.slices if rule.slice_types is None or each.type in rule.slice_types]
            written = [(each, written_fields(each)) for each in chosen]
            for (one, first), (other, second) in combinations(written, 2):
                fields = _shared_fields(first, second)
                if fields:
                    reporter.at(
                        ("input", "sliceTypes"),
                        f"the slices {one.type} and {other.type} of {entity_type} collide in {fields}",
                        "a document has each field from one slice",
                    )

    def _check_state_source(self, source: StateSource, reporter: Reporter) -> None:
        schema = self._check_type(source, source.entity_type, ("entityType",), reporter)
        if schema is None or source.rules is None or schema.lacks or source.lacks:
            return
        fields = target_fields(source.rules)
        if fields is None:
            return
        fields |= set(source.constants)
        at: Place = ("mappings",)
        missing = [each.name for each in schema.fields if each.required and each.name not in fields]
        if missing:
            reporter.at(
                at,
                f"{schema.ref} requires {', '.join(missing)}, which the source never gives",
                "no state would become such an entity: add it to fields, mappings or constants",
            )
        unknown = sorted(name for name in fields if name not in schema.fields_by_name)
        if unknown and schema.rejects_additional_fields:
            reporter.at(
                at, f"{schema.ref} has no {', '.join(unknown)}", "the schema rejects additional fields: leave it out"
            )
            return
        ruleset = self._set.find_ruleset(source.entity_type)
        if ruleset is not None and not ruleset.lacks and not schema.keeps_additional_fields:
            lost = [name for name in unknown if name not in ruleset.whole_fields and not ruleset.accounts_for((name,))]
            if lost:
                reporter.warn(
                    at,
                    f"{ruleset.ref} neither reads nor ignores {', '.join(lost)}: states that have it become no entity",
                    "add it to a slice, to impactMap or to ignore; or leave it out",
                )


def _is_unread(contract: Contract, key: str, naming: str, name: str) -> bool:
    """Whether a list of a contract may have a part of this name that could not be read."""
    if key not in contract.lacks:
        return False
    parts = contract.document.get(key)
    return type(parts) is not list or any(type(each) is not dict or each.get(naming, name) == name for each in parts)


def _shared_fields(first: set[str] | None, second: set[str] | None) -> str | None:
    if first is None or second is None:
        return "fields that only the data decides (one of them copies `*`)"
    return ", ".join(sorted(first & second)) or None
