"""The commands that collect garbage: gc plan, run, status, failures, and gc archives."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.options import LARGEST_NUMBER, StoreOptions, command_group, on_store
from analemma.cli.output import bytes_for_people, print_fields, print_json, print_line
from analemma.clock import moment
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.gc.collector import Progress
    from analemma.gc.reports import Collection

commands = command_group("Collecting what nothing needs any more.")

Grace = Annotated[
    float | None,
    typer.Option(
        "--grace",
        help="Blocks that nothing leads to stay so many seconds. Left out: gc_grace_s of the settings.",
        metavar="SECONDS",
        min=0,
        max=LARGEST_NUMBER,
    ),
]
KeepVersions = Annotated[bool, typer.Option("--no-expire", help="Leave versions alone, whatever retention says.")]


@on_store(commands, "analemma gc plan -u ./store", name="plan")
def plan(
    store: StoreOptions,
    grace: Grace = None,
    no_expire: KeepVersions = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the whole plan there, for gc run --plan.", metavar="FILE")
    ] = None,
) -> None:
    """Show what gc run would do, and why: in one tenant, or in all. Changes nothing."""
    with store.open() as app, _progress(store) as progress:
        made = app.gc.plan(store.tenant, grace, expire=not no_expire, progress=progress)
    if out is not None:
        _write(out, made)
    if store.json:
        print_json({"plan": made.as_dict()})
    else:
        print(made.describe())


@on_store(commands, "analemma gc run -u ./store --dry-run", name="run")
def run(
    store: StoreOptions,
    grace: Grace = None,
    no_expire: KeepVersions = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go, why, and how much.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Go on where the numbers look wrong.")] = False,
    planned: Annotated[
        Path | None, typer.Option("--plan", help="Delete nothing that this plan does not name.", metavar="FILE")
    ] = None,
) -> int:
    """Collect garbage once: in one tenant, or in all.

    What nothing leads to is marked to go in one run and deleted in a later one."""
    chosen = None if planned is None else _read(planned)
    with store.open() as app, _progress(store) as progress:
        if dry_run:
            made = chosen or app.gc.plan(store.tenant, grace, expire=not no_expire, progress=progress)
            if store.json:
                print_json({"plan": made.as_dict(), "dry_run": True})
            else:
                print(made.describe())
            return OK
        report = app.gc.run(
            chosen, False, grace, tenant=store.tenant, expire=not no_expire, force=force, progress=progress
        )
    if store.json:
        print_json({"report": report.as_dict(), "dry_run": False})
    else:
        print(report.describe())
    return CODES[report.kinds[0]] if report.kinds else OK


@on_store(commands, "analemma gc status -u ./store", name="status")
def status(store: StoreOptions) -> None:
    """Show who collects, what the last runs did, and whether anything failed."""
    with store.open() as app:
        found = app.gc.status()
    if store.json:
        print_json({"status": asdict(found)})
        return
    print_fields(
        {
            "passes": found.newest,
            "collecting": "nobody" if found.holder is None else f"{found.holder} (for {found.lease_left_s:.0f} s more)",
            "open sessions": found.sessions,
            "failures": f"{found.waiting_failures} to be tried again, {found.dead_failures} given up",
        }
    )
    for each in found.runs:
        print_line(
            f"pass {each.number}  {_when(each.started_at_us)}  {each.state}  {each.referenced}/{each.total} needed, "
            f"{each.deleted} deleted ({bytes_for_people(each.bytes)}), {each.objects} objects"
            + (f"  ({each.reason})" if each.reason else "")
        )


@on_store(commands, "analemma gc failures -u ./store", name="failures")
def failures(
    store: StoreOptions,
    retry: Annotated[bool, typer.Option("--retry", help="Have those that were given up tried again.")] = False,
) -> None:
    """Show the uploads that could not be collected, or have them tried again."""
    with store.open() as app:
        retried = app.gc.retry() if retry else 0
        listed = app.gc.failures()
    if store.json:
        print_json({"failures": [_shown(each) for each in listed], "retried": retried})
        return
    for each in listed:
        print_line(
            f"{each.id}  {each.upload.hex()}  {each.kind}  {each.state} after {each.attempts} tries  {each.error}"
        )
    if retry:
        print_line(f"{retried} will be tried again")


archives = command_group("Collecting archives that no workspace needs any more.")
commands.add_typer(archives, name="archives")

Delay = Annotated[
    float | None,
    typer.Option(
        "--delay",
        help="Archives that nobody needs stay so many seconds, and gc_object_delay_s at least if they are not in the "
        "store's own directory. Left out: archive_gc_delay_s of the settings.",
        metavar="SECONDS",
        min=0,
        max=LARGEST_NUMBER,
    ),
]


@on_store(archives, "analemma gc archives plan -u ./store", name="plan")
def plan_archives(store: StoreOptions, delay: Delay = None) -> None:
    """Show which archives gc archives run would delete, and why, in one tenant. Changes nothing."""
    with store.open() as app, _progress(store) as progress:
        made = app.archives.gc_plan(delay, progress=progress)
    if store.json:
        print_json({"plan": made.as_dict()})
    else:
        print(made.describe())


@on_store(archives, "analemma gc archives run -u ./store --dry-run", name="run")
def run_archives(
    store: StoreOptions,
    delay: Delay = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go, why, and how much.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Go on where the numbers look wrong.")] = False,
) -> int:
    """Delete archives that nobody has needed for a while and an earlier run marked, in one tenant; mark the others."""
    if dry_run:
        plan_archives(**asdict(store), delay=delay)
        return OK
    with store.open() as app, _progress(store) as progress:
        report = app.archives.gc_run(delay, force=force, progress=progress)
    if store.json:
        print_json({"report": report.as_dict()})
    else:
        print(report.describe())
    return CODES[report.kind] if report.kind else OK


def _when(at_us: int) -> str:
    return moment(at_us).isoformat(sep=" ", timespec="seconds")


def _shown(failure: Any) -> dict[str, Any]:
    return {**asdict(failure), "upload": failure.upload.hex()}


@contextmanager
def _progress(store: StoreOptions) -> Iterator[Progress | None]:
    """A line that says how far it is, for people who watch."""
    if store.json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("looking", total=None)
        yield lambda stage, count: bar.update(task, description=f"{stage} {count}" if count else stage)


def _write(out: Path, made: Collection) -> None:
    try:
        out.write_text(made.to_json(), encoding="utf-8")
    except OSError as exc:
        raise Invalid(f"cannot write {out}: {exc.strerror}", hint="name a file that this user may write") from exc


def _read(planned: Path) -> Collection:
    from analemma.gc.reports import Collection

    try:
        text = planned.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise Invalid(f"cannot read {planned}: {exc}", hint="name a file that gc plan --out wrote") from exc
    return Collection.from_json(text)
