"""The commands that write, read and check state: save, load, show, cat, verify."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.options import (
    LARGEST_NUMBER,
    MAIN,
    VERSION_HELP,
    Branch,
    Execution,
    Message,
    NamedVersion,
    Owner,
    OwnerOrAny,
    SegmentNumber,
    StoreOptions,
    Workflow,
    WorkflowOfNumber,
    on_store,
)
from analemma.cli.output import bytes_for_people, print_fields, print_json, print_line
from analemma.errors import Invalid, NotFound

commands = typer.Typer()

NO_VERSION = "none"


@on_store(commands, """analemma save -u ./store -o ann -w trip --set 'goal="Korea"' --set 'plan=[1, 2]'""")
def save(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", help="A field or JSON pointer and its new value; repeatable.", metavar="NAME=JSON"),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", "-f", help="A JSON object of changed fields and pointers; - reads it from stdin.", metavar="FILE"
        ),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", "-d", help="A field or JSON pointer to delete; repeatable.", metavar="NAME"),
    ] = None,
    branch: Branch = MAIN,
    execution: Execution = None,
    segment: SegmentNumber = None,
    previous: Annotated[
        str | None,
        typer.Option(
            "--previous",
            help="Save only if this is still the newest version; `none`: only if there is none yet.",
            metavar="REVISION",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option("--idempotency-key", help="Saves once, however often it is asked.", metavar="KEY")
    ] = None,
    message: Message = None,
    metadata: Annotated[
        str | None, typer.Option("--metadata", help="A JSON object to keep with the version.", metavar="JSON")
    ] = None,
    why: Annotated[
        list[str] | None,
        typer.Option(
            "--why",
            help="Where the version comes from, such as model, prompt, tool, code_revision, actor, reason; repeatable.",
            metavar="NAME=TEXT",
        ),
    ] = None,
) -> None:
    """Save changes as the next version."""
    from analemma.cli.deltas import read_changes, read_why
    from analemma.cli.json_input import parse_object
    from analemma.cli.rendering import commit_fields
    from analemma.cli.selecting import expected_id
    from analemma.state.arguments import CURRENT_HEAD

    delta = read_changes(assignments or [], file)
    if not delta and not delete:
        raise Invalid("nothing to change", hint="give --set NAME=JSON, --file FILE or --delete NAME")
    kept = None if metadata is None else parse_object(metadata, "--metadata", hint="give one JSON object")
    told = read_why(why or [])
    with store.open(new_tenant=True) as app:
        if previous is not None and previous != NO_VERSION:
            previous = expected_id(app, previous, owner=owner, workflow=workflow, branch=branch)
        expected = CURRENT_HEAD if previous is None else None if previous == NO_VERSION else previous
        commit = app.kernel.save_state_delta(
            delta,
            workflow_id=workflow,
            owner_id=owner,
            execution_id=execution,
            segment_id=segment,
            previous_manifest_id=expected,
            deleted=delete or [],
            branch=branch,
            idempotency_key=idempotency_key,
            message=message,
            metadata=kept,
            why=told,
        )
    if store.json:
        print_json({"commit": commit_fields(commit)})
    else:
        print_fields(
            {
                "version": commit.version,
                "manifest": commit.manifest_id,
                "parent": commit.parent_id or "none",
                "new blocks": f"{commit.blocks_stored} of {bytes_for_people(commit.bytes_written)}",
            }
        )


@on_store(commands, "analemma load -u ./store -o ann -w trip --version 3 --field /plan/0")
def load(
    store: StoreOptions,
    manifest: Annotated[
        str | None, typer.Argument(help=f"{VERSION_HELP} Left out: the newest version.", metavar="[REVISION]")
    ] = None,
    version: Annotated[
        int | None,
        typer.Option("--version", help="This version, not the newest.", metavar="N", min=1, max=LARGEST_NUMBER),
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option("--field", help="Only this field or JSON pointer; repeatable.", metavar="NAME")
    ] = None,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
    execution: Execution = None,
) -> None:
    """Print the state of a version, as JSON."""
    if sum(given is not None for given in (manifest, version, execution)) > 1:
        raise Invalid("more than one version is named", hint="give REVISION, --version or --execution")
    from analemma.cli.rendering import fields_of, to_json
    from analemma.cli.selecting import find_version, newest_version

    with store.open(any_type=True) as app:
        named = manifest or (None if version is None else str(version))
        if named is not None:
            found = find_version(app, named, owner=owner, workflow=workflow, branch=branch)
        elif owner is None or workflow is None:
            raise Invalid("it is not said what to load", hint="give --owner and --workflow, or a manifest id")
        else:
            found = newest_version(app, owner=owner, workflow=workflow, branch=branch, execution=execution)
        known = found.manifest_id
        state = app.kernel.load_fields(known, field) if field else app.kernel.load_state(known)
    absent = [name for name in field or [] if name not in state]
    if absent:
        raise NotFound(
            f"version {found.version} of {found.workflow_id} has no {', '.join(absent)}",
            hint="leave out --field to see what it has",
            fields=absent,
        )
    print_json({"version": fields_of(found), "state": to_json(state)} if store.json else to_json(state))


@on_store(commands, "analemma show -u ./store -o ann -w trip 3")
def show(
    store: StoreOptions,
    version: NamedVersion,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> None:
    """Show what a version is: when, on what, why, how large."""
    from analemma.canon.nodes import parse_block_id
    from analemma.cli.rendering import fields_of, on_one_line, to_json, why_fields, why_line
    from analemma.cli.selecting import find_version
    from analemma.store.provenance import why_of

    with store.open(any_type=True) as app:
        found = find_version(app, version, owner=owner, workflow=workflow, branch=branch)
        manifest = app.default.manifest(parse_block_id(found.manifest_id))
        metadata = app.default.trees.unpack(manifest.metadata)
    fields = fields_of(found)
    size = {"fields": manifest.root.count, "state_bytes": manifest.root.size}
    blocks = {"config": manifest.config, "segments": manifest.segments}
    linked = {name: None if block is None else block.hex() for name, block in blocks.items()}
    if store.json:
        shown = {**fields, **size, **linked, "metadata": to_json(metadata), **why_fields(why_of(metadata))}
        print_json({"version": shown})
        return
    known = {name: value for name, value in {**fields, **linked}.items() if value is not None}
    if (why := why_of(metadata)) is not None:
        known["why"] = why_line(why)
        metadata = {name: value for name, value in metadata.items() if value is not why} or None
    if metadata is not None:
        known["metadata"] = on_one_line(metadata)
    print_fields({**known, "fields": size["fields"], "state size": bytes_for_people(size["state_bytes"])})


@on_store(commands, f"analemma cat -u ./store {'5d' * 32}")
def cat(
    store: StoreOptions,
    block: Annotated[str, typer.Argument(help="A block id: 64 hexadecimal digits.", metavar="BLOCK")],
    raw: Annotated[bool, typer.Option("--raw", help="Its bytes, in hexadecimal.")] = False,
) -> None:
    """Print one block: a manifest, or a node of a state's tree. A manifest id or a root hash is a block id too."""
    from analemma.canon.nodes import parse_block_id
    from analemma.cli.rendering import block_to_json

    wanted = parse_block_id(block)
    with store.open() as app:
        if not app.catalog.read_blocks(app.default.id, [wanted]):
            raise NotFound(f"there is no block {block}", hint="`analemma show` names roots", block=block)
        data = app.default.blocks.read_uncached([wanted])[wanted]
    if store.json:
        shown: dict[str, Any] = {"hex": data.hex()} if raw else block_to_json(data)
        print_json({"block": {"id": block, "size": len(data), **shown}})
    elif raw:
        print(data.hex())
    else:
        print_json(block_to_json(data))


