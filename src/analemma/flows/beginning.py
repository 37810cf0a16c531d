"""How runs begin: what was asked for, checked, and one commit that makes the run and its first version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from analemma.canon.nodes import BlockId
from analemma.canon.pointer import format_pointer
from analemma.catalog.port import BranchKey, RowChange
from analemma.catalog.runs.runs import NewRun, RunRow, as_us
from analemma.contracts.field_types import mismatches, parse_field_type
from analemma.errors import AnalemmaError, Conflict, Internal, Invalid
from analemma.flows.building import Flow
from analemma.flows.continuing import workflow_status
from analemma.flows.document import Workflow
from analemma.flows.handlers import Handlers
from analemma.flows.held_runs import RunnerParts
from analemma.flows.keeping import position_text
from analemma.flows.node_types.mocking import RECORDED, check_places, read_mock
from analemma.flows.nodes import SubflowNode
from analemma.flows.queueing import check_place
from analemma.flows.reading import read_workflow
from analemma.flows.recording import recorded_mock
from analemma.flows.run_kernel import Standing
from analemma.flows.walking import begin
from analemma.flows.working_state import check_field
from analemma.state.arguments import DeltaUpdate, branch_key, check_name, read_delta

Mock = bool | str | Mapping[str, Any]
"""Whether models and hosts are asked: False; or what answers instead: the document's stubs (True), what the newest run
of the workflow that was completed recorded ("recorded"), or answers by the ids of nodes."""
RunsOn = Flow | Workflow | Mapping[str, Any]
"""What can be run: a flow, a workflow that was read, or a document as data."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a new run was asked for."""

    workflow: Workflow
    given: DeltaUpdate
    key: BranchKey
    fingerprint: bytes
    """Of all that makes two requests the same one."""
    idempotency_key: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    start: str | None = None
    """The trigger that set it off."""
    queue: str = ""
    priority: int = 0
    delay_s: float = 0.0
    parent: int | None = None
    """The number of the run that begins it and waits for it."""
    beside: tuple[RowChange, ...] = ()
    """What else its first commit changes."""


def workflow_of(flow: RunsOn) -> Workflow:
    """The checked workflow of whatever can be run."""
    if isinstance(flow, Workflow):
        return flow
    if isinstance(flow, Flow):
        return flow.workflow()
    if isinstance(flow, Mapping):
        return read_workflow(flow)
    raise Invalid(f"a {type(flow).__name__} cannot be run", hint="pass a Flow, or a workflow document")


def read_input(workflow: Workflow, given: Any) -> DeltaUpdate:
    """The input as changes to the state; Denied for reserved fields, Invalid for what the document does not allow."""
    if not isinstance(given, Mapping):
        raise Invalid(f"the input is of type {type(given).__name__}", hint="pass a dict of fields")
    update = read_delta(given)
    for operation in update.operations:
        if not operation.path:
            raise Invalid("the input puts something else in the place of the state", hint="pass a dict of fields")
        check_field(operation.path[0], "the input")
    schema = workflow.state
    if schema is None:
        return update
    fields = set(update.changed_fields)
    missing = sorted(name for name, each in schema.fields.items() if each.required and name not in fields)
    if missing:
        raise Invalid(f"the input has no {missing[0]}", hint="the document requires it", pointer=f"/{missing[0]}")
    strange = sorted(fields - schema.fields.keys()) if schema.additional == "reject" else []
    if strange:
        raise Invalid(
            f"the input has {strange[0]}, which the document does not know",
            hint=f"it knows {', '.join(sorted(schema.fields))}",
            pointer=f"/{strange[0]}",
        )
    for operation in update.operations:
        field = schema.fields.get(operation.path[0])
        if field is None or len(operation.path) > 1:
            continue
        wrong = next(mismatches(parse_field_type(field.type), operation.value, operation.path), None)
        if wrong is not None:
            pointer = format_pointer(tuple(map(str, wrong[0])))
            raise Invalid(f"the input at {pointer}: {wrong[1]}", hint="the document says so", pointer=pointer)
    return update


def nodes_of(workflow: Workflow, handlers: Handlers) -> frozenset[str] | None:
    """The nodes of a workflow and of its subflows, which are mocks too; None if one of them is not there yet."""
    found, left, seen = set[str](), [workflow], set[str]()
    while left:
        each = left.pop()
        found |= {node.id for node in each.nodes}
        for node in each.nodes:
            if isinstance(node, SubflowNode) and node.workflow not in seen:
                seen.add(node.workflow)
                try:
                    left.append(handlers.document(node.workflow, node.id, node.document))
                except AnalemmaError:
                    return None
    return frozenset(found)


