"""The commands on state sources: which there are, what they could not take, and states that were there before them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.options import StoreOptions, command_group, on_store
from analemma.cli.output import one_line, print_fields, print_json, print_line

if TYPE_CHECKING:
    from analemma.pipeline.state_sources import SourceBackfill

commands = command_group("Workflow states that become entities, by STATE_SOURCE contracts.")

OneSource = Annotated[
    str | None, typer.Argument(help="The id of its contract. Left out: every source.", metavar="[SOURCE]")
]


@on_store(commands, "analemma sources list -u ./store", name="list")
def list_sources(store: StoreOptions) -> None:
    """List the sources that apply: what they make, how many workflows they follow, and with how many problems."""
    with store.open() as app:
        found = app.default.state_sources()
    if store.json:
        print_json({"sources": [asdict(each) for each in found]})
        return
    if not found:
        print("no state source is loaded")
        return
    width = max(len(each.source) for each in found)
    for each in found:
        made = each.entity_type or "retired"
        problems = f", {each.problems} with a problem" if each.problems else ""
        print_line(f"{each.source:<{width}}  -> {made:<16}  follows {each.followed}{problems}")


@on_store(commands, "analemma sources problems source.agent_run -u ./store")
def problems(
    store: StoreOptions,
    source: OneSource = None,
    limit: Annotated[int, typer.Option("--limit", help="At most so many.", metavar="N", min=1, max=100_000)] = 100,
) -> None:
    """List the newest states that became no entity, and why. The next commit that is one mends it."""
    with store.open() as app:
        found = app.default.source_problems(source, limit=limit)
    if store.json:
        rows = [
            {
                "source": each.source,
                "owner": each.key.owner,
                "workflow": each.key.workflow,
                "branch": each.key.branch,
                "version": each.version,
                "problem": each.problem,
            }
            for each in found
        ]
        print_json({"problems": rows})
        return
    if not found:
        print("every state that was taken is an entity")
    for each in found:
        owner, workflow, branch = each.key
        print_line(f"{each.source}  {owner}/{workflow}@{branch} version {each.version}: {one_line(each.problem)}")


@on_store(commands, "analemma sources backfill source.agent_run --dry-run -u ./store")
def backfill(
    store: StoreOptions,
    source: OneSource = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
) -> None:
    """Ingest the newest states of the workflows that a source takes, for those that were there before it.

    It may be stopped and run again: what was ingested changes nothing the second time. Workers compile and ship."""
    with store.open() as app, _progress(store) as moved:
        done = app.default.pipeline.sources.backfill(source, dry_run=dry_run, progress=moved)
    counts: dict[str, Any] = {str(name): count for name, count in done.outcomes.items()}
    refused = [
        {
            "source": each.source,
            "owner": each.key.owner,
            "workflow": each.key.workflow,
            "branch": each.key.branch,
            "reason": each.problem,
        }
        for each in done.problems
    ]
    if store.json:
        told: dict[str, Any] = {"matched": done.matched, "dry_run": dry_run}
        print_json({"backfill": told if dry_run else {**told, **counts, "problems": refused}})
        return
    for row in refused:
        name = f"{row['owner']}/{row['workflow']}@{row['branch']}"
        print(f"{row['source']}  {name}: {one_line(str(row['reason']))}", file=sys.stderr)
    print_fields({"matched": done.matched} if dry_run else {"matched": done.matched, **counts})


@contextmanager
def _progress(store: StoreOptions) -> Iterator[Callable[[SourceBackfill], None]]:
    """A count, for people who watch."""
    if store.json or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task("backfill", total=None)
        yield lambda done: bar.update(task, completed=done.matched)