@on_store(commands, "analemma verify -u ./store -o ann -w trip")
def verify(
    store: StoreOptions,
    manifest: Annotated[
        str | None, typer.Argument(help=f"{VERSION_HELP} Left out: the whole branch.", metavar="[REVISION]")
    ] = None,
    receipt: Annotated[
        str | None,
        typer.Option("--receipt", help="What `save --json` gave: the branch must still show it.", metavar="HEX"),
    ] = None,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> int:
    """Check a branch (its journal, its head, its versions down to the last block), or one version."""
    if manifest is not None and receipt is not None:
        raise Invalid("a receipt is for a whole branch", hint="leave out the manifest")
    from analemma.canon.nodes import parse_block_id
    from analemma.cli.rendering import parse_receipt
    from analemma.cli.selecting import find_version
    from analemma.state.verify import verify_version

    expect = None if receipt is None else parse_receipt(receipt)
    with store.open() as app:
        if manifest is not None:
            found = find_version(app, manifest, owner=owner, workflow=workflow, branch=branch)
            block = parse_block_id(found.manifest_id)
            report = verify_version(app.catalog, app.default.id, app.default.blocks, block)
        elif owner is None or workflow is None:
            raise Invalid("it is not said what to verify", hint="give --owner and --workflow, or a manifest id")
        else:
            report = app.kernel.verify(workflow_id=workflow, owner_id=owner, branch=branch, expect=expect)
    fields = asdict(report)
    if store.json:
        print_json({"report": {"ok": report.ok, **fields}})
    else:
        counts = {name: value for name, value in fields.items() if isinstance(value, int)}
        print_fields({"verified": "yes" if report.ok else "no", **counts})
        for problem in report.problems:
            print_line(f"problem: {problem}")
    return OK if report.ok else CODES["corrupt"]
