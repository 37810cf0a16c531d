"""The commands on schedules: schedule add, list, show, pause, resume, remove, run-now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from analemma.cli.exit_codes import OK
from analemma.cli.flow_run_commands import Executor, Module
from analemma.cli.options import MAIN, Branch, Owner, StoreOptions, command_group, on_store
from analemma.cli.output import print_fields, print_json, print_line

if TYPE_CHECKING:
    from analemma.flows.scheduling import Schedule
    from analemma.flows.ticking import CatchUp

commands = command_group("Schedules: runs that begin by themselves, which `analemma worker` sees to.")

Name = Annotated[str, typer.Argument(help="The schedule.", metavar="NAME")]


@on_store(
    commands,
    "analemma schedule add nightly report.yaml --cron '0 3 * * *' --zone Europe/Berlin -o ann -u ./store",
    name="add",
)
def add_schedule(
    store: StoreOptions,
    name: Name,
    flow: Annotated[
        str,
        typer.Argument(help="A workflow document, YAML or JSON, - , or a flow as MODULE:NAME.", metavar="FILE|FLOW"),
    ],
    owner: Owner,
    workflow: Annotated[
        str | None,
        typer.Option(
            "--workflow",
            "-w",
            help="The workflow of its runs; {tick} in it gives each its own. Left out: named like the schedule.",
            metavar="NAME",
        ),
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", help="minute hour day month weekday.", metavar="EXPRESSION")
    ] = None,
    every: Annotated[float | None, typer.Option("--every", help="An interval instead.", metavar="SECONDS")] = None,
    zone: Annotated[
        str | None, typer.Option("--zone", help="The time zone of --cron. Left out: UTC.", metavar="NAME")
    ] = None,
    set_fields: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the input; may be given several times.", metavar="NAME=JSON"),
    ] = None,
    input_file: Annotated[
        str | None, typer.Option("--input", help="The input, a JSON object; - reads it from stdin.", metavar="FILE")
    ] = None,
    tick_into: Annotated[
        str | None, typer.Option("--tick-into", help="The field of the input that gets the tick.", metavar="FIELD")
    ] = None,
    catch_up: Annotated[
        str,
        typer.Option("--catch-up", help="Ticks that were missed: skip, one (run for all), or all.", metavar="POLICY"),
    ] = "one",
    limit: Annotated[
        int, typer.Option("--limit", help="With --catch-up all: of how many, the newest.", metavar="N", min=1, max=1000)
    ] = 10,
    grace: Annotated[
        float, typer.Option("--grace", help="A tick no older than this was not missed.", metavar="SECONDS", min=0)
    ] = 60.0,
    queue: Annotated[str, typer.Option("--queue", help="The queue that its runs wait in.", metavar="QUEUE")] = "",
    priority: Annotated[int, typer.Option("--priority", help="Higher ones come first in it.", metavar="N")] = 0,
    branch: Branch = MAIN,
    module: Module = None,
    executor: Executor = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="In the place of the schedule of this name, if there is one.")
    ] = False,
) -> int:
    """Begin a run at every tick, of --cron or --every; without either, as the document's own trigger says."""
    from analemma.cli.deltas import read_changes
    from analemma.cli.flow_run_commands import read_flow

    given = read_changes(set_fields or [], input_file)
    with store.open(new_tenant=True) as app:
        found = app.flows.schedules.add(
            name,
            read_flow(app, flow, module),
            given,
            owner_id=owner,
            workflow_id=workflow,
            branch=branch,
            cron=cron,
            every_s=every,
            zone=zone,
            catch_up=cast("CatchUp", catch_up),
            limit=limit,
            grace_s=grace,
            queue=queue,
            priority=priority,
            executor=executor,
            tick_into=tick_into,
            replace=replace,
        )
    return _print(store, found)


@on_store(commands, "analemma schedule list -u ./store", name="list")
def list_schedules(store: StoreOptions) -> int:
    """List the schedules, each with its next tick."""
    with store.open() as app:
        found = app.flows.schedules.list()
    if store.json:
        print_json({"schedules": [each.to_value() for each in found]})
    for each in () if store.json else found:
        more = f"  {each.error.message}" if each.error is not None else ""
        print_line(f"{each.name}  {_when(each)}  {each.owner_id}/{each.workflow_id}  {_next(each)}{more}")
    return OK


@on_store(commands, "analemma schedule show nightly -u ./store", name="show")
def show_schedule(store: StoreOptions, name: Name) -> int:
    """Show one schedule."""
    with store.open() as app:
        return _print(store, app.flows.schedules.get(name))


@on_store(commands, "analemma schedule pause nightly -u ./store", name="pause")
def pause_schedule(store: StoreOptions, name: Name) -> int:
    """No ticks until it is resumed; runs that were begun go on."""
    with store.open() as app:
        return _print(store, app.flows.schedules.pause(name))


@on_store(commands, "analemma schedule resume nightly -u ./store", name="resume")
def resume_schedule(store: StoreOptions, name: Name) -> int:
    """Ticks again, from now on: those meanwhile were not missed."""
    with store.open() as app:
        return _print(store, app.flows.schedules.resume(name))


@on_store(commands, "analemma schedule remove nightly -u ./store", name="remove")
def remove_schedule(store: StoreOptions, name: Name) -> int:
    """No ticks any more; runs that were begun go on."""
    with store.open() as app:
        app.flows.schedules.remove(name)
    if store.json:
        print_json({"removed": name})
    else:
        print_line(f"{name} is removed")
    return OK


@on_store(commands, "analemma schedule run-now nightly -u ./store", name="run-now")
def run_now(store: StoreOptions, name: Name) -> int:
    """Begin a run besides, as if there were a tick now, and leave it to a worker."""
    with store.open() as app:
        run = app.flows.schedules.run_now(name)
    if store.json:
        print_json(run.to_value())
    else:
        print_fields({"execution": run.execution_id, "status": run.status})
    return OK


def _print(store: StoreOptions, schedule: Schedule) -> int:
    if store.json:
        print_json(schedule.to_value())
        return OK
    fields: dict[str, Any] = {
        "schedule": schedule.name,
        "when": _when(schedule),
        "flow": f"{schedule.flow} ({schedule.document[:12]})",
        "workflow": f"{schedule.owner_id}/{schedule.workflow_id}"
        + ("" if schedule.branch == MAIN else f"@{schedule.branch}"),
        "next": _next(schedule),
        "missed": schedule.catch_up + (f", {schedule.limit} at most" if schedule.catch_up == "all" else ""),
    }
    if schedule.queue:
        fields["queue"] = f"{schedule.queue}, priority {schedule.priority}"
    if schedule.last_at is not None:
        fields["last"] = schedule.last_at.isoformat()
    if schedule.error is not None:
        fields["because"] = schedule.error.message
    print_fields(fields)
    return OK


def _when(schedule: Schedule) -> str:
    return f"every {schedule.every_s:g} s" if schedule.every_s is not None else f"{schedule.cron} {schedule.zone}"


def _next(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    return "never" if schedule.next_at is None else schedule.next_at.isoformat()
