"""The command that brings a document to readers and sinks: deploy."""

from __future__ import annotations

from typing import Annotated

import typer

from analemma.cli.deploy_output import print_deploy, waiting_for
from analemma.cli.ingest_commands import EntityType
from analemma.cli.json_input import read_json
from analemma.cli.options import StoreOptions, on_store
from analemma.errors import Invalid

commands = typer.Typer()

Timeout = Annotated[
    float, typer.Option("--timeout", help="How long to wait, in seconds.", metavar="S", min=0, max=86_400)
]


@on_store(commands, "analemma deploy BOOK 978 book.json --cutover done --wait -u ./store", name="deploy")
def deploy(
    store: StoreOptions,
    entity_type: EntityType,
    entity_id: Annotated[str, typer.Argument(help="The entity's id.", metavar="ID")],
    file: Annotated[str, typer.Argument(help="The document, as JSON; - for standard input.", metavar="FILE|-")],
    compile: Annotated[
        str, typer.Option("--compile", help="sync: compile now; async: leave it to a worker.", metavar="sync|async")
    ] = "sync",
    ship: Annotated[
        list[str] | None,
        typer.Option("--ship", help="Ship by this sink rule; several times, by several. Left out: all.", metavar="ID"),
    ] = None,
    no_ship: Annotated[bool, typer.Option("--no-ship", help="Ship it nowhere.")] = False,
    cutover: Annotated[
        str,
        typer.Option(
            "--cutover",
            help="When readers get it: ready, once it is compiled; done, once all sinks have it.",
            metavar="ready|done",
        ),
    ] = "ready",
    version: Annotated[
        str | None, typer.Option("--version", help="The version that it becomes.", metavar="VERSION")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", help="The schema that checks it, as ID or ID@VERSION.", metavar="ID")
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="Given again, it is the same deploy, not another.", metavar="KEY"),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done; sinks need a worker.")] = False,
    timeout: Timeout = 30.0,
) -> int:
    """Store a document, compile it, serve it, and have it shipped: one deploy, whose state says how far it is.

    If it fails, the reason is told and the exit code is that of the error; `deploys retry` has it go on."""
    if ship and no_ship:
        raise Invalid("--ship and --no-ship contradict each other", hint="leave out one of them")
    payload = read_json(file, hint="give the document as JSON")
    with store.open(new_tenant=True) as app:
        done = app.default.deploy(
            entity_type,
            entity_id,
            payload,
            compile=compile,
            ship=[] if no_ship else ship or None,
            cutover=cutover,
            version=version,
            schema=schema,
            idempotency_key=idempotency_key,
        )
        if wait and not done.is_over:
            with waiting_for(store, f"deploy {done.id}"):
                done = app.default.deploys.await_(done.id, timeout_s=timeout)
    return print_deploy(store, done)
