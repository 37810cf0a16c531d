"""The commands that look at events and tend them: outbox status, failed, dead, show, replay, discard, housekeep."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.options import LARGEST_NUMBER, StoreOptions, command_group, on_store
from analemma.cli.output import confirm, print_fields, print_json, print_line
from analemma.clock import moment
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.outbox.tending import OutboxPage

commands = command_group("Events: how their delivery is doing, and what failed.")

Limit = Annotated[int, typer.Option("--limit", "-n", help="At most so many.", metavar="N", min=1, max=10_000)]
Cursor = Annotated[
    str | None, typer.Option("--cursor", help="Go on where the page before ended, as it said.", metavar="CURSOR")
]
Events = Annotated[list[str] | None, typer.Argument(help="Ids of events.", metavar="[EVENT]...")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
All = Annotated[bool, typer.Option("--all", help="Every dead letter that the other options allow.")]


@dataclass(frozen=True, slots=True)
class Matching:
    """Which events a command is about."""

    type: Annotated[str | None, typer.Option("--type", help="Only events of this type.", metavar="TYPE")] = None
    aggregate_type: Annotated[
        str | None, typer.Option("--aggregate-type", help="Only events of aggregates of this type.", metavar="TYPE")
    ] = None
    aggregate: Annotated[
        str | None, typer.Option("--aggregate", help="Only events of this aggregate.", metavar="ID")
    ] = None

    def within(self, tenant: str | None) -> dict[str, str | None]:
        """As the outbox is asked for them."""
        return {
            "tenant": tenant,
            "type": self.type,
            "aggregate_type": self.aggregate_type,
            "aggregate_id": self.aggregate,
        }


ANY = Matching()


@on_store(commands, "analemma outbox status -u ./store", name="status")
def status(store: StoreOptions) -> int:
    """Show how many events wait, and whether all is well; exit code 1 if it is not."""
    with store.open() as app:
        found = app.outbox.status(store.tenant)
    if store.json:
        print_json({"status": found.as_dict()})
    else:
        print_fields(
            {
                "health": found.health,
                "pending": found.pending,
                "processing": found.processing,
                "failed": f"{found.failed} to be tried again",
                "dead": f"{found.dead} (each parks its aggregate)",
                "processed": f"{found.processed} still kept",
                "oldest": "none waits" if found.oldest_s is None else f"waits for {found.oldest_s:.1f} s",
                "stale": f"{found.stale} leases of lost workers",
            }
        )
        for problem in found.problems:
            print_line(f"problem: {problem}")
    return 1 if found.problems else OK


@on_store(commands, "analemma outbox failed -u ./store", name="failed")
def failed(store: StoreOptions, matching: Matching = ANY, limit: Limit = 100, cursor: Cursor = None) -> None:
    """List events that failed and will be tried again."""
    with store.open() as app:
        _show_page(store, app.outbox.failed(**matching.within(store.tenant), limit=limit, cursor=cursor))


@on_store(commands, "analemma outbox dead -u ./store --type RawDataIngested", name="dead")
def dead(store: StoreOptions, matching: Matching = ANY, limit: Limit = 100, cursor: Cursor = None) -> None:
    """List dead letters: events that were given up on and park their aggregate."""
    with store.open() as app:
        _show_page(store, app.outbox.dead_letters(**matching.within(store.tenant), limit=limit, cursor=cursor))


@on_store(commands, "analemma outbox show -u ./store 01HZX-1", name="show")
def show(
    store: StoreOptions, event: Annotated[str, typer.Argument(help="The id of an event.", metavar="EVENT")]
) -> None:
    """Show everything about one event."""
    with store.open() as app:
        found = app.outbox.get(event, tenant=store.tenant).as_dict()
    if store.json:
        print_json({"event": found})
        return
    for name in ("created_at_us", "processed_at_us", "next_attempt_at_us"):
        found[name.removesuffix("_us")] = _when(found.pop(name))
    print_fields({name: "" if value is None else value for name, value in found.items()})


@on_store(commands, "analemma outbox replay -u ./store --all --type RawDataIngested", name="replay")
def replay(store: StoreOptions, events: Events = None, matching: Matching = ANY, all: All = False) -> None:
    """Deliver events again: those named, or with --all every dead letter that matches.

    What failed is tried again in its place; what was delivered before is added anew, behind the rest."""
    ids = _ids(events, all, matching)
    with store.open() as app:
        done = app.outbox.replay(ids, **matching.within(store.tenant))
    if store.json:
        print_json({"replayed": asdict(done)})
    else:
        print_line(f"{done.revived} tried again, {done.copied} delivered anew, {done.skipped} are under way anyway")


@on_store(commands, "analemma outbox discard -u ./store 01HZX-1 --reason 'sent by hand'", name="discard")
def discard(
    store: StoreOptions,
    events: Events = None,
    matching: Matching = ANY,
    all: All = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept with the event.", metavar="TEXT")] = None,
    yes: Yes = False,
) -> int:
    """Give up events that failed: those named, or with --all every dead letter that matches. Their aggregates go on."""
    ids = _ids(events, all, matching)
    with store.open() as app:
        if ids is None and not yes and not confirm("Give up every dead letter that matches?"):
            return 1
        count = app.outbox.discard(ids, **matching.within(store.tenant), reason=reason)
    if store.json:
        print_json({"discarded": count})
    else:
        print_line(f"{count} discarded")
    return OK


@on_store(commands, "analemma outbox housekeep -u ./store --processed-after 86400", name="housekeep")
def housekeep(
    store: StoreOptions,
    processed_after: Annotated[
        float | None,
        typer.Option(
            "--processed-after",
            help="Delete what was delivered so many seconds ago. Left out: outbox_keep_processed_s of the settings.",
            metavar="SECONDS",
            min=0,
            max=LARGEST_NUMBER,
        ),
    ] = None,
    dead_after: Annotated[
        float | None,
        typer.Option(
            "--dead-after",
            help="Delete what was discarded so many seconds ago. Left out: outbox_keep_dead_s of the settings.",
            metavar="SECONDS",
            min=0,
            max=LARGEST_NUMBER,
        ),
    ] = None,
) -> None:
    """Delete events that were settled long ago, of all tenants. Dead letters that park an aggregate stay."""
    if store.tenant is not None:
        raise Invalid("housekeeping is for all tenants", hint="leave out --tenant")
    with store.open() as app:
        count = app.outbox.housekeep(processed_after_s=processed_after, dead_after_s=dead_after)
    if store.json:
        print_json({"deleted": count})
    else:
        print_line(f"{count} deleted")


def _ids(events: list[str] | None, all: bool, matching: Matching) -> list[str] | None:
    if events and (all or matching != ANY):
        raise Invalid("events are named, and others are described", hint="give ids, or --all with what they must match")
    if not events and not all:
        raise Invalid("it is not said which events", hint="give ids, or --all for every dead letter that matches")
    return events or None


def _show_page(store: StoreOptions, page: OutboxPage) -> None:
    if store.json:
        print_json({"events": [entry.as_dict() for entry in page.entries], "cursor": page.cursor})
        return
    for entry in page.entries:
        again = f"  next try {_when(entry.next_attempt_at_us)}" if entry.next_attempt_at_us is not None else ""
        print_line(
            f"{entry.id}  {entry.tenant}  {entry.aggregate_type} {entry.aggregate_id}  {entry.type}  "
            f"{entry.status} after {entry.attempts} tries{again}  {entry.failure_reason}"
        )
    if page.cursor is not None:
        print_line(f"more: --cursor {page.cursor}")


def _when(at_us: Any) -> str:
    if at_us is None:
        return ""
    return moment(at_us).isoformat(sep=" ", timespec="milliseconds")
