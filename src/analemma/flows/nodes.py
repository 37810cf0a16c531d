"""Every type of node that a workflow document can have, with what each reads and writes beyond what it declares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, ClassVar, Final, Literal, get_args

from pydantic import BeforeValidator, Field, StringConstraints, model_serializer

from analemma.contracts.names import CONTRACT_ID, TYPE_NAME
from analemma.flows.conditions import Condition
from analemma.flows.parts import (
    Description,
    FieldName,
    FilledJson,
    FunctionName,
    Hash,
    Json,
    MergeStrategy,
    NodeId,
    Part,
    Seconds,
    StatePath,
    Template,
    Tuple,
    WorkflowName,
)
from analemma.flows.texts import placeholders, texts_in

Capability = Literal["tool_use", "memory_access", "state_mutation"]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


def _number_of_retries(value: Any) -> Any:
    return {"times": value} if type(value) is int else value


class Retries(Part):
    """How often a node is tried again, and how long it waits before: `delay_s`, times `factor` for each time more."""

    times: Annotated[int, Field(ge=0, le=100)] = 0
    delay_s: Seconds = 0.5
    factor: Annotated[float, Field(ge=1, le=100)] = 2.0
    maximum_delay_s: Seconds = 60.0

    @model_serializer(mode="wrap")
    def _short(self, handler: Any) -> Any:
        made = handler(self)
        if isinstance(made.get("factor"), float) and made["factor"].is_integer():
            made["factor"] = int(made["factor"])
        return made["times"] if made.keys() == {"times"} else made


class Node(Part):
    """What every node has."""

    groups: ClassVar[bool] = False
    """Whether it names other nodes as its members."""

    id: NodeId
    type: str
    description: Description = None
    reads: Tuple[StatePath] = ()
    writes: Tuple[StatePath] = ()
    retries: Annotated[Retries, BeforeValidator(_number_of_retries)] = Retries()
    timeout_s: Seconds | None = None
    ring: Annotated[int, Field(ge=0, le=3)] = 3
    capabilities: Tuple[Capability] = ()
    checkpoint: bool = False

    def sequences(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The lists of members, each with its name."""
        return ()

    def members(self) -> Iterator[str]:
        """The ids of all members, in order."""
        return chain.from_iterable(ids for _, ids in self.sequences())

    def conditions(self) -> tuple[Condition, ...]:
        """What it asks of the state."""
        return ()

    def functions(self) -> tuple[str, ...]:
        """The functions that have to be registered for it."""
        return tuple(chain.from_iterable(each.functions() for each in self.conditions()))

    def implied_reads(self) -> tuple[str, ...]:
        """Paths that its configuration takes from the state."""
        return tuple(chain.from_iterable(each.paths() for each in self.conditions()))

    def implied_writes(self) -> tuple[str, ...]:
        """Fields that it writes whatever it declares."""
        return ()

    def all_reads(self) -> tuple[str, ...]:
        """What it declares and what follows, each once."""
        return tuple(dict.fromkeys((*self.reads, *self.implied_reads())))

    def all_writes(self) -> tuple[str, ...]:
        """What it declares and what follows, each once."""
        return tuple(dict.fromkeys((*self.writes, *self.implied_writes())))


class _Answering(Node):
    """A node whose answer becomes a field."""

    into: FieldName | None = None

    @property
    def target(self) -> str:
        """The field that its answer goes to: by default, one named like the node."""
        return self.into or self.id

    def implied_writes(self) -> tuple[str, ...]:
        return (self.target,)


class PythonNode(Node):
    """Calls a registered function with the state."""

    type: Literal["python"]
    function: FunctionName

    def functions(self) -> tuple[str, ...]:
        return (self.function,)


