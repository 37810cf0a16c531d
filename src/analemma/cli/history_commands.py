"""The commands on history: log, diff, blame, rollback, fork."""

from __future__ import annotations

from typing import Annotated

import typer

from analemma.cli.options import (
    LARGEST_NUMBER,
    MAIN,
    VERSION_HELP,
    Branch,
    Execution,
    Json,
    Message,
    Objects,
    Owner,
    OwnerOrAny,
    TenantName,
    Url,
    Workflow,
    WorkflowOfNumber,
    Yes,
    open_store,
)
from analemma.cli.output import confirm, print_fields, print_json
from analemma.errors import Invalid

commands = typer.Typer()


@commands.command(epilog="Example: analemma log -u ./store -o ann -w trip --limit 20")
def log(
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
    execution: Execution = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="So many versions, at most.", metavar="N", min=1, max=100_000)
    ] = 100,
    after: Annotated[
        int | None,
        typer.Option(
            "--after", help="Go on after this version, towards older ones.", metavar="N", min=1, max=LARGEST_NUMBER
        ),
    ] = None,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """List the versions of a branch, newest first."""
    from analemma.cli.rendering import fields_of, history_line

    with open_store(url, objects, tenant) as app:
        versions = app.kernel.history(
            workflow_id=workflow, owner_id=owner, branch=branch, execution_id=execution, limit=limit, after=after
        )
    further = versions[-1].version if len(versions) == limit else None
    if json:
        print_json({"versions": [fields_of(version) for version in versions], "after": further})
        return
    for version in versions:
        print(history_line(version))


@commands.command(epilog="Example: analemma diff -u ./store -o ann -w trip 3 5")
def diff(
    old: Annotated[str, typer.Argument(help=VERSION_HELP, metavar="A")],
    new: Annotated[str, typer.Argument(help=VERSION_HELP, metavar="B")],
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Show how version A becomes version B, as JSON Patch operations."""
    from analemma.cli.rendering import changes_fields, print_changes
    from analemma.cli.selecting import find_version

    with open_store(url, objects, tenant, any_type=True) as app:
        first, second = (
            find_version(app, named, owner=owner, workflow=workflow, branch=branch).manifest_id for named in (old, new)
        )
        changes = app.kernel.diff(first, second)
    if json:
        print_json({"from": first, "to": second, "changes": changes_fields(changes)})
    else:
        print_changes(changes)


@commands.command(epilog="Example: analemma blame -u ./store -o ann -w trip /plan/0")
def blame(
    path: Annotated[str, typer.Argument(help="A field or JSON pointer.", metavar="PATH")],
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Show the version that last changed what stands at a path."""
    from analemma.cli.rendering import fields_of

    with open_store(url, objects, tenant) as app:
        found = app.kernel.blame(workflow_id=workflow, owner_id=owner, path=path, branch=branch)
    fields = fields_of(found)
    if json:
        print_json({"path": path, "version": fields})
    else:
        print_fields({name: value for name, value in fields.items() if value is not None})


@commands.command(epilog="Example: analemma rollback -u ./store -o ann -w trip 3 --preview")
def rollback(
    version: Annotated[
        int, typer.Argument(help="The version to go back to.", metavar="VERSION", min=1, max=LARGEST_NUMBER)
    ],
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what would change.")] = False,
    yes: Yes = False,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Make an earlier version's state the newest again, as a new version. Shows what changes and asks first."""
    if json and not yes and not preview:
        raise Invalid("rollback asks first, which it cannot with --json", hint="add --yes or --preview")
    from analemma.cli.rendering import changes_fields, commit_fields, print_changes
    from analemma.state.time_machine import Rollback
    from analemma.state.versions import Commit

    with open_store(url, objects, tenant, any_type=True) as app:
        planned = app.kernel.rollback_to_version(
            workflow_id=workflow, owner_id=owner, version=version, branch=branch, preview=True
        )
        assert isinstance(planned, Rollback)
        changes = changes_fields(planned.changes)
        if not json:
            print_changes(planned.changes)
        if preview:
            if json:
                print_json({"version": version, "manifest_id": planned.manifest_id, "changes": changes})
            return
        if not yes and not confirm(f"Roll back to version {version} ({len(changes)} changes)?"):
            print("nothing was changed")
            return
        commit = app.kernel.rollback_to_version(workflow_id=workflow, owner_id=owner, version=version, branch=branch)
    assert isinstance(commit, Commit)
    if json:
        print_json({"commit": commit_fields(commit), "changes": changes})
    else:
        print_fields({"version": commit.version, "manifest": commit.manifest_id})


@commands.command(epilog="Example: analemma fork -u ./store -o ann -w trip 3 --to-branch idea")
def fork(
    version: Annotated[str, typer.Argument(help=VERSION_HELP, metavar="MANIFEST")],
    owner: Owner,
    to_workflow: Annotated[
        str | None, typer.Option("--to-workflow", help="Start this workflow, at version 1.", metavar="NAME")
    ] = None,
    to_branch: Annotated[
        str | None, typer.Option("--to-branch", help="Start this branch of the same workflow.", metavar="NAME")
    ] = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
    message: Message = None,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Start a workflow or a branch from any version. Copies nothing."""
    if (to_workflow is None) == (to_branch is None):
        raise Invalid("a fork makes a new workflow or a new branch", hint="give --to-workflow or --to-branch")
    from analemma.cli.rendering import commit_fields
    from analemma.cli.selecting import find_version

    with open_store(url, objects, tenant) as app:
        # By its id, a version of another owner may be forked into a workflow of one's own.
        owned = owner if workflow is not None else None
        source = find_version(app, version, owner=owned, workflow=workflow, branch=branch)
        commit = app.kernel.fork(
            source.manifest_id, owner_id=owner, workflow_id=to_workflow, branch=to_branch, message=message
        )
    if json:
        print_json({"commit": commit_fields(commit)})
    else:
        print_fields({"version": commit.version, "manifest": commit.manifest_id, "forked from": source.manifest_id})
