"""What can be wrong with one contract by itself, beyond its shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

from analemma.contracts.globs import is_glob
from analemma.contracts.models import (
    BuildRule,
    Contract,
    EntitySchema,
    FieldMapping,
    Join,
    MapFields,
    MergeFields,
    PassThrough,
    Ruleset,
    SinkRule,
    Slice,
    StateSource,
    ViewDefinition,
)
from analemma.contracts.paths import Pattern, parse_path
from analemma.contracts.private_fields import is_private
from analemma.contracts.reads import rule_targets
from analemma.contracts.reporting import Place, Reporter
from analemma.contracts.templates import PATH_MARK
from analemma.errors import Invalid


def check_contract(contract: Contract, reporter: Reporter) -> None:
    """Report everything that is wrong with a contract whatever others there are."""
    declared = contract.document.get("checksum")
    if declared is not None and declared != contract.checksum and "checksum" not in contract.lacks:
        reporter.at(
            ("checksum",),
            f"the checksum does not match: it says {declared}",
            f"the contract's is {contract.checksum}; it covers everything but checksum and status",
        )
    match contract:
        case EntitySchema():
            _no_twins(reporter, ("fields",), [each.name for each in contract.fields], "field", "name")
        case Ruleset():
            _check_ruleset(contract, reporter)
        case ViewDefinition():
            _check_view(contract, reporter)
        case SinkRule():
            _no_twins(reporter, ("input", "entityTypes"), contract.entity_types, "entity type")
            _no_twins(reporter, ("input", "sliceTypes"), contract.slice_types or (), "slice type")
        case StateSource():
            _check_state_source(contract, reporter)


def _check_ruleset(ruleset: Ruleset, reporter: Reporter) -> None:
    _no_twins(reporter, ("slices",), [each.type for each in ruleset.slices], "slice type", "type")
    _no_twins(reporter, ("indexes",), [each.type for each in ruleset.indexes], "index type", "type")
    for number, definition in enumerate(ruleset.slices):
        _check_slice(ruleset, definition, ("slices", number), reporter)
    _check_ignored(ruleset, reporter)
    _check_impact_map(ruleset, reporter)


def _check_slice(ruleset: Ruleset, definition: Slice, at: Place, reporter: Reporter) -> None:
    _no_twins(reporter, (*at, "joins"), [each.name for each in definition.joins], "join", "name")
    if definition.kind == "ENRICHMENT" and not definition.joins:
        reporter.at(
            (*at, "sliceKind"), f"the ENRICHMENT slice {definition.type} has no joins", "add joins, or leave it out"
        )
    for number, rule in enumerate(definition.rules):
        # A single rule stands there without a list: the number then leads nowhere, which the reporter is used to.
        where: Place = (*at, "buildRules", number)
        match rule:
            case PassThrough():
                _no_twins(reporter, (*where, "fields"), rule.fields, "field")
            case MapFields():
                _check_mappings(rule.mappings, (*where, "mappings"), ("from", "to"), reporter)
            case MergeFields():
                _check_target(rule.target, 0, (*where, "target"), reporter)
    moved = [Pattern((join.name,)) for join in definition.added_joins]
    _check_written_once(f"the slice {definition.type}", definition.rules, moved, (*at, "buildRules"), reporter)
    for number, join in enumerate(definition.joins):
        _check_join(ruleset, join, (*at, "joins", number), reporter)


def _check_join(ruleset: Ruleset, join: Join, at: Place, reporter: Reporter) -> None:
    if join.source.literal is None or not join.source.segments:
        reporter.at((*at, "sourceFieldPath"), f"the join {join.name} reads {join.source}, which is not one value")
        return
    if join.projection.copied is not None:
        _check_mappings(
            join.projection.copied, (*at, "projection", "fields"), ("fromTargetPath", "toOutputPath"), reporter
        )
    indexed = any(
        each.references == join.target_entity_type and each.selector == join.source for each in ruleset.indexes
    )
    if not indexed and "indexes" not in ruleset.lacks:
        reporter.at(
            (*at, "name"),
            f"the join {join.name} has no index: a change of {join.target_entity_type} would not find what joins it",
            f"add to indexes: {{type: ..., selector: {join.source}, references: {join.target_entity_type}}}",
        )


def _check_mappings(mappings: Iterable[FieldMapping], at: Place, keys: tuple[str, str], reporter: Reporter) -> None:
    for number, mapping in enumerate(mappings):
        source, target = mapping.source, mapping.target
        _check_target(target, source.wildcards, (*at, number, keys[1]), reporter)
        if source.has_depth and target.wildcards:
            reporter.at(
                (*at, number, keys[1]), f"{target} has wildcards, and {source} has `**`: nothing says which is which"
            )


def _check_target(target: Pattern, wildcards: int, at: Place, reporter: Reporter) -> None:
    if not target.segments:
        reporter.at(at, "the target is the whole slice", "name a field")
    elif target.has_depth:
        reporter.at(at, f"the target {target} has `**`, which is no one place")
    elif target.wildcards > wildcards:
        reporter.at(at, f"the target {target} has more wildcards than its source")


def _check_written_once(
    what: str, rules: Iterable[BuildRule], added: Iterable[Pattern], at: Place, reporter: Reporter
) -> None:
    """Places that two mappings are sure to fight for. Where only data decides, the later rule wins."""
    rules = tuple(rules)
    moved = [each for rule in rules if not isinstance(rule, PassThrough) for each in rule_targets((rule,))]
    moved += added
    copied = [each for rule in rules if isinstance(rule, PassThrough) for each in rule.fields]
    # What is copied keeps its place, so what is copied twice is the same.
    places = Counter(each.literal for each in moved if each.literal)
    unmoved = {each.literal for each in copied if each.literal} - places.keys()
    for path in [*places, *unmoved]:
        above = [path[:length] for length in range(1, len(path)) if path[:length] in places or path[:length] in unmoved]
        clashes = [each for each in above if path in places or each in places]
        if places[path] > 1 or (path in places and any(each.literal == path for each in copied)):
            clashes.append(path)
        if clashes:
            reporter.at(
                at,
                f"{what} writes {Pattern(path)} where it also writes {Pattern(clashes[0])}",
                "each place is written by one mapping",
            )


def _check_ignored(ruleset: Ruleset, reporter: Reporter) -> None:
    for number, ignored in enumerate(ruleset.ignore):
        readers = [each.type for each in ruleset.slices if any(ignored.overlaps(read) for read in each.reads)]
        readers += [f"the index {each.type}" for each in ruleset.indexes if ignored.overlaps(each.selector)]
        if readers:
            reporter.at(
                ("ignore", number),
                f"{ignored} is ignored, but read by {', '.join(readers)}",
                "what is read cannot be ignored: a change of it has to rebuild",
            )


def _check_impact_map(ruleset: Ruleset, reporter: Reporter) -> None:
    if ruleset.impact_map is None or "slices" in ruleset.lacks:
        return
    for name in ruleset.impact_map:
        if name not in ruleset.slices_by_type:
            reporter.at_key(("impactMap", name), f"the impactMap names {name}, which is no slice of this ruleset")
    for definition in ruleset.slices:
        given = ruleset.impact_map.get(definition.type, ())
        missing = [str(read) for read in definition.reads if not read.covered_by(given)]
        if missing:
            where: Place = ("impactMap", definition.type)
            reporter.at_key(
                where,
                f"the impactMap does not cover what {definition.type} reads: {', '.join(missing)}",
                f"add it under {definition.type}",
            )


def _check_view(view: ViewDefinition, reporter: Reporter) -> None:
    _no_twins(reporter, ("requiredSlices",), view.required_slices, "slice type")
    _no_twins(reporter, ("optionalSlices",), view.optional_slices, "slice type")
    for number, name in enumerate(view.optional_slices):
        if name in view.required_slices:
            reporter.at(
                ("optionalSlices", number), f"the slice {name} is required and optional", "leave it in one list"
            )
    if view.lacks:
        return
    if not view.required_slices and not view.optional_slices:
        reporter.at((), "the view has no slices", "name some in requiredSlices or optionalSlices")
    fallback = view.document.get("fallback") or {}
    given = fallback.get("defaults") or {}
    if given and view.defaults is None:
        reporter.at_key(("fallback", "defaults"), "defaults are only used with mode DEFAULT_VALUE")
    for name in given:
        if name not in (*view.required_slices, *view.optional_slices):
            reporter.at_key(
                ("fallback", "defaults", name), f"there is a default for {name}, which the view does not have"
            )


def _check_state_source(source: StateSource, reporter: Reporter) -> None:
    for key in ("workflows", "owners", "branches", "tenants"):
        _no_twins(reporter, ("input", key), getattr(source, key) or (), "name")
    for rule in source.rules or ():
        if isinstance(rule, PassThrough):
            _no_twins(reporter, ("fields",), rule.fields, "field")
            for number, field in enumerate(rule.fields):
                _check_leaves(field, ("fields", number), reporter)
        if isinstance(rule, MapFields):
            _check_mappings(rule.mappings, ("mappings",), ("from", "to"), reporter)
            for number, mapping in enumerate(rule.mappings):
                _check_leaves(mapping.source, ("mappings", number, "from"), reporter)
    constants = [Pattern((name,)) for name in source.constants]
    _check_written_once("the source", source.rules or (), constants, ("mappings",), reporter)
    _check_entity_id(source, reporter)


def _check_leaves(field: Pattern, at: Place, reporter: Reporter) -> None:
    name = field.segments[0] if field.segments else None
    if isinstance(name, str) and is_private(name):
        reporter.at(at, f"{field} never leaves a state", "copy what others may see to a field of its own")


def _check_entity_id(source: StateSource, reporter: Reporter) -> None:
    if isinstance(source.entity_id, Pattern):
        _check_leaves(source.entity_id, ("entityId", "path"), reporter)
        return
    at: Place = ("entityId", "pattern")
    names = source.entity_id.placeholders
    for name in names:
        if name.startswith(PATH_MARK):
            try:
                path = parse_path(name)
            except Invalid as exc:
                reporter.at(at, exc.message, exc.hint)
                continue
            if path.literal is None:
                reporter.at(at, f"{name} in the entity id is not one value", "leave out wildcards")
            _check_leaves(path, at, reporter)
    if "entityId" in source.lacks or not source.entity_id.pieces:
        return  # That was told already.
    if not names and (len(source.workflows) > 1 or any(map(is_glob, source.workflows))):
        reporter.at(at, f"the entity id {source.entity_id.text!r} is the same for every workflow", "add {workflowId}")
    elif "branch" not in names and (len(source.branches) > 1 or any(map(is_glob, source.branches))):
        reporter.warn(at, "several branches of a workflow become the same entity", "add {branch}")


def _no_twins(reporter: Reporter, at: Place, names: Iterable[Hashable], what: str, key: str | None = None) -> None:
    seen: set[Hashable] = set()
    for number, name in enumerate(names):
        if name in seen:
            place: Place = (*at, number) if key is None else (*at, number, key)
            reporter.at(place, f"the {what} {name} stands here twice")
        seen.add(name)
