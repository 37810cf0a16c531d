"""The command that ships an entity again: ship."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from analemma.cli.ingest_commands import EntityType
from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import print_json, print_line

commands = typer.Typer()


@on_store(commands, "analemma ship BOOK 978 --sink sinkrule.file.book -u ./store", name="ship")
def ship(
    store: StoreOptions,
    entity_type: EntityType,
    entity_id: Annotated[str, typer.Argument(help="The entity's id.", metavar="ID")],
    sink: Annotated[
        list[str] | None,
        typer.Option("--sink", help="Only by this sink rule; may be given several times.", metavar="RULE"),
    ] = None,
    if_needed: Annotated[
        bool, typer.Option("--if-needed", help="Leave out sinks that are known to have it already.")
    ] = False,
) -> None:
    """Have a worker ship the newest compiled state of an entity, to all its sinks or to those named."""
    with store.open() as app:
        asked = app.default.ship(entity_type, entity_id, sinks=sink or None, force=not if_needed)
    if store.json:
        print_json({"requested": asdict(asked)})
    else:
        print_line(f"{asked.entity} {asked.version} was requested by {', '.join(asked.sinks)}; a worker ships it")