class Message(Part):
    """One message to a model."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Template


class LlmChatNode(_Answering):
    """Asks a model at an OpenAI-compatible endpoint."""

    type: Literal["llm_chat"]
    model: Template
    messages: Annotated[Tuple[Message], Field(min_length=1, max_length=200)]
    history: StatePath | None = None
    base_url: Template = "${OPENAI_BASE_URL}"
    api_key: Template | None = "${OPENAI_API_KEY}"
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    maximum_tokens: Count | None = None
    response: Literal["text", "json", "message"] = "text"
    tools: Tuple[FunctionName] = ()
    stream: bool = True
    usage_into: FieldName | None = None
    parameters: dict[str, Json] = Field(default={})
    stub: Json = None

    def functions(self) -> tuple[str, ...]:
        return self.tools

    def implied_reads(self) -> tuple[str, ...]:
        texts = (self.model, self.base_url, *(each.content for each in self.messages))
        asked = tuple(each for each in (self.history, self.usage_into) if each is not None)
        return (*chain.from_iterable(map(placeholders, texts)), *asked)

    def implied_writes(self) -> tuple[str, ...]:
        return (self.target,) if self.usage_into is None else (self.target, self.usage_into)


class HttpRequestNode(_Answering):
    """Sends one HTTP request."""

    type: Literal["http_request"]
    url: Template
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    headers: dict[str, Template] = Field(default={})
    query: dict[str, Template] = Field(default={})
    body: FilledJson = None
    accepts: Annotated[Tuple[Annotated[int, Field(ge=100, le=599)]] | None, Field(min_length=1)] = None
    response: Literal["json", "text", "bytes", "full"] = "json"
    maximum_bytes: Annotated[int, Field(ge=1, le=1 << 30)] = 10 * 1024 * 1024
    stub: Json = None

    def implied_reads(self) -> tuple[str, ...]:
        texts = [text for _, text in texts_in([self.url, self.headers, self.query, self.body])]
        return tuple(chain.from_iterable(map(placeholders, texts)))


class CodeInterpreterNode(_Answering):
    """Runs code in a process of its own, within limits."""

    type: Literal["code_interpreter"]
    code: Annotated[str | None, Field(min_length=1, max_length=100_000)] = None
    code_path: StatePath | None = None
    language: Literal["python"] = "python"
    memory_mb: Annotated[int, Field(ge=16, le=65_536)] = 256
    cpu_s: Seconds = 30.0
    disk_mb: Annotated[int, Field(ge=0, le=65_536)] = 16
    network: bool = False

    def implied_reads(self) -> tuple[str, ...]:
        return () if self.code_path is None else (self.code_path,)


class ParallelGroupNode(Node):
    """Runs branches beside one another, each on the same state."""

    groups: ClassVar[bool] = True
    type: Literal["parallel_group"]
    branches: Annotated[dict[NodeId, Tuple[NodeId]], Field(min_length=1, max_length=100)]
    max_parallel: Count | None = None

    def sequences(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        # By name: the order of keys says nothing, here as anywhere in a document.
        return tuple((f"branches/{name}", self.branches[name]) for name in sorted(self.branches))


class ForEachNode(_Answering):
    """Runs its body once for each item of a list, beside one another."""

    groups: ClassVar[bool] = True
    type: Literal["for_each"]
    over: StatePath
    body: Annotated[Tuple[NodeId], Field(min_length=1)]
    item: FieldName = "item"
    index: FieldName = "index"
    result: StatePath | None = None
    max_parallel: Count | None = None
    max_items: Count = 100_000

    def sequences(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("body", self.body),)

    def implied_reads(self) -> tuple[str, ...]:
        return (self.over,)


class LoopNode(Node):
    """Runs its body again and again: while or until something holds, or a number of times."""

    groups: ClassVar[bool] = True
    type: Literal["loop"]
    body: Annotated[Tuple[NodeId], Field(min_length=1)]
    while_: Annotated[Condition | None, Field(alias="while")] = None
    until: Condition | None = None
    times: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    max_iterations: Count | None = None
    on_limit: Literal["fail", "continue"] = "fail"

    def sequences(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (("body", self.body),)

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(each for each in (self.while_, self.until) if each is not None)

    @property
    def static_iterations(self) -> int:
        """How often the body is thought to run, before anything is known: as often as it says, or once."""
        said = [each for each in (self.times, self.max_iterations) if each is not None]
        return min(said, default=1)


class Case(Part):
    """One way out of a branch."""

    when: Condition
    then: Tuple[NodeId] = ()


class BranchNode(Node):
    """Goes one of several ways: the first whose condition holds, or the default."""

    groups: ClassVar[bool] = True
    type: Literal["branch"]
    cases: Annotated[Tuple[Case], Field(min_length=1, max_length=100)]
    default: Tuple[NodeId]

    def sequences(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        return (*((f"cases/{number}", each.then) for number, each in enumerate(self.cases)), ("default", self.default))

    def conditions(self) -> tuple[Condition, ...]:
        return tuple(each.when for each in self.cases)


class AggregatorNode(Node):
    """Merges the branches of a group, or stands where ways meet."""

    type: Literal["aggregator"]
    of: NodeId | None = None
    strategy: MergeStrategy | None = None
    strategies: dict[StatePath, MergeStrategy] = Field(default={})
    function: FunctionName | None = None

    def functions(self) -> tuple[str, ...]:
        return () if self.function is None else (self.function,)


class HumanNode(_Answering):
    """Waits for somebody's decision."""

    type: Literal["human"]
    choices: Annotated[Tuple[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1, max_length=100)]
    prompt: Template | None = None
    default: str | None = None

    def implied_reads(self) -> tuple[str, ...]:
        return () if self.prompt is None else placeholders(self.prompt)


