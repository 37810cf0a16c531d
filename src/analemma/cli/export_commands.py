"""The commands that print what other tools read: export lifecycle."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from analemma.cli.options import Json, command_group
from analemma.cli.output import print_json
from analemma.errors import Invalid

commands = command_group("Files for other tools.")


class Format(StrEnum):
    """Whose rules."""

    s3 = "s3"
    gcs = "gcs"
    azure = "azure"


@commands.command(epilog="Example: analemma export lifecycle --bucket s3://shop/states")
def lifecycle(
    bucket: Annotated[
        str | None,
        typer.Option(
            "--bucket", help="The bucket: a name or a URL. Left out: where the settings put objects.", metavar="BUCKET"
        ),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Whose rules, if the bucket is given by its name: s3 if left out.",
            metavar="s3|gcs|azure",
        ),
    ] = None,
    orphan_days: Annotated[
        int, typer.Option("--orphan-days", help="How long orphans stay.", metavar="DAYS", min=1, max=36_500)
    ] = 7,
    incomplete_days: Annotated[
        int, typer.Option("--incomplete-days", help="How long broken uploads stay.", metavar="DAYS", min=1, max=36_500)
    ] = 7,
    json: Json = False,
) -> None:
    """Print lifecycle rules for a bucket.

    They match what the collector could not delete and has tagged as an orphan, and uploads that broke off; never
    anything by its age."""
    from analemma.gc.lifecycle import lifecycle, parse_bucket
    from analemma.settings import Settings

    chosen = bucket or Settings().objects
    if chosen is None:
        raise Invalid("no bucket is named", hint="give --bucket, or set ANALEMMA_OBJECTS")
    made = lifecycle(
        parse_bucket(chosen, None if format is None else format.value),
        orphan_days=orphan_days,
        incomplete_days=incomplete_days,
    )
    if json:
        print_json(asdict(made))
        return
    print(json_format.dumps(made.rules, indent=2))
    for note in made.notes:
        print(note, file=sys.stderr)
