"""The commands and their options."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.output import bytes_for_people, print_fields, print_json, stdout
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.app import App

application = typer.Typer(
    name="analemma",
    help="Version control for live state.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Where = Annotated[
    str | None,
    typer.Argument(
        help="The store: a directory or a URL. Left out: --url, ANALEMMA_URL or analemma.toml.", metavar="[WHERE]"
    ),
]
Url = Annotated[str | None, typer.Option("--url", "-u", help="The store, as WHERE.", metavar="URL")]
Objects = Annotated[
    str | None, typer.Option("--objects", help="Where large objects go, if not beside the catalog.", metavar="URL")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@application.callback(invoke_without_command=True)
def start(context: typer.Context) -> None:
    """Version control for live state."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@application.command()
def init(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Create a store, or bring an existing one up to date."""
    with _open(where, url, objects, migrate=True) as app:
        info = app.info()
    if json:
        print_json({"store": info})
    else:
        print_fields({"ready": info["url"], "objects": info["objects"], "schema version": info["schema_version"]})


@application.command()
def migrate(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Bring the schema of a store up to date."""
    with _open(where, url, objects, migrate=True, create=False) as app:
        applied, info = app.migrated, app.info()
    if json:
        print_json({"applied": applied, "store": info})
    else:
        print_fields({"applied": ", ".join(applied) or "nothing to do", "schema version": info["schema_version"]})


@application.command()
def status(where: Where = None, url: Url = None, objects: Objects = None, json: Json = False) -> None:
    """Show what a store is and what it holds."""
    with _open(where, url, objects, create=False) as app:
        info, stats = app.info(), asdict(app.stats())
    if json:
        print_json({"store": info, "stats": stats})
    else:
        sizes = {name: bytes_for_people(size) for name, size in stats.items() if name.endswith("_bytes")}
        print_fields({**info, **stats, **sizes})


@application.command()
def demo(json: Json = False) -> None:
    """Show the main job on a store of its own, which is gone afterwards."""
    if json:
        raise Invalid("the demo is for people", hint="leave out --json")
    from analemma.cli.demo import run_demo

    run_demo(stdout())


@application.command()
def version(json: Json = False) -> None:
    """Show the version."""
    release = installed_version("analemma")
    if json:
        print_json({"version": release, "python": platform.python_version()})
    else:
        print(f"analemma {release}")


def _open(
    where: str | None, url: str | None, objects: str | None, *, migrate: bool | None = None, create: bool = True
) -> App:
    if where is not None and url is not None:
        raise Invalid("the store is named twice, as WHERE and by --url", hint="leave one of them out")
    import analemma
    from analemma.settings import Settings

    given: dict[str, Any] = {"url": url if where is None else where, "objects": objects}
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    return analemma.open(settings.url, objects=settings.objects, settings=settings, migrate=migrate, create=create)
