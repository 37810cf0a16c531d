"""The commands on views: view get, range, search, count."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import print_json, print_line
from analemma.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from analemma.pipeline.view_answers import Unanswered, ViewBatch, ViewPage, ViewResponse
    from analemma.store.store import App

commands = command_group("Asking views.")

ViewId = Annotated[str, typer.Argument(help="The view, by the id of its contract.", metavar="VIEW")]
ViewVersion = Annotated[
    str | None,
    typer.Option("--view-version", help="This version of the view, not the one that applies.", metavar="VERSION"),
]
Limit = Annotated[int, typer.Option("--limit", help="How many entities at most.", metavar="N", min=1, max=1000)]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="The next page: `next_cursor` of the one before.", metavar="CURSOR")
]
IndexName = Annotated[str, typer.Option("--index", help="An index of the ruleset.", metavar="NAME")]
RequireComplete = Annotated[
    bool,
    typer.Option("--require-complete", help="Refuse (exit code 4) while an index does not know some entities yet."),
]
IndexValue = Annotated[str, typer.Option("--value", help="What the index has, exactly.", metavar="TEXT")]


@on_store(commands, "analemma view get view.book.detail.v1 978 -u ./store")
def get(
    store: StoreOptions,
    view: ViewId,
    entity_ids: Annotated[list[str], typer.Argument(help="The entity's id, or several.", metavar="ID...")],
    version: Annotated[
        str | None,
        typer.Option("--version", help="This version of one entity, not the one that is served.", metavar="VERSION"),
    ] = None,
    view_version: ViewVersion = None,
) -> int:
    """Print what a view answers for an entity, by slice type; with --json also what there is to say about it.

    Several ids give a JSON document with all answers, and with those that have none. Exit code 6 if what one of them
    was compiled to is damaged."""
    if len(entity_ids) > 1 and version is not None:
        raise Invalid("a version is for one entity", hint="give one id")
    with store.open() as app:
        found = app.default.view(view, view_version)
        if len(entity_ids) == 1:
            response = found.get(entity_ids[0], version)
            print_json({"view": _response(response)} if store.json else response.data)
            return OK
        batch = found.many(entity_ids)
    print_json({"items": list(map(_response, batch)), "unanswered": list(map(_unanswered, batch.unanswered))})
    return _damage(batch)


@on_store(commands, "analemma view range view.book.detail.v1 --prefix 978 --limit 20 -u ./store", name="range")
def range_of(
    store: StoreOptions,
    view: ViewId,
    prefix: Annotated[str, typer.Option("--prefix", help="Only ids that begin so.", metavar="TEXT")] = "",
    limit: Limit = 100,
    cursor: Cursor = None,
    view_version: ViewVersion = None,
) -> int:
    """Print a page of a view, in the order of the entities' ids: a line each, or with --json everything.

    Exit code 6 if what one was compiled to is damaged; the others are printed all the same."""
    with store.open() as app:
        page = app.default.view(view, view_version).range(prefix, limit=limit, cursor=cursor)
    return _print_page(store, page)


@on_store(commands, "analemma view search view.book.detail.v1 --index tag --value sf -u ./store")
def search(
    store: StoreOptions,
    view: ViewId,
    index: IndexName,
    value: IndexValue,
    limit: Limit = 100,
    cursor: Cursor = None,
    view_version: ViewVersion = None,
    require_complete: RequireComplete = False,
) -> int:
    """Print a page of what an index finds: a line each, or with --json everything.

    Exit code 6 if what one was compiled to is damaged; the others are printed all the same."""
    with store.open() as app:
        page = app.default.view(view, view_version).search(
            index, value, limit=limit, cursor=cursor, require_complete=require_complete
        )
        _warn(app, view, view_version, index, page.unindexed)
    return _print_page(store, page)


@on_store(commands, "analemma view count view.book.detail.v1 -u ./store")
def count(
    store: StoreOptions,
    view: ViewId,
    prefix: Annotated[str, typer.Option("--prefix", help="Only ids that begin so.", metavar="TEXT")] = "",
    index: Annotated[
        str | None, typer.Option("--index", help="What this index finds, with --value.", metavar="NAME")
    ] = None,
    value: Annotated[str | None, typer.Option("--value", help="What the index has.", metavar="TEXT")] = None,
    view_version: ViewVersion = None,
    require_complete: RequireComplete = False,
) -> None:
    """Print how many entities a view goes through in all."""
    if (index is None) != (value is None):
        raise Invalid("--index and --value belong together", hint="give both, or neither")
    with store.open() as app:
        total = app.default.view(view, view_version).count(
            prefix, index=index, value=value, require_complete=require_complete
        )
        if index is not None:
            _warn(app, view, view_version, index, total.unindexed)
    if store.json:
        print_json({"count": int(total)} if index is None else {"count": int(total), "unindexed": total.unindexed})
    else:
        print(total)


def _print_page(store: StoreOptions, page: ViewPage) -> int:
    if store.json:
        print_json(
            {
                "items": list(map(_response, page)),
                "unanswered": list(map(_unanswered, page.unanswered)),
                "next_cursor": page.next_cursor,
                "unindexed": page.unindexed,
            }
        )
        return _damage(page)
    from analemma.cli.rendering import on_one_line

    for each in page:
        print_line(f"{each.entity_id}  {on_one_line(each.data)}")
    for other in page.unanswered:
        print_line(f"{other.entity_id}  no answer: {other.reason}")
    if page.next_cursor is not None:
        print_line(f"more: --cursor {page.next_cursor}")
    return _damage(page)


def _warn(app: App, view: str, view_version: str | None, index: str, unindexed: int) -> None:
    """Say on stderr that what an index finds is not all."""
    if unindexed:
        from analemma.pipeline.backfill_scope import stale_command

        entity_type = app.default.views.definition(view, view_version).entity_type
        print(
            f"incomplete: {unindexed} entities are not indexed by {index} yet; "
            f"`{stale_command(app.default.name, entity_type)}` indexes them",
            file=sys.stderr,
        )


def _damage(batch: ViewBatch) -> int:
    """The exit code of answers some of which are damaged: the others are printed all the same."""
    return CODES[Corrupt.kind] if any(each.kind == Corrupt.kind for each in batch.unanswered) else OK


def _response(response: ViewResponse) -> dict[str, Any]:
    meta = asdict(response.meta)
    meta["staleness"]["is_stale"] = response.meta.staleness.is_stale
    return {"entity_id": response.entity_id, "data": response.data, "meta": meta}


def _unanswered(entity: Unanswered) -> dict[str, Any]:
    return asdict(entity)
