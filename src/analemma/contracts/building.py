"""Makes models of documents whose shape was found right."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from analemma.canon.canonical_json import canonical_json
from analemma.contracts import documents as wire
from analemma.contracts.field_types import parse_field_type
from analemma.contracts.models import (
    BuildRule,
    Contract,
    ContractRef,
    EntityField,
    EntitySchema,
    FieldMapping,
    Index,
    Join,
    MapFields,
    MergeFields,
    MergeStrategy,
    MissingPolicy,
    Origin,
    PartialPolicy,
    PassThrough,
    Projection,
    Ruleset,
    SinkRule,
    Slice,
    StateSource,
    Status,
    Taking,
    ViewDefinition,
)
from analemma.contracts.paths import Pattern, parse_path
from analemma.contracts.reads import raw_reads, unread_joins
from analemma.contracts.reporting import Place, Reporter
from analemma.contracts.semver import parse_semver
from analemma.contracts.templates import Template, parse_template
from analemma.errors import Invalid

DOCUMENT_ID_PLACEHOLDERS = ("tenantId", "entityType", "entityId")
STATE_PLACEHOLDERS = ("ownerId", "workflowId", "branch")
COMMIT_PLACEHOLDERS = (*STATE_PLACEHOLDERS, "tenantId", "version", "executionId", "committedAt")
KEY_PLACEHOLDERS = ("tenantId", "value")
_TENANT = "{tenantId}"


def build(document: wire.ContractDocument, plain: dict[str, Any], origin: Origin, reporter: Reporter) -> Contract:
    """The model of a document; what only shows now is reported, and the model then not to be used."""
    common: dict[str, Any] = {
        "id": document.id,
        "version": parse_semver(document.version),
        "status": Status(document.status),
        "checksum": checksum_of(plain),
        "document": plain,
        "origin": origin,
        "description": document.description,
    }
    match document:
        case wire.EntitySchemaDocument():
            return EntitySchema(
                entity_type=document.entity_type,
                fields=tuple(
                    EntityField(each.name, parse_field_type(each.type), each.required) for each in document.fields
                ),
                keeps_additional_fields=document.additional_fields == "keep",
                rejects_additional_fields=document.additional_fields == "reject",
                ruleset_ref=_ref(document.rule_set_ref),
                **common,
            )
        case wire.RulesetDocument():
            return _ruleset(document, common, reporter)
        case wire.ViewDefinitionDocument():
            return _view(document, common)
        case wire.SinkRuleDocument():
            return _sink_rule(document, common, reporter)
        case wire.StateSourceDocument():
            return _state_source(document, common, reporter)
    raise AssertionError(document)


def checksum_of(plain: dict[str, Any]) -> str:
    """The checksum that a document may carry: of all it says but `checksum` and `status`."""
    return _hash({key: value for key, value in plain.items() if key not in ("checksum", "status")})


def _hash(value: Any) -> str:
    return f"sha256:{hashlib.sha256(canonical_json(value)).hexdigest()}"


def _ref(document: wire.RefDocument | None) -> ContractRef | None:
    return None if document is None else ContractRef(document.id, parse_semver(document.version))


def _paths(texts: Sequence[str]) -> tuple[Pattern, ...]:
    return tuple(map(parse_path, texts))


def _ruleset(document: wire.RulesetDocument, common: dict[str, Any], reporter: Reporter) -> Ruleset:
    slices = tuple(_slice(each, ("slices", number), reporter) for number, each in enumerate(document.slices))
    indexes = tuple(
        Index(each.type, parse_path(each.selector), each.references, each.max_fanout) for each in document.indexes
    )
    impact_map = document.impact_map
    return Ruleset(
        entity_type=document.entity_type,
        slices=slices,
        indexes=indexes,
        ignore=_paths(document.ignore),
        impact_map=None if impact_map is None else {name: _paths(texts) for name, texts in impact_map.items()},
        fingerprint=_fingerprint(document.entity_type, slices, indexes),
        **common,
    )


def _slice(document: wire.SliceDocument, at: Place, reporter: Reporter) -> Slice:
    rules = tuple(map(_rule, document.build_rules))
    joins = tuple(_join(each, (*at, "joins", number), reporter) for number, each in enumerate(document.joins))
    return Slice(document.type, document.slice_kind, rules, joins, raw_reads(rules, joins), unread_joins(rules, joins))


def _rule(document: wire.BuildRuleDocument) -> BuildRule:
    match document:
        case wire.PassThroughDocument():
            return PassThrough(_paths(document.fields))
        case wire.MapFieldsDocument():
            return MapFields(_mappings(document.mappings))
        case wire.MergeFieldsDocument():
            return MergeFields(_paths(document.sources), parse_path(document.target), MergeStrategy(document.strategy))


def _mappings(mappings: Sequence[wire.MappingDocument]) -> tuple[FieldMapping, ...]:
    return tuple(FieldMapping(parse_path(each.from_), parse_path(each.to)) for each in mappings)


def _join(document: wire.JoinDocument, at: Place, reporter: Reporter) -> Join:
    return Join(
        document.name,
        parse_path(document.source_field_path),
        document.target_entity_type,
        document.target_slice_type,
        _target_id(document, at, reporter),
        document.required,
        _projection(document.projection),
    )


def _target_id(document: wire.JoinDocument, at: Place, reporter: Reporter) -> Template:
    """The last part of `TYPE#{tenantId}#{value}`; the others may not be anything else, or a join could leave its
    tenant."""
    text = document.target_key_pattern
    if text is None:
        return parse_template("{value}", KEY_PLACEHOLDERS)
    where = (*at, "targetKeyPattern")
    template = _template(text, KEY_PLACEHOLDERS, where, reporter)
    parts = text.split("#")
    if len(parts) != 3 or parts[:2] != [document.target_entity_type, _TENANT]:
        reporter.at(
            where,
            f"the key pattern {text!r} does not lead to {document.target_entity_type} of the same tenant",
            f"write {document.target_entity_type}#{_TENANT}#{{value}}",
        )
        return template
    if template.placeholders != ("tenantId", "value"):
        reporter.at(where, f"the key pattern {text!r} needs {{value}} once, in its last part")
        return template
    return parse_template(parts[2], KEY_PLACEHOLDERS)


def _projection(document: wire.CopyFieldsDocument | wire.ExcludeFieldsDocument | None) -> Projection:
    match document:
        case wire.CopyFieldsDocument():
            copied = [
                FieldMapping(
                    parse_path(each.from_target_path), parse_path(each.to_output_path or each.from_target_path)
                )
                for each in document.fields
            ]
            return Projection(tuple(copied), ())
        case wire.ExcludeFieldsDocument():
            return Projection(None, _paths(document.fields))
    return Projection(None, ())


def _view(document: wire.ViewDefinitionDocument, common: dict[str, Any]) -> ViewDefinition:
    missing_policy = MissingPolicy(document.missing_policy)
    policy = document.partial_policy or wire.PartialPolicyDocument(allowed=True)
    # Not said, required slices may be missing where the missing policy allows it at all.
    optional_only = missing_policy is MissingPolicy.FAIL_CLOSED
    fallback = document.fallback
    return ViewDefinition(
        entity_type=document.entity_type,
        required_slices=tuple(document.required_slices),
        optional_slices=tuple(document.optional_slices),
        missing_policy=missing_policy,
        partial_policy=PartialPolicy(
            policy.allowed,
            optional_only if document.partial_policy is None else policy.optional_only,
            policy.response_meta.include_missing_slices,
            policy.response_meta.include_used_contracts,
        ),
        defaults=fallback.defaults if fallback is not None and fallback.mode == "DEFAULT_VALUE" else None,
        ruleset_ref=_ref(document.rule_set_ref),
        **common,
    )


def _sink_rule(document: wire.SinkRuleDocument, common: dict[str, Any], reporter: Reporter) -> SinkRule:
    where = ("docId", "pattern")
    template = _template(document.doc_id.pattern, DOCUMENT_ID_PLACEHOLDERS, where, reporter)
    if template.pieces and "entityId" not in template.placeholders:
        reporter.at(where, f"the document id {template.text!r} is the same for every entity", "it needs {entityId}")
    types = document.input.entity_types
    told_apart = "entityType" in template.placeholders or "{entityType}" in str(document.target.model_extra or {})
    if template.pieces and len(types) > 1 and not told_apart:
        said = f"the document id {template.text!r} is the same for a {types[0]} and a {types[1]} of one id"
        reporter.at(where, said, "it needs {entityType}, or the target does")
    tells_tenants = "tenantId" in template.placeholders or "{tenantId}" in str(document.target.model_extra or {})
    if template.pieces and not tells_tenants:
        said = f"the document id {template.text!r} is the same for entities of one id in two tenants"
        reporter.warn(where, said, "with several tenants it needs {tenantId}, or the target does")
    slice_types = document.input.slice_types
    return SinkRule(
        entity_types=tuple(document.input.entity_types),
        slice_types=None if slice_types is None else tuple(slice_types),
        target_type=document.target.type,
        target=dict(document.target.model_extra or {}),
        document_id=template,
        batch_size=document.commit.batch_size,
        timeout_ms=document.commit.timeout_ms,
        per_second=document.commit.per_second,
        **common,
    )


def _state_source(document: wire.StateSourceDocument, common: dict[str, Any], reporter: Reporter) -> StateSource:
    given = document.entity_id
    entity_id: Template | Pattern
    if (given.pattern is None) == (given.path is None):
        reporter.at(("entityId",), "an entity id needs either pattern or path")
    if given.path is not None:
        entity_id = parse_path(given.path)
        if entity_id.literal is None:
            reporter.at(("entityId", "path"), f"the entity id {given.path} is not one value", "leave out wildcards")
    else:
        entity_id = _template(given.pattern or "", STATE_PLACEHOLDERS, ("entityId", "pattern"), reporter, paths=True)
    owners, tenants = document.input.owners, document.input.tenants
    rules: list[BuildRule] = []
    if document.fields is not None:
        rules.append(PassThrough(_paths(document.fields)))
    if document.mappings is not None:
        rules.append(MapFields(_mappings(document.mappings)))
    return StateSource(
        entity_type=document.entity_type,
        workflows=tuple(document.input.workflows),
        owners=None if owners is None else tuple(owners),
        branches=tuple(document.input.branches),
        tenants=None if tenants is None else tuple(tenants),
        entity_id=entity_id,
        rules=tuple(rules) or None,
        constants={
            name: _template(value, COMMIT_PLACEHOLDERS, ("constants", name), reporter) if type(value) is str else value
            for name, value in document.constants.items()
        },
        when=Taking(document.when),
        deletes=document.when_removed == "DELETE",
        stops=document.when_refused == "STOP",
        **common,
    )


def _template(text: str, allowed: Sequence[str], where: Place, reporter: Reporter, *, paths: bool = False) -> Template:
    try:
        return parse_template(text, allowed, paths=paths)
    except Invalid as exc:
        reporter.at(where, exc.message, exc.hint)
        return Template(text, ())


def _fingerprint(entity_type: str, slices: Sequence[Slice], indexes: Sequence[Index]) -> str:
    """Of the models, so that another spelling of a path or of a default is no change; `maxFanout` builds nothing."""
    built = [
        [each.type, list(map(_rule_identity, each.rules)), list(map(_join_identity, each.joins))] for each in slices
    ]
    found = [[each.type, str(each.selector), each.references] for each in indexes]
    return _hash({"format": 1, "entityType": entity_type, "slices": built, "indexes": found})


def _rule_identity(rule: BuildRule) -> list[Any]:
    match rule:
        case PassThrough():
            return ["PassThrough", list(map(str, rule.fields))]
        case MapFields():
            return ["MapFields", _mapping_identity(rule.mappings)]
        case MergeFields():
            return ["MergeFields", list(map(str, rule.sources)), str(rule.target), str(rule.strategy)]


def _mapping_identity(mappings: Sequence[FieldMapping]) -> list[list[str]]:
    return [[str(each.source), str(each.target)] for each in mappings]


def _join_identity(join: Join) -> list[Any]:
    copied = join.projection.copied
    return [
        join.name,
        str(join.source),
        join.target_entity_type,
        join.target_slice_type,
        join.target_id.text,
        join.required,
        None if copied is None else _mapping_identity(copied),
        list(map(str, join.projection.excluded)),
    ]
