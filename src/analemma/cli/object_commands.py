"""The commands on whose the objects of a store are: objects adopt, detach."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from analemma.cli.options import StoreOptions, Yes, command_group, on_store
from analemma.cli.output import bytes_for_people, confirm, print_fields, print_json
from analemma.errors import Invalid

commands = command_group("Whose the objects of a store are.")


@on_store(commands, "analemma objects adopt -u postgresql://db/shop --objects s3://bucket/shop --yes", name="adopt")
def adopt(store: StoreOptions, yes: Yes = False) -> None:
    """Make the objects this catalog's for good: the one that owned them deletes none any more.

    For a catalog that was restored from a backup, or moved to another server or file. A copy beside its original, such
    as staging, gets objects of its own instead: objects detach."""
    with store.open() as app:
        found = app.objects_owner()
        if found is not None and found.state == "other" and not yes:
            print_fields({"objects": app.info()["objects"], "now": found.detail})
            if not confirm("Take them over? Their owner will no longer collect."):
                raise Invalid("nothing was changed", hint="add --yes to take them over")
        owner = app.adopt_objects()
        place = app.info()["objects"]
    if store.json:
        print_json({"objects": place, "objects_owner": asdict(owner)})
    else:
        print_fields({"objects": place, "objects owner": owner.detail})


@on_store(
    commands,
    "analemma objects detach -u postgresql://db/staging --objects s3://bucket/shop --to s3://bucket/staging",
    name="detach",
)
def detach(
    store: StoreOptions,
    to: Annotated[
        str | None,
        typer.Option("--to", help="Copy what this catalog needs there: its objects from now on.", metavar="URL"),
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Forget the objects instead, if this catalog needs none of them.")
    ] = False,
) -> None:
    """Give a copy of a catalog objects of its own; those of its original are left alone.

    Stop whatever else works on this catalog meanwhile, and name the new place from then on."""
    with store.open() as app:
        done = app.detach_objects(to, forget=forget)
    if store.json:
        print_json({"detached": asdict(done)})
        return
    print_fields(
        {
            "objects": "none" if done.place is None else done.place,
            "copied": f"{done.objects} objects, {bytes_for_people(done.bytes)}",
            "forgotten": f"{done.forgotten} uploads that nothing named",
        }
    )
