"""The format of contracts: which keys there are and what each may hold. The published JSON Schema is made from this.

These classes only judge the shape of one document; `building` makes the models that the rest of the library uses.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel

from analemma.contracts.field_types import parse_field_type
from analemma.contracts.globs import why_no_glob
from analemma.contracts.names import CHECKSUM, CONTRACT_ID, JOIN_NAME, TYPE_NAME
from analemma.contracts.paths import parse_path
from analemma.contracts.semver import parse_semver

SEMVER_PATTERN: Final = r"^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$"


def _parses_as_path(text: str) -> str:
    parse_path(text)
    return text


def _parses_as_version(text: str) -> str:
    parse_semver(text)
    return text


def _parses_as_field_type(text: str) -> str:
    parse_field_type(text)
    return text


def _is_glob(text: str) -> str:
    reason = why_no_glob(text)
    if reason is not None:
        raise ValueError(f"{text!r} {reason}")
    return text


def _wrap(rules: Any) -> Any:
    return [rules] if isinstance(rules, dict) else rules


def _named(pattern: str) -> Any:
    # The compiled validator takes `$` for the very end, as JSON Schema does; Python would allow a newline before it.
    return StringConstraints(pattern=f"^(?:{pattern})$")


PathText = Annotated[str, AfterValidator(_parses_as_path), Field(max_length=1000)]
VersionText = Annotated[str, AfterValidator(_parses_as_version), Field(json_schema_extra={"pattern": SEMVER_PATTERN})]
FieldTypeText = Annotated[str, AfterValidator(_parses_as_field_type)]
TypeName = Annotated[str, _named(TYPE_NAME)]
ContractId = Annotated[str, _named(CONTRACT_ID)]
JoinName = Annotated[str, _named(JOIN_NAME)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
GlobText = Annotated[str, AfterValidator(_is_glob), Field(min_length=1, max_length=1000)]
Description = Annotated[str | None, Field(max_length=10_000)]
Status = Literal["DRAFT", "ACTIVE", "DEPRECATED", "ARCHIVED"]


class Part(BaseModel):
    """What all parts share: exactly these keys, exactly these types, names as in YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel)


class RefDocument(Part):
    """Another contract, by id and version."""

    id: ContractId
    version: VersionText


class ContractDocument(Part):
    """What every contract has."""

    kind: str
    id: ContractId
    version: VersionText
    status: Status
    checksum: Annotated[str | None, _named(CHECKSUM)] = None
    description: Description = None


class FieldDocument(Part):
    """A field of an entity."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    type: FieldTypeText
    required: bool = False
    description: Description = None


class EntitySchemaDocument(ContractDocument):
    """What an entity looks like."""

    kind: Literal["ENTITY_SCHEMA"]
    entity_type: TypeName
    fields: Annotated[list[FieldDocument], Field(min_length=1)]
    additional_fields: Literal["keep", "reject"] | None = None
    rule_set_ref: RefDocument | None = None


class MappingDocument(Part):
    """One value taken from here to there."""

    from_: Annotated[PathText, Field(alias="from")]
    to: PathText


class PassThroughDocument(Part):
    """Fields that keep their places."""

    type: Literal["PassThrough"]
    fields: Annotated[list[PathText], Field(min_length=1)]


class MapFieldsDocument(Part):
    """Fields that move."""

    type: Literal["MapFields"]
    mappings: Annotated[list[MappingDocument], Field(min_length=1)]


class MergeFieldsDocument(Part):
    """Objects that become one."""

    type: Literal["MergeFields"]
    sources: Annotated[list[PathText], Field(min_length=1)]
    target: PathText
    strategy: Literal["DEEP", "SHALLOW"] = "DEEP"


BuildRuleDocument = Annotated[
    PassThroughDocument | MapFieldsDocument | MergeFieldsDocument, Field(discriminator="type")
]
BuildRulesDocument = Annotated[list[BuildRuleDocument], BeforeValidator(_wrap), Field(min_length=1)]


class CopyDocument(Part):
    """One field of the joined slice."""

    from_target_path: PathText
    to_output_path: PathText | None = None


class CopyFieldsDocument(Part):
    """Only these fields of the joined slice."""

    mode: Literal["COPY_FIELDS"]
    fields: Annotated[list[CopyDocument], Field(min_length=1)]


class ExcludeFieldsDocument(Part):
    """All of the joined slice but these fields."""

    mode: Literal["EXCLUDE_FIELDS"]
    fields: Annotated[list[PathText], Field(min_length=1)]


class JoinDocument(Part):
    """A slice of another entity."""

    name: JoinName
    type: Literal["LOOKUP"]
    source_field_path: PathText
    target_entity_type: TypeName
    target_slice_type: TypeName
    target_key_pattern: Text | None = None
    required: bool = False
    projection: Annotated[CopyFieldsDocument | ExcludeFieldsDocument | None, Field(discriminator="mode")] = None


class SliceDocument(Part):
    """One slice of an entity."""

    type: TypeName
    slice_kind: Literal["STANDARD", "ENRICHMENT"] = "STANDARD"
    build_rules: BuildRulesDocument
    joins: list[JoinDocument] = []
    description: Description = None


class IndexDocument(Part):
    """What an entity can be found by."""

    type: TypeName
    selector: PathText
    references: TypeName | None = None
    max_fanout: Annotated[int | None, Field(ge=1, le=1_000_000_000)] = None


class RulesetDocument(ContractDocument):
    """How an entity is sliced and indexed."""

    kind: Literal["RULESET"]
    entity_type: TypeName
    ignore: list[PathText] = []
    impact_map: dict[TypeName, list[PathText]] | None = None
    slices: Annotated[list[SliceDocument], Field(min_length=1)]
    indexes: list[IndexDocument] = []


class ResponseMetaDocument(Part):
    """What a view's answer says about itself."""

    include_missing_slices: bool = True
    include_used_contracts: bool = False