class TriggerNode(_Answering):
    """Where a run comes from; what set it off becomes a field."""

    type: Literal["trigger"]
    on: Literal["manual", "schedule", "event"] = "manual"
    cron: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    every_s: Seconds | None = None
    zone: Annotated[str, StringConstraints(pattern="^[A-Za-z0-9_+/-]{1,64}$")] = "UTC"
    event: Annotated[str | None, Field(min_length=1, max_length=200)] = None


class SubflowNode(Node):
    """Runs another workflow, and takes over what it came to."""

    type: Literal["subflow"]
    workflow: WorkflowName
    document: Hash | None = None
    inputs: dict[FieldName, StatePath] = Field(default={})
    outputs: dict[FieldName, StatePath] = Field(default={})

    def implied_reads(self) -> tuple[str, ...]:
        return tuple(self.inputs.values())

    def implied_writes(self) -> tuple[str, ...]:
        return tuple(self.outputs)


class IngestNode(_Answering):
    """Ingests an entity into the pipeline."""

    type: Literal["ingest"]
    entity_type: Annotated[str, StringConstraints(pattern=f"^(?:{TYPE_NAME})$")]
    entity_id: Template
    payload: StatePath | None = None
    delete: bool = False

    def implied_reads(self) -> tuple[str, ...]:
        return (*placeholders(self.entity_id), *(() if self.payload is None else (self.payload,)))


class Search(Part):
    """Which entities an index is asked for."""

    index: Annotated[str, StringConstraints(pattern=f"^(?:{TYPE_NAME})$")]
    value: FilledJson
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class ViewNode(_Answering):
    """Asks a view for one entity, or for those that an index finds."""

    type: Literal["view"]
    view: Annotated[str, StringConstraints(pattern=f"^(?:{CONTRACT_ID})$")]
    entity_id: Template | None = None
    search: Search | None = None
    missing: Literal["fail", "null"] = "fail"

    def implied_reads(self) -> tuple[str, ...]:
        texts = [text for _, text in texts_in([self.entity_id, None if self.search is None else self.search.value])]
        return tuple(chain.from_iterable(map(placeholders, texts)))


class ArchiveNode(_Answering):
    """Archives or restores a workspace."""

    type: Literal["archive"]
    workspace: Template
    operation: Literal["archive", "restore"] = "archive"

    def implied_reads(self) -> tuple[str, ...]:
        return placeholders(self.workspace)


AnyNode = (
    PythonNode
    | LlmChatNode
    | HttpRequestNode
    | CodeInterpreterNode
    | ParallelGroupNode
    | ForEachNode
    | LoopNode
    | BranchNode
    | AggregatorNode
    | HumanNode
    | TriggerNode
    | SubflowNode
    | IngestNode
    | ViewNode
    | ArchiveNode
)
NODE_TYPES: Final[dict[str, type[Node]]] = {
    get_args(each.model_fields["type"].annotation)[0]: each for each in get_args(AnyNode)
}
"""Every node type."""
