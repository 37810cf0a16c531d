"""The commands on single entities: compile and slices."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import OK, exit_code
from analemma.cli.ingest_commands import EntityType
from analemma.cli.options import StoreOptions, on_store
from analemma.cli.output import one_line, print_fields, print_json
from analemma.errors import AnalemmaError, Invalid

if TYPE_CHECKING:
    from analemma.pipeline.slicing import CompileResult
    from analemma.store.store import Tenant

commands = typer.Typer()

TOLD_PROBLEMS = 1000
EntityVersion = Annotated[
    str | None, typer.Option("--version", help="This version, not the newest.", metavar="VERSION")
]


@on_store(commands, "analemma compile BOOK 978 --mode full -u ./store", name="compile")
def compile_entities(
    store: StoreOptions,
    entity_type: EntityType,
    entity_id: Annotated[str | None, typer.Argument(help="The entity's id.", metavar="[ID]")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every entity of the type, one after the other.")] = False,
    prefix: Annotated[str, typer.Option("--prefix", help="With --all: only ids that begin so.", metavar="TEXT")] = "",
    version: EntityVersion = None,
    mode: Annotated[
        str, typer.Option("--mode", help="Which slices are built: auto, full or incremental.", metavar="MODE")
    ] = "auto",
) -> int:
    """Compile an entity now, without waiting for a worker: build its slices and index entries.

    What is compiled already, by the same rules and from the same, is left as it is."""
    from analemma.slicing.incremental import parse_mode

    parse_mode(mode)
    if everything == (entity_id is not None):
        raise Invalid("it is not said what to compile", hint="give an id, or --all")
    if everything and version is not None:
        raise Invalid("a version is of one entity", hint="leave out --all or --version")
    if prefix and not everything:
        raise Invalid("a prefix is for --all", hint="leave out the id or --prefix")
    with store.open() as app:
        if entity_id is None:
            return _compile_all(store, app.default, entity_type, prefix, mode)
        result = app.default.compile(entity_type, entity_id, version, mode=mode)
    if store.json:
        print_json({"compiled": _compiled(result)})
        return OK
    fields: dict[str, Any] = {"version": result.version, "revision": result.revision, "mode": result.mode.value}
    fields["written"] = ", ".join(result.written) or ("nothing, up to date" if result.up_to_date else "nothing")
    fields["unchanged"] = ", ".join(result.unchanged) or "nothing"
    if result.tombstones:
        fields["not there"] = ", ".join(f"{name} ({reason})" for name, reason in result.tombstones.items())
    print_fields(fields)
    return OK


@on_store(commands, "analemma slices BOOK 978 -u ./store", name="slices")
def slices(
    store: StoreOptions,
    entity_type: EntityType,
    entity_id: Annotated[str, typer.Argument(help="The entity's id.", metavar="ID")],
    version: EntityVersion = None,
) -> None:
    """Print the slices of an entity, by their types; with --json also hashes, versions and tombstones."""
    with store.open() as app:
        found = app.default.slices(entity_type, entity_id, version)
    if store.json:
        print_json({"slices": {name: asdict(each) for name, each in found.items()}})
    else:
        print_json({name: each.data for name, each in found.items() if each.tombstone is None})


def _compile_all(store: StoreOptions, tenant: Tenant, entity_type: str, prefix: str, mode: str) -> int:
    # What has no ruleset has no slices: say so once, and not of each entity, of which there may be none.
    tenant.views.contracts.ruleset(entity_type)
    counts: Counter[str] = Counter(compiled=0, up_to_date=0, failed=0)
    problems: list[dict[str, Any]] = []
    first: AnalemmaError | None = None
    with _progress(store) as moved:
        for entity_id in tenant.views.entity_ids(entity_type, prefix=prefix):
            try:
                result = tenant.compile(entity_type, entity_id, mode=mode)
                counts["up_to_date" if result.up_to_date else "compiled"] += 1
            except AnalemmaError as exc:
                first = first or exc
                counts["failed"] += 1
                if len(problems) < TOLD_PROBLEMS:
                    problems.append({"id": entity_id, "kind": exc.kind, "reason": exc.message})
                if not store.json:
                    print(f"{entity_id}: {one_line(exc.message)}", file=sys.stderr)
            moved()
    if store.json:
        print_json({"compiled": dict(counts), "problems": problems})
    else:
        print_fields(counts)
    return OK if first is None else exit_code(first)


def _compiled(result: CompileResult) -> dict[str, Any]:
    return {**asdict(result), "mode": result.mode.value}


@contextmanager
def _progress(store: StoreOptions) -> Iterator[Callable[[], None]]:
    """A count, for people who watch."""
    if store.json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("compile", total=None)
        yield lambda: bar.advance(task)
