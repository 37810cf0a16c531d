"""The commands on runs of workflows: run, resume, approve, cancel, rerun, runs."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.options import MAIN, Branch, Owner, StoreOptions, Workflow, on_store
from analemma.cli.output import print_fields, print_json, print_line
from analemma.cli.wording import in_cli_words
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.flows.beginning import RunsOn
    from analemma.flows.runs import Run, RunError, RunSegment
    from analemma.store.store import App

commands = typer.Typer()

ExecutionId = Annotated[str, typer.Argument(help="The run, by its execution id.", metavar="EXECUTION")]
Module = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        help="A Python module whose flows, and functions, nodes may call; may be given several times.",
        metavar="MODULE",
    ),
]
Executor = Annotated[
    str | None,
    typer.Option("--executor", help="Where parallel tasks run: threads:8, processes:4, dask, ray.", metavar="NAME"),
]


class Unknown(StrEnum):
    """What somebody has found out about an effect."""

    happened = "happened"
    did_not = "did-not"


@on_store(
    commands,
    "analemma run triage.yaml --module triage --set 'ticket=\"it is broken\"' -o ann -w t-1 -u ./store",
    name="run",
)
def run_flow(
    store: StoreOptions,
    flow: Annotated[
        str,
        typer.Argument(help="A workflow document, YAML or JSON, - , or a flow as MODULE:NAME.", metavar="FILE|FLOW"),
    ],
    owner: Owner,
    workflow: Workflow,
    set_fields: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the input; may be given several times.", metavar="NAME=JSON"),
    ] = None,
    input_file: Annotated[
        str | None, typer.Option("--input", help="The input, a JSON object; - reads it from stdin.", metavar="FILE")
    ] = None,
    module: Module = None,
    branch: Branch = MAIN,
    idempotency_key: Annotated[
        str | None,
        typer.Option("--idempotency-key", help="Given again, it is the same run, not another.", metavar="KEY"),
    ] = None,
    executor: Executor = None,
    mock: Annotated[
        str | None,
        typer.Option(
            "--mock",
            help="Nobody outside is asked. Models and HTTP answer with the stubs of the document, with what the newest "
            "completed run got, or with a JSON object of answers by node, as `runs EXECUTION --recorded` prints.",
            metavar="stubs|recorded|FILE",
        ),
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Begin it, and leave it to a worker.")] = False,
    queue: Annotated[
        str | None, typer.Option("--queue", help="With --no-wait: the queue that it waits in.", metavar="QUEUE")
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", help="With --queue: higher ones come first in it.", metavar="N")
    ] = 0,
) -> int:
    """Run a workflow, segment by segment, until it is over or waits for somebody.

    Killed at any moment, it goes on with `resume`, or with a worker. A run that fails exits with the code of its
    error."""
    from analemma.cli.deltas import read_changes

    given = read_changes(set_fields or [], input_file)
    with store.open(new_tenant=True) as app:
        what = read_flow(app, flow, module)
        if queue is not None or priority:
            if not no_wait:
                raise Invalid("--queue is given without --no-wait", hint="queues are for runs that workers take")
            run = app.flows.start(
                what,
                given,
                workflow_id=workflow,
                owner_id=owner,
                branch=branch,
                idempotency_key=idempotency_key,
                executor=executor,
                mock=_mock(mock),
                queue=queue or "",
                priority=priority,
            )
            return _print_run(store, run, left_to_worker=True)
        run = app.flows.run(
            what,
            given,
            workflow_id=workflow,
            owner_id=owner,
            branch=branch,
            idempotency_key=idempotency_key,
            executor=executor,
            mock=_mock(mock),
            wait=not no_wait,
            told=_telling(store),
        )
        return _print_run(store, run, left_to_worker=no_wait)


@on_store(commands, "analemma resume 5f0c77e0a5b84b0c9f1d2c3b4a596877 --module triage -u ./store", name="resume")
def resume_run(
    store: StoreOptions,
    execution: ExecutionId,
    module: Module = None,
    executor: Executor = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="The worker that has it is dead: what it still does is refused.")
    ] = False,
    unknown: Annotated[
        Unknown | None,
        typer.Option("--unknown", help="What you found out about the effect that nobody knew of.", show_choices=True),
    ] = None,
    result: Annotated[
        str | None, typer.Option("--result", help="With --unknown happened: what it answered.", metavar="JSON")
    ] = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Leave it to a worker.")] = False,
) -> int:
    """Go on with a run that failed, or whose worker died, from where it stands.

    One that failed with outcome_unknown goes on with --unknown: happened, and it is not called again; did-not, and it
    is."""
    from analemma.cli.json_input import parse_json

    if result is not None and unknown is not Unknown.happened:
        raise Invalid("--result is given without --unknown happened", hint="what did not happen has no result")
    value = None if result is None else parse_json(result, "--result", hint="give JSON: text needs quotes")
    with store.open() as app:
        _load(app, module)
        run = app.flows.resume(
            execution,
            executor=executor,
            take_over=take_over,
            unknown=_found_out(unknown),
            result=value,
            wait=not no_wait,
            told=_telling(store),
        )
        return _print_run(store, run, left_to_worker=no_wait)


@on_store(commands, "analemma approve 5f0c77e0a5b84b0c9f1d2c3b4a596877 yes --actor ann -u ./store", name="approve")
def approve_run(
    store: StoreOptions,
    execution: ExecutionId,
    choice: Annotated[str, typer.Argument(help="One of the choices.", metavar="CHOICE")],
    actor: Annotated[str, typer.Option("--actor", help="Who decides.", envvar="ANALEMMA_ACTOR", metavar="NAME")],
    payload: Annotated[
        str | None, typer.Option("--payload", help="What goes with the decision.", metavar="JSON")
    ] = None,
    module: Module = None,
) -> int:
    """Decide what a run waits for. With --module the run goes on here, else with a worker."""
    from analemma.cli.json_input import parse_json

    value = None if payload is None else parse_json(payload, "--payload", hint="give JSON: text needs quotes")
    with store.open() as app:
        _load(app, module)
        run = app.flows.approve(execution, choice, actor, value, wait=bool(module), told=_telling(store))
        return _print_run(store, run, left_to_worker=not module)


@on_store(commands, "analemma cancel 5f0c77e0a5b84b0c9f1d2c3b4a596877 -u ./store", name="cancel")
def cancel_run(store: StoreOptions, execution: ExecutionId) -> int:
    """End a run. What its worker does from then on is refused; what is committed stays."""
    with store.open() as app:
        return _print_run(store, app.flows.cancel(execution))


@on_store(
    commands,
    "analemma rerun 5f0c77e0a5b84b0c9f1d2c3b4a596877 --from-segment 3 --module triage -u ./store",
    name="rerun",
)
def rerun_flow(
    store: StoreOptions,
    execution: ExecutionId,
    from_segment: Annotated[
        str | None,
        typer.Option("--from-segment", help="Before this segment last ran: its number or id.", metavar="N|ID"),
    ] = None,
    from_version: Annotated[
        str | None, typer.Option("--from-version", help="From this version of its branch.", metavar="REVISION")
    ] = None,
    fork: Annotated[
        bool, typer.Option("--fork", help="Leave the run as it is: another goes on, on a branch of its own.")
    ] = False,
    branch: Annotated[
        str | None, typer.Option("--branch", "-b", help="With --fork: the name of that branch.", metavar="NAME")
    ] = None,
    module: Module = None,
    executor: Executor = None,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Leave it to a worker.")] = False,
) -> int:
    """Go on from an earlier point of a run that is over, failed or waits: in place, after a rollback, or on a fork."""
    if branch is not None and not fork:
        raise Invalid("--branch is given without --fork", hint="a rerun in place stays on its branch")
    with store.open() as app:
        _load(app, module)
        run = app.flows.rerun(
            execution,
            from_segment=_segment(from_segment),
            from_version=None if from_version is None else _number_in_run(app, execution, from_version),
            fork=branch or fork,
            executor=executor,
            wait=not no_wait,
            told=_telling(store),
        )
        return _print_run(store, run, left_to_worker=no_wait)


@on_store(commands, "analemma runs --status WAITING_HUMAN -u ./store", name="runs")
def list_runs(
    store: StoreOptions,
    execution: Annotated[str | None, typer.Argument(help="One run, with its segments.", metavar="[EXECUTION]")] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="PENDING, RUNNING, WAITING_HUMAN, COMPLETED, FAILED, CANCELLED.")
    ] = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="Of this workflow only.", metavar="NAME")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="How many.", metavar="N", min=1, max=1000)] = 20,
    after: Annotated[
        int | None,
        typer.Option("--after", help="The number of the last run of the page before.", metavar="N", min=0),
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Of one run: what models and hosts answered, as JSON for --mock.")
    ] = False,
) -> int:
    """List runs, newest first, or show one with everything that it executed."""
    if recorded and execution is None:
        raise Invalid("--recorded is of one run", hint="analemma runs EXECUTION --recorded")
    with store.open() as app:
        if execution is not None and recorded:
            print_json(app.flows.recorded(execution))
            return OK
        if execution is not None:
            run = app.flows.get(execution)
            _print_run(store, run, segments=True)
            return OK
        runs = app.flows.runs(status=status, workflow_id=workflow, limit=limit, after=after)
        if store.json:
            print_json({"runs": [{**run.to_value(), "number": run.number} for run in runs]})
            return OK
        for run in runs:
            where = f"{run.owner_id}/{run.workflow_id}" + ("" if run.branch == MAIN else f"@{run.branch}")
            print_line(
                f"{run.number:>6}  {run.execution_id}  {run.status:<13}  {where}  {run.name}  {_said(run)}".rstrip()
            )
    return OK


def read_flow(app: App, text: str, modules: list[str] | None) -> RunsOn:
    """A document in a file, or a flow of a module."""
    from analemma.flows.loading import load_workflow, parse_workflow
    from analemma.flows.programs import find_flow

    _load(app, modules)
    if text == "-":
        from analemma.cli.json_input import standard_input

        return parse_workflow(standard_input().read().decode("utf-8", "replace"), "standard input")
    if Path(text).suffix.lower() in (".yaml", ".yml", ".json") or Path(text).is_file():
        return load_workflow(text)
    return find_flow(app.handlers, text)


def _mock(text: str | None) -> bool | str | dict[str, Any]:
    """Who answers for models and hosts."""
    from analemma.cli.json_input import read_object

    if text == "":
        raise Invalid("--mock is empty", hint="stubs, recorded, or a file with answers by node")
    if text is None or text == "recorded":
        return text or False
    return True if text == "stubs" else read_object(text, hint='give answers by node: {"ask": "hello"}')


def _load(app: App, modules: list[str] | None) -> None:
    from analemma.flows.programs import load_program

    for module in modules or ():
        load_program(app.handlers, module)


def _found_out(unknown: Unknown | None) -> Literal["happened", "did not"] | None:
    if unknown is None:
        return None
    return "happened" if unknown is Unknown.happened else "did not"


def _segment(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else text


def _telling(store: StoreOptions) -> Callable[[str, str, RunError | None], None]:
    def told(segment: str, status: str, error: RunError | None) -> None:
        if not store.json:
            print_line(f"{segment}: {status.lower()}" + ("" if error is None else f", {error.message}"), flush=True)

    return told


def _number_in_run(app: App, execution: str, named: str) -> int:
    from analemma.cli.selecting import version_number

    run = app.flows.get(execution)
    return version_number(app, named, owner=run.owner_id, workflow=run.workflow_id, branch=run.branch)


def _print_run(store: StoreOptions, run: Run, *, segments: bool = False, left_to_worker: bool = False) -> int:
    code = OK
    if run.status == "FAILED":
        code = CODES.get("error" if run.error is None else run.error.kind, 1)
    if store.json:
        print_json({**run.to_value(), "segments": [_segment_value(each) for each in run.segments]})
        return code
    if segments:
        for each in run.segments:
            took = (each.ended_at - each.started_at).total_seconds()
            more = "" if each.error is None else f"  {each.error.message}"
            print_line(f"{each.seq:>4}  {each.segment_id}  {each.status.lower()}  {took:.3f} s{more}")
    fields: dict[str, Any] = {"execution": run.execution_id, "status": run.status, "manifest": run.manifest_id}
    said = _said(run)
    hint = _hint(run)
    if left_to_worker and run.status in ("PENDING", "RUNNING"):
        hint = f"it goes on with analemma worker --module MODULE, or resume {run.execution_id} --module MODULE"
    print_fields(fields | ({"because": said} if said else {}) | ({"hint": hint} if hint else {}))
    return code


def _said(run: Run) -> str:
    if run.error is not None:
        where = "" if run.error.node is None else f"{run.error.node}: "
        return f"{where}{run.error.message}"
    if run.waiting is not None and run.waiting.choices:
        return f"{run.waiting.node}: {run.waiting.prompt or 'decide'} ({', '.join(run.waiting.choices)})"
    return ""


def _hint(run: Run) -> str:
    """What to do next, in the words of the command line."""
    if run.error is None:
        return ""
    if run.error.effect is not None:
        return f"find out, and: analemma resume {run.execution_id} --unknown happened|did-not --module MODULE"
    return in_cli_words(run.error.hint or "")


def _segment_value(each: RunSegment) -> dict[str, Any]:
    return {
        "seq": each.seq,
        "segment_id": each.segment_id,
        "segment": each.segment,
        "iteration": each.iteration,
        "status": each.status,
        "input_manifest_id": each.input_manifest_id,
        "output_manifest_id": each.output_manifest_id,
        "attempts": each.attempts,
        "error": None if each.error is None else each.error.message,
        "started_at": each.started_at.isoformat(),
        "ended_at": each.ended_at.isoformat(),
    }
