"""The commands on what a workflow runs: segments create, show, verify, inject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.exit_codes import CODES, OK
from analemma.cli.options import (
    LARGEST_NUMBER,
    MAIN,
    Branch,
    NamedOrNewest,
    NamedVersion,
    Owner,
    OwnerOrAny,
    StoreOptions,
    Workflow,
    WorkflowOfNumber,
    command_group,
    on_store,
)
from analemma.cli.output import print_fields, print_json, print_line
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.state.segments import ManifestPointer

commands = command_group("What a workflow runs: its configuration and its segments, each under its hash.")

SegmentConfig = Annotated[
    str,
    typer.Option("--config", help="The segment's configuration, a JSON object; - reads it from stdin.", metavar="FILE"),
]


@on_store(
    commands,
    "analemma segments create -u ./store -o ann -w trip --config workflow.json --segments segments.json",
    name="create",
)
def create_manifest(
    store: StoreOptions,
    owner: Owner,
    workflow: Workflow,
    config: Annotated[
        str, typer.Option("--config", help="The configuration, a JSON object; - reads it from stdin.", metavar="FILE")
    ],
    segments: Annotated[
        str,
        typer.Option("--segments", help="The segments, a JSON list of objects; - reads it from stdin.", metavar="FILE"),
    ],
    parent: Annotated[
        str | None, typer.Option("--parent", help="Only if this is still the newest version.", metavar="REVISION")
    ] = None,
    branch: Branch = MAIN,
) -> None:
    """Make a version that carries a configuration and segments; later versions inherit them."""
    from analemma.cli.json_input import STANDARD_INPUT, read_json, read_object, source_of
    from analemma.cli.selecting import expected_id

    if config == segments == STANDARD_INPUT:
        raise Invalid("both the configuration and the segments are to come from stdin", hint="name a file for one")
    configuration = read_object(config, hint="give the configuration as one JSON object")
    listed = read_json(segments, hint="give the segments as one JSON list of objects")
    if not isinstance(listed, list):
        raise Invalid(f"{source_of(segments)}: not a JSON list", hint="give the segments as one list of objects")
    with store.open(new_tenant=True) as app:
        if parent is not None:
            parent = expected_id(app, parent, owner=owner, workflow=workflow, branch=branch)
        pointer = app.kernel.create_manifest(workflow, configuration, listed, parent, owner_id=owner, branch=branch)
    _print_pointer(store, pointer)


@on_store(commands, "analemma segments show -u ./store -o ann -w trip 3", name="show")
def show_segments(
    store: StoreOptions,
    version: NamedOrNewest = None,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> None:
    """Show the configuration and the segments that a version carries."""
    from analemma.cli.rendering import to_json
    from analemma.cli.selecting import find_or_newest

    with store.open(any_type=True) as app:
        known = find_or_newest(app, version, owner=owner, workflow=workflow, branch=branch).manifest_id
        pointer = app.kernel.get_manifest(known)
        config = None if pointer.config_hash is None else app.kernel.load_workflow_config(known)
        listed = [] if pointer.hash_version == 0 else app.kernel.load_segment_manifest(known)
    if store.json:
        _print_pointer(store, pointer, config=to_json(config), segments=to_json(listed))
    else:
        _print_pointer(store, pointer)


@on_store(
    commands, "analemma segments verify -u ./store -o ann -w trip 3 --index 0 --config segment.json", name="verify"
)
def verify_segment(
    store: StoreOptions,
    version: NamedVersion,
    index: Annotated[
        int, typer.Option("--index", help="The segment's place, counted from 0.", metavar="N", max=LARGEST_NUMBER)
    ],
    config: SegmentConfig,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> int:
    """Check that a configuration is exactly the one that a version carries for a segment. If not, it exits with 4."""
    from analemma.cli.json_input import read_object
    from analemma.cli.selecting import find_version

    given = read_object(config, hint="give the segment's configuration as one JSON object")
    with store.open() as app:
        known = find_version(app, version, owner=owner, workflow=workflow, branch=branch).manifest_id
        fits = app.kernel.verify_segment_config(given, known, index)
    if store.json:
        print_json({"verified": fits, "manifest_id": known, "segment_index": index})
    else:
        print_fields({"verified": "yes" if fits else "no"})
    return OK if fits else CODES["conflict"]


@on_store(commands, "analemma segments inject -u ./store -o ann -w trip 3 --at 1 --config segment.json", name="inject")
def inject_segment(
    store: StoreOptions,
    version: NamedVersion,
    at: Annotated[
        int, typer.Option("--at", help="Before the segment at this place, or at the end.", metavar="N", min=0)
    ],
    config: SegmentConfig,
    expected_hash_version: Annotated[
        int | None,
        typer.Option(
            "--expected-hash-version",
            help="Only if the segments are those of this hash version.",
            metavar="N",
            max=LARGEST_NUMBER,
        ),
    ] = None,
    owner: OwnerOrAny = None,
    workflow: WorkflowOfNumber = None,
    branch: Branch = MAIN,
) -> None:
    """Insert a segment, as a new version; later segments move up. Someone else's injection since is a conflict."""
    from analemma.cli.json_input import read_object
    from analemma.cli.selecting import find_version

    given = read_object(config, hint="give the segment's configuration as one JSON object")
    with store.open() as app:
        known = find_version(app, version, owner=owner, workflow=workflow, branch=branch).manifest_id
        pointer = app.kernel.inject_dynamic_segment(known, given, at, expected_hash_version, owner_id=owner)
    _print_pointer(store, pointer)


def _print_pointer(store: StoreOptions, pointer: ManifestPointer, **more: Any) -> None:
    if store.json:
        print_json({"manifest": pointer.to_json(), **more})
        return
    shown = {"version": pointer.version, "manifest": pointer.manifest_id, "config": pointer.config_hash or "none"}
    print_fields({**shown, "hash version": pointer.hash_version, **pointer.metadata})
    for number, digest in pointer.segment_hashes.items():
        print_line(f"segment {number}  {digest}")
