"""Compares contracts by meaning: what changed, how large a step that is for those who rely on it, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analemma.contracts.contract_set import ContractSet
from analemma.contracts.models import (
    BuildRule,
    Contract,
    EntityField,
    EntitySchema,
    Index,
    Join,
    PassThrough,
    Ruleset,
    SinkRule,
    Slice,
    StateSource,
    Status,
    ViewDefinition,
)
from analemma.contracts.semver import Level, SemanticVersion
from analemma.contracts.templates import Template

Step = tuple[Level, str]
"""How large, and what."""

_WIDER = {("int", "long"), ("int", "double"), ("long", "double")}
_STRICTNESS = ("kept", "refused where the ruleset does not account for them", "rejected")
"""What becomes of fields that a schema does not list, from the most lenient on."""
_STATUS_STEPS = {Status.ACTIVE: Level.PATCH, Status.DEPRECATED: Level.MINOR, Status.ARCHIVED: Level.MAJOR}


@dataclass(frozen=True, slots=True)
class Difference:
    """What became of one contract."""

    kind: str
    id: str
    before: SemanticVersion | None
    after: SemanticVersion | None
    level: Level
    """How large the step is by what changed."""
    reasons: tuple[Step, ...]
    needed: Level
    """How far the version has to be raised: as `level`, but a status moves, and contracts come and go, without."""
    declared: Level
    """How far it was raised."""

    @property
    def sufficient(self) -> bool:
        """Whether the version was raised enough."""
        return self.declared >= self.needed


def diff_contracts(before: ContractSet, after: ContractSet) -> tuple[Difference, ...]:
    """Every contract that changed, appeared or went, by id; of each id the version that applies is compared."""
    old, new = _applying(before), _applying(after)
    found = (_compare(old.get(name), new.get(name)) for name in sorted({*old, *new}))
    return tuple(each for each in found if each is not None)


def _applying(contracts: ContractSet) -> dict[str, Contract]:
    names = {(each.id, type(each)) for each in contracts.contracts}
    found = {name: contracts.newest(name, kind) for name, kind in names}
    return {name: each for name, each in found.items() if each is not None}


def _compare(before: Contract | None, after: Contract | None) -> Difference | None:
    if before is None or after is None:
        one = before or after
        assert one is not None
        step = (Level.MAJOR, "removed") if after is None else (Level.MINOR, "added")
        old = None if before is None else before.version
        new = None if after is None else after.version
        return Difference(one.kind, one.id, old, new, step[0], (step,), Level.NONE, Level.NONE)
    content = list(_content_steps(before, after))
    steps = sorted([*_status_steps(before, after), *content], key=lambda step: -step[0])
    if not steps and before.version == after.version:
        return None
    level, needed = (max((step[0] for step in found), default=Level.NONE) for found in (steps, content))
    declared = before.version.step_to(after.version)
    return Difference(after.kind, after.id, before.version, after.version, level, tuple(steps), needed, declared)


def _status_steps(before: Contract, after: Contract) -> Iterator[Step]:
    if before.status is not after.status:
        yield _STATUS_STEPS.get(after.status, Level.MAJOR), f"status {before.status} -> {after.status}"


def _content_steps(before: Contract, after: Contract) -> Iterator[Step]:
    if before.description != after.description:
        yield Level.PATCH, "description changed"
    match before, after:
        case EntitySchema(), EntitySchema():
            yield from _schema_steps(before, after)
        case Ruleset(), Ruleset():
            yield from _ruleset_steps(before, after)
        case ViewDefinition(), ViewDefinition():
            yield from _view_steps(before, after)
        case SinkRule(), SinkRule():
            yield from _sink_steps(before, after)
        case StateSource(), StateSource():
            yield from _source_steps(before, after)
        case _:
            yield Level.MAJOR, f"kind {before.kind} -> {after.kind}"


def _changed(what: str, before: Any, after: Any, level: Level) -> Iterator[Step]:
    if before != after:
        yield level, f"{what} {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return "nothing" if value is None else str(value)


def _members(
    what: str,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    compare: Callable[[Any, Any], Iterator[Step]],
    added: Callable[[Any], Level] = lambda _: Level.MINOR,
) -> Iterator[Step]:
    """Named parts: what went is a major step, what came usually a minor one."""
    for name in before:
        if name not in after:
            yield Level.MAJOR, f"{what} {name} removed"
        else:
            yield from ((level, f"{what} {name}: {reason}") for level, reason in compare(before[name], after[name]))
    for name in after:
        if name not in before:
            yield added(after[name]), f"{what} {name} added"


def _names(what: str, before: Sequence[str] | None, after: Sequence[str] | None) -> Iterator[Step]:
    """Lists of names, None for all of them."""
    if before is None or after is None:
        yield from _changed(what, before, after, Level.MAJOR if before is None else Level.MINOR)
        return
    yield from _members(what, dict.fromkeys(before), dict.fromkeys(after), lambda *_: iter(()))


def _schema_steps(before: EntitySchema, after: EntitySchema) -> Iterator[Step]:
    yield from _changed("entityType", before.entity_type, after.entity_type, Level.MAJOR)
    yield from _members(
        "field",
        before.fields_by_name,
        after.fields_by_name,
        _field_steps,
        lambda field: Level.MAJOR if field.required else Level.MINOR,
    )
    strictness = (_strictness(before), _strictness(after))
    if strictness[0] != strictness[1]:
        level = Level.MAJOR if strictness[1] > strictness[0] else Level.MINOR
        yield level, f"additional fields are {_STRICTNESS[strictness[1]]} now"
    yield from _changed("ruleSetRef", before.ruleset_ref, after.ruleset_ref, Level.MINOR)


def _strictness(schema: EntitySchema) -> int:
    return 0 if schema.keeps_additional_fields else 2 if schema.rejects_additional_fields else 1


def _field_steps(before: EntityField, after: EntityField) -> Iterator[Step]:
    widened = (str(before.type), str(after.type)) in _WIDER
    yield from _changed("type", before.type, after.type, Level.MINOR if widened else Level.MAJOR)
    if before.required != after.required:
        level = Level.MAJOR if after.required else Level.MINOR
        yield level, "required now" if after.required else "optional now"


def _ruleset_steps(before: Ruleset, after: Ruleset) -> Iterator[Step]:
    yield from _changed("entityType", before.entity_type, after.entity_type, Level.MAJOR)
    yield from _members("slice", before.slices_by_type, after.slices_by_type, _slice_steps)
    kept = [each.type for each in before.slices if each.type in after.slices_by_type]
    if kept != [each.type for each in after.slices if each.type in before.slices_by_type]:
        yield Level.PATCH, "slices in another order"
    indexes = [{each.type: each for each in ruleset.indexes} for ruleset in (before, after)]
    yield from _members("index", indexes[0], indexes[1], _index_steps)
    yield from _changed("ignore", before.ignore, after.ignore, Level.PATCH)
    if before.impact_map != after.impact_map:
        yield Level.PATCH, "impactMap changed"
    declared = [each for patterns in (before.impact_map or {}).values() for each in patterns]
    lost = [str(each) for each in dict.fromkeys((*before.ignore, *declared)) if not each.covered_by(after.accounted)]
    if lost:
        yield Level.MAJOR, f"documents with {', '.join(lost)} are refused now"


def _slice_steps(before: Slice, after: Slice) -> Iterator[Step]:
    yield from _changed("sliceKind", before.kind, after.kind, Level.PATCH)
    yield from _rule_steps(before.rules, after.rules)
    joins = [{each.name: each for each in definition.joins} for definition in (before, after)]
    yield from _members(
        "join", joins[0], joins[1], _join_steps, lambda join: Level.MAJOR if join.required else Level.MINOR
    )


def _rule_steps(before: Sequence[BuildRule], after: Sequence[BuildRule], what: str = "buildRules") -> Iterator[Step]:
    if before == after:
        return
    if len(before) == len(after) == 1:
        one, other = before[0], after[0]
        if isinstance(one, PassThrough) and isinstance(other, PassThrough):
            yield from _names("field", list(map(str, one.fields)), list(map(str, other.fields)))
            return
    # More rules behind the same ones only add, unless they write over what was there; that is not decided here.
    yield Level.MAJOR, f"{what} changed"


def _join_steps(before: Join, after: Join) -> Iterator[Step]:
    if before.required != after.required:
        yield Level.MAJOR if after.required else Level.MINOR, "required now" if after.required else "optional now"
    yield from _changed("sourceFieldPath", before.source, after.source, Level.MAJOR)
    targets = [f"{each.target_entity_type}.{each.target_slice_type}" for each in (before, after)]
    yield from _changed("target", targets[0], targets[1], Level.MAJOR)
    yield from _changed("target id", before.target_id.text, after.target_id.text, Level.MAJOR)
    if before.projection != after.projection:
        copied, now = before.projection.copied, after.projection.copied
        only_more = copied is not None and now is not None and set(copied) <= set(now)
        yield Level.MINOR if only_more else Level.MAJOR, "projection changed"


def _index_steps(before: Index, after: Index) -> Iterator[Step]:
    yield from _changed("selector", before.selector, after.selector, Level.MAJOR)
    yield from _changed("references", before.references, after.references, Level.MAJOR)
    yield from _changed("maxFanout", before.max_fanout, after.max_fanout, Level.PATCH)


def _view_steps(before: ViewDefinition, after: ViewDefinition) -> Iterator[Step]:
    yield from _changed("entityType", before.entity_type, after.entity_type, Level.MAJOR)
    places = [
        {**dict.fromkeys(each.optional_slices, "optional"), **dict.fromkeys(each.required_slices, "required")}
        for each in (before, after)
    ]
    yield from _members(
        "slice",
        places[0],
        places[1],
        lambda one, other: iter([(Level.MAJOR, f"{one} -> {other}")] if one != other else []),
        # Without it, there may now be no answer at all.
        lambda place: Level.MAJOR if place == "required" else Level.MINOR,
    )
    stricter = after.missing_policy == "FAIL_CLOSED"
    level = Level.MAJOR if stricter else Level.MINOR
    yield from _changed("missingPolicy", before.missing_policy, after.missing_policy, level)
    yield from _changed("partialPolicy", before.partial_policy, after.partial_policy, Level.MINOR)
    if before.defaults != after.defaults:
        yield Level.MINOR, "fallback changed"
    yield from _changed("ruleSetRef", before.ruleset_ref, after.ruleset_ref, Level.MINOR)


def _sink_steps(before: SinkRule, after: SinkRule) -> Iterator[Step]:
    yield from _names("entity type", before.entity_types, after.entity_types)
    yield from _names("slice", before.slice_types, after.slice_types)
    yield from _changed("target type", before.target_type, after.target_type, Level.MAJOR)
    if before.target != after.target:
        yield Level.MINOR, "target settings changed"
    yield from _changed("docId", before.document_id.text, after.document_id.text, Level.MAJOR)
    commits = [
        f"{each.batch_size} in {each.timeout_ms} ms" + (f", {each.per_second:g}/s" if each.per_second else "")
        for each in (before, after)
    ]
    yield from _changed("commit", commits[0], commits[1], Level.PATCH)


def _source_steps(before: StateSource, after: StateSource) -> Iterator[Step]:
    yield from _changed("entityType", before.entity_type, after.entity_type, Level.MAJOR)
    yield from _changed("entityId", _text(before.entity_id), _text(after.entity_id), Level.MAJOR)
    yield from _names("workflow", before.workflows, after.workflows)
    yield from _names("owner", before.owners, after.owners)
    yield from _names("branch", before.branches, after.branches)
    yield from _names("tenant", before.tenants, after.tenants)
    if before.rules is None or after.rules is None:
        if before.rules is not after.rules:
            yield Level.MAJOR, "fields or mappings changed"
    else:
        yield from _rule_steps(before.rules, after.rules, "fields or mappings")
    yield from _members(
        "constant",
        before.constants,
        after.constants,
        lambda one, other: _changed("value", _text(one), _text(other), Level.MAJOR),
    )
    yield from _changed("when", before.when, after.when, Level.MINOR)
    removed = ["DELETE" if each.deletes else "KEEP" for each in (before, after)]
    yield from _changed("whenRemoved", removed[0], removed[1], Level.MINOR)
    refused = ["STOP" if each.stops else "SKIP" for each in (before, after)]
    yield from _changed("whenRefused", refused[0], refused[1], Level.MINOR)


def _text(value: Any) -> Any:
    return value.text if isinstance(value, Template) else value
