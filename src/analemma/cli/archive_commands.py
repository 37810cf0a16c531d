"""The commands that move a workspace in and out of object storage, archive and restore, with their progress; and what
they share with the commands on workspaces, among which they are too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import bytes_for_people, print_fields, print_json

if TYPE_CHECKING:
    from analemma.archives.jobs import OnProgress, Progress
    from analemma.archives.parts import ArchiveUnit, Workspace

commands = typer.Typer()

Name = Annotated[str, typer.Argument(help="The workspace's id.", metavar="WORKSPACE")]
OwnerOrAny = Annotated[
    str | None,
    typer.Option(
        "--owner",
        "-o",
        help="Whose workspace it is; that of another is not found.",
        envvar="ANALEMMA_OWNER",
        metavar="NAME",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Read every file, also those that look unchanged.")]
Format = Annotated[
    str | None,
    typer.Option("--format", help="`tar` or `blocks`. Left out: as archive_format says.", metavar="FORMAT"),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", help="Give up after so long. Left out: as archive_timeout_s says.", metavar="SECONDS", min=0.1
    ),
]
Into = Annotated[
    Path | None,
    typer.Option("--into", help="Extract a copy into this directory; the workspace stays as it is.", metavar="DIR"),
]


def archive_workspace(
    store: StoreOptions,
    workspace: Name,
    owner: OwnerOrAny = None,
    force: Force = False,
    format: Format = None,
    timeout: TimeoutOption = None,
) -> None:
    """Store all files of a workspace, verify that, and remove its volume."""
    from analemma.errors import Invalid

    if format not in (None, "tar", "blocks"):
        raise Invalid(f"there is no format {format!r}", hint="formats are tar and blocks")
    chosen: Any = format
    with store.open() as app, progress_bar("archiving") as progress:
        unit = app.archives.archive(
            workspace, owner_id=owner, force=force, format=chosen, timeout_s=timeout, progress=progress
        )
    print_unit(store, unit)


def restore_workspace(
    store: StoreOptions,
    workspace: Name,
    owner: OwnerOrAny = None,
    into: Into = None,
    timeout: TimeoutOption = None,
) -> None:
    """Bring the volume of a workspace back from its archive."""
    with store.open() as app, progress_bar("restoring") as progress:
        found = app.archives.restore(workspace, into, owner_id=owner, timeout_s=timeout, progress=progress)
    print_workspace(store, found)


archive = on_store(commands, "analemma archive ws123 -u ./store", name="archive")(archive_workspace)
restore = on_store(commands, "analemma restore ws123 -u ./store", name="restore")(restore_workspace)


def print_unit(store: StoreOptions, unit: ArchiveUnit) -> None:
    """An archive, for programs or people."""
    fields = asdict(unit)
    if store.json:
        print_json({"archive": fields})
    else:
        print_fields({**fields, "bytes": bytes_for_people(unit.bytes), "size": bytes_for_people(unit.size)})


def print_workspace(store: StoreOptions, found: Workspace) -> None:
    """A workspace, for programs or people."""
    fields = workspace_fields(found)
    if store.json:
        print_json({"workspace": fields})
    else:
        print_fields({name: value for name, value in fields.items() if value is not None})


def workspace_fields(found: Workspace) -> dict[str, Any]:
    """A workspace as JSON holds it."""
    times = ("created_at", "updated_at", "deleted_at", "undelete_until")
    fields = asdict(found)
    return fields | {name: None if fields[name] is None else fields[name].isoformat() for name in times}


@contextmanager
def progress_bar(what: str) -> Iterator[OnProgress | None]:
    """A bar, for people who watch."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield _show(bar, task)


def _show(bar: Any, task: Any) -> OnProgress:
    def show(told: Progress) -> None:
        bar.update(
            task,
            description=f"{told.phase}, {told.files:,} files",
            completed=told.bytes,
            total=max(told.total_bytes, told.bytes) if told.total_bytes is not None else None,
        )

    return show
