"""Tasks in other processes: what they are told is plain data and names, and what they come to is in the store.

A function is found there by its module and its name, so it has to stand at the top level of a module that the other
process can import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from analemma.canon.nodes import BlockId
from analemma.catalog.runs.runs import RunRow
from analemma.errors import Invalid, NotFound, Timeout, Unavailable
from analemma.executors.port import Call, CallExecutor, portable
from analemma.flows.context import Facts
from analemma.flows.handlers import Handlers
from analemma.flows.leases import RunLease
from analemma.flows.segments import segment_of
from analemma.flows.tasks import BatchAnswer, Failure, Group, GroupRun, away

if TYPE_CHECKING:
    from analemma.flows.held_runs import RunnerParts


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """How work on the store is done in other processes: a function that they find by its name, and where the store
    is."""

    run_tasks: Callable[..., Any]
    """Called there with the place, the tenant's name and a `BatchCall`; gives back a `BatchAnswer`."""
    place: Any
    """Where the store is."""


@dataclass(frozen=True, slots=True)
class BatchCall:
    """What another process is told."""

    row: RunRow
    config: Mapping[str, Any]
    """Of the group's segment, verified here."""
    facts: Facts
    seq: int
    manifest: BlockId
    """The version that the tasks begin with."""
    functions: Mapping[str, str]
    """By the names that the document has for them: `module:name`."""
    types: Mapping[str, str]
    """The same for handlers of node types that the program has bound."""
    left_s: float | None
    """How long the run may still take."""
    items: tuple[int, ...] = ()


def batch_call(work: GroupRun, executor: CallExecutor) -> Callable[[tuple[int, ...]], Call]:
    """What makes calls of batches, for an executor that runs them elsewhere; Invalid if they cannot run there."""
    elsewhere = work.parts.elsewhere()
    nodes = [ready.node for ready in work.group.nodes]
    functions = {name: address_of(work.handlers.function(name, node.id)) for node in nodes for name in node.functions()}
    types = {node.type: address_of(bound) for node in nodes if (bound := work.handlers.bound(node.type)) is not None}
    left_s = None if work.deadline is None else work.deadline - work.parts.clock.monotonic()
    made = BatchCall(work.row, work.group.config, work.facts, work.seq, work.state.manifest, functions, types, left_s)
    tenant = work.parts.tenant_name
    return lambda items: Call(elsewhere.run_tasks, (elsewhere.place, tenant, replace(made, items=items)), items)


def run_batch_call(parts: RunnerParts, call: BatchCall) -> BatchAnswer:
    """Run a batch in this process, whose parts these are."""
    row, clock = call.row, parts.clock
    functions = {name: _found(address) for name, address in call.functions.items()}
    types = {name: _found(address) for name, address in call.types.items()}
    lease = RunLease(parts.rows, row.number, row.fence, lease_s=parts.settings.run_lease_s, clock=clock)
    try:
        state = parts.kernel.state_of(call.manifest)
    except (Unavailable, Timeout) as exc:
        return BatchAnswer(away(exc))
    work = GroupRun(
        parts,
        row,
        Group(segment_of(call.config)),
        call.facts,
        call.seq,
        state,
        Handlers(functions, types=types, parent=parts.handlers),
        lease.is_lost,
        None if call.left_s is None else clock.monotonic() + call.left_s,
    )
    answer = work.run_batch(call.items)
    if isinstance(answer.problem, Failure):
        return BatchAnswer(replace(answer.problem, error=portable(answer.problem.error)))
    return answer


def address_of(function: Callable[..., Any]) -> str:
    """Where another process finds a function; Invalid if it does not."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    address = f"{module}:{name}"
    try:
        found = None if module in (None, "__main__") or name is None else _found(address)
    except NotFound:
        found = None
    if found is not function:
        raise Invalid(
            f"{address} cannot be found by other processes",
            hint="define it at the top level of a module that they can import, or run the group on threads",
            function=address,
        )
    return address


def _found(address: str) -> Callable[..., Any]:
    module, _, name = address.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as exc:
        raise NotFound(f"{address} cannot be imported here: {exc}", hint="install the program here too") from exc
    return found  # type: ignore[no-any-return]
