"""The command on threads of LangGraph: langgraph migrate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import print_fields, print_json
from analemma.errors import Unavailable

if TYPE_CHECKING:
    from analemma.langgraph.migrate import Progress

commands = command_group("Threads of LangGraph.")


@on_store(commands, "analemma langgraph migrate checkpoints.sqlite -u ./store", name="migrate")
def migrate(
    store: StoreOptions,
    source: Annotated[
        str, typer.Argument(help="A file of SqliteSaver, or the postgresql:// URL of PostgresSaver.", metavar="SOURCE")
    ],
    thread: Annotated[
        list[str] | None,
        typer.Option("--thread", help="Only this thread; may be given several times.", metavar="NAME"),
    ] = None,
    owner: Annotated[
        str, typer.Option("--owner", "-o", help="Whose workflows the threads become.", metavar="NAME")
    ] = "langgraph",
) -> None:
    """Copy threads from a database of LangGraph's own savers.

    The source is only read. It may be stopped at any time; run again, it copies what is missing."""
    try:
        from analemma.langgraph.migrate import migrate_threads
    except ModuleNotFoundError as exc:
        raise Unavailable(
            f"threads need the package {exc.name!r}, which is not installed", hint="pip install 'analemma[langgraph]'"
        ) from exc
    with store.open(new_tenant=True) as app, _progress(store) as progress:
        report = migrate_threads(source, app, owner=owner, threads=thread or (), progress=progress)
    if store.json:
        print_json({"migrated": asdict(report)})
        return
    print_fields(
        {
            "threads": report.threads,
            "checkpoints": f"{report.checkpoints} copied, {report.skipped} there already",
            "writes": report.writes,
        }
    )


@contextmanager
def _progress(store: StoreOptions) -> Iterator[Progress | None]:
    """A bar, for people who watch."""
    if store.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("checkpoints", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
