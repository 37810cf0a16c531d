"""The application: the commands on a store as a whole, beside those of the modules that `command_modules` names."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.command_modules import CommandsOnDemand
from analemma.cli.options import Json, Objects, Url, Where, one_place, open_store
from analemma.cli.output import bytes_for_people, print_fields, print_json, stdout
from analemma.errors import AnalemmaError, Invalid

if TYPE_CHECKING:
    from analemma.store.store import App

application = typer.Typer(
    name="analemma",
    cls=CommandsOnDemand,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


HELP = """Version control for live state.

Begin with `analemma init ./store` and `analemma save --help`, or look at `analemma demo`.

A store is named by -u, by ANALEMMA_URL or in analemma.toml. Every command has an example in its --help."""
BEGIN = "To begin with"
"""The heading of the commands here."""


@application.callback(invoke_without_command=True, help=HELP)
def start(
    context: typer.Context, show_version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False
) -> None:
    """What `analemma` does without a command."""
    if show_version:
        print(f"analemma {_release()}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@application.command(epilog="Example: analemma init ./store", rich_help_panel=BEGIN)
def init(
    where: Where = None,
    url: Url = None,
    objects: Objects = None,
    objects_moved: Annotated[
        bool, typer.Option("--objects-moved", help="All objects were copied to where --objects says.")
    ] = False,
    json: Json = False,
) -> None:
    """Create a store, or bring an existing one up to date; ask its object store whether it can be used."""
    with open_store(one_place(where, url), objects, migrate=True, create=True, objects_moved=objects_moved) as app:
        info = app.info()
        if app.objects is not None:
            app.objects.health()
            app.catalog.claim_objects()
            if app.ownership is not None and app.ownership.owner().state == "unclaimed":
                app.ownership.take_turn()
        owner, delay_s = _owner(app), app.settings.gc_object_delay_s
    if json:
        print_json({"store": info, "objects_owner": owner, "gc_object_delay_s": delay_s})
    else:
        from analemma.clock import span_for_people

        kept = f"{span_for_people(delay_s)} after nothing names them (gc_object_delay_s)"
        print_fields(
            {
                "ready": info["url"],
                "objects": info["objects"],
                **_line(owner),
                **({} if owner is None else {"objects stay": kept}),
                "schema version": info["schema_version"],
            }
        )


@application.command(epilog="Example: analemma migrate postgresql://db/shop", rich_help_panel=BEGIN)
def migrate(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Bring the schema of a store up to date."""
    with open_store(one_place(where, url), objects, migrate=True) as app:
        applied, info = app.migrated, app.info()
    if json:
        print_json({"applied": applied, "store": info})
    else:
        print_fields({"applied": ", ".join(applied) or "nothing to do", "schema version": info["schema_version"]})


@application.command(epilog="Example: analemma status ./store --json", rich_help_panel=BEGIN)
def status(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Show what a store is and what it holds."""
    from analemma.cli.jobs import pending_checkpoints

    with open_store(one_place(where, url), objects) as app:
        info, stats = app.info(), asdict(app.stats())
        pending = sum(pending_checkpoints(app).values())
        owner = _owner(app)
    if json:
        print_json({"store": info, "objects_owner": owner, "stats": stats, "pending_checkpoints": pending})
    else:
        sizes = {name: bytes_for_people(size) for name, size in stats.items() if name.endswith("_bytes")}
        print_fields({**info, **_line(owner), **stats, **sizes, "pending_checkpoints": pending})


@application.command(epilog="Example: analemma demo", rich_help_panel=BEGIN)
def demo(json: Json = False) -> None:
    """Show the main job on a store of its own, which is gone afterwards."""
    if json:
        raise Invalid("the demo is for people", hint="leave out --json")
    from analemma.cli.demo import run_demo

    run_demo(stdout())


@application.command(epilog="Example: analemma version", rich_help_panel=BEGIN)
def version(json: Json = False) -> None:
    """Show the version."""
    import platform

    if json:
        print_json({"version": _release(), "python": platform.python_version()})
    else:
        print(f"analemma {_release()}")


def _owner(app: App) -> dict[str, Any] | None:
    """Whose the objects are; whoever asks for a status gets one, whether or not the objects answer."""
    try:
        found = app.objects_owner()
        return None if found is None else asdict(found)
    except AnalemmaError as exc:
        return {"state": "unknown", "generation": 0, "detail": str(exc)}


def _line(owner: dict[str, Any] | None) -> dict[str, Any]:
    return {} if owner is None else {"objects owner": owner["detail"]}


def _release() -> str:
    from importlib.metadata import version as installed_version

    return installed_version("analemma")
