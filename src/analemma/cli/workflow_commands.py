"""The commands on workflows as a whole: workflow list, show, set."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from analemma.cli.options import Owner, StoreOptions, Workflow, command_group, on_store
from analemma.cli.output import print_fields, print_json, print_line
from analemma.errors import Invalid

commands = command_group("Workflows: what there is, and where each stands.")


@on_store(commands, "analemma workflow list -u ./store -o ann --status RUNNING", name="list")
def list_workflows(
    store: StoreOptions,
    owner: Owner,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Only those whose name begins so.", metavar="TEXT")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="Only RUNNING, COMPLETED, FAILED or IDLE ones.", metavar="STATUS")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where the page before ended.", metavar="CURSOR")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="So many workflows, at most.", metavar="N", min=1, max=1000)
    ] = 100,
) -> None:
    """List an owner's workflows and where each stands."""
    from analemma.cli.rendering import fields_of

    wanted: Any = status
    with store.open() as app:
        page = app.kernel.list_workflows(owner_id=owner, name_prefix=prefix, status=wanted, cursor=cursor, limit=limit)
    if store.json:
        print_json({"workflows": [fields_of(each) for each in page.items], "cursor": page.cursor})
        return
    for each in page.items:
        when = each.updated_at.isoformat(" ", "seconds")
        print_line(
            f"{each.workflow_id}  {each.status}  version {each.version} on {each.branch}  {when}  {each.manifest_id}"
        )
    if page.cursor is not None:
        print_line(f"more: --cursor {page.cursor}")


@on_store(commands, "analemma workflow show -u ./store -o ann -w trip", name="show")
def show_workflow(store: StoreOptions, owner: Owner, workflow: Workflow) -> None:
    """Show a workflow's name and status, and where it stands."""
    with store.open() as app:
        found = app.kernel.get_workflow(workflow_id=workflow, owner_id=owner)
    _print_workflow(store, found)


@on_store(commands, "analemma workflow set -u ./store -o ann -w trip --status COMPLETED", name="set")
def set_workflow(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    name: Annotated[str | None, typer.Option("--name", help="What to call it.", metavar="TEXT")] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="RUNNING, COMPLETED, FAILED or IDLE.", metavar="STATUS")
    ] = None,
) -> None:
    """Give a workflow a name or a status; what is left out stays as it is."""
    if name is None and status is None:
        raise Invalid("nothing to set", hint="give --name or --status")
    wanted: Any = status
    with store.open() as app:
        found = app.kernel.set_workflow(workflow_id=workflow, owner_id=owner, name=name, status=wanted)
    _print_workflow(store, found)


def _print_workflow(store: StoreOptions, found: Any) -> None:
    from analemma.cli.rendering import fields_of

    fields = fields_of(found)
    if store.json:
        print_json({"workflow": fields})
    else:
        print_fields({name: value for name, value in fields.items() if value is not None})
