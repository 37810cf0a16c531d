"""The options that commands share: which store, which tenant, and how to answer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from analemma.errors import Invalid, NotFound
from analemma.settings import SETTINGS, Settings

if TYPE_CHECKING:
    from analemma.store.store import App

P = ParamSpec("P")
T = TypeVar("T")

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

OWNER_VARIABLE = "ANALEMMA_OWNER"
_OWNER: dict[str, Any] = {"envvar": OWNER_VARIABLE, "metavar": "NAME"}
Owner = Annotated[str, typer.Option("--owner", "-o", help="Whose workflow it is.", **_OWNER)]
OwnerOrAny = Annotated[
    str | None,
    typer.Option("--owner", "-o", help="Whose workflow it is; a manifest of another is not found.", **_OWNER),
]
Workflow = Annotated[str, typer.Option("--workflow", "-w", help="The workflow.", metavar="NAME")]
WorkflowOfNumber = Annotated[
    str | None,
    typer.Option("--workflow", "-w", help="The workflow whose versions are named.", metavar="NAME"),
]
Branch = Annotated[str, typer.Option("--branch", "-b", help="The branch.", metavar="NAME")]
Execution = Annotated[str | None, typer.Option("--execution", help="The execution.", metavar="NAME")]
SegmentNumber = Annotated[
    int | None,
    typer.Option("--segment", help="The segment's number.", metavar="N", min=-LARGEST_NUMBER, max=LARGEST_NUMBER),
]
Message = Annotated[str | None, typer.Option("--message", "-m", help="Why, for the log.", metavar="TEXT")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Preview = Annotated[bool, typer.Option("--preview", help="Only show what would change.")]

VERSION_HELP = (
    "An id or its first digits; with --workflow also HEAD, HEAD~2, a number, a tag, a branch, draft@3, @{2026-11-01}."
)
NamedVersion = Annotated[str, typer.Argument(help=VERSION_HELP, metavar="REVISION")]
NamedOrNewest = Annotated[
    str | None, typer.Argument(help=f"{VERSION_HELP} Left out: the newest version.", metavar="[REVISION]")
]


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Which store a command works on and in which tenant, and whether it answers people or programs."""

    url: Url = None
    objects: Objects = None
    tenant: TenantName = None
    json: Json = False

    def open(self, *, new_tenant: bool = False, any_type: bool = False) -> App:
        """Open the store. A tenant that is not there is NotFound, unless the command may begin one (`new_tenant`).
        `any_type`: to show values of classes that are not known here."""
        app = open_store(self.url, self.objects, self.tenant, any_type=any_type)
        try:
            if not new_tenant:
                _check_tenant(app)
        except BaseException:
            app.close()
            raise
        return app


def on_store(
    commands: typer.Typer, example: str, *, name: str | None = None
) -> Callable[[Callable[Concatenate[StoreOptions, P], T]], Callable[..., T]]:
    """Make a command of a function whose first parameter is the store: it gets the options of `StoreOptions` beside its
    own. A parameter whose type is another such dataclass stands for the options that are its fields."""

    def register(function: Callable[Concatenate[StoreOptions, P], T]) -> Callable[..., T]:
        signature = inspect.signature(function, eval_str=True)
        store, *own = signature.parameters.values()
        groups: dict[str, Any] = {each.name: each.annotation for each in (store, *own) if is_dataclass(each.annotation)}
        call: Callable[..., T] = function

        @functools.wraps(function)
        def command(**given: Any) -> T:
            for parameter, group in groups.items():
                given[parameter] = group(**{field.name: given.pop(field.name) for field in fields(group)})
            return call(**given)

        parameters = [option for each in (*own, store) for option in _options_of(each)]
        # What Typer makes options of.
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        commands.command(name=name, epilog=f"Example: {example}")(command)
        return command

    return register


def _options_of(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    found, group = [parameter], parameter.annotation
    if isinstance(group, type) and is_dataclass(group):
        found = list(inspect.signature(group, eval_str=True).parameters.values())
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in found]


def command_group(help: str) -> typer.Typer:
    """Commands under one word; the word alone lists them."""
    group = typer.Typer(help=help)

    @group.callback(invoke_without_command=True, help=help)
    def start(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return group


def open_store(
    url: str | None,
    objects: str | None = None,
    tenant: str | None = None,
    *,
    migrate: bool | None = None,
    create: bool = False,
    any_type: bool = False,
    objects_moved: bool = False,
) -> App:
    """Open the store that the options and the settings name; `any_type`, to show values of classes not known here."""
    import analemma

    given: dict[str, Any] = {"url": url, "objects": objects, "tenant": tenant}
    if any_type:
        given["unknown_types"] = "keep"
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    return analemma.open(
        settings.url,
        objects=settings.objects,
        settings=settings,
        migrate=migrate,
        create=create,
        objects_moved=objects_moved,
    )


def one_place(where: str | None, url: str | None) -> str | None:
    """The store named as an argument or as an option, not both."""
    if where is not None and url is not None:
        raise Invalid("the store is named twice, as WHERE and by --url", hint="leave one of them out")
    return url if where is None else where


def _check_tenant(app: App) -> None:
    name = app.settings.tenant
    # The default one needs no beginning: in a store where nothing was saved yet, there is nothing in it.
    if name != SETTINGS["tenant"].default and app.catalog.find_tenant(name) is None:
        raise NotFound(
            f"there is no tenant {name!r}", hint="check --tenant; saving something begins a tenant", tenant=name
        )
