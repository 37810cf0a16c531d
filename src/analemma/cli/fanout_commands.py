"""The commands that look at fanouts: fanout status, list, show, alerts, resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import print_fields, print_json, print_line
from analemma.clock import moment

if TYPE_CHECKING:
    from analemma.pipeline.fanout_results import FanoutResult
    from analemma.pipeline.fanouts import FanoutPage

commands = command_group("Fanouts: what follows when an entity changes that others join.")

EntityType = Annotated[str, typer.Argument(help="The type of the entity that changed.", metavar="TYPE")]
EntityId = Annotated[str, typer.Argument(help="Its id.", metavar="ID")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="At most so many.", metavar="N", min=1, max=10_000)]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="Go on where the page before ended, as it said.", metavar="CURSOR")
]


@on_store(commands, "analemma fanout status -u ./store", name="status")
def status(store: StoreOptions) -> int:
    """Show how many fanouts are under way, and how far they are; exit code 1 if one of them has an alert."""
    with store.open() as app:
        found = app.fanouts.status(store.tenant)
    if store.json:
        print_json({"status": found.as_dict()})
    else:
        print_fields(
            {
                "queued": found.queued,
                "running": found.running,
                "deferred": f"{found.deferred} beyond their limit, done when there is nothing else to do",
                "visited": f"{found.visited} of {found.affected} entities",
                "oldest": "none is under way" if found.oldest_s is None else f"under way for {found.oldest_s:.1f} s",
                "alerts": f"{found.alerts_under_way} under way, {found.alerts} in all",
            }
        )
    return 1 if found.alerts_under_way else OK


@on_store(commands, "analemma fanout list -u ./store --under-way", name="list")
def list_fanouts(
    store: StoreOptions,
    under_way: Annotated[bool, typer.Option("--under-way", help="Only those that are not done.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> None:
    """List fanouts, one line each."""
    with store.open() as app:
        _show_page(store, app.fanouts.list(store.tenant, under_way=under_way, limit=limit, cursor=cursor))


@on_store(commands, "analemma fanout alerts -u ./store", name="alerts")
def alerts(store: StoreOptions, limit: Limit = 100, cursor: Cursor = None) -> None:
    """List fanouts that went beyond a limit."""
    with store.open() as app:
        _show_page(store, app.fanouts.alerts(store.tenant, limit=limit, cursor=cursor))


@on_store(commands, "analemma fanout show -u ./store AUTHOR lem", name="show")
def show(store: StoreOptions, entity_type: EntityType, entity_id: EntityId) -> None:
    """Show how far an entity's fanout is, or how the last one ended."""
    with store.open() as app:
        _show(store, app.fanouts.get(entity_type, entity_id, tenant=store.tenant))


@on_store(commands, "analemma fanout resume -u ./store AUTHOR lem", name="resume")
def resume(store: StoreOptions, entity_type: EntityType, entity_id: EntityId) -> None:
    """Have a fanout go on whose event was discarded. Harmless if it goes on anyway."""
    with store.open() as app:
        _show(store, app.fanouts.resume(entity_type, entity_id, tenant=store.tenant))


def _show(store: StoreOptions, found: FanoutResult) -> None:
    if store.json:
        print_json({"fanout": found.as_dict()})
        return
    print_fields(
        {
            "entity": found.key,
            "status": found.status.value,
            "version": found.version or "",
            "affected": found.affected,
            "processed": f"{found.processed} compiled",
            "skipped": f"{found.skipped} had followed already",
            "failed": f"{found.failed} (see `analemma outbox dead`)" if found.failed else "0",
            "passes": f"{found.passes}, for {found.changes} changes in all",
            "started": _when(found.started_at_us),
            "finished": "not yet" if found.finished_at_us is None else _when(found.finished_at_us),
            "alert": found.alert or "none",
        }
    )
    for each in found.dependencies:
        ended = "done" if each.finished else "deferred" if each.deferred else "under way"
        print_line(
            f"{each.entity_type}.{each.index_type}: {each.affected} affected, {each.processed} processed, "
            f"{each.skipped} skipped, {each.failed} failed, limit {each.limit}, {ended}"
        )


def _show_page(store: StoreOptions, page: FanoutPage) -> None:
    if store.json:
        print_json({"fanouts": [each.as_dict() for each in page.fanouts], "cursor": page.cursor})
        return
    for each in page.fanouts:
        alert = "" if each.alert is None else f"  alert: {each.alert}"
        print_line(
            f"{each.key}  {each.status.value}  {each.affected} affected, {each.processed} processed, "
            f"{each.skipped} skipped, {each.failed} failed{alert}"
        )
    if page.cursor is not None:
        print_line(f"more: --cursor {page.cursor}")


def _when(at_us: int | None) -> str:
    if at_us is None:
        return ""
    return moment(at_us).isoformat(timespec="milliseconds")
