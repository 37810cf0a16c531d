"""The application: the commands on a store as a whole, beside those of the modules that `command_modules` names."""

from __future__ import annotations

from dataclasses import asdict

import typer

from analemma.cli.command_modules import CommandsOnDemand
from analemma.cli.options import Json, Objects, Url, Where, one_place, open_store
from analemma.cli.output import bytes_for_people, print_fields, print_json, stdout
from analemma.errors import Invalid

application = typer.Typer(
    name="analemma",
    cls=CommandsOnDemand,
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
    import platform
    from importlib.metadata import version as installed_version

    release = installed_version("analemma")
    if json:
        print_json({"version": release, "python": platform.python_version()})
    else:
        print(f"analemma {release}")
