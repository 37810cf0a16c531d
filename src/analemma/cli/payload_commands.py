"""The commands on payloads: leases, release."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.options import Execution, Owner, OwnerOrAny, StoreOptions, Workflow, command_group, on_store
from analemma.cli.output import bytes_for_people, print_json, print_line

if TYPE_CHECKING:
    from analemma.catalog.kernel.payloads import PayloadLease

commands = command_group("Payloads: the leases behind the pointers of executions.")

WorkflowOrAll = Annotated[
    str | None, typer.Option("--workflow", "-w", help="The workflow. Left out: all of the owner's.", metavar="NAME")
]


@on_store(commands, "analemma payloads leases -u ./store -o ann -w trip", name="leases")
def leases(
    store: StoreOptions, owner: OwnerOrAny = None, workflow: WorkflowOrAll = None, execution: Execution = None
) -> None:
    """List the leases that keep what pointers lead to: of an execution, a workflow, an owner, or all."""
    with store.open() as app:
        found = app.payloads.leases(owner_id=owner, workflow_id=workflow, execution_id=execution)
    found.sort(key=lambda each: (each.owner, each.workflow, each.execution, each.renewed_at_us, each.id))
    if store.json:
        print_json({"leases": [_fields(each) for each in found]})
        return
    for each in found:
        field = "several fields" if each.field is None else each.field
        place = f"{each.owner}/{each.workflow}  {each.execution}"
        print_line(f"{place}  {field}  {bytes_for_people(each.size)}  used {_time(each.renewed_at_us)}")


@on_store(commands, "analemma payloads release run-1 -u ./store -o ann -w trip", name="release")
def release(
    store: StoreOptions,
    execution: Annotated[str, typer.Argument(help="The execution.", metavar="EXECUTION")],
    owner: Owner,
    workflow: Workflow,
) -> None:
    """End an execution and its leases: its pointers are worth nothing from now on."""
    with store.open() as app:
        count = app.payloads.release(execution_id=execution, owner_id=owner, workflow_id=workflow)
    if store.json:
        print_json({"released": count})
    else:
        print_line(f"released {count} leases of {execution}")


def _fields(lease: PayloadLease) -> dict[str, Any]:
    return {
        "id": lease.id.hex(),
        "owner_id": lease.owner,
        "workflow_id": lease.workflow,
        "execution_id": lease.execution,
        "field": lease.field,
        "hash": lease.root.hex(),
        "size": lease.size,
        "created_at": _time(lease.created_at_us),
        "used_at": _time(lease.renewed_at_us),
    }


def _time(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat()