class Beginning:
    """Begins runs."""

    def __init__(self, parts: RunnerParts) -> None:
        self._parts = parts

    def asked(
        self,
        flow: RunsOn,
        given: Mapping[str, Any] | None,
        *,
        workflow_id: str,
        owner_id: str,
        branch: str,
        idempotency_key: str | None,
        executor: Any,
        mock: Mock,
        trigger: Mapping[str, Any] | None,
        queue: str = "",
        priority: int = 0,
        delay_s: float = 0.0,
    ) -> Asked:
        """What a caller wants, checked."""
        workflow = workflow_of(flow)
        if isinstance(flow, Flow):
            self._parts.handlers.add_all(flow)
        key = branch_key(owner_id, workflow_id, branch)
        check_place(queue, priority)
        update = read_input(workflow, {} if given is None else given)
        if idempotency_key is not None:
            check_name(idempotency_key, "idempotency key")
        if trigger is not None and not isinstance(trigger, Mapping):
            raise Invalid(f"the trigger is of type {type(trigger).__name__}", hint="pass a dict")
        told = {} if trigger is None else {name: value for name, value in trigger.items() if name != "node"}
        kept_mock = recorded_mock(self._parts, key.owner, workflow.workflow) if mock == RECORDED else read_mock(mock)
        if mock != RECORDED:
            # What was recorded may be of an earlier document.
            check_places(kept_mock, nodes_of(workflow, self._parts.handlers))
        options: dict[str, Any] = {"mock": kept_mock} if kept_mock is not False else {}
        if trigger is not None:
            options["trigger"] = told
        if isinstance(executor, str):
            options["executor"] = executor
        values = [[list(operation.path), operation.value] for operation in update.operations]
        start = None if trigger is None else trigger.get("node")
        request = [workflow.hash, list(key), values, mock if mock == RECORDED else kept_mock, told, start]
        fingerprint = sha256(b"run" + self._parts.kernel.trees.build(request).root.id).digest()
        return Asked(
            workflow,
            update,
            key,
            fingerprint,
            idempotency_key=idempotency_key,
            options=options,
            start=start,
            queue=queue,
            priority=priority,
            delay_s=delay_s,
        )

    def begin(self, asked: Asked, *, here: bool) -> tuple[RunRow, Standing | None]:
        """Make the run, held by this process if it is to be run `here`; where it stands, if it is new."""
        known = self._known(asked)
        if known is not None:
            return known, None
        parts = self._parts
        prepared = parts.kernel.prepare(asked.workflow)
        new = NewRun(
            execution=parts.entropy.random_bytes(16).hex(),
            **asked.key._asdict(),
            name=asked.workflow.workflow,
            document=prepared.config,
            status="RUNNING" if here else "PENDING",
            position=position_text(begin(prepared.plan, asked.start), prepared.segments, prepared.plan.hash_version),
            options=_text(asked.options),
            fingerprint=asked.fingerprint,
            holder=parts.holder if here else None,
            due_in=as_us(parts.settings.run_lease_s if here else asked.delay_s),
            limit=as_us(asked.workflow.limits.timeout_s),
            idempotency_key=asked.idempotency_key,
            queue=asked.queue,
            priority=asked.priority,
            parent=asked.parent,
        )

        def rows(manifest: BlockId) -> list[RowChange]:
            status = workflow_status(parts, asked.key, "RUNNING")
            return [*asked.beside, *parts.rows.add(new, manifest), status]

        try:
            standing = parts.kernel.begin(asked.key, prepared, asked.given, new.execution, rows)
        except Conflict as exc:
            # Somebody was faster with the same key.
            known = self._known(asked) if exc.facts.get("statement") == "add_run" else None
            if known is None:
                raise
            return known, None
        row = parts.rows.get(new.execution)
        if row is None:
            raise Internal(f"the run {new.execution} was made, and is not there")
        return row, standing

    def _known(self, asked: Asked) -> RunRow | None:
        if asked.idempotency_key is None:
            return None
        row = self._parts.rows.of_key(asked.idempotency_key)
        if row is not None and row.fingerprint != asked.fingerprint:
            raise Conflict(
                f"the idempotency key {asked.idempotency_key!r} was used for another run",
                hint="use a new key for a new run",
                idempotency_key=asked.idempotency_key,
                execution=row.execution,
            )
        return row


def _text(options: Mapping[str, Any]) -> str:
    try:
        return json.dumps(options, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise Invalid(f"the trigger, or a mock's answer, is no JSON: {exc}", hint="pass plain data") from exc