class PartialPolicyDocument(Part):
    """When an answer may be incomplete."""

    allowed: bool
    optional_only: bool = True
    response_meta: ResponseMetaDocument = ResponseMetaDocument()


class FallbackDocument(Part):
    """What stands in for a missing slice."""

    mode: Literal["NONE", "DEFAULT_VALUE"]
    defaults: dict[TypeName, dict[str, Any]] = {}


class ViewDefinitionDocument(ContractDocument):
    """Which slices an answer has."""

    kind: Literal["VIEW_DEFINITION"]
    entity_type: TypeName
    required_slices: list[TypeName] = []
    optional_slices: list[TypeName] = []
    missing_policy: Literal["FAIL_CLOSED", "PARTIAL_ALLOWED"] = "FAIL_CLOSED"
    partial_policy: PartialPolicyDocument | None = None
    fallback: FallbackDocument | None = None
    rule_set_ref: RefDocument | None = None


class SinkInputDocument(Part):
    """What is shipped."""

    type: Literal["SLICE"]
    slice_types: Annotated[list[TypeName] | None, Field(min_length=1)] = None
    entity_types: Annotated[list[TypeName], Field(min_length=1)]


class SinkTargetDocument(Part):
    """Where to. Other keys are the sink's own settings."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, alias_generator=to_camel)

    type: Text


class PatternDocument(Part):
    """A text with placeholders."""

    pattern: Text


class SinkCommitDocument(Part):
    """How much is sent at once, and how long that may take."""

    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 1000
    timeout_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 30_000
    per_second: Annotated[float | None, Field(gt=0, le=1_000_000)] = None


class SinkRuleDocument(ContractDocument):
    """What is shipped where."""

    kind: Literal["SINKRULE"]
    input: SinkInputDocument
    target: SinkTargetDocument
    doc_id: PatternDocument = PatternDocument(pattern="{tenantId}__{entityId}")
    commit: SinkCommitDocument = SinkCommitDocument()


class StateInputDocument(Part):
    """Whose commits: names, in which `*` stands for any characters but `/`, and `**` for any."""

    type: Literal["STATE"]
    workflows: Annotated[list[GlobText], Field(min_length=1)]
    owners: Annotated[list[GlobText] | None, Field(min_length=1)] = None
    branches: Annotated[list[GlobText], Field(min_length=1)] = ["main"]
    tenants: Annotated[list[GlobText] | None, Field(min_length=1)] = None


class EntityIdDocument(Part):
    """Which entity a state becomes: a text with placeholders, or what the state has at a path."""

    pattern: Text | None = None
    path: PathText | None = None


class StateSourceDocument(ContractDocument):
    """Which state becomes which entity."""

    kind: Literal["STATE_SOURCE"]
    entity_type: TypeName
    input: StateInputDocument
    entity_id: EntityIdDocument = EntityIdDocument(pattern="{workflowId}")
    fields: Annotated[list[PathText] | None, Field(min_length=1)] = None
    mappings: Annotated[list[MappingDocument] | None, Field(min_length=1)] = None
    constants: dict[Annotated[str, Field(min_length=1, max_length=256)], Any] = {}
    when: Literal["CHANGED", "EVERY_COMMIT"] = "CHANGED"
    when_removed: Literal["KEEP", "DELETE"] = "KEEP"
    when_refused: Literal["SKIP", "STOP"] = "SKIP"


DOCUMENTS: Final[dict[str, type[ContractDocument]]] = {
    "ENTITY_SCHEMA": EntitySchemaDocument,
    "RULESET": RulesetDocument,
    "VIEW_DEFINITION": ViewDefinitionDocument,
    "SINKRULE": SinkRuleDocument,
    "STATE_SOURCE": StateSourceDocument,
}
"""Every kind of contract."""
