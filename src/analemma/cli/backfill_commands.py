"""The commands on whole scopes of entities: backfill plan, run, status, list, pause, resume, cancel, verify."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import bytes_for_people, one_line, print_fields, print_json, print_line
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.pipeline.backfill_reports import Backfill, BackfillPlan, Progress, VerifyReport

commands = command_group("Whole scopes of entities: compile or ship them again, replay dead letters, verify.")

LINE_EVERY_S = 5.0
"""How often a line says how far it is, where nobody watches a terminal."""
SHOWN_PROBLEMS = 20

Kind = Annotated[
    str,
    typer.Option("--kind", help="What is done: raw_to_slice, slice_to_sink, full or dead_letters.", metavar="KIND"),
]
Types = Annotated[
    list[str] | None, typer.Option("--type", "-t", help="Entities of this type; may be repeated.", metavar="TYPE")
]
Ids = Annotated[list[str] | None, typer.Option("--id", help="This entity; may be repeated.", metavar="ID")]
Prefix = Annotated[str, typer.Option("--prefix", help="Only ids that begin so.", metavar="TEXT")]
Stale = Annotated[bool, typer.Option("--stale", help="Only entities that were compiled by other rules, or not at all.")]
Sinks = Annotated[
    list[str] | None, typer.Option("--sink", help="Ship by this sink rule; may be repeated.", metavar="RULE")
]
NoSinks = Annotated[bool, typer.Option("--no-sinks", help="Do not have anything shipped.")]
AllVersions = Annotated[bool, typer.Option("--all-versions", help="Compile every version, not only the newest.")]
EventTypes = Annotated[
    list[str] | None,
    typer.Option("--event", help="Of dead letters: events of this type; may be repeated.", metavar="TYPE"),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode", help="full evaluates every rule; auto takes for granted what the same rules made.", metavar="MODE"
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--executor",
        help="Where it runs: threads:N, processes:N, dask, dask:ADDRESS, ray or ray:ADDRESS.",
        metavar="WHERE",
    ),
]
Rate = Annotated[float | None, typer.Option("--rate", help="Entities per second, at most.", metavar="N")]
Page = Annotated[int | None, typer.Option("--page", help="Entities taken at a time.", metavar="N", min=1, max=1000)]
Wait = Annotated[
    float, typer.Option("--wait", help="So long wait for the lease of a process that died.", metavar="SECONDS", min=0)
]
Id = Annotated[str, typer.Argument(help="The id of a backfill.", metavar="BACKFILL")]


@on_store(commands, "analemma backfill plan -u ./store --type BOOK --stale", name="plan")
def plan(
    store: StoreOptions,
    kind: Kind = "raw_to_slice",
    types: Types = None,
    ids: Ids = None,
    prefix: Prefix = "",
    stale: Stale = False,
    sinks: Sinks = None,
    no_sinks: NoSinks = False,
    all_versions: AllVersions = False,
    events: EventTypes = None,
    mode: Mode = "full",
    executor: Where = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only count entities: do not work out what changes.")] = False,
    save: Annotated[bool, typer.Option("--save", help="Write the backfill down, to be run later by its id.")] = False,
) -> None:
    """Show what a backfill would do, with counts and samples. Nothing is changed.

    Every entity is evaluated, so that the counts are those of a run on the same store; --quick leaves that out."""
    scope = _scope(store, types, ids, prefix, stale, sinks, no_sinks, all_versions, events)
    with store.open() as app, _progress(store, "planned") as watch:
        found = app.backfills.plan(scope, kind, mode=mode, quick=quick, executor=executor, watch=watch)  # type: ignore[arg-type]
        made = app.backfills.create(scope, kind, mode=mode) if save else None  # type: ignore[arg-type]
    if store.json:
        print_json({"plan": found.as_dict(), "backfill": None if made is None else made.id})
        return
    _show_plan(found)
    if made is not None:
        print_line(f"saved     {made.id}")


@on_store(commands, "analemma backfill run -u ./store --type BOOK --stale --executor processes:4", name="run")
def run(
    store: StoreOptions,
    backfill: Annotated[
        str | None, typer.Argument(help="One that is written down; left out: a new one.", metavar="[BACKFILL]")
    ] = None,
    kind: Kind = "raw_to_slice",
    types: Types = None,
    ids: Ids = None,
    prefix: Prefix = "",
    stale: Stale = False,
    sinks: Sinks = None,
    no_sinks: NoSinks = False,
    all_versions: AllVersions = False,
    events: EventTypes = None,
    mode: Mode = "full",
    executor: Where = None,
    rate: Rate = None,
    page: Page = None,
    wait: Wait = 0.0,
    verify: Annotated[
        str | None, typer.Option("--verify", help="Verify the scope afterwards: fast or strict.", metavar="MODE")
    ] = None,
) -> int:
    """Run a backfill, and wait until it is done, paused or cancelled. Ctrl-C pauses it.

    It goes on where it was, whatever happened to the process that ran it, and no entity is counted twice. The exit code
    is 0 if it is done and nothing failed."""
    scope = _scope(store, types, ids, prefix, stale, sinks, no_sinks, all_versions, events)
    if verify not in (None, "fast", "strict"):
        raise Invalid(f"--verify {verify}: there is no such way", hint="fast or strict")
    if backfill is not None and scope != _scope(store, None, None, "", False, None, False, False, None):
        raise Invalid("a backfill is named, and another one described", hint="give its id, or a scope")
    with store.open() as app, _progress(store, "done") as watch:
        if backfill is None:
            made = app.backfills.create(scope, kind, mode=mode, rate=rate, page=page)  # type: ignore[arg-type]
            if not store.json:
                print_line(f"backfill  {made.id}", flush=True)
            backfill = made.id
        done = app.backfills.run(backfill, executor=executor, watch=watch, wait_s=wait)
        report = None
        if verify is not None and done.state == "DONE":
            report = app.backfills.verify(done.scope, verify, executor=executor)  # type: ignore[arg-type]
    return _show_end(store, done, report)


@on_store(commands, "analemma backfill resume -u ./store bf-1f3c", name="resume")
def resume(store: StoreOptions, backfill: Id, executor: Where = None, wait: Wait = 0.0) -> int:
    """Go on with a backfill that was paused, that failed, or whose process died."""
    with store.open() as app, _progress(store, "done") as watch:
        done = app.backfills.resume(backfill, executor=executor, watch=watch, wait_s=wait)
    return _show_end(store, done, None)


@on_store(commands, "analemma backfill status -u ./store bf-1f3c", name="status")
def status(store: StoreOptions, backfill: Id) -> None:
    """Show how far a backfill is."""
    with store.open() as app:
        found = app.backfills.get(backfill)
    if store.json:
        print_json({"backfill": found.as_dict()})
    else:
        _show(found)


@on_store(commands, "analemma backfill list -u ./store", name="list")
def list_backfills(
    store: StoreOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", metavar="N", min=1, max=1000)] = 20,
) -> None:
    """List backfills, newest first."""
    with store.open() as app:
        found = app.backfills.list(store.tenant, limit=limit)
    if store.json:
        print_json({"backfills": [each.as_dict() for each in found]})
        return
    for each in found:
        share = f"{each.counts.done:,} of {each.total:,}"
        print_line(f"{each.id}  {each.state:<9}  {each.kind.value:<13}  {share}  {one_line(each.scope.describe())}")


@on_store(commands, "analemma backfill pause -u ./store bf-1f3c", name="pause")
def pause(store: StoreOptions, backfill: Id) -> None:
    """Have a backfill stop, whoever runs it. It can be resumed."""
    with store.open() as app:
        found = app.backfills.pause(backfill)
    _say(store, found)


@on_store(commands, "analemma backfill cancel -u ./store bf-1f3c", name="cancel")
def cancel(store: StoreOptions, backfill: Id) -> None:
    """Have a backfill stop for ever. What it did stays."""
    with store.open() as app:
        found = app.backfills.cancel(backfill)
    _say(store, found)


@on_store(commands, "analemma backfill verify -u ./store --type BOOK", name="verify")
def verify(
    store: StoreOptions,
    types: Types = None,
    ids: Ids = None,
    prefix: Prefix = "",
    fast: Annotated[bool, typer.Option("--fast", help="Do not compile anew: only rows and hashes.")] = False,
    executor: Where = None,
) -> int:
    """Look whether slices and index entries are what the rules make of the raw documents. Nothing is changed.

    Exit code 6 if something is wrong or damaged, 4 if something is only out of date, 0 if all is well."""
    scope = _scope(store, types, ids, prefix, False, None, False, False, None)
    with store.open() as app, _progress(store, "verified") as watch:
        report = app.backfills.verify(scope, "fast" if fast else "strict", executor=executor, watch=watch)
    if store.json:
        print_json({"verified": report.as_dict()})
    else:
        _show_report(report)
    return _report_code(report)


def _scope(
    store: StoreOptions,
    types: list[str] | None,
    ids: list[str] | None,
    prefix: str,
    stale: bool,
    sinks: list[str] | None,
    no_sinks: bool,
    all_versions: bool,
    events: list[str] | None,
) -> dict[str, Any]:
    if sinks and no_sinks:
        raise Invalid("sinks are named, and --no-sinks is given", hint="leave one of them out")
    return {
        "tenant": store.tenant,
        "types": tuple(types or ()),
        "ids": tuple(ids) if ids else None,
        "prefix": prefix,
        "stale": stale,
        "sinks": () if no_sinks else (tuple(sinks) if sinks else None),
        "versions": "all" if all_versions else "newest",
        "events": tuple(events or ()),
    }


def _show_plan(plan: BackfillPlan) -> None:
    fields: dict[str, Any] = {"kind": plan.kind.value, "scope": one_line(plan.scope.describe()), "total": plan.total}
    for each in plan.types:
        there = each.there
        fields[each.type] = (
            f"{each.selected:,} of {there.entities:,}: {there.never_compiled:,} never compiled, "
            f"{there.behind:,} behind, {there.other_rules:,} by other rules"
        )
    if plan.raw_bytes:
        fields["size"] = bytes_for_people(plan.raw_bytes)
    changes = plan.changes
    if changes is not None:
        about = "" if plan.exact else "about "
        fields["would write"] = f"{about}{changes.slices:,} slices of {changes.changed:,} versions"
        fields["would fail"] = changes.failed
    fields["would ask"] = f"sinks {plan.requested:,} times"
    print_fields(fields)
    for sample in plan.samples:
        print_line(f"  {one_line(sample.entity)}  {one_line(sample.what)}")


def _show(found: Backfill) -> None:
    counts = found.counts
    fields: dict[str, Any] = {
        "backfill": found.id,
        "state": found.state + (f" ({one_line(found.reason)})" if found.reason else ""),
        "kind": found.kind.value,
        "scope": one_line(found.scope.describe()),
        "done": f"{counts.done:,} of {found.total:,}",
        "changed": f"{counts.changed:,}, {counts.slices:,} slices written",
        "asked sinks": f"{counts.requested:,} times",
        "failed": f"{counts.failed:,}",
    }
    if found.holder is not None:
        fields["run by"] = found.holder
    print_fields(fields)
    for error in found.errors[:SHOWN_PROBLEMS]:
        print_line(f"  {one_line(error.entity)}  {error.kind}: {one_line(error.reason)}")


def _show_report(report: VerifyReport) -> None:
    print_fields(
        {
            "verified": f"{report.entities:,} entities, {report.slices:,} slices ({report.mode})",
            "wrong": report.wrong,
            "corrupt": report.corrupt,
            "stale": report.stale,
            "uncompiled": report.uncompiled,
        }
    )
    for each in report.problems[:SHOWN_PROBLEMS]:
        version = "" if each.version is None else f"@{each.version}"
        print_line(f"  {one_line(each.entity)}{version}  {each.kind}: {one_line(each.what)}")


def _show_end(store: StoreOptions, done: Backfill, report: VerifyReport | None) -> int:
    if store.json:
        told = done.as_dict()
        print_json({"backfill": {**told, "verified": None if report is None else report.as_dict()}})
    else:
        _show(done)
        if report is not None:
            _show_report(report)
    if done.counts.failed:
        # As the command for one entity would have ended.
        return CODES.get(done.errors[0].kind, CODES["error"]) if done.errors else CODES["error"]
    if done.state != "DONE":
        return CODES["conflict"]
    return OK if report is None else _report_code(report)


def _report_code(report: VerifyReport) -> int:
    return CODES["corrupt"] if report.damaged else (OK if report.ok else CODES["conflict"])


def _say(store: StoreOptions, found: Backfill) -> None:
    if store.json:
        print_json({"backfill": found.as_dict()})
    else:
        print_line(f"{found.id}  {found.state}")


@contextmanager
def _progress(store: StoreOptions, what: str) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on a terminal, otherwise a line from time to time; nothing beside JSON."""
    if store.json:
        yield None
        return
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def watch(found: Progress) -> None:
            said = found.describe().partition("), ")[2]
            bar.update(task, total=found.total, completed=found.done, description=said)

        yield watch


class _Lines:
    """Says how far it is, every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said_at = time.monotonic()
        self._ended = False

    def __call__(self, found: Progress) -> None:
        ends = found.done >= found.total > 0
        if (ends and not self._ended) or (not ends and time.monotonic() - self._said_at >= LINE_EVERY_S):
            self._said_at, self._ended = time.monotonic(), ends
            print(f"{self._what}: {found.describe()}", file=sys.stderr, flush=True)
