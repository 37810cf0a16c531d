"""The application: the commands on a store as a whole, and those of the other modules."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version as installed_version

import typer

from analemma.cli import (
    branch_commands,
    export_commands,
    gc_commands,
    history_commands,
    marking_commands,
    pack_commands,
    retention_commands,
    segment_commands,
    state_commands,
    worker_commands,
    workflow_commands,
)
from analemma.cli.options import Json, Objects, Url, Where, one_place, open_store
from analemma.cli.output import bytes_for_people, print_fields, print_json, stdout
from analemma.errors import Invalid

application = typer.Typer(
    name="analemma",
    help="Version control for live state.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@application.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Version control for live state."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@application.command(epilog="Example: analemma init ./store")
def init(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Create a store, or bring an existing one up to date."""
    with open_store(one_place(where, url), objects, migrate=True, create=True) as app:
        info = app.info()
    if json:
        print_json({"store": info})
    else:
        print_fields({"ready": info["url"], "objects": info["objects"], "schema version": info["schema_version"]})


@application.command(epilog="Example: analemma migrate postgresql://db/shop")
def migrate(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Bring the schema of a store up to date."""
    with open_store(one_place(where, url), objects, migrate=True) as app:
        applied, info = app.migrated, app.info()
    if json:
        print_json({"applied": applied, "store": info})
    else:
        print_fields({"applied": ", ".join(applied) or "nothing to do", "schema version": info["schema_version"]})


@application.command(epilog="Example: analemma status ./store --json")
def status(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Show what a store is and what it holds."""
    with open_store(one_place(where, url), objects) as app:
        info, stats = app.info(), asdict(app.stats())
    if json:
        print_json({"store": info, "stats": stats})
    else:
        sizes = {name: bytes_for_people(size) for name, size in stats.items() if name.endswith("_bytes")}
        print_fields({**info, **stats, **sizes})


@application.command(epilog="Example: analemma demo")
def demo(json: Json = False) -> None:
    """Show the main job on a store of its own, which is gone afterwards."""
    if json:
        raise Invalid("the demo is for people", hint="leave out --json")
    from analemma.cli.demo import run_demo

    run_demo(stdout())


@application.command(epilog="Example: analemma version")
def version(json: Json = False) -> None:
    """Show the version."""
    release = installed_version("analemma")
    if json:
        print_json({"version": release, "python": platform.python_version()})
    else:
        print(f"analemma {release}")


application.add_typer(state_commands.commands)
application.add_typer(history_commands.commands)
application.add_typer(branch_commands.commands)
application.add_typer(marking_commands.commands)
application.add_typer(workflow_commands.commands, name="workflow")
application.add_typer(segment_commands.commands, name="segments")
application.add_typer(retention_commands.commands, name="retention")
application.add_typer(gc_commands.commands, name="gc")
application.add_typer(worker_commands.commands)
application.add_typer(pack_commands.commands)
application.add_typer(export_commands.commands, name="export")
