"""The commands on workflow documents: they work on files and need no store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from analemma.cli.json_input import STANDARD_INPUT
from analemma.cli.options import Json, command_group
from analemma.cli.output import print_json, print_line
from analemma.errors import Invalid

if TYPE_CHECKING:
    from analemma.flows.reading import Checked
    from analemma.flows.segments import Plan

commands = command_group("Checking and showing workflow documents.")

File = Annotated[
    str,
    typer.Argument(help="A workflow document, YAML or JSON, - , or a flow as MODULE:NAME.", metavar="FILE|FLOW"),
]


@commands.command(epilog="Example: analemma flow validate triage.yaml")
def validate(file: File, json: Json = False) -> None:
    """Check a workflow document, and list everything that is wrong with it."""
    from analemma.flows.partitioning import partition
    from analemma.flows.reading import usable

    checked = _check(file)
    if json:
        workflow = usable(checked)
        print_json(
            {
                "workflow": workflow.workflow,
                "document": workflow.hash,
                "nodes": len(workflow.nodes),
                "total_segments": partition(workflow).total_segments,
                "warnings": _shown(checked),
            }
        )
        return
    for problem in checked.problems:
        print_line(str(problem))
    _print_warnings(checked)
    if checked.workflow is None:
        count = len(checked.problems)
        raise Invalid("there is 1 problem" if count == 1 else f"there are {count} problems")
    print_line(f"{checked.workflow.workflow} is valid, document {checked.workflow.hash}")


@commands.command(epilog="Example: analemma flow show triage.yaml")
def show(file: File, json: Json = False) -> None:
    """Show the segments that a workflow is cut into, and where each leads.

    With --json, also what a manifest would have of each, and the document in canonical form."""
    from analemma.flows.drawing import draw, inputs_of
    from analemma.flows.partitioning import partition
    from analemma.flows.reading import usable

    checked = _check(file)
    workflow = usable(checked)
    plan = partition(workflow)
    if json:
        print_json(
            {
                "workflow": workflow.to_document(),
                "document": workflow.hash,
                "inputs": inputs_of(workflow),
                "total_segments": plan.total_segments,
                "max_iterations": plan.iteration_limit,
                "segments": _segments(plan),
                "warnings": _shown(checked),
            }
        )
        return
    _print_warnings(checked)
    print(draw(workflow, plan))
    if inputs_of(workflow):
        print_line(f"input: {', '.join(inputs_of(workflow))}")


@commands.command(epilog="Example: analemma flow schema")
def schema(json: Json = False) -> None:
    """Print the JSON Schema of workflow documents, for editors."""
    from analemma.flows.schema import workflow_schema, workflow_schema_text

    if json:
        print_json(workflow_schema())
    else:
        print(workflow_schema_text(), end="")


def _check(file: str) -> Checked:
    from analemma.flows.loading import MAXIMUM_BYTES, check_bytes, check_file

    module, _, name = file.partition(":")
    if name and module.replace(".", "").isidentifier() and not Path(file).exists():
        from analemma.flows.handlers import Handlers
        from analemma.flows.programs import find_flow
        from analemma.flows.reading import check_data

        return check_data(find_flow(Handlers(), file).document(), file)
    if file != STANDARD_INPUT:
        return check_file(file)
    from analemma.cli.json_input import standard_input

    return check_bytes(standard_input().read(MAXIMUM_BYTES + 1), "standard input")


def _segments(plan: Plan) -> list[dict[str, Any]]:
    from analemma.flows.document import hash_of

    return [
        {"segment": number, **each.config, "hash": hash_of(dict(each.config))}
        for number, each in enumerate(plan.segments)
    ]


def _shown(checked: Checked) -> list[dict[str, Any]]:
    return [asdict(each) for each in checked.warnings]


def _print_warnings(checked: Checked) -> None:
    for warning in checked.warnings:
        about = "" if warning.node is None else f"node {warning.node}: "
        print_line(
            f"{warning.place}: warning: {about}{warning.reason}" + (f" ({warning.hint})" if warning.hint else "")
        )
