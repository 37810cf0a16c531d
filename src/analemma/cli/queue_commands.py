"""The commands on queues of runs: queue list, set, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import print_json, print_line

if TYPE_CHECKING:
    from analemma.flows.queueing import Queue

commands = command_group("Queues of runs: how many may be worked on at a time, and how many may begin.")

Name = Annotated[str, typer.Argument(help="The queue.", metavar="QUEUE")]


@on_store(commands, "analemma queue list -u ./store", name="list")
def list_queues(store: StoreOptions) -> int:
    """List the queues that have limits or runs, with what waits in each and what is worked on."""
    with store.open() as app:
        found = app.flows.queues.list()
    if store.json:
        print_json({"queues": [each.to_value() for each in found]})
    for each in () if store.json else found:
        print_line(_line(each))
    return OK


@on_store(commands, "analemma queue set mail --concurrency 4 --rate 100 --per 60 -u ./store", name="set")
def set_queue(
    store: StoreOptions,
    name: Name,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", help="So many runs at a time, of all workers together.", metavar="N", min=1),
    ] = None,
    rate: Annotated[
        int | None, typer.Option("--rate", help="So many runs may begin within --per seconds.", metavar="N", min=1)
    ] = None,
    per: Annotated[float | None, typer.Option("--per", help="The period of --rate.", metavar="SECONDS")] = None,
) -> int:
    """Say what the limits of a queue are, in the place of those that it had; what is left out is not limited."""
    with store.open(new_tenant=True) as app:
        found = app.flows.queues.set(name, concurrency=concurrency, rate=rate, per_s=per)
    if store.json:
        print_json(found.to_value())
    else:
        print_line(_line(found))
    return OK


@on_store(commands, "analemma queue remove mail -u ./store", name="remove")
def remove_queue(store: StoreOptions, name: Name) -> int:
    """Forget the limits of a queue. Runs that wait in it go on without any."""
    with store.open() as app:
        app.flows.queues.remove(name)
    if store.json:
        print_json({"removed": name})
    else:
        print_line(f"{name} has no limits any more")
    return OK


def _line(queue: Queue) -> str:
    limits = [] if queue.concurrency is None else [f"{queue.concurrency} at a time"]
    limits += [] if queue.rate is None else [f"{queue.rate} per {queue.per_s:g} s"]
    return f"{queue.name}  {', '.join(limits) or 'no limits'}  {queue.waiting} waiting, {queue.working} worked on"
