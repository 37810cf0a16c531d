"""The commands on which versions are kept: retention show, set, expire."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.options import MAIN, Branch, Owner, OwnerOrAny, StoreOptions, command_group, on_store
from analemma.cli.output import print_fields, print_json, print_line
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.state.removal import RetentionPolicy

commands = command_group("Which versions are kept, and removing the others.")

_RULE: dict[str, Any] = {"metavar": "N", "min": 1, "max": 1_000_000}
WorkflowOrAll = Annotated[
    str | None, typer.Option("--workflow", "-w", help="The workflow. Left out: all of the owner's.", metavar="NAME")
]


@on_store(commands, "analemma retention show -u ./store -o ann -w trip", name="show")
def show_policy(store: StoreOptions, owner: Owner, workflow: WorkflowOrAll = None) -> None:
    """Show the rules that apply to a workflow: its own, or else its owner's."""
    with store.open() as app:
        policy = app.kernel.get_retention(owner_id=owner, workflow_id=workflow)
    _print_policy(store, policy)


@on_store(commands, "analemma retention set -u ./store -o ann -w trip --keep-last 100 --keep-daily 30", name="set")
def set_policy(
    store: StoreOptions,
    owner: Owner,
    workflow: WorkflowOrAll = None,
    keep_last: Annotated[int | None, typer.Option("--keep-last", help="Keep so many newest versions.", **_RULE)] = None,
    keep_newer_than: Annotated[
        int | None, typer.Option("--keep-newer-than", help="Keep versions younger than so many days.", **_RULE)
    ] = None,
    keep_hourly: Annotated[
        int | None, typer.Option("--keep-hourly", help="Keep one of each of so many hours.", **_RULE)
    ] = None,
    keep_daily: Annotated[
        int | None, typer.Option("--keep-daily", help="Keep one of each of so many days.", **_RULE)
    ] = None,
    keep_weekly: Annotated[
        int | None, typer.Option("--keep-weekly", help="Keep one of each of so many weeks.", **_RULE)
    ] = None,
    keep_everything: Annotated[bool, typer.Option("--keep-everything", help="Have no rules any more.")] = False,
) -> None:
    """Say which versions are kept.

    The rules given replace those before; one is enough to keep a version. The newest, tags and pins always stay."""
    rules: dict[str, Any] = {
        "keep_last": keep_last,
        "keep_newer_than_s": None if keep_newer_than is None else keep_newer_than * 86_400,
        "keep_hourly": keep_hourly,
        "keep_daily": keep_daily,
        "keep_weekly": keep_weekly,
    }
    given = any(value is not None for value in rules.values())
    if given and keep_everything:
        raise Invalid("--keep-everything is no rule beside others", hint="leave it out, or the others")
    if not given and not keep_everything:
        raise Invalid("there is no rule to set", hint="give --keep-last or another rule, or --keep-everything")
    with store.open(new_tenant=True) as app:
        policy = app.kernel.set_retention(owner_id=owner, workflow_id=workflow, **rules)
    _print_policy(store, policy)


@on_store(commands, "analemma retention expire -u ./store -o ann -w trip --dry-run", name="expire")
def expire(
    store: StoreOptions,
    owner: OwnerOrAny = None,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="The workflow, unless --all.", metavar="NAME")
    ] = None,
    branch: Branch = MAIN,
    everything: Annotated[
        bool, typer.Option("--all", help="On every branch of every workflow of the tenant that has rules.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would go.")] = False,
) -> None:
    """Remove the versions that no rule keeps: of one branch, or of the whole tenant."""
    if everything and workflow is not None:
        raise Invalid("--all is for every workflow", hint="leave out --workflow, or --all")
    if everything:
        _expire_all(store, dry_run)
        return
    if workflow is None or owner is None:
        raise Invalid(
            "it is not said of which workflow versions are to expire", hint="give --owner and --workflow, or --all"
        )
    from analemma.cli.rendering import fields_of, history_line

    with store.open() as app:
        plan = app.kernel.expire(workflow_id=workflow, owner_id=owner, branch=branch, dry_run=dry_run)
    if store.json:
        print_json({"expired": [fields_of(version) for version in plan.expired], "dry_run": dry_run})
        return
    for version in plan.expired:
        print_line(f"{'would expire' if dry_run else 'expired'} {history_line(version)}")


def _expire_all(store: StoreOptions, dry_run: bool) -> None:
    with store.open() as app:
        done = app.kernel.expire_all(dry_run=dry_run)
    if store.json:
        print_json({"branches": [asdict(each) for each in done], "dry_run": dry_run})
        return
    for each in done:
        place = f"{each.owner_id}/{each.workflow_id} on {each.branch}"
        if each.problem is not None:
            print_line(f"{place}: {each.problem}")
        else:
            print_line(f"{place}: {each.expired} versions {'would expire' if dry_run else 'expired'}")


def _print_policy(store: StoreOptions, policy: RetentionPolicy) -> None:
    if store.json:
        print_json({"policy": asdict(policy)})
    else:
        kept = {name: value for name, value in asdict(policy).items() if value is not None}
        print_fields(kept or {"keeps": "everything"})
