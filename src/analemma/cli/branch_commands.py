"""The commands on lines of history: fork, merge, branches, children, delete, undelete, deleted."""

from __future__ import annotations

from dataclasses import fields as dataclass_fields
from typing import Annotated, Any

import typer

from analemma.cli.options import (
    MAIN,
    Branch,
    Message,
    NamedVersion,
    Owner,
    OwnerOrAny,
    Preview,
    StoreOptions,
    Workflow,
    WorkflowOfNumber,
    Yes,
    on_store,
)
from analemma.cli.output import confirm, print_fields, print_json, print_line
from analemma.errors import Invalid

commands = typer.Typer()

OneBranch = Annotated[
    str | None, typer.Option("--branch", "-b", help="Only this branch. Left out: the whole workflow.", metavar="NAME")
]


@on_store(commands, "analemma fork -u ./store -o ann -w trip 3 --to-branch idea")
def fork(
    store: StoreOptions,
    version: NamedVersion,
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
) -> None:
    """Start a workflow or a branch from any version. Copies nothing."""
    if (to_workflow is None) == (to_branch is None):
        raise Invalid("a fork makes a new workflow or a new branch", hint="give --to-workflow or --to-branch")
    from analemma.cli.rendering import commit_fields
    from analemma.cli.selecting import find_version

    with store.open() as app:
        source = find_version(app, version, owner=owner, workflow=workflow, branch=branch)
        commit = app.kernel.fork(
            source.manifest_id, owner_id=owner, workflow_id=to_workflow, branch=to_branch, message=message
        )
    if store.json:
        print_json({"commit": commit_fields(commit)})
    else:
        print_fields({"version": commit.version, "manifest": commit.manifest_id, "forked from": source.manifest_id})


@on_store(commands, "analemma merge -u ./store -o ann -w trip idea --into main --strategy deep_merge")
def merge(
    store: StoreOptions,
    source: Annotated[str, typer.Argument(help="The branch, or another revision, to merge in.", metavar="SOURCE")],
    owner: Owner,
    workflow: Workflow,
    into: Annotated[str, typer.Option("--into", help="The branch that gets the changes.", metavar="NAME")] = MAIN,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            help="Who wins where both changed the same: refuse, ours, last_write_wins, deep_merge, collect, or for "
            "lists append, replace, dedupe_append, set_union, by_key:FIELD.",
            metavar="STRATEGY",
        ),
    ] = "refuse",
    strategy_for: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy-for", help="The same for a field or a pattern of pointers; repeatable.", metavar="NAME=STRATEGY"
        ),
    ] = None,
    preview: Preview = False,
    message: Message = None,
) -> None:
    """Bring what one branch changed into another."""
    from analemma.cli.rendering import changes_fields, commit_fields, on_one_line, print_changes, to_json
    from analemma.cli.selecting import merge_source

    default: Any = strategy
    with store.open(any_type=True) as app:
        merged = app.kernel.merge(
            workflow_id=workflow,
            owner_id=owner,
            source=merge_source(app, source, owner=owner, workflow=workflow, branch=into),
            into=into,
            strategy=default,
            strategies=_chosen(strategy_for or []),
            message=message,
            preview=preview,
        )
    if store.json:
        fields: dict[str, Any] = {item.name: getattr(merged, item.name) for item in dataclass_fields(merged)}
        fields["changes"] = changes_fields(merged.changes)
        fields |= {name: to_json(fields[name]) for name in ("decided", "conflicts")}
        fields["commit"] = None if merged.commit is None else commit_fields(merged.commit)
        print_json({"merge": fields})
        return
    print_changes(merged.changes)
    for conflict in merged.conflicts:
        print_line(f"conflict {on_one_line(conflict)}")
    if merged.commit is not None:
        print_fields({"version": merged.commit.version, "manifest": merged.commit.manifest_id})
    elif not preview:
        print_line(f"{into} has everything already")


@on_store(commands, "analemma branches -u ./store -o ann -w trip")
def branches(store: StoreOptions, owner: Owner, workflow: Workflow) -> None:
    """List a workflow's branches, oldest first: where each stands, and the version it began from."""
    from analemma.cli.rendering import fields_of

    with store.open() as app:
        found = app.kernel.branches(workflow_id=workflow, owner_id=owner)
    if store.json:
        print_json({"branches": [fields_of(each) for each in found]})
        return
    for each in found:
        began = f"  from {each.parent_id}" if each.parent_id is not None else ""
        print_line(f"{each.name}  version {each.version}  {each.manifest_id}{began}")


@on_store(commands, "analemma children -u ./store -o ann -w trip 3")
def children(
    store: StoreOptions,
    version: NamedVersion,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> None:
    """List the versions made from a version: the next on its branch, and the first of each fork."""
    from analemma.cli.rendering import fields_of, history_line, history_place
    from analemma.cli.selecting import find_version

    with store.open() as app:
        parent = find_version(app, version, owner=owner, workflow=workflow, branch=branch)
        found = app.kernel.children(parent.manifest_id, owner_id=owner)
    if store.json:
        print_json({"children": [fields_of(each) for each in found]})
        return
    for each in found:
        print_line(f"{history_place(each)} {history_line(each)}")


@on_store(commands, "analemma delete -u ./store -o ann -w trip --branch draft --yes")
def delete(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    branch: OneBranch = None,
    force: Annotated[bool, typer.Option("--force", help="Cancel runs that go on there.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a workflow with all that belongs to it, or one of its branches; until says how long it comes back."""
    what = f"workflow {workflow} with all its branches" if branch is None else f"branch {branch} of workflow {workflow}"
    if not yes and not confirm(f"Delete {what}?"):
        raise Invalid("nothing was deleted")
    with store.open() as app:
        found = app.kernel.delete(owner_id=owner, workflow_id=workflow, branch=branch, force=force)
    _print_deleted(store, "deleted", found)


@on_store(commands, "analemma undelete -u ./store -o ann -w trip")
def undelete(store: StoreOptions, owner: Owner, workflow: Workflow, branch: OneBranch = None) -> None:
    """Bring back what was deleted last of a workflow, or one branch, unless it was collected or its name used again."""
    with store.open() as app:
        found = app.kernel.undelete(owner_id=owner, workflow_id=workflow, branch=branch)
    _print_deleted(store, "restored", found)


@on_store(commands, "analemma deleted -u ./store -o ann")
def deleted(
    store: StoreOptions,
    owner: OwnerOrAny = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="Only of this workflow.", metavar="NAME")
    ] = None,
) -> None:
    """List what is deleted and can be had back, and until when."""
    with store.open() as app:
        found = app.kernel.deleted(owner_id=owner, workflow_id=workflow)
    _print_deleted(store, "deleted", found)


def _print_deleted(store: StoreOptions, title: str, found: list[Any]) -> None:
    if store.json:
        print_json({title: [each.to_json() for each in found]})
        return
    for each in found:
        until = f"  until {each.until.isoformat(' ', 'seconds')}" if title == "deleted" else ""
        print_line(f"{each.owner_id}/{each.workflow_id} on {each.branch}  version {each.version}{until}")


def _chosen(choices: list[str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for choice in choices:
        name, equals, value = choice.partition("=")
        if not equals:
            raise Invalid(f"--strategy-for {choice}: there is no '='", hint="write --strategy-for NAME=STRATEGY")
        chosen[name] = value
    return chosen
