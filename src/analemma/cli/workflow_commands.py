"""The commands on workflows and branches as a whole: workflows, watch, merge, retention."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.options import (
    LARGEST_NUMBER,
    MAIN,
    Branch,
    Json,
    Message,
    Objects,
    Owner,
    TenantName,
    Url,
    Workflow,
    open_store,
)
from analemma.cli.output import print_fields, print_json
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.state.versions import Version

commands = typer.Typer()

LONGEST_WAIT_S = 10 * 365 * 86_400
_RULE: dict[str, Any] = {"metavar": "N", "min": 1, "max": 1_000_000}


@commands.command(epilog="Example: analemma workflows -u ./store -o ann --status RUNNING")
def workflows(
    owner: Owner,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Only those whose name begins so.", metavar="TEXT")
    ] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="Only RUNNING, COMPLETED, FAILED or IDLE ones.", metavar="STATUS")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", help="Go on where the page before ended.", metavar="CURSOR")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="So many workflows, at most.", metavar="N", min=1, max=1000)
    ] = 100,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """List an owner's workflows and where each stands."""
    from analemma.cli.rendering import fields_of

    wanted: Any = status
    with open_store(url, objects, tenant) as app:
        page = app.kernel.list_workflows(owner_id=owner, name_prefix=prefix, status=wanted, cursor=cursor, limit=limit)
    if json:
        print_json({"workflows": [fields_of(each) for each in page.items], "cursor": page.cursor})
        return
    for each in page.items:
        when = each.updated_at.isoformat(" ", "seconds")
        print(f"{each.workflow_id}  {each.status}  version {each.version} on {each.branch}  {when}  {each.manifest_id}")
    if page.cursor is not None:
        print(f"more: --cursor {page.cursor}")


@commands.command(epilog="Example: analemma watch -u ./store -o ann -w trip --since 3 --timeout 60")
def watch(
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
    since: Annotated[
        int | None,
        typer.Option(
            "--since", help="Begin after this version, not after the newest.", metavar="N", min=0, max=LARGEST_NUMBER
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", help="End after so long without a version.", metavar="SECONDS", min=0, max=LONGEST_WAIT_S
        ),
    ] = None,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Print every new version as it is committed; with --json, one JSON document a line."""
    from analemma.cli.rendering import fields_of, history_line

    with open_store(url, objects, tenant) as app:
        for version in app.kernel.watch(
            workflow_id=workflow, owner_id=owner, branch=branch, since=since, timeout_s=timeout
        ):
            print(dumps({"version": fields_of(version)}) if json else history_line(version), flush=True)


@commands.command(epilog="Example: analemma merge -u ./store -o ann -w trip idea --into main --strategy deep_merge")
def merge(
    source: Annotated[str, typer.Argument(help="The branch, or manifest id, to merge in.", metavar="SOURCE")],
    owner: Owner,
    workflow: Workflow,
    into: Annotated[str, typer.Option("--into", help="The branch that gets the changes.", metavar="NAME")] = MAIN,
    strategy: Annotated[
        str, typer.Option("--strategy", help="Who wins where both changed the same.", metavar="STRATEGY")
    ] = "refuse",
    strategy_for: Annotated[
        list[str] | None,
        typer.Option(
            "--strategy-for", help="The same for a field or a pattern of pointers; repeatable.", metavar="NAME=STRATEGY"
        ),
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what would change.")] = False,
    message: Message = None,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Bring what one branch changed into another."""
    from analemma.cli.rendering import changes_fields, commit_fields, on_one_line, print_changes, to_json

    default: Any = strategy
    chosen: dict[str, Any] = {}
    for choice in strategy_for or []:
        name, equals, value = choice.partition("=")
        if not equals:
            raise Invalid(f"--strategy-for {choice}: there is no '='", hint="write --strategy-for NAME=STRATEGY")
        chosen[name] = value
    with open_store(url, objects, tenant, any_type=True) as app:
        merged = app.kernel.merge(
            workflow_id=workflow,
            owner_id=owner,
            source=source,
            into=into,
            strategy=default,
            strategies=chosen,
            message=message,
            preview=preview,
        )
    if json:
        fields: dict[str, Any] = {item.name: getattr(merged, item.name) for item in dataclass_fields(merged)}
        fields["changes"] = changes_fields(merged.changes)
        fields |= {name: to_json(fields[name]) for name in ("decided", "conflicts")}
        fields["commit"] = None if merged.commit is None else commit_fields(merged.commit)
        print_json({"merge": fields})
        return
    print_changes(merged.changes)
    for conflict in merged.conflicts:
        print(f"conflict {on_one_line(conflict)}")
    if merged.commit is not None:
        print_fields({"version": merged.commit.version, "manifest": merged.commit.manifest_id})
    elif not preview:
        print(f"{into} has everything already")


@commands.command(epilog="Example: analemma retention -u ./store -o ann -w trip --keep-last 100 --keep-daily 30")
def retention(
    owner: Owner,
    workflow: Annotated[
        str | None, typer.Option("--workflow", "-w", help="The workflow. Left out: all of the owner's.", metavar="NAME")
    ] = None,
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
    expire: Annotated[bool, typer.Option("--expire", help="Remove now what no rule keeps.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --expire: only list it.")] = False,
    branch: Branch = MAIN,
    url: Url = None,
    objects: Objects = None,
    tenant: TenantName = None,
    json: Json = False,
) -> None:
    """Show or set which versions are kept; with --expire, remove the others.

    The rules given replace those before; one is enough to keep a version. The newest, tags and pins always stay."""
    if expire and workflow is None:
        raise Invalid("it is not said of which workflow versions are to expire", hint="add --workflow")
    if dry_run and not expire:
        raise Invalid("--dry-run is for --expire", hint="add --expire")
    from analemma.cli.rendering import fields_of, history_line

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
    gone: tuple[Version, ...] = ()
    with open_store(url, objects, tenant) as app:
        if given or keep_everything:
            policy = app.kernel.set_retention(owner_id=owner, workflow_id=workflow, **rules)
        else:
            policy = app.kernel.get_retention(owner_id=owner, workflow_id=workflow)
        if expire and workflow is not None:
            plan = app.kernel.expire(workflow_id=workflow, owner_id=owner, branch=branch, dry_run=dry_run)
            gone = plan.expired
    kept = {name: value for name, value in asdict(policy).items() if value is not None}
    if json:
        print_json({"policy": asdict(policy), "expired": [fields_of(version) for version in gone]})
        return
    print_fields(kept or {"keeps": "everything"})
    for version in gone:
        print(f"{'would expire' if dry_run else 'expired'} {history_line(version)}")
