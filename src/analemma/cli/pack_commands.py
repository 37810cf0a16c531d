"""The command on where blocks lie: pack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import bytes_for_people, print_fields, print_json, print_line
from analemma.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from analemma.gc.packing import PackingReport, Progress

commands = typer.Typer()


@on_store(commands, "analemma pack -u ./store --dry-run", name="pack")
def pack(
    store: StoreOptions,
    repack: Annotated[
        bool, typer.Option("--repack", help="Instead, write packs anew that are mostly dead, into fewer.")
    ] = False,
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            help="Pack what was stored more than so many days ago; 0 for all. Left out: as pack_after_s says.",
            metavar="DAYS",
            min=0,
            max=100_000,
        ),
    ] = None,
    waste: Annotated[
        float | None,
        typer.Option(
            "--waste",
            help="With --repack: the share of dead bytes from which on. Left out: as pack_waste says.",
            metavar="SHARE",
            min=0,
            max=0.99,
        ),
    ] = None,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Afterwards, shrink the SQLite file; nobody can write meanwhile.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would move.")] = False,
) -> None:
    """Move cold blocks from the database into packs in the object store.

    Nothing changes for readers and writers. It may be stopped at any time; the next run goes on."""
    if older_than is not None and repack:
        raise Invalid("--older-than is for packing", hint="leave it out")
    if waste is not None and not repack:
        raise Invalid("--waste is for repacking", hint="add --repack, or leave it out")
    sizes: tuple[int, int] | None = None
    with store.open() as app, _progress() as progress:
        packing = app.packing
        if repack:
            report = packing.repack(waste=waste, dry_run=dry_run, progress=progress)
        else:
            seconds = None if older_than is None else older_than * 86_400
            report = packing.pack(older_than_s=seconds, dry_run=dry_run, progress=progress)
        if vacuum and not dry_run:
            sizes = packing.vacuum()
    _print(store, report, sizes)
    if report.problems:
        raise Corrupt(
            f"{len(report.problems)} of what was to move cannot be read, and was left alone",
            hint="run verify, and restore it from a second copy",
            problems=list(report.problems),
        )


def _print(store: StoreOptions, report: PackingReport, sizes: tuple[int, int] | None) -> None:
    fields: dict[str, Any] = asdict(report)
    if sizes is not None:
        fields |= {"database_bytes_before": sizes[0], "database_bytes": sizes[1]}
    if store.json:
        print_json(fields)
        return
    problems = fields.pop("problems")
    shown = {
        name: bytes_for_people(value) if "bytes" in name else value
        for name, value in fields.items()
        if value and name != "dry_run"
    }
    moved = "would move" if report.dry_run else "moved"
    print_fields({moved: f"{report.blocks} blocks", **{name: shown[name] for name in shown if name != "blocks"}})
    for problem in problems:
        print_line(f"problem  {problem}")


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """A line that grows, for people who watch."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(report: PackingReport) -> None:
        line = f"{report.blocks} blocks, {bytes_for_people(report.bytes)}, {report.packs} packs"
        print(f"\r{line:<60}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print(file=sys.stderr)
