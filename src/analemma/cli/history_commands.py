"""The commands on history: log, diff, blame, rollback, watch."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from analemma.cli.options import (
    MAIN,
    VERSION_HELP,
    Branch,
    Execution,
    Owner,
    OwnerOrAny,
    Preview,
    SegmentNumber,
    StoreOptions,
    Workflow,
    WorkflowOfNumber,
    Yes,
    on_store,
)
from analemma.cli.output import confirm, json_text, print_fields, print_json, print_line
from analemma.errors import Invalid

commands = typer.Typer()

LONGEST_WAIT_S = 10 * 365 * 86_400


@on_store(commands, "analemma log -u ./store -o ann -w trip --limit 20 --decision approved")
def log(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
    execution: Execution = None,
    segment: SegmentNumber = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="Only versions made at this time (ISO 8601; UTC if it names no zone) or later.",
            metavar="TIME",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Only versions made before this time.", metavar="TIME")
    ] = None,
    decision: Annotated[
        str | None,
        typer.Option(
            "--decision",
            help="Only versions whose newest decision is this: approved, rejected, escalated or pending.",
            metavar="DECISION",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", help="So many versions, at most.", metavar="N", min=1, max=100_000)
    ] = 100,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            help="Go on after this version, towards older ones.",
            metavar="REVISION",
        ),
    ] = None,
) -> None:
    """List the versions of a branch, newest first, and on into those that it was forked from."""
    from analemma.cli.moments import read_moment
    from analemma.cli.rendering import fields_of, history_line, history_place, why_fields, why_line
    from analemma.cli.selecting import expected_id
    from analemma.store.provenance import read_whys

    wanted: Any = decision
    number = int(after) if after is not None and len(after) < 20 and after.isascii() and after.isdigit() else None
    begin = None if since is None else read_moment(since, "--since")
    end = None if until is None else read_moment(until, "--until")
    with store.open(any_type=True) as app:
        if after is not None and number is None:
            after = expected_id(app, after, owner=owner, workflow=workflow, branch=branch)
        versions = app.kernel.history(
            workflow_id=workflow,
            owner_id=owner,
            branch=branch,
            execution_id=execution,
            segment_id=segment,
            since=begin,
            until=end,
            decision=wanted,
            limit=limit + 1,
            after=after if number is None else number,
            forks=True,
        )
        whys = read_whys(app.kernel, versions[:limit])
    further: int | str | None = None
    if len(versions) > limit:
        versions.pop()
        # Numbers start again in a workflow that was forked, so they are no use behind that.
        numbered = (after is None or number is not None) and {each.workflow_id for each in versions} == {workflow}
        further = versions[-1].version if numbered else versions[-1].manifest_id
    if store.json:
        shown = [fields_of(version) | why_fields(whys.get(version.id)) for version in versions]
        print_json({"versions": shown, "after": further})
        return
    place = (workflow, branch)
    for version in versions:
        if (version.workflow_id, version.branch) != place:
            place = (version.workflow_id, version.branch)
            print_line(f"forked from {history_place(version)}")
        print_line(history_line(version))
        if version.id in whys:
            print_line(f"        why: {why_line(whys[version.id])}")
    if further is not None:
        print(f"there are more: add --after {further}", file=sys.stderr)


@on_store(commands, "analemma diff -u ./store -o ann -w trip 3 5")
def diff(
    store: StoreOptions,
    old: Annotated[str, typer.Argument(help=VERSION_HELP, metavar="A")],
    new: Annotated[str, typer.Argument(help=VERSION_HELP, metavar="B")],
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> None:
    """Show how version A becomes version B, as JSON Patch operations."""
    from analemma.cli.rendering import changes_fields, print_changes
    from analemma.cli.selecting import find_version

    with store.open(any_type=True) as app:
        first, second = (
            find_version(app, named, owner=owner, workflow=workflow, branch=branch).manifest_id for named in (old, new)
        )
        changes = app.kernel.diff(first, second)
    if store.json:
        print_json({"from": first, "to": second, "changes": changes_fields(changes)})
    else:
        print_changes(changes)


@on_store(commands, "analemma blame -u ./store -o ann -w trip /plan/0")
def blame(
    store: StoreOptions,
    path: Annotated[str, typer.Argument(help="A field or JSON pointer.", metavar="PATH")],
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
) -> None:
    """Show the version that last changed what stands at a path; "or before" if versions before it have expired."""
    from analemma.cli.rendering import fields_of, why_fields, why_line
    from analemma.store.provenance import read_whys

    with store.open(any_type=True) as app:
        found = app.kernel.blame(workflow_id=workflow, owner_id=owner, path=path, branch=branch)
        why = read_whys(app.kernel, [found]).get(found.id)
    fields = fields_of(found)
    if store.json:
        print_json({"path": path, "version": fields | why_fields(why)})
        return
    if fields.pop("or_before"):
        fields["version"] = f"{found.version} or before"
    if why is not None:
        fields["why"] = why_line(why)
    print_fields({name: value for name, value in fields.items() if value is not None})


@on_store(commands, "analemma rollback -u ./store -o ann -w trip 3 --preview")
def rollback(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    version: Annotated[
        str | None, typer.Argument(help="The version to go back to, by a revision.", metavar="[REVISION]")
    ] = None,
    to_last_safe: Annotated[
        bool, typer.Option("--to-last-safe", help="Go back to the newest approved version.")
    ] = False,
    branch: Branch = MAIN,
    preview: Preview = False,
    previous: Annotated[
        str | None,
        typer.Option("--previous", help="Only if this is still the newest version.", metavar="REVISION"),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Verify all of that version first, not only what would change.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Make an earlier version's state the newest again, as a new version. Shows what changes and asks first."""
    if (version is None) != to_last_safe:
        raise Invalid("it is not clear what to go back to", hint="give a version, or --to-last-safe")
    if store.json and not yes and not preview:
        raise Invalid("rollback asks first, which it cannot with --json", hint="add --yes or --preview")
    from analemma.catalog.port import BranchKey
    from analemma.cli.rendering import changes_fields, commit_fields, print_changes
    from analemma.cli.selecting import expected_id
    from analemma.state.history import plan_rollback, roll_back
    from analemma.store.revisions import find_own_version

    key = BranchKey(owner, workflow, branch)
    with store.open(any_type=True) as app:
        kernel = app.kernel
        if previous is not None:
            previous = expected_id(app, previous, owner=owner, workflow=workflow, branch=branch)
        if version is None:
            target = kernel.last_safe_manifest(workflow_id=workflow, owner_id=owner, branch=branch)
        else:
            target = find_own_version(kernel, version, key)
        planned = plan_rollback(kernel, key, target, previous_manifest_id=previous, deep=deep)
        changes = changes_fields(planned.changes)
        if not store.json:
            print_changes(planned.changes)
        if preview:
            if store.json:
                shown = {"version": planned.version, "manifest_id": planned.manifest_id}
                print_json({**shown, "previous_manifest_id": planned.previous_manifest_id, "changes": changes})
            return
        if not yes and not confirm(f"Roll back to version {planned.version} ({len(changes)} changes)?"):
            print("nothing was changed")
            return
        # What was shown is what happens: not something else because someone saved meanwhile.
        commit = roll_back(kernel, key, target, previous_manifest_id=planned.previous_manifest_id)
    if store.json:
        print_json({"commit": commit_fields(commit), "changes": changes})
    else:
        print_fields({"version": commit.version, "manifest": commit.manifest_id})


@on_store(commands, "analemma watch -u ./store -o ann -w trip --since 3 --timeout 60")
def watch(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    branch: Branch = MAIN,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Begin after this version, not after the newest.", metavar="REVISION"),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", help="End after so long without a version.", metavar="SECONDS", min=0, max=LONGEST_WAIT_S
        ),
    ] = None,
) -> None:
    """Print every new version as it is committed; with --json, one JSON document a line."""
    from analemma.cli.rendering import fields_of, history_line
    from analemma.cli.selecting import version_number

    with store.open() as app:
        place = {"owner": owner, "workflow": workflow, "branch": branch}
        after = None if since is None else version_number(app, since, **place)
        for version in app.kernel.watch(
            workflow_id=workflow, owner_id=owner, branch=branch, since=after, timeout_s=timeout
        ):
            print_line(json_text({"version": fields_of(version)}) if store.json else history_line(version), flush=True)
