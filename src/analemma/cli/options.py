"""The options that commands share, and opening the store they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.app import App

MAIN = "main"
LARGEST_NUMBER = 2**53
"""Numbers on the command line stay below what any catalog and any JSON reader can hold exactly."""

Where = Annotated[
    str | None,
    typer.Argument(
        help="The store: a directory or a URL. Left out: --url, ANALEMMA_URL or analemma.toml.", metavar="[WHERE]"
    ),
]
Url = Annotated[str | None, typer.Option("--url", "-u", help="The store: a directory or a URL.", metavar="URL")]
Objects = Annotated[
    str | None, typer.Option("--objects", help="Where large objects go, if not beside the catalog.", metavar="URL")
]
TenantName = Annotated[
    str | None,
    typer.Option("--tenant", help="The tenant to work in, if not the one that the settings name.", metavar="NAME"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

_OWNER: dict[str, Any] = {"envvar": "ANALEMMA_OWNER", "metavar": "NAME"}
Owner = Annotated[str, typer.Option("--owner", "-o", help="Whose workflow it is.", **_OWNER)]
OwnerOrAny = Annotated[
    str | None,
    typer.Option("--owner", "-o", help="Whose workflow it is; a manifest of another is not found.", **_OWNER),
]
Workflow = Annotated[str, typer.Option("--workflow", "-w", help="The workflow.", metavar="NAME")]
WorkflowOfNumber = Annotated[
    str | None,
    typer.Option("--workflow", "-w", help="The workflow that version numbers and tags are of.", metavar="NAME"),
]
Branch = Annotated[str, typer.Option("--branch", "-b", help="The branch.", metavar="NAME")]
Execution = Annotated[str | None, typer.Option("--execution", help="The execution.", metavar="NAME")]
Message = Annotated[str | None, typer.Option("--message", "-m", help="Why, for the log.", metavar="TEXT")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

VERSION_HELP = "A manifest id; together with --workflow also a version number or a tag."


def open_store(
    url: str | None,
    objects: str | None = None,
    tenant: str | None = None,
    *,
    migrate: bool | None = None,
    create: bool = False,
    any_type: bool = False,
) -> App:
    """Open the store that the options and the settings name; `any_type`, to show values of classes not known here."""
    import analemma
    from analemma.settings import Settings

    given: dict[str, Any] = {"url": url, "objects": objects, "tenant": tenant}
    if any_type:
        given["unknown_types"] = "keep"
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    return analemma.open(settings.url, objects=settings.objects, settings=settings, migrate=migrate, create=create)


def one_place(where: str | None, url: str | None) -> str | None:
    """The store named as an argument or as an option, not both."""
    if where is not None and url is not None:
        raise Invalid("the store is named twice, as WHERE and by --url", hint="leave one of them out")
    return url if where is None else where
