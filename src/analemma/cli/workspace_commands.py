"""The commands on workspaces: create, list, show, start, stop, archive, restore, delete, undelete, purge, recover."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.archive_commands import (
    Name,
    OwnerOrAny,
    archive_workspace,
    print_workspace,
    progress_bar,
    restore_workspace,
    workspace_fields,
)
from analemma.cli.options import StoreOptions, Yes, command_group, on_store
from analemma.cli.output import confirm, print_json, print_line
from analemma.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from analemma.archives.parts import Workspace

commands = command_group("Workspaces: directories, in and out of object storage.")

_OwnerOfNew = Annotated[
    str, typer.Option("--owner", "-o", help="Whose workspace it is.", envvar="ANALEMMA_OWNER", metavar="NAME")
]
_Run = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="Run this before; it finds ANALEMMA_WORKSPACE and ANALEMMA_VOLUME. If it fails, nothing changes.",
        metavar="COMMAND",
    ),
]


@on_store(commands, "analemma workspace create ws123 -u ./store -o ann --volume ./home", name="create")
def create(
    store: StoreOptions,
    workspace: Name,
    owner: _OwnerOfNew,
    volume: Annotated[
        Path, typer.Option("--volume", help="Its directory, which is made if it is not there.", metavar="DIR")
    ],
) -> None:
    """Make a workspace of a directory."""
    with store.open(new_tenant=True) as app:
        found = app.archives.create(workspace, owner_id=owner, volume=volume)
    print_workspace(store, found)


@on_store(commands, "analemma workspace list -u ./store --status COLD", name="list")
def list_workspaces(
    store: StoreOptions,
    owner: OwnerOrAny = None,
    status: Annotated[
        str | None,
        typer.Option("--status", help="Only PENDING, COLD, WARM, RUNNING, ERROR or DELETED ones.", metavar="STATUS"),
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="Also those that are deleted.")] = False,
) -> None:
    """List workspaces and where each stands."""
    if status not in (None, "PENDING", "COLD", "WARM", "RUNNING", "ERROR", "DELETED"):
        raise Invalid(f"there is no status {status!r}", hint="see analemma workspace list --help")
    wanted: Any = status
    with store.open() as app:
        listed = app.archives.list(owner_id=owner, status=wanted, deleted=deleted or status == "DELETED")
        if store.json:
            print_json({"workspaces": [workspace_fields(each) for each in listed]})
            return
        for each in listed:
            doing = "" if each.operation == "NONE" else f" ({each.operation})"
            print_line(f"{each.id}  {each.status}{doing}  {each.owner_id}  {each.volume}")


@on_store(commands, "analemma workspace show ws123 -u ./store", name="show")
def show(store: StoreOptions, workspace: Name, owner: OwnerOrAny = None) -> None:
    """Show where a workspace stands."""
    with store.open() as app:
        print_workspace(store, app.archives.get(workspace, owner_id=owner))


@on_store(commands, "analemma workspace start ws123 -u ./store --run './serve --daemon'", name="start")
def start(store: StoreOptions, workspace: Name, owner: OwnerOrAny = None, run: _Run = None) -> None:
    """Make a workspace RUNNING; one that is COLD is restored first."""
    with store.open() as app, progress_bar("restoring") as progress:
        app.archives.on_start(None if run is None else _hook(run))
        print_workspace(store, app.archives.start(workspace, owner_id=owner, progress=progress))


@on_store(commands, "analemma workspace stop ws123 -u ./store", name="stop")
def stop(store: StoreOptions, workspace: Name, owner: OwnerOrAny = None, run: _Run = None) -> None:
    """Make a RUNNING workspace WARM."""
    with store.open() as app:
        app.archives.on_stop(None if run is None else _hook(run))
        print_workspace(store, app.archives.stop(workspace, owner_id=owner))


archive = on_store(commands, "analemma workspace archive ws123 -u ./store", name="archive")(archive_workspace)
restore = on_store(commands, "analemma workspace restore ws123 -u ./store --into ./copy", name="restore")(
    restore_workspace
)


@on_store(commands, "analemma workspace delete ws123 -u ./store", name="delete")
def delete(
    store: StoreOptions,
    workspace: Name,
    owner: OwnerOrAny = None,
    discard: Annotated[bool, typer.Option("--discard", help="Archive nothing: what is in the volume is lost.")] = False,
    yes: Yes = False,
) -> None:
    """Archive a workspace, remove its volume, and mark it as deleted; undelete_until says how long it comes back."""
    if discard and not yes and not confirm(f"Delete everything in workspace {workspace}?"):
        raise Invalid("nothing was deleted")
    with store.open() as app, progress_bar("archiving") as progress:
        found = app.archives.delete(workspace, discard=discard, owner_id=owner, progress=progress)
    print_workspace(store, found)


@on_store(commands, "analemma workspace undelete ws123 -u ./store", name="undelete")
def undelete(store: StoreOptions, workspace: Name, owner: OwnerOrAny = None) -> None:
    """Bring a deleted workspace back, if its archive is still there."""
    with store.open() as app:
        print_workspace(store, app.archives.undelete(workspace, owner_id=owner))


@on_store(commands, "analemma workspace purge ws123 -u ./store --yes", name="purge")
def purge(store: StoreOptions, workspace: Name, owner: OwnerOrAny = None, yes: Yes = False) -> None:
    """Remove a workspace for good, with its volume and all its archives."""
    if not yes and not confirm(f"Remove workspace {workspace} and all its archives for good?"):
        raise Invalid("nothing was removed")
    with store.open() as app:
        app.archives.purge(workspace, owner_id=owner)
    if store.json:
        print_json({"purged": workspace})
    else:
        print_line(f"purged {workspace}")


@on_store(commands, "analemma workspace recover ws123 -u ./store", name="recover")
def recover(
    store: StoreOptions,
    workspace: Annotated[
        str | None,
        typer.Argument(help="The workspace's id. Left out: all that were interrupted.", metavar="[WORKSPACE]"),
    ] = None,
    owner: OwnerOrAny = None,
    give_up_volume: Annotated[
        bool,
        typer.Option("--give-up-volume", help="Go back to its archive, which is older, if its volume is not here."),
    ] = False,
) -> None:
    """Finish what a crash interrupted, and get a workspace out of ERROR."""
    if give_up_volume and workspace is None:
        raise Invalid("--give-up-volume needs a workspace", hint="name the one whose volume is lost")
    with store.open() as app, progress_bar("recovering") as progress:
        if workspace is not None:
            found = app.archives.recover(workspace, owner_id=owner, give_up_volume=give_up_volume, progress=progress)
            print_workspace(store, found)
            return
        outcomes = app.archives.reconcile()
    if store.json:
        print_json({"recovered": [asdict(each) for each in outcomes]})
        return
    for each in outcomes:
        state = each.status or "gone"
        print_line(f"{each.workspace}  {each.operation}  {state}" + (f"  {each.error}" if each.error else ""))


def _hook(command: str) -> Callable[[Workspace], None]:
    try:
        arguments = shlex.split(command)
    except ValueError as exc:
        raise Invalid(f"--run cannot be read: {exc}", hint="quote it as a shell would") from exc
    if not arguments:
        raise Invalid("--run is empty", hint="name a command")

    def run(workspace: Workspace) -> None:
        variables = {"ANALEMMA_WORKSPACE": workspace.id, "ANALEMMA_VOLUME": workspace.volume}
        try:
            done = subprocess.run(arguments, env={**os.environ, **variables}, check=False)
        except OSError as exc:
            raise Unavailable(
                f"{arguments[0]} cannot be run: {exc.strerror}",
                hint="name a command by its path; the workspace is as it was",
            ) from exc
        if done.returncode:
            raise Unavailable(f"{arguments[0]} ended with {done.returncode}", hint="the workspace is as it was")

    return run
