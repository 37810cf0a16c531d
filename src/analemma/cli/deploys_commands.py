"""The commands on deploys that there are: deploys list, show, explain, retry, await."""

from __future__ import annotations

from typing import Annotated

import typer

from analemma.cli.deploy_commands import Timeout
from analemma.cli.deploy_output import deploy_line, print_deploy, print_explanation, waiting_for
from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import print_json, print_line

commands = command_group("Deploys: how far each is, why, and what to do about those that failed.")

DeployId = Annotated[str, typer.Argument(help="The id of a deploy, as `deploy` told it.", metavar="DEPLOY")]


@on_store(commands, "analemma deploys list --state FAILED -u ./store", name="list")
def list_deploys(
    store: StoreOptions,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", help="Only those that are QUEUED, RUNNING, READY, SINKING, DONE or FAILED.", metavar="STATE"
        ),
    ] = None,
    entity_type: Annotated[
        str | None, typer.Option("--type", help="Only those of entities of this type.", metavar="TYPE")
    ] = None,
    entity_id: Annotated[
        str | None, typer.Option("--id", help="With --type: only those of this entity.", metavar="ID")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", metavar="N", min=1, max=1000)] = 100,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where the page before ended, as it said.", metavar="CURSOR")
    ] = None,
) -> None:
    """List deploys, the newest first, one line each."""
    with store.open() as app:
        page = app.default.deploys.list(
            state=state, entity_type=entity_type, entity_id=entity_id, limit=limit, cursor=cursor
        )
    if store.json:
        print_json({"deploys": [each.as_dict() for each in page.deploys], "next_cursor": page.next_cursor})
        return
    for each in page.deploys:
        print_line(deploy_line(each))
    if page.next_cursor is not None:
        print_line(f"more: --cursor {page.next_cursor}")


@on_store(commands, "analemma deploys show 5f0c77e0a5b84b0c9f1d2c3b4a596877 -u ./store", name="show")
def show(store: StoreOptions, deploy: DeployId) -> None:
    """Show how far a deploy is."""
    with store.open() as app:
        print_deploy(store, app.default.deploys.get(deploy))


@on_store(commands, "analemma deploys explain 5f0c77e0a5b84b0c9f1d2c3b4a596877 -u ./store", name="explain")
def explain(store: StoreOptions, deploy: DeployId) -> None:
    """Show which slices and sinks a deploy is about and why, every transition, and what it waits for."""
    with store.open() as app:
        print_explanation(store, app.default.deploys.explain(deploy))


@on_store(commands, "analemma deploys retry 5f0c77e0a5b84b0c9f1d2c3b4a596877 --wait -u ./store", name="retry")
def retry(
    store: StoreOptions,
    deploy: DeployId,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is done; that needs a worker.")] = False,
    timeout: Timeout = 30.0,
) -> int:
    """Have a deploy that failed go on from what failed, by a worker."""
    with store.open() as app:
        found = app.default.deploys.retry(deploy)
        if wait:
            with waiting_for(store, f"deploy {deploy}"):
                found = app.default.deploys.await_(deploy, timeout_s=timeout)
    return print_deploy(store, found)


@on_store(commands, "analemma deploys await 5f0c77e0a5b84b0c9f1d2c3b4a596877 --timeout 60 -u ./store", name="await")
def await_deploy(
    store: StoreOptions,
    deploy: DeployId,
    until: Annotated[
        str, typer.Option("--until", help="ready: it is compiled; done: its sinks have answered.", metavar="ready|done")
    ] = "done",
    timeout: Timeout = 30.0,
) -> int:
    """Wait until a deploy is compiled or over, whoever does the work; exit code 10 if that takes too long."""
    with store.open() as app, waiting_for(store, f"deploy {deploy}"):
        found = app.default.deploys.await_(deploy, until=until, timeout_s=timeout)
    return print_deploy(store, found)
