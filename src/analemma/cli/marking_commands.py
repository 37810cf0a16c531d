"""The commands that say something about versions: tag, pin, decide."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from analemma.cli.options import (
    MAIN,
    VERSION_HELP,
    Branch,
    Message,
    NamedVersion,
    Owner,
    StoreOptions,
    Workflow,
    WorkflowOfNumber,
    on_store,
)
from analemma.cli.output import print_fields, print_json, print_line
from analemma.errors import Invalid

commands = typer.Typer()

OptionalVersion = Annotated[str | None, typer.Argument(help=VERSION_HELP, metavar="[REVISION]")]


@on_store(commands, "analemma tag -u ./store -o ann -w trip before-booking 3")
def tag(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    name: Annotated[str | None, typer.Argument(help="The tag. Left out: list all.", metavar="[NAME]")] = None,
    version: OptionalVersion = None,
    delete: Annotated[bool, typer.Option("--delete", "-d", help="Remove the tag.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Move the tag if it is on another version.")] = False,
    branch: Branch = MAIN,
    message: Message = None,
) -> None:
    """Name a version, or list a workflow's tags. A tagged version never expires."""
    if delete and (name is None or version is not None):
        raise Invalid("it is not said which tag to remove", hint="give its name alone")
    if name is not None and version is None and not delete:
        raise Invalid("it is not said what to tag", hint="name a version after the tag, such as HEAD")
    from analemma.cli.rendering import fields_of
    from analemma.cli.selecting import find_version

    with store.open() as app:
        if name is None:
            found = app.kernel.tags(workflow_id=workflow, owner_id=owner)
        elif version is None:
            app.kernel.untag(name, workflow_id=workflow, owner_id=owner)
            found = []
        else:
            manifest = find_version(app, version, owner=owner, workflow=workflow, branch=branch).manifest_id
            found = [app.kernel.tag(manifest, name, owner_id=owner, message=message, force=force)]
    if store.json:
        print_json({"removed": name} if delete else {"tags": [fields_of(each) for each in found]})
    for each in [] if store.json else found:
        print_line(
            f"{each.name}  version {each.version} on {each.branch}  {each.manifest_id}  {each.message or ''}".rstrip()
        )


@on_store(commands, "analemma pin -u ./store -o ann -w trip 3 --reason 'sent to the customer'")
def pin(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    version: OptionalVersion = None,
    remove: Annotated[bool, typer.Option("--remove", help="Let it expire again.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why it must stay.", metavar="TEXT")] = None,
    branch: Branch = MAIN,
) -> None:
    """Keep a version from expiring, or list the pinned ones."""
    if remove and version is None:
        raise Invalid("it is not said which pin to remove", hint="name a version")
    from analemma.cli.rendering import fields_of
    from analemma.cli.selecting import find_version

    with store.open() as app:
        if version is None:
            found = app.kernel.pins(workflow_id=workflow, owner_id=owner)
        else:
            manifest = find_version(app, version, owner=owner, workflow=workflow, branch=branch).manifest_id
            if remove:
                app.kernel.unpin(manifest, owner_id=owner)
                found = []
            else:
                found = [app.kernel.pin(manifest, owner_id=owner, reason=reason)]
    if store.json:
        print_json({"removed": manifest} if remove else {"pins": [fields_of(each) for each in found]})
    for each in [] if store.json else found:
        print_line(f"version {each.version} on {each.branch}  {each.manifest_id}  {each.reason or ''}".rstrip())


@on_store(commands, "analemma decide -u ./store -o ann -w trip 3 approved --actor bob --score 0.9")
def decide(
    store: StoreOptions,
    version: NamedVersion,
    owner: Owner,
    decision: Annotated[
        str | None,
        typer.Argument(
            help="approved, rejected, escalated or pending. Left out: list what was decided.", metavar="[DECISION]"
        ),
    ] = None,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Who decides; the owner, if left out.", metavar="NAME")
    ] = None,
    score: Annotated[float | None, typer.Option("--score", help="How good it is.", metavar="NUMBER")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Why.", metavar="TEXT")] = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> None:
    """Record a decision on a version, or list those on it. Earlier decisions stay on record; the newest counts."""
    from analemma.cli.rendering import fields_of
    from analemma.cli.selecting import find_version

    verdict: Any = decision
    with store.open() as app:
        manifest = find_version(app, version, owner=owner, workflow=workflow, branch=branch).manifest_id
        if verdict is not None:
            decided = app.kernel.decide(
                manifest, verdict, actor=actor or owner, score=score, reason=reason, owner_id=owner
            )
            found = [decided]
        else:
            found = app.kernel.decisions(manifest, owner_id=owner)
    shown = [fields_of(each) for each in found]
    if store.json:
        print_json({"decisions": shown})
    for fields in [] if store.json else shown:
        print_fields({name: value for name, value in fields.items() if value is not None})
